"""Latte-Mix by its definitions, in plain loops: an oracle for `indexer.papers.latte_mix`."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating]


def softmax(logits: Sequence[float]) -> list[float]:
    largest = max(logits)
    powers = [math.exp(logit - largest) for logit in logits]
    return [power / sum(powers) for power in powers]


def layers(parameters: Mapping[str, Array], part: str, token: Array) -> Array:
    """Map one vector through the encoder or decoder, in float64, with a ReLU between layers."""
    state, layer = np.asarray(token, np.float64), 0
    while f"{part}.{layer}.weight" in parameters:
        if layer:
            state = np.where(state > 0, state, 0.0)
        weight, bias = parameters[f"{part}.{layer}.weight"], parameters[f"{part}.{layer}.bias"]
        state = np.array(
            [sum(w * x for w, x in zip(row, state, strict=True)) + b for row, b in zip(weight, bias, strict=True)]
        )
        layer += 1
    return state


def categorical_posterior(parameters: Mapping[str, Array], token: Array, scale: float, dims: int) -> list[float]:
    """Return the concatenated class probabilities of every dimension."""
    logits = layers(parameters, "encoder", np.asarray(token, np.float64) / scale)
    return [p for dimension in np.split(logits, dims) for p in softmax(dimension.tolist())]


def kl_from_uniform(logits: Sequence[float]) -> float:
    return sum(p * math.log(p * len(logits)) for p in softmax(logits) if p > 0)


def kl_from_standard_normal(mean: float, log_variance: float) -> float:
    """Integrate by the trapezoidal rule over 12 standard deviations."""
    deviation = math.exp(log_variance / 2)
    x = np.linspace(mean - 12 * deviation, mean + 12 * deviation, 20_001)
    q = np.exp(-((x - mean) ** 2) / (2 * deviation**2)) / (deviation * math.sqrt(2 * math.pi))
    log_q = -((x - mean) ** 2) / (2 * deviation**2) - math.log(deviation * math.sqrt(2 * math.pi))
    log_prior = -(x**2) / 2 - math.log(math.sqrt(2 * math.pi))
    return float(np.trapezoid(q * (log_q - log_prior), x))


def relaxed_sample(logits: Sequence[float], uniform: Sequence[float], temperature: float) -> list[float]:
    """Gumbel-softmax of one dimension, given the uniform numbers behind its noise."""
    noise = [-math.log(-math.log(u)) for u in uniform]
    return softmax([(logit + g) / temperature for logit, g in zip(logits, noise, strict=True)])


def jensen_shannon(p: Sequence[float], q: Sequence[float]) -> float:
    """Return the divergence of two distributions, in nats."""
    total = 0.0
    for a, b in zip(p, q, strict=True):
        total += a / 2 * math.log(2 * a / (a + b)) if a > 0 else 0.0
        total += b / 2 * math.log(2 * b / (a + b)) if b > 0 else 0.0
    return total


def js_similarity(p: Array, q: Array, dims: int) -> float:
    parts = zip(np.split(np.asarray(p, np.float64), dims), np.split(np.asarray(q, np.float64), dims), strict=True)
    return 1 - sum(jensen_shannon(a.tolist(), b.tolist()) for a, b in parts) / dims / math.log(2)


def bhattacharyya(p: Array, q: Array, dims: int) -> float:
    return sum(math.sqrt(float(a) * float(b)) for a, b in zip(p, q, strict=True)) / dims


def mixture_l2(left: tuple[Array, Array], right: tuple[Array, Array]) -> float:
    """Sum over pairs of tokens: the integral of a product of two normal densities is a density of their difference."""

    def product(one: tuple[Array, Array], other: tuple[Array, Array], dimension: int) -> float:
        total = 0.0
        for a, s in zip(one[0][:, dimension], one[1][:, dimension], strict=True):
            for b, t in zip(other[0][:, dimension], other[1][:, dimension], strict=True):
                variance = float(s) ** 2 + float(t) ** 2
                total += math.exp(-((float(a) - float(b)) ** 2) / (2 * variance)) / math.sqrt(2 * math.pi * variance)
        return total / len(one[0]) / len(other[0])

    dims = left[0].shape[1]
    squared = [product(left, left, k) - 2 * product(left, right, k) + product(right, right, k) for k in range(dims)]
    return math.sqrt(sum(squared) / dims)


def mixture_l2_by_quadrature(left: tuple[Array, Array], right: tuple[Array, Array]) -> float:
    """Integrate by the trapezoidal rule over the range of both mixtures."""

    def density(text: tuple[Array, Array], dimension: int, x: Array) -> Array:
        total = np.zeros_like(x)
        for mean, deviation in zip(text[0][:, dimension], text[1][:, dimension], strict=True):
            total += np.exp(-((x - mean) ** 2) / (2 * deviation**2)) / (deviation * math.sqrt(2 * math.pi))
        return np.asarray(total / len(text[0]))

    means, deviations = np.concatenate([left[0], right[0]]), np.concatenate([left[1], right[1]])
    x = np.linspace(means.min() - 10 * deviations.max(), means.max() + 10 * deviations.max(), 40_001)
    dims = left[0].shape[1]
    squared = [np.trapezoid((density(left, k, x) - density(right, k, x)) ** 2, x) for k in range(dims)]
    return math.sqrt(sum(map(float, squared)) / dims)
