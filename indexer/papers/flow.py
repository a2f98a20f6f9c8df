"""BERT-flow: vector = normalise(z), z = f(embedding), with f an invertible network that makes a sample look Gaussian.

Li et al., On the Sentence Embeddings from Pre-trained Language Models (EMNLP 2020). f is a Glow (Kingma and Dhariwal,
NeurIPS 2018) over the d channels of an embedding, in the paper's default shape: additive couplings, and the order of
the channels reversed where Glow has an invertible 1x1 convolution. It has `levels` levels of `depth` steps each:

    actnorm     x <- (x + centre) exp(3 log_scale), channel by channel
    reversal    x_i <- x_(d-1-i)
    coupling    x = (a, b) <- (a, b + N(a)); N is dense, actnorm, relu twice, then dense (x W + centre) exp(3 log_scale)

After each level but the last, x = (a, b): a continues, and (b - mean) exp(-s) is output, where mean and s are a dense
function of a. z concatenates the outputs of the levels and the result of the last level. For an odd number of channels
the first half, a, is the smaller. z is N(0, I), so that log p(x) = log N(z; 0, I) + log |det dz/dx|.

The fit uses Adam on the log-likelihood of a sample, on the CPU, in float64; only the fit needs torch. The initial state
is Glow's: hidden weights are normal with a standard deviation of 0.05, the last layer of a coupling or a prior is zero,
and each actnorm gives a first batch zero mean and unit variance. All random numbers come from one generator of the
configured seed, and every operation runs on one thread, so that equal input gives equal bytes.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from indexer.arrays import Embeddings, Float32Array, Float64Array, Vectors
from indexer.errors import ConfigError
from indexer.recipe.config import Role
from indexer.recipe.loading import require_above_zero, require_at_least, require_seed
from indexer.system.threads import single_blas_thread, single_torch_thread
from indexer.transforms import FitData
from indexer.transforms.whitening import EIGENVALUE_FLOOR, Normalisation, unit_rows

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Values = Any  # an array of numpy, or a tensor of torch
OnStep = Callable[[int, int], None]  # steps done, steps in all
FACTOR = 3.0  # of every log-scale, as in Glow: scales learn faster than weights
_LARGEST = 20.0  # |s|; an outlier must not overflow exp(-s)
_FEW_STEPS = 100
_COMPARED = 4096  # rows whose log-likelihood is compared before and after training
_WEIGHTS = 0.05  # standard deviation
_TINY = 1e-6  # added to a standard deviation before the division
_FIRST_ROWS = 32  # minimum rows that initialise an actnorm: the published batch size


@dataclass(frozen=True)
class FlowConfig:
    """The section [papers.flow] of a recipe. Defaults are those of BERT-flow's code (config_l3_d3_w32)."""

    levels: int = 3
    """Levels of the network."""
    depth: int = 3
    """Steps in a level."""
    width: int = 32
    """Width of the coupling network."""
    learning_rate: float = 1e-3
    """Learning rate, above 0."""
    batch: int = 32
    """Embeddings in a batch."""
    epochs: int = 1
    """Passes over the sample."""
    seed: int = 0
    """Seed of the random numbers."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "learning_rate", float(self.learning_rate))
        for setting in ("levels", "depth", "width", "batch", "epochs"):
            require_at_least(f"papers.flow.{setting}", getattr(self, setting), 1)
        require_seed("papers.flow.seed", self.seed)
        require_above_zero("papers.flow.learning_rate", self.learning_rate)


@dataclass(frozen=True)
class Glow:
    """The network f. `parameters` are float64 by the names of `parameter_shapes`, of numpy or torch (`module`).

    `watch` is called with the name and the input (n, c) of each actnorm before the actnorm is applied.
    """

    parameters: Mapping[str, Values]
    levels: int
    depth: int
    module: Any = np
    watch: Callable[[str, Values], None] = lambda name, x: None

    def forward(self, rows: Values) -> tuple[Values, Values]:
        """Map rows (n, d) to z (n, d) and log |det dz/dx| (n,)."""
        x, parts, log_determinant = rows, [], self.module.zeros_like(rows[:, 0])
        for level in range(self.levels):
            for step in range(self.depth):
                name = f"{level}.{step}"
                x = self._coupled(self._actnorm(x, f"{name}.actnorm"), name)
                log_determinant = log_determinant + FACTOR * self.parameters[f"{name}.actnorm.log_scale"].sum()
            if level < self.levels - 1:
                x, rest = _halves(x)
                mean, log_scale = self._prior(x, level)
                parts.append((rest - mean) * self.module.exp(-log_scale))
                log_determinant = log_determinant - log_scale.sum(1)
        return self.module.concatenate([*parts, x], 1), log_determinant

    def log_likelihood(self, rows: Values) -> Values:
        """Return log p of rows (n, d) in nats, (n,)."""
        z, log_determinant = self.forward(rows)
        return log_determinant - 0.5 * (z * z).sum(1) - 0.5 * math.log(2 * math.pi) * z.shape[1]

    def _coupled(self, x: Values, name: str) -> Values:
        first, second = _halves(self.module.flip(x, (1,)))
        hidden = first
        for layer in (f"{name}.hidden1", f"{name}.hidden2"):
            hidden = self._actnorm(hidden @ self.parameters[f"{layer}.weight"], layer)
            hidden = self.module.clip(hidden, 0, None)
        return self.module.concatenate([first, second + self._dense(hidden, f"{name}.shift")], 1)

    def _prior(self, first: Values, level: int) -> tuple[Values, Values]:
        both = self._dense(first, f"{level}.prior")
        size = both.shape[1] // 2
        return both[:, :size], self.module.clip(both[:, size:], -_LARGEST, _LARGEST)

    def _dense(self, x: Values, name: str) -> Values:
        return self._affine(x @ self.parameters[f"{name}.weight"], name)

    def _actnorm(self, x: Values, name: str) -> Values:
        self.watch(name, x)
        return self._affine(x, name)

    def _affine(self, x: Values, name: str) -> Values:
        scale = self.module.exp(FACTOR * self.parameters[f"{name}.log_scale"])
        return (x + self.parameters[f"{name}.centre"]) * scale


@dataclass(frozen=True)
class Flow:
    """A fitted flow: `parameters` of a `Glow`, `mean` and `query_mean` (d,), float64.

    Queries are shifted by mean - query_mean, so that both roles enter the flow with the same mean. `note` describes
    problems of the fit ("" without any).
    """

    parameters: Mapping[str, Float64Array]
    mean: Float64Array
    query_mean: Float64Array
    levels: int
    depth: int
    note: str = ""
    kind = "flow"

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Float64Array], settings: Mapping[str, Any]) -> "Flow":
        """Build a flow from `arrays` and `settings`. Raises KeyError or ValueError for arrays that do not fit."""
        parameters = {name: np.asarray(array) for name, array in arrays.items()}
        mean, query_mean = parameters.pop("mean"), parameters.pop("query_mean")
        levels, depth = settings["levels"], settings["depth"]
        if not (1 <= levels <= len(arrays) and 1 <= depth <= len(arrays)):
            raise ValueError(f"it has {len(arrays)} arrays for {levels} levels of depth {depth}")
        expected = parameter_shapes(settings["dim"], levels, depth, parameters["0.0.hidden1.weight"].shape[1])
        shapes_fit = {name: array.shape for name, array in parameters.items()} == expected
        if not shapes_fit or not mean.shape == query_mean.shape == (settings["dim"],):
            raise ValueError("its arrays do not fit its settings")
        return cls(parameters, mean, query_mean, levels, depth, settings["note"])

    @property
    def dim(self) -> int:
        return len(self.mean)

    input_dim = dim

    def transform(self, embeddings: Embeddings, role: Role) -> Vectors:
        return unit_rows(embeddings, lambda block: self.project(block, role))

    def project(self, embeddings: Embeddings, role: Role) -> Float64Array:
        """Return the transform before normalisation: z, float64 (n, d)."""
        shift = self.mean - self.query_mean if role == "query" else 0.0
        z: Float64Array
        with single_blas_thread():
            z, _ = self._glow.forward(np.asarray(embeddings, dtype=np.float64) + shift)
        return z

    def log_likelihood(self, embeddings: Embeddings) -> Float64Array:
        """Return log p of document embeddings (n, d) in nats, float64 (n,)."""
        with single_blas_thread():
            nats: Float64Array = self._glow.log_likelihood(np.asarray(embeddings, dtype=np.float64))
        return nats

    def with_query_mean(self, mean: Float64Array) -> "Flow":
        return dataclasses.replace(self, query_mean=mean)

    def affine_layers(self, role: Role) -> None:
        """Return None: a flow is not affine."""

    def arrays(self) -> dict[str, Float64Array]:
        return {"mean": self.mean, "query_mean": self.query_mean, **self.parameters}

    def settings(self) -> dict[str, Any]:
        return {"dim": self.dim, "note": self.note, "levels": self.levels, "depth": self.depth}

    @property
    def _glow(self) -> Glow:
        return Glow(self.parameters, self.levels, self.depth)


def fit(data: FitData, settings: FlowConfig, on_step: OnStep | None = None) -> Flow | Normalisation:
    """Fit on the document embeddings of a sample, given as at least one block, possibly empty.

    The rows are kept in memory as float32. The query mean equals the document mean until `Flow.with_query_mean` sets
    another. For fewer than two distinct rows the result is a `Normalisation` with a note. Equal rows, settings and
    versions of torch give equal bytes on one machine, whatever the blocks and the threads.
    Raises ConfigError if training ends in numbers that are not finite.
    """
    rows = _gathered(data)
    count, size = rows.shape
    if count < 2 or not np.ptp(rows, axis=0).any():
        return Normalisation(size, f"{_texts(count)}: nothing to fit, vectors are only normalised")

    levels = min(settings.levels, max(1, size.bit_length() - 1))  # a level needs two channels to couple
    mean = rows.mean(axis=0, dtype=np.float64)
    untrained, trained = (
        Flow(parameters, mean, mean, levels, settings.depth) for parameters in fit_glow(rows, levels, settings, on_step)
    )
    before, after = (float(flow.log_likelihood(rows[:_COMPARED]).mean()) for flow in (untrained, trained))
    if not math.isfinite(after):
        raise ConfigError(
            f"the flow's log-likelihood of the sample is {after} after training; expected a finite number. Fix: lower "
            f"papers.flow.learning_rate, which is {settings.learning_rate}."
        )
    return dataclasses.replace(trained, note=_note(count, levels, settings, before, after))


TRANSFORM = Flow


def parameter_shapes(dim: int, levels: int, depth: int, width: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter of a `Glow`; "0.2.shift.weight" belongs to the first level's third step."""
    shapes: dict[str, tuple[int, ...]] = {}
    for level in range(levels):
        channels = dim >> level
        half = channels // 2
        for step in range(depth):
            name = f"{level}.{step}"
            shapes |= _affine_shapes(f"{name}.actnorm", channels)
            shapes |= _affine_shapes(f"{name}.hidden1", width, half)
            shapes |= _affine_shapes(f"{name}.hidden2", width, width)
            shapes |= _affine_shapes(f"{name}.shift", channels - half, width)
        if level < levels - 1:
            shapes |= _affine_shapes(f"{level}.prior", 2 * (channels - half), half)  # mean, then log-scale
    return shapes


