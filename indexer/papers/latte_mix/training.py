"""Training of a Latte-Mix: Adam on batches of texts, beta rising from 0, the learning rate rising and falling.

The same seed and texts give the same bits on one machine and device: noise, order and weights have separate generators,
the global generators of torch and numpy are not used, and each operation runs on one thread, because products split
over threads round differently and the differences accumulate.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from indexer.arrays import Float32Array, Int64Array
from indexer.errors import ConfigError, CorpusError, MachineError, ModelError
from indexer.papers.latte_mix.model import LatteMix
from indexer.papers.latte_mix.network import generator, initial_weights, losses, to_numpy
from indexer.papers.latte_mix.settings import LatteMixConfig
from indexer.system.threads import single_torch_thread

Group = tuple[Float32Array, Int64Array]
"""Texts as token vectors float32 (tokens, d), and the start of each text (texts + 1,)."""
SCALE_TOKENS = 16_384  # the first tokens, which determine the scale
LOGGED = 50  # approximate number of entries in the log of losses


def train_latte_mix(
    stream: Callable[[], Iterable[Group]],
    texts: int,
    config: LatteMixConfig,
    on_step: Callable[[int, int], None] | None = None,
    device: str = "cpu",
) -> LatteMix:
    """Fit on the `texts` texts of the stream, whose calls all return the same groups in the same order.

    `on_step(step, steps)` is called after each step, from 1. Texts are shuffled within their group. The `about` of the
    result: "texts", "tokens" and "steps" trained on; "empty", the number of texts without tokens, which are skipped;
    and "losses", rows [step, reconstruction, KL] with means since the previous row. With `epochs = 0` only the scale is
    fitted.

    Raises CorpusError without tokens, ModelError for vectors or losses that are not finite, ConfigError for a stream
    with another number of texts, MachineError for a missing device.
    """
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise MachineError(f'cannot train on "{device}": torch finds no CUDA device. Fix: use "cpu".')
    groups = iter(stream())
    seen = _first_groups(groups)
    scale, size = _scale(seen), seen[0][0].shape[1]
    parameters = {name: tensor.to(device) for name, tensor in initial_weights(config, size).items()}
    run = _Run(config, texts, scale, device, parameters)
    if config.epochs:
        epochs = chain([_again(seen, groups)], (stream() for _ in range(config.epochs - 1)))
        with single_torch_thread():
            _train(run, epochs, on_step)
    return LatteMix(config, size, scale, to_numpy(parameters), run.about())


@dataclass
class _Run:
    """The state of a training."""

    config: LatteMixConfig
    texts: int
    scale: float
    device: str
    parameters: dict[str, Tensor]
    step: int = 0
    tokens: int = 0
    empty: int = 0
    log: list[list[float]] = field(default_factory=list)

    @property
    def steps(self) -> int:
        return self.config.epochs * -(-self.texts // self.config.batch)

    def about(self) -> dict[str, object]:
        texts = self.texts if self.step else 0
        return {"texts": texts, "tokens": self.tokens, "empty": self.empty, "steps": self.step, "losses": self.log}


def _train(run: _Run, epochs: Iterable[Iterable[Group]], on_step: Callable[[int, int], None] | None) -> None:
    order, noise = generator(run.config.seed, "order"), generator(run.config.seed, "noise", run.device)
    optimiser = torch.optim.Adam([tensor.requires_grad_() for tensor in run.parameters.values()], fused=True)
    every, sums, counted = max(1, run.steps // LOGGED), torch.zeros(2, device=run.device), 0
    for epoch in epochs:
        for batch in _batches(epoch, run, order):
            if len(batch):
                optimiser.param_groups[0]["lr"] = run.config.learning_rate * learning_rate_factor(
                    run.step, run.steps, run.config
                )
                sums += _step(run, optimiser, batch, noise)
                counted += 1
            run.step += 1
            if counted and (run.step % every == 0 or run.step == run.steps):
                _log(run, sums / counted)
                sums, counted = torch.zeros_like(sums), 0
            if on_step is not None:
                on_step(run.step, run.steps)


def _step(run: _Run, optimiser: torch.optim.Optimizer, batch: Float32Array, noise: torch.Generator) -> Tensor:
    """Run one step of Adam; return reconstruction and KL before it, (2,)."""
    scaled = torch.from_numpy(batch).to(run.device, torch.float32) / run.scale
    reconstruction, kl, costed = losses(run.parameters, scaled, run.config, noise)
    optimiser.zero_grad()
    loss: Tensor = reconstruction + kl_weight(run.step, run.steps, run.config) * costed
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    return torch.stack([reconstruction.detach(), kl.detach()])


def learning_rate_factor(step: int, steps: int, config: LatteMixConfig) -> float:
    """Return the share of the peak learning rate at a step (from 0): rises in the warm-up, then falls to 0."""
    rising = round(config.warmup * steps)
    return (step + 1) / (rising + 1) if step < rising else (steps - step) / (steps - rising)


def kl_weight(step: int, steps: int, config: LatteMixConfig) -> float:
    """Return the KL term's weight at a step: 0 at the first step (0), `config.beta` at the last."""
    return config.beta * step / max(steps - 1, 1)


