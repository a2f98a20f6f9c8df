"""`tune`: try settings on a corpus, choose one, see what fewer dimensions would cost, and name the recipe."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from indexer.config import BuildConfig
from indexer.errors import ConfigError
from search.evaluation.resampling import interval, resampled_mean
from search.evaluation.settings import Centre, Setting, Strength, Sweep, state_keys
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

    def measure(self, settings: Sequence[Setting]) -> Iterator[Measured]:
        """Every setting on those questions."""
        ...


@dataclass(frozen=True)
class Tuned:
    """What was tried and what was chosen."""

    choice: Choice
    measured: tuple[Measured, ...]
    narrower: tuple[Measured, ...]  # the transform taken (or the best one, if raw was), with fewer dimensions

    @property
    def frontier(self) -> list[Measured]:
        """From the smallest vectors up, each better than every smaller one."""
        found: list[Measured] = []
        for one in sorted([*self.measured, *self.narrower], key=lambda one: (one.bytes, -one.score)):
            if not found or one.score > found[-1].score:
                found.append(one)
        return found

    @property
    def enough(self) -> Measured | None:
        """The smallest vectors that cannot be told to be worse than what was taken; None if all can."""
        fine = [one for one in self.narrower if one.bytes < self.choice.taken.bytes]
        fine = [one for one in fine if not self.choice.told(one, self.choice.taken)]
        return min(fine, key=lambda one: one.bytes, default=None)

    def result(self, one: Measured) -> dict[str, Any]:
        """A setting with its score and interval, JSON types."""
        return {
            **one.setting.to_dict(),
            **interval(one.score, resampled_mean(one.values, self.choice.counts)).to_dict(),
            "dimensions": one.dim,
            "bytes": one.bytes,
            "transform": one.transform,
            "tied": any(one is tied for tied in self.choice.tied),
            "taken": one is self.choice.taken,
        }


def tune(judge: Judge, subject: Subject, sweep: Sweep, most_bytes: int = 0) -> Tuned:
    """Try the settings of a sweep (see `full_sweep`), choose one, then try it with fewer dimensions.

    All dimensions are kept unless `sweep.dims` asks for fewer, or a float32 vector of all would take more than
    `most_bytes` (0: no limit). Raises EvaluationError and ConfigError.
    """
    # At strength 0 nothing is scaled, so there is nothing for shrinkage to soften.
    tried = full_sweep(sweep).settings(subject.own)
    settings = with_raw([one for one in tried if one.whitening.strength != 0.0 or not one.whitening.shrinkage])
    judge.prepare(settings)
    measured = tuple(judge.measure(settings))
    choice = choose(measured)
    wide = choice.taken
    if wide.setting.raw:
        wide = max((one for one in measured if not one.setting.raw), key=lambda one: one.score)
    narrower = tuple(judge.measure([_narrowed(wide.setting, dim) for dim in _dims(sweep, wide.dim, most_bytes)]))
    if most_bytes:
        choice = _within(choice, [*measured, *narrower], most_bytes)
    elif any(sweep.dims):
        asked = [*narrower, wide] if {0, wide.dim} & set(sweep.dims) else narrower
        choice = choice.instead(
            max(asked, key=lambda one: one.score), "it scored highest with the dimensions asked for"
        )
    return Tuned(choice, measured, narrower)


def tuned_recipe(setting: Setting, subject: Subject) -> BuildConfig:
    """The subject's recipe with another setting.

    `pooling = "auto"` stays where it is what the setting does; else what it stood for is written out.
    """
    encoder, identity = subject.config.encoder, subject.spec.identity
    if setting.pooling != subject.own.pooling and encoder.pooling == "auto":
        names = ("max_length", "query_prefix", "document_prefix")
        encoder = dataclasses.replace(encoder, **{name: getattr(identity, name) for name in names})
    if setting.pooling != subject.own.pooling:
        encoder = dataclasses.replace(encoder, pooling=setting.pooling)
    encoder = dataclasses.replace(encoder, layers=setting.layers or encoder.layers)  # a table has none
    if subject.spec.local and not Path(encoder.model).is_dir():  # it has moved since the index was built
        encoder = dataclasses.replace(encoder, model=subject.spec.folder)
    return dataclasses.replace(subject.config, encoder=encoder, whitening=setting.whitening)


def with_raw(settings: Sequence[Setting]) -> list[Setting]:
    """The settings, and raw embeddings of each pooling and average of layers: SIF's control still loses a direction."""
    found = list(settings)
    for key in state_keys(settings):
        own = [setting for setting in settings if setting.key == key]
        if not any(setting.raw for setting in own):
            raw = dataclasses.replace(own[0].whitening, strength="none", dim=0, shrinkage=0.0, centre="none", remove=0)
            found.append(dataclasses.replace(own[0], whitening=raw))
    return found


def full_sweep(sweep: Sweep) -> Sweep:
    """A sweep with the defaults where it says nothing, and with raw and strength 0, the controls, in any case.

    Raises ConfigError for another kind of transform than whitening: it has no strengths to choose from.
    """
    if set(sweep.kinds) - {"whitening"}:
        raise ConfigError("tune chooses settings of a whitening; leave out --transform, or compare with evaluate.")
    strengths = sweep.strengths or DEFAULT_STRENGTHS
    controls: tuple[Strength, ...] = tuple(control for control in DEFAULT_STRENGTHS[:2] if control not in strengths)
    return dataclasses.replace(
        sweep,
        strengths=(*controls, *strengths),
        centres=sweep.centres or DEFAULT_CENTRES,
        shrinkages=sweep.shrinkages or DEFAULT_SHRINKAGES,
        kinds=("whitening",),
        dims=(0,),
    )


def _dims(sweep: Sweep, dim: int, most_bytes: int) -> list[int]:
    if unusable := [value for value in sweep.dims if not 0 <= value <= dim]:
        raise ConfigError(f"--dim {unusable[0]}; expected 0 (all) to {dim}, the dimensions there are.")
    asked = sweep.dims or tuple(round(share * dim / 8) * 8 for share in _KEPT_SHARES)
    if most_bytes:
        asked = (*asked, most_bytes // 4)
    return sorted({value for value in asked if 0 < value < dim}, reverse=True)


def _narrowed(setting: Setting, dim: int) -> Setting:
    return dataclasses.replace(setting, whitening=dataclasses.replace(setting.whitening, dim=dim))


def _within(choice: Choice, measured: Sequence[Measured], most_bytes: int) -> Choice:
    if choice.taken.bytes <= most_bytes:
        return choice
    fitting = [one for one in measured if one.bytes <= most_bytes]
    if not fitting:
        raise ConfigError(f"--bytes {most_bytes} leaves no dimension; a dimension takes 4 bytes.")
    reason = f"it scored highest in at most {most_bytes:,} bytes a vector (raw embeddings take {choice.raw.bytes:,})"
    return choice.instead(max(fitting, key=lambda one: one.score), reason)