def _affine_shapes(name: str, channels: int, inputs: int | None = None) -> dict[str, tuple[int, ...]]:
    weight = {} if inputs is None else {f"{name}.weight": (inputs, channels)}
    return {**weight, f"{name}.centre": (channels,), f"{name}.log_scale": (channels,)}


def _halves(x: Values) -> tuple[Values, Values]:
    half = x.shape[1] // 2
    return x[:, :half], x[:, half:]


def _gathered(data: FitData) -> Float32Array:
    shapes = [block.shape for block in data.blocks()]
    rows, done = np.empty((sum(count for count, _ in shapes), shapes[0][1]), dtype=np.float32), 0
    for block in data.blocks():
        rows[done : done + len(block)] = block
        done += len(block)
    return rows


def _texts(count: int) -> str:
    if count == 1:
        return "a sample of one document"
    return f"a sample of {count} documents" + (", all alike" if count else "")


def _note(count: int, levels: int, config: FlowConfig, before: float, after: float) -> str:
    notes, steps = [], config.epochs * math.ceil(count / config.batch)
    if levels < config.levels:
        notes.append(f"{config.levels} levels were requested, but the embeddings have dimensions for only {levels}")
    if steps < _FEW_STEPS:
        notes.append(
            f"training took only {steps} step{'s' * (steps > 1)}, on {count:,} texts, which does little more than "
            "scale each dimension: use more texts or more epochs"
        )
    if after < before:
        notes.append(
            f"training decreased the log-likelihood of the sample from {before:.1f} to {after:.1f} nats per text: "
            "lower papers.flow.learning_rate"
        )
    return "; ".join(notes)