def _log(run: _Run, means: Tensor) -> None:
    reconstruction, kl = means.tolist()
    if not np.isfinite(reconstruction + kl):
        raise ModelError(
            f"at step {run.step} of {run.steps} the loss is {reconstruction + kl}; expected a number. Either token "
            "vectors are not finite, or papers.latte_mix.learning_rate is too high."
        )
    run.log.append([run.step, reconstruction, kl])


def _batches(groups: Iterable[Group], run: _Run, order: torch.Generator) -> Iterator[Float32Array]:
    """Yield the tokens of `config.batch` texts at a time; a batch may span groups, and only the last is smaller.

    A batch may be empty, if its texts have no tokens.
    """
    waiting: list[Float32Array] = []
    count = 0
    for rows, starts in groups:
        for text in torch.randperm(len(starts) - 1, generator=order).tolist():
            waiting.append(rows[starts[text] : starts[text + 1]])
            run.tokens += len(waiting[-1])
            run.empty += not len(waiting[-1])
            count += 1
            if len(waiting) == run.config.batch and count <= run.texts:
                yield np.concatenate(waiting)
                waiting = []
    if count != run.texts:
        raise ConfigError(f"the stream has {count:,} texts; expected {run.texts:,}, for which training was planned.")
    if waiting:
        yield np.concatenate(waiting)


def _first_groups(groups: Iterator[Group]) -> deque[Group]:
    """Return the first groups, about `SCALE_TOKENS` tokens. They are kept because encoding them is expensive."""
    seen: deque[Group] = deque()
    tokens = 0
    while tokens < SCALE_TOKENS and (group := next(groups, None)) is not None:
        seen.append(group)
        tokens += len(group[0])
    if not tokens:
        raise CorpusError("the texts to train Latte-Mix on have no tokens; expected at least one.")
    return seen


def _again(seen: deque[Group], rest: Iterator[Group]) -> Iterator[Group]:
    while seen:
        yield seen.popleft()
    yield from rest


def _scale(groups: Iterable[Group]) -> float:
    """Return the standard deviation of all numbers of the first tokens, about their common mean."""
    rows = np.concatenate([rows[:SCALE_TOKENS] for rows, _ in groups])[:SCALE_TOKENS]
    with np.errstate(invalid="ignore", over="ignore"):
        scale = float(rows.std(dtype=np.float64))
    if not 0 < scale < float("inf"):
        raise ModelError(
            f"the token vectors to train Latte-Mix on have a standard deviation of {scale}; expected a number above 0. "
            "The encoder's vectors are all equal or not finite."
        )
    return scale
