"""`tune`: try settings on a corpus, choose one, show what fewer dimensions would cost, and name the recipe."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from indexer.config import BuildConfig
from indexer.errors import ConfigError
from search.evaluation.resampling import interval, resampled_mean
from search.evaluation.settings import Centre, Setting, Strength, Sweep
from search.evaluation.subject import Subject
from search.evaluation.tune.choice import Choice, choose
from search.evaluation.tune.objective import Measured

DEFAULT_STRENGTHS: tuple[Strength, ...] = ("none", 0.0, 0.125, 0.25, 0.375, 0.5, 0.75, 1.0)
DEFAULT_CENTRES: tuple[Centre, ...] = ("role", "common", "none")
DEFAULT_SHRINKAGES = (0.0, 0.5)
_KEPT_SHARES = (0.75, 0.5, 1 / 3, 0.25, 1 / 6, 0.125)  # of the dimensions, on the frontier


class Judge(Protocol):
    """Scores settings on the same questions: `LabelFree`, or `Labelled` with the user's judgements."""

    def prepare(self, settings: Sequence[Setting]) -> None:
        """Encode what the settings need, once."""
        ...

    def measure(self, settings: Sequence[Setting]) -> Iterator[Measured]: ...


@dataclass(frozen=True)
class Tuned:
    """What was tried, what was chosen, and what it costs in quality to keep fewer dimensions."""

    choice: Choice
    measured: tuple[Measured, ...]
    narrower: tuple[Measured, ...]  # the transform taken (or the best one, if raw was), with fewer dimensions
    taken: Measured  # the choice, narrowed to the budget if there is one

    @property
    def frontier(self) -> list[Measured]:
        """From the smallest vectors up, each better than every smaller one."""
        found: list[Measured] = []
        for one in sorted([*self.measured, *self.narrower], key=lambda one: (one.bytes, -one.score)):
            if not found or one.score > found[-1].score:
                found.append(one)
        return found

    def results(self) -> list[dict[str, Any]]:
        """Every setting with its score and interval, JSON types."""
        return [self.result(one) for one in [*self.measured, *self.narrower]]

    def result(self, one: Measured) -> dict[str, Any]:
        """One of them."""
        return {
            **one.setting.to_dict(),
            **interval(one.score, resampled_mean(one.values, self.choice.counts)).to_dict(),
            "dimensions": one.dim,
            "bytes": one.bytes,
            "tied": any(one is tied for tied in self.choice.tied),
            "taken": one is self.taken,
        }

    def recipe(self, config: BuildConfig) -> BuildConfig:
        """The recipe with the setting taken."""
        setting = self.taken.setting
        encoder = dataclasses.replace(config.encoder, layers=setting.layers, pooling=setting.pooling)
        return dataclasses.replace(config, encoder=encoder, whitening=setting.whitening)


def tune(judge: Judge, subject: Subject, sweep: Sweep, most_bytes: int = 0) -> Tuned:
    """Try the settings of a sweep (see `full_sweep`), choose one, then narrow it.

    `most_bytes` is the budget of a float32 vector; 0: none. Raises EvaluationError and ConfigError.
    """
    # At strength 0 nothing is scaled, so there is nothing for shrinkage to soften.
    tried = full_sweep(sweep).settings(subject.own)
    settings = [one for one in tried if one.whitening.strength != 0.0 or not one.whitening.shrinkage]
    judge.prepare(settings)
    measured = tuple(judge.measure(settings))
    choice = choose(measured)
    wide = choice.taken
    if wide.setting.raw:
        wide = max((one for one in measured if not one.setting.raw), key=lambda one: one.score)
    narrower = tuple(judge.measure([_narrowed(wide.setting, dim) for dim in _dims(sweep, wide.dim, most_bytes)]))
    return Tuned(choice, measured, narrower, _within(choice.taken, narrower, most_bytes))


def full_sweep(sweep: Sweep) -> Sweep:
    """A sweep with the defaults where it says nothing, and with raw and strength 0, the controls, in any case."""
    strengths = sweep.strengths or DEFAULT_STRENGTHS
    controls: tuple[Strength, ...] = tuple(control for control in DEFAULT_STRENGTHS[:2] if control not in strengths)
    return dataclasses.replace(
        sweep,
        strengths=(*controls, *strengths),
        centres=sweep.centres or DEFAULT_CENTRES,
        shrinkages=sweep.shrinkages or DEFAULT_SHRINKAGES,
        dims=(0,),
    )


def _dims(sweep: Sweep, dim: int, most_bytes: int) -> list[int]:
    asked = sweep.dims or tuple(round(share * dim / 8) * 8 for share in _KEPT_SHARES)
    if most_bytes:
        asked = (*asked, most_bytes // 4)
    return sorted({value for value in asked if 0 < value < dim}, reverse=True)


def _narrowed(setting: Setting, dim: int) -> Setting:
    return dataclasses.replace(setting, whitening=dataclasses.replace(setting.whitening, dim=dim))


def _within(taken: Measured, narrower: Sequence[Measured], most_bytes: int) -> Measured:
    if not most_bytes or taken.bytes <= most_bytes:
        return taken
    fitting = [one for one in narrower if one.bytes <= most_bytes]
    if not fitting:
        raise ConfigError(f"--bytes {most_bytes} leaves no dimension; a dimension takes 4 bytes.")
    return max(fitting, key=lambda one: one.score)
