"""The published equations of BERT-flow's Glow, one number at a time, as an oracle for the fast code."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Parameters = Mapping[str, npt.NDArray[np.float64]]


def flow_of_row(parameters: Parameters, row: Sequence[float], levels: int, depth: int) -> tuple[list[float], float]:
    """Return z of one embedding, and its log-likelihood in nats under z ~ N(0, I)."""
    x, z, log_likelihood = [float(value) for value in row], [], 0.0
    for level in range(levels):
        for step in range(depth):
            log_scales = parameters[f"{level}.{step}.actnorm.log_scale"]
            for channel in range(len(x)):
                centre = parameters[f"{level}.{step}.actnorm.centre"][channel]
                x[channel] = (x[channel] + centre) * math.exp(3 * log_scales[channel])
                log_likelihood += 3 * log_scales[channel]
            x = [x[len(x) - 1 - channel] for channel in range(len(x))]
            half = len(x) // 2
            shift = coupling_shift(parameters, f"{level}.{step}", x[:half])
            x = x[:half] + [value + shift[channel] for channel, value in enumerate(x[half:])]
        if level < levels - 1:
            half = len(x) // 2
            prior = scaled_dense(parameters, f"{level}.prior", x[:half])
            for channel, value in enumerate(x[half:]):
                mean, scale = prior[channel], math.exp(prior[len(prior) // 2 + channel])
                z.append((value - mean) / scale)
                log_likelihood += log_normal(value, mean, scale)
            x = x[:half]
    return z + x, log_likelihood + sum(log_normal(value, 0.0, 1.0) for value in x)


def coupling_shift(parameters: Parameters, name: str, first: list[float]) -> list[float]:
    """NN(x1): two hidden layers of dense, actnorm and relu, then a scaled dense layer."""
    for layer in ("hidden1", "hidden2"):
        first = [max(value, 0.0) for value in scaled_dense(parameters, f"{name}.{layer}", first)]
    return scaled_dense(parameters, f"{name}.shift", first)


def scaled_dense(parameters: Parameters, name: str, values: list[float]) -> list[float]:
    """(x W + b) exp(3 logs), output by output."""
    weight, outputs = parameters[f"{name}.weight"], []
    for output in range(weight.shape[1]):
        total = parameters[f"{name}.centre"][output]
        for number, value in enumerate(values):
            total += value * weight[number, output]
        outputs.append(float(total * math.exp(3 * parameters[f"{name}.log_scale"][output])))
    return outputs


def log_normal(value: float, mean: float, scale: float) -> float:
    """Log-density of a normal distribution."""
    return -0.5 * ((value - mean) / scale) ** 2 - math.log(scale) - 0.5 * math.log(2 * math.pi)
