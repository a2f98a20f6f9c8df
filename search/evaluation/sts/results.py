"""What an STS run says: rows of results, paired comparisons and notes, all JSON types."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from indexer.transforms import Transform, Whitening
from search.evaluation.fits import transform_hash
from search.evaluation.resampling import difference
from search.evaluation.settings import Setting
from search.evaluation.sts.data import Task
from search.evaluation.sts.protocols import Estimate, Protocol, average
from search.printable import counted

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
            **_figures(_average(scored, number, protocol)),
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
        one, against = averages[number], averages[other]
        found = difference(against.value, one.value, against.resampled, one.resampled)
        rows.append(
            {
                "setting": settings[number].label,
                "against": settings[other].label,
                "protocol": protocol,
                "fit": fit,
                "task": AVERAGE,
                **found.to_row(),
            }
        )
    return rows


def notes_on(scored: Sequence[Scored], fit: str, truncated: int) -> list[str]:
    """Remarks for whoever reads the figures, each once."""
    notes = [note for one in scored for note in one.task.notes]
    for one in scored:
        where = one.task.name if fit == "task" else f"fit {fit}"
        said = [transform.note for transform in one.transforms]
        notes += [f"{where}: {note}" for note in said if note]
        estimates = [estimate for column in one.estimates.values() for estimate in column]
        if any(estimate.interval.low is None for estimate in estimates):
            notes.append(f"{one.task.name}: no interval, because too many resamples of its pairs have no correlation")
    if truncated:
        notes.append(f"{counted(truncated, 'text was', 'texts were')} longer than encoder.max_length and cut there")
    return list(dict.fromkeys(notes))


def _task_row(one: Scored, number: int, protocol: Protocol) -> dict[str, Any]:
    transform = one.transforms[number]
    whitened = isinstance(transform, Whitening)
    return {
        "task": one.task.name,
        **_figures(one.estimates[protocol][number]),
        "pairs": one.pairs,
        "tasks": 1,
        "rank": transform.dim if whitened else None,
        "transform": transform_hash(transform) if whitened else None,
    }


def _average(scored: Sequence[Scored], number: int, protocol: Protocol) -> Estimate:
    return average([one.estimates[protocol][number] for one in scored])


def _figures(estimate: Estimate) -> dict[str, float | None]:
    found = estimate.interval
    return {"spearman": found.value, "low": found.low, "high": found.high}


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