def fit_glow(
    rows: Float32Array, levels: int, config: FlowConfig, on_step: OnStep | None = None
) -> tuple[dict[str, Float64Array], dict[str, Float64Array]]:
    """Fit a `Glow` on rows (n, d), n > 0; return its parameters before and after training.

    Each epoch shuffles the rows; its last batch may be smaller. The loss is the negative log-likelihood per dimension.
    """
    import torch

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


def _start(rows: Float32Array, levels: int, config: FlowConfig, generator: "torch.Generator") -> Glow:
    import torch

    parameters: dict[str, Tensor] = {}
    for name, shape in parameter_shapes(rows.shape[1], levels, config.depth, config.width).items():
        parameters[name] = torch.zeros(shape, dtype=torch.float64)
        if name.endswith(("hidden1.weight", "hidden2.weight")):
            parameters[name].normal_(0.0, _WEIGHTS, generator=generator)

    def standardise(name: str, x: "Tensor") -> None:
        centre, log_scale = _standardising(x)
        parameters[f"{name}.centre"].copy_(centre)
        parameters[f"{name}.log_scale"].copy_(log_scale)

    order = torch.randperm(len(rows), generator=generator)
    first = _picked(rows, order[: max(config.batch, _FIRST_ROWS)])
    Glow(parameters, levels, config.depth, torch, standardise).forward(first)
    for parameter in parameters.values():
        parameter.requires_grad_()
    return Glow(parameters, levels, config.depth, torch)


