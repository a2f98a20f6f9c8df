"""STS: how well the cosine of two sentences ranks pairs as people do, for many settings from one forward pass.

Rows of results, paired comparisons and notes, all JSON types.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from indexer.arrays import Float64Array
from indexer.errors import EvaluationError
from indexer.lazy import require_extra
from indexer.progress import NoProgress, Progress
from indexer.transforms import Transform, Whitening
from search.evaluation.bootstrap import LEVEL, RESAMPLES
from search.evaluation.embeddings import TextEmbeddings
from search.evaluation.result import Clock, Result, how_built
from search.evaluation.settings import Setting, check_dimensions, transform_hash
from search.evaluation.sts.data import Task, files_of
from search.evaluation.sts.fit import Fit, choose_fit, task_texts
from search.evaluation.sts.score import (
    Estimate,
    Protocol,
    average,
    cut_notes,
    fit_transforms,
    noise_notes,
    score_pairs,
    task_estimates,
    why_undefined,
)
from search.evaluation.target import Subject, Target

BOOTSTRAP = {"resamples": RESAMPLES, "level": LEVEL, "resampled": "pairs, stratified by subset, tasks independently"}


@dataclass(frozen=True)
class StsOptions:
    """What is measured: every setting under every protocol, with one fit (`choose_fit` says how it is named)."""

    settings: Sequence[Setting]
    protocols: Sequence[Protocol] = ("mean",)
    fit: str = ""


@dataclass(frozen=True)
class StsMeasurement:
    """What a run over one encoder found: rows of results and comparisons as JSON types, and for provenance the rest."""

    results: list[dict[str, Any]]
    comparisons: list[dict[str, Any]]
    notes: list[str]
    fit: Fit
    texts: int  # distinct sentences
    truncated: int  # texts cut at the encoder's max_length, a corpus to fit on included
    blocks: int  # of the model


def evaluate_sts(
    subject: Subject,
    tasks: Sequence[Task],
    plan: StsOptions,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Result:
    """The result of `isotrope evaluate sts`.

    Correlations are Spearman's with 95 % bootstrap intervals. A setting without one is left out and noted.
    Raises ConfigError, EvaluationError where no setting has a correlation, and what encoding raises.
    """
    clock, subject = Clock(), Target.of(subject)
    measured = measure_sts(subject, tasks, plan, cache, progress)
    provenance = clock.provenance(
        subject.spec,
        files_of(tasks) | measured.fit.files,
        protocol=list(dict.fromkeys(plan.protocols)),
        fit={"name": measured.fit.name, **measured.fit.about},
        texts=measured.texts,
        truncated=measured.truncated,
        bootstrap=BOOTSTRAP,
        **how_built(subject.config, subject.index),
    )
    return Result("sts", provenance, measured.results, measured.comparisons, measured.notes)


def measure_sts(
    subject: Target,
    tasks: Sequence[Task],
    plan: StsOptions,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> StsMeasurement:
    """`evaluate_sts` without provenance. Each distinct sentence passes through the encoder once."""
    require_extra("scipy.stats", "eval")  # now, not after minutes of encoding
    if not tasks or not plan.settings or not plan.protocols:
        raise EvaluationError("nothing to measure; expected at least one task, one setting and one protocol.")
    progress, settings, wanted = progress or NoProgress(), list(plan.settings), list(dict.fromkeys(plan.protocols))
    check_dimensions(settings, subject.spec)
    source = subject.states(settings, cache, progress)
    chosen = choose_fit(plan.fit, subject, source)
    states = source.encode([text for task in tasks for text in task_texts(task)])
    fitted = [_fitted(task, states, settings, chosen) for task in tasks]
    kept, left_out = _defined(fitted, settings, wanted)
    fitted, settings = [one.only(kept) for one in fitted], [settings[number] for number in kept]
    noise = [note for one in fitted for note in noise_notes(one.task, settings, one.transforms, chosen.name)]
    progress.phase("correlations", sum(len(subset.scores) for task in tasks for subset in task.subsets))
    scored = []
    for one in fitted:
        estimates = task_estimates(one.task, one.cosines, [setting.label for setting in settings], wanted)
        scored.append(Scored(one.task, one.transforms, estimates))
        progress.advance(scored[-1].pairs)
    encoders = [source.fingerprint(setting.key) for setting in settings]
    return StsMeasurement(
        [row for name in wanted for row in result_rows(scored, settings, encoders, name, chosen.name)],
        [row for name in wanted for row in comparisons(scored, settings, name, chosen.name)],
        [*chosen.notes, *left_out, *notes_on(scored, chosen.name, source.log.truncated), *noise],
        chosen,
        len(states.positions),
        source.log.truncated,
        source.blocks,
    )


@dataclass(frozen=True)
class _Fitted:
    """A task under every setting: transforms, and cosines (pairs,) as `[setting][subset]`."""

    task: Task
    transforms: Sequence[Transform]
    cosines: Sequence[Sequence[Float64Array]]

    def only(self, kept: Sequence[int]) -> "_Fitted":
        return _Fitted(
            self.task, [self.transforms[number] for number in kept], [self.cosines[number] for number in kept]
        )


def _fitted(task: Task, states: TextEmbeddings, settings: Sequence[Setting], fit: Fit) -> _Fitted:
    transforms = fit_transforms(task, states, settings, fit)
    return _Fitted(task, transforms, score_pairs(task, states, settings, transforms))


def _defined(
    fitted: Sequence[_Fitted], settings: Sequence[Setting], protocols: Sequence[Protocol]
) -> tuple[list[int], list[str]]:
    """Numbers of the settings with a correlation on every task, and why others have none; all, where none has."""
    reasons: dict[int, str] = {}
    for number, setting in enumerate(settings):
        for one in fitted:
            if said := why_undefined(one.task, one.cosines[number], setting.label, protocols):
                reasons.setdefault(number, f"{said}; this setting is left out")
    if len(reasons) == len(settings):
        return list(range(len(settings))), []  # the first is then refused by its task, with a way out
    return [number for number in range(len(settings)) if number not in reasons], list(reasons.values())


AVERAGE = "average"
T = TypeVar("T")


@dataclass(frozen=True)
class Scored:
    """A task under every setting: the transforms, and the estimates by protocol."""

    task: Task
    transforms: Sequence[Transform]
    estimates: dict[Protocol, list[Estimate]]

    @property
    def pairs(self) -> int:
        return sum(len(subset.scores) for subset in self.task.subsets)


def result_rows(
    scored: Sequence[Scored], settings: Sequence[Setting], encoders: Sequence[str], protocol: Protocol, fit: str
) -> list[dict[str, Any]]:
    """For each setting a row a task and one for their average, in which what differs between tasks is null."""
    rows = []
    for number, (setting, encoder) in enumerate(zip(settings, encoders, strict=True)):
        tasks = [_task_row(one, number, protocol) for one in scored]
        mean = {
            "task": AVERAGE,
            **_average(scored, number, protocol).figures,
            "pairs": sum(one.pairs for one in scored),
            "tasks": len(scored),
            "rank": _only(row["rank"] for row in tasks),
            "transform": _only(row["transform"] for row in tasks),
        }
        about = {"setting": setting.label, **setting.to_dict(), "protocol": protocol, "fit": fit, "encoder": encoder}
        rows += [about | row for row in [*tasks, mean]]
    return rows


def comparisons(
    scored: Sequence[Scored], settings: Sequence[Setting], protocol: Protocol, fit: str
) -> list[dict[str, Any]]:
    """Differences of the average, paired: each setting less the raw one of its pooling and layers, else the first."""
    averages = [_average(scored, number, protocol) for number in range(len(settings))]
    rows = []
    for number, other in _pairs_to_compare(settings):
        rows.append(
            {
                "setting": settings[number].label,
                "against": settings[other].label,
                "protocol": protocol,
                "fit": fit,
                "task": AVERAGE,
                **averages[number].less(averages[other]).to_dict("difference"),
            }
        )
    return rows


def notes_on(scored: Sequence[Scored], fit: str, truncated: int) -> list[str]:
    """Return remarks on the figures, each once."""
    notes = [note for one in scored for note in one.task.notes]
    for one in scored:
        where = one.task.name if fit == "task" else f"fit {fit}"
        said = [transform.note for transform in one.transforms]
        notes += [f"{where}: {note}" for note in said if note]
        estimates = [estimate for column in one.estimates.values() for estimate in column]
        if any(estimate.interval.low is None for estimate in estimates):
            notes.append(f"{one.task.name}: no interval, because too many resamples of its pairs have no correlation")
    return list(dict.fromkeys([*notes, *cut_notes(truncated)]))


def _task_row(one: Scored, number: int, protocol: Protocol) -> dict[str, Any]:
    transform = one.transforms[number]
    whitened = isinstance(transform, Whitening)
    return {
        "task": one.task.name,
        **one.estimates[protocol][number].figures,
        "pairs": one.pairs,
        "tasks": 1,
        "rank": transform.dim if whitened else None,
        "transform": transform_hash(transform) if whitened else None,
    }


def _average(scored: Sequence[Scored], number: int, protocol: Protocol) -> Estimate:
    return average([one.estimates[protocol][number] for one in scored])


def _only(values: Iterable[T]) -> T | None:
    """The value, if all are the same."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _pairs_to_compare(settings: Sequence[Setting]) -> list[tuple[int, int]]:
    """(setting, the one it is compared with), each pair once."""
    raw = {setting.key: number for number, setting in enumerate(settings) if setting.raw}
    pairs: list[tuple[int, int]] = []
    for number, setting in enumerate(settings):
        other = 0 if setting.raw else raw.get(setting.key, 0)
        if other != number and (other, number) not in pairs:
            pairs.append((number, other))
    return pairs
