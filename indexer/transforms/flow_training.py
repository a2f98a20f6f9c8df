"""Fitting the parameters of a flow: Adam on the log-likelihood of a sample, on the CPU, in float64.

The start is Glow's: weights of the hidden layers are normal with a standard deviation of 0.05, what ends a coupling or
a prior is zero, and each actnorm gives a first batch zero mean and unit variance. Everything random comes from one
generator of the configured seed, and every operation runs on one thread, so that equal input gives equal bytes.
"""

import math
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from indexer.config import FlowConfig
from indexer.parallel import single_torch_thread
from indexer.transforms.flow import FACTOR, Array, Glow, OnStep, shapes
from indexer.transforms.whitening import FLOOR

Sample = npt.NDArray[np.float32]
_WEIGHTS = 0.05  # standard deviation
_TINY = 1e-6  # added to a standard deviation before it is divided by
_FIRST_ROWS = 32  # at least so many, the published batch, say where an actnorm starts


def train(
    rows: Sample, levels: int, config: FlowConfig, on_step: OnStep | None = None
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Parameters of a `Glow` fitted on rows (n, d), n > 0: as they start, and after training.

    Each epoch goes through the rows in an order of its own; its last batch may be smaller. The loss is the negative
    log-likelihood a dimension.
    """
    with single_torch_thread(), torch.inference_mode(False), torch.enable_grad():
        generator = torch.Generator().manual_seed(config.seed)
        glow = _start(rows, levels, config, generator)
        before = _arrays(glow.parameters)
        optimiser = torch.optim.Adam(glow.parameters.values(), lr=config.learning_rate, fused=True)
        total = config.epochs * math.ceil(len(rows) / config.batch)
        for done, batch in enumerate(_batches(rows, config, generator), start=1):
            optimiser.zero_grad()
            loss = -glow.log_likelihood(batch).mean() / rows.shape[1]
            loss.backward()
            optimiser.step()
            if on_step is not None:
                on_step(done, total)
        return before, _arrays(glow.parameters)


def _start(rows: Sample, levels: int, config: FlowConfig, generator: torch.Generator) -> Glow:
    parameters: dict[str, Tensor] = {}
    for name, shape in shapes(rows.shape[1], levels, config.depth, config.width).items():
        parameters[name] = torch.zeros(shape, dtype=torch.float64)
        if name.endswith(("hidden1.weight", "hidden2.weight")):
            parameters[name].normal_(0.0, _WEIGHTS, generator=generator)

    def standardise(name: str, x: Tensor) -> None:
        centre, log_scale = _standardising(x)
        parameters[f"{name}.centre"].copy_(centre)
        parameters[f"{name}.log_scale"].copy_(log_scale)

    order = torch.randperm(len(rows), generator=generator)
    first = _picked(rows, order[: max(config.batch, _FIRST_ROWS)])
    Glow(parameters, levels, config.depth, torch, standardise).forward(first)
    for parameter in parameters.values():
        parameter.requires_grad_()
    return Glow(parameters, levels, config.depth, torch)


def _standardising(x: Tensor) -> tuple[Tensor, Tensor]:
    """Centre and log-scale (c,) of the actnorm that gives x (n, c) zero mean and unit variance.

    A channel that does not vary is scaled as the one that varies most is: rounding noise must not be amplified, nor
    what another text has there.
    """
    variance = x.var(dim=0, correction=0)
    largest = variance.max()
    if not largest > 0:
        return -x.mean(dim=0), torch.zeros_like(variance)
    variance = torch.where(variance > FLOOR * largest, variance, largest)
    return -x.mean(dim=0), -torch.log(variance.sqrt() + _TINY) / FACTOR


def _batches(rows: Sample, config: FlowConfig, generator: torch.Generator) -> Iterator[Tensor]:
    for _ in range(config.epochs):
        order = torch.randperm(len(rows), generator=generator)
        for start in range(0, len(rows), config.batch):
            yield _picked(rows, order[start : start + config.batch])


def _picked(rows: Sample, numbers: Tensor) -> Tensor:
    return torch.from_numpy(rows[numbers.numpy()]).double()


def _arrays(parameters: Mapping[str, Tensor]) -> dict[str, Array]:
    return {name: parameter.detach().numpy().copy() for name, parameter in parameters.items()}