def _standardising(x: "Tensor") -> "tuple[Tensor, Tensor]":
    """Return the centre and log-scale (c,) of the actnorm that gives x (n, c) zero mean and unit variance.

    A constant channel is scaled like the channel of largest variance, so that neither rounding noise nor other texts'
    values are amplified.
    """
    import torch

    variance = x.var(dim=0, correction=0)
    largest = variance.max()
    if not largest > 0:
        return -x.mean(dim=0), torch.zeros_like(variance)
    variance = torch.where(variance > EIGENVALUE_FLOOR * largest, variance, largest)
    return -x.mean(dim=0), -torch.log(variance.sqrt() + _TINY) / FACTOR


def _batches(rows: Float32Array, config: FlowConfig, generator: "torch.Generator") -> "Iterator[Tensor]":
    import torch

    for _ in range(config.epochs):
        order = torch.randperm(len(rows), generator=generator)
        for start in range(0, len(rows), config.batch):
            yield _picked(rows, order[start : start + config.batch])


def _picked(rows: Float32Array, numbers: "Tensor") -> "Tensor":
    import torch

    return torch.from_numpy(rows[numbers.numpy()]).double()


def _arrays(parameters: "Mapping[str, Tensor]") -> dict[str, Float64Array]:
    return {name: parameter.detach().numpy().copy() for name, parameter in parameters.items()}
