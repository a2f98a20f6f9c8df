"""STS: correlation of cosines with human scores, for many settings from one forward pass per text.

Results are rows, paired comparisons and notes, all JSON types.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from indexer.arrays import Float64Array
from indexer.errors import EvaluationError
from indexer.lazy_imports import require_extra
from indexer.progress import NoProgress, Progress
from indexer.transforms import Transform, Whitening
from indexer.typed_arguments import checked
from search.evaluation.bootstrap import LEVEL, RESAMPLES
from search.evaluation.embeddings import EmbeddingSource, TextEmbeddings
from search.evaluation.result import Clock, Result, how_built
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
from search.evaluation.sweep import Setting, check_dimensions, transform_hash
from search.evaluation.target import Subject, Target

BOOTSTRAP = {"resamples": RESAMPLES, "level": LEVEL, "resampled": "pairs, stratified by subset, tasks independently"}


@checked
@dataclass(frozen=True)
class StsOptions:
    """The settings and protocols to measure, with one fit (see `choose_fit`)."""

    settings: Sequence[Setting]
    protocols: Sequence[Protocol] = ("mean",)
    fit: str = ""


@dataclass(frozen=True)
class Encoded:
    """The sentences of some tasks, encoded once for all settings, and the fit of the transforms."""

    source: EmbeddingSource
    fit: Fit
    states: TextEmbeddings

    @classmethod
    def of(
        cls, subject: Target, tasks: Sequence[Task], source: EmbeddingSource, fit: str, settings: Sequence[Setting]
    ) -> "Encoded":
        """Encode the sentences. Raises ConfigError for settings with more dimensions than the encoder has."""
        check_dimensions(settings, subject.spec)
        chosen = choose_fit(fit, subject, source)
        return cls(source, chosen, source.encode([text for task in tasks for text in task_texts(task)]))

    @property
    def facts(self) -> dict[str, Any]:
        """The fit, the distinct sentences, and the truncated texts (also of the fit), for provenance."""
        return {
            "fit": {"name": self.fit.name, **self.fit.about},
            "texts": len(self.states.positions),
            "truncated": self.source.log.truncated,
        }


@dataclass(frozen=True)
class StsMeasurement:
    """The results of one encoder: rows, comparisons and notes as JSON types."""

    results: list[dict[str, Any]]
    comparisons: list[dict[str, Any]]
    notes: list[str]
    facts: dict[str, Any]  # for provenance, see `Encoded.facts`
    files: dict[str, str]  # of the fit
    blocks: int  # of the model


@checked
def evaluate_sts(
    subject: Subject,
    tasks: Sequence[Task],
    plan: StsOptions,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Result:
    """Return the result of `isotrope evaluate sts`.

    Correlations are Spearman's with 95 % bootstrap intervals. A setting without a correlation is left out and noted.
    Raises ConfigError, EvaluationError if no setting has a correlation, and what encoding raises.
    """
    clock, subject = Clock(), Target.of(subject)
    measured = measure_sts(subject, tasks, plan, cache, progress)
    provenance = clock.provenance(
        subject.spec,
        files_of(tasks) | measured.files,
        protocol=list(dict.fromkeys(plan.protocols)),
        **measured.facts,
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
    """Return the results of `evaluate_sts` without provenance. Each distinct sentence is encoded once."""
    require_extra("scipy.stats", "eval")  # before minutes of encoding
    if not tasks or not plan.settings or not plan.protocols:
        raise EvaluationError("nothing to measure; expected at least one task, one setting and one protocol.")
    progress, settings, wanted = progress or NoProgress(), list(plan.settings), list(dict.fromkeys(plan.protocols))
    encoded = Encoded.of(subject, tasks, subject.states(settings, cache, progress), plan.fit, settings)
    source, fit = encoded.source, encoded.fit
    transforms = [fit_transforms(task, encoded.states, settings, fit) for task in tasks]
    cosines = [score_pairs(task, encoded.states, settings, of) for task, of in zip(tasks, transforms, strict=True)]
    kept, left_out = _defined(tasks, cosines, settings, wanted)
    settings = [settings[number] for number in kept]
    labels = [setting.label for setting in settings]
    progress.phase("correlations", sum(len(subset.scores) for task in tasks for subset in task.subsets))
    scored, noise = [], []
    for task, of_task, predicted in zip(tasks, transforms, cosines, strict=True):
        fitted = [of_task[number] for number in kept]
        noise += noise_notes(task, settings, fitted, fit.name)
        estimates = task_estimates(task, [predicted[number] for number in kept], labels, wanted)
        scored.append(Scored(task, fitted, estimates))
        progress.advance(scored[-1].pairs)
    encoders = [source.fingerprint(setting.key) for setting in settings]
    return StsMeasurement(
        [row for name in wanted for row in result_rows(scored, settings, encoders, name, fit.name)],
        [row for name in wanted for row in comparisons(scored, settings, name, fit.name)],
        [*fit.notes, *left_out, *notes_on(scored, fit.name, source.log.truncated), *noise],
        encoded.facts,
        fit.files,
        source.blocks,
    )


def _defined(
    tasks: Sequence[Task],
    cosines: Sequence[Sequence[Sequence[Float64Array]]],
    settings: Sequence[Setting],
    protocols: Sequence[Protocol],
) -> tuple[list[int], list[str]]:
    """Return the numbers of settings with a correlation on every task, and notes on others; all if none has one."""
    reasons: dict[int, str] = {}
    for number, setting in enumerate(settings):
        for task, of_task in zip(tasks, cosines, strict=True):
            if reason := why_undefined(task, of_task[number], setting.label, protocols):
                reasons.setdefault(number, f"{reason}; this setting is left out")
    if len(reasons) == len(settings):
        return list(range(len(settings))), []  # `spearman` raises an error with a fix for the first
    return [number for number in range(len(settings)) if number not in reasons], list(reasons.values())


AVERAGE = "average"
T = TypeVar("T")


@dataclass(frozen=True)
class Scored:
    """A task with the transform of every setting, and the estimates by protocol."""

    task: Task
    transforms: Sequence[Transform]
    estimates: dict[Protocol, list[Estimate]]

    @property
    def pairs(self) -> int:
        return sum(len(subset.scores) for subset in self.task.subsets)


def result_rows(
    scored: Sequence[Scored], settings: Sequence[Setting], encoders: Sequence[str], protocol: Protocol, fit: str
) -> list[dict[str, Any]]:
    """Return a row for each setting and task, and for their average, which is null where tasks differ."""
    rows = []
    for number, (setting, encoder) in enumerate(zip(settings, encoders, strict=True)):
        tasks = [_task_row(entry, number, protocol) for entry in scored]
        mean = {
            "task": AVERAGE,
            **_average(scored, number, protocol).figures,
            "pairs": sum(entry.pairs for entry in scored),
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
    """Return paired differences of the averages from the raw setting of the pooling and layers, else the first."""
    averages = [_average(scored, number, protocol) for number in range(len(settings))]
    return [
        {
            "setting": settings[number].label,
            "against": settings[other].label,
            "protocol": protocol,
            "fit": fit,
            "task": AVERAGE,
            **averages[number].less(averages[other]).to_dict("difference"),
        }
        for number, other in _pairs_to_compare(settings)
    ]


def notes_on(scored: Sequence[Scored], fit: str, truncated: int) -> list[str]:
    """Return the distinct notes on the figures."""
    notes = [note for entry in scored for note in entry.task.notes]
    for entry in scored:
        where = entry.task.name if fit == "task" else f"fit {fit}"
        notes += [f"{where}: {transform.note}" for transform in entry.transforms if transform.note]
        estimates = [estimate for column in entry.estimates.values() for estimate in column]
        if any(estimate.interval.low is None for estimate in estimates):
            notes.append(f"{entry.task.name}: no interval, because too many resamples of its pairs have no correlation")
    return list(dict.fromkeys([*notes, *cut_notes(truncated)]))


def _task_row(entry: Scored, number: int, protocol: Protocol) -> dict[str, Any]:
    transform = entry.transforms[number]
    whitened = isinstance(transform, Whitening)
    return {
        "task": entry.task.name,
        **entry.estimates[protocol][number].figures,
        "pairs": entry.pairs,
        "tasks": 1,
        "rank": transform.dim if whitened else None,
        "transform": transform_hash(transform) if whitened else None,
    }


def _average(scored: Sequence[Scored], number: int, protocol: Protocol) -> Estimate:
    return average([entry.estimates[protocol][number] for entry in scored])


def _only(values: Iterable[T]) -> T | None:
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _pairs_to_compare(settings: Sequence[Setting]) -> list[tuple[int, int]]:
    """Return pairs of a setting and its baseline, each pair once."""
    raw = {setting.key: number for number, setting in enumerate(settings) if setting.raw}
    pairs: list[tuple[int, int]] = []
    for number, setting in enumerate(settings):
        other = 0 if setting.raw else raw.get(setting.key, 0)
        if other != number and (other, number) not in pairs:
            pairs.append((number, other))
    return pairs
