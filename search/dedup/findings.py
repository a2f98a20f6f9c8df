"""The rows of a file of duplicates by document number, checks of ids and counts, and the report of the verifier."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from indexer.arrays import RowIds, Scores
from indexer.errors import as_shown
from search.dedup.duplicates_file import REASONS, Duplicates
from search.dedup.settings import lowest_score
from search.index import Index

_CONSEQUENCES = ("cluster", "order", "facts")  # kinds that mostly follow from others, reported last
_UNKNOWN = -1  # number of a document that no index has
_SHOWN = 3  # violations of each kind that are described; all are counted


@dataclass
class DedupVerifyReport:
    """The outcome of `verify_duplicates`. `problems` is empty if the result is proved correct."""

    path: Path
    index: Path
    threshold: float
    method: str
    documents: int = 0
    dropped: int = 0
    compared: int = 0  # pairs of vectors
    exact: int = 0  # of those summed exactly, because float32 could not decide them
    violations: dict[str, int] = field(default_factory=dict)  # count of each kind
    problems: list[str] = field(default_factory=list)  # the first few of each kind, and the number of others

    @property
    def passed(self) -> bool:
        """Whether there are no problems."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        return {**vars(self), "path": str(self.path), "index": as_shown(str(self.index)), "passed": self.passed}


class Findings:
    """Violations by kind: counts, and descriptions of the first few."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._shown: dict[str, list[str]] = {}

    def __bool__(self) -> bool:
        return bool(self.counts)

    def add(self, kind: str, descriptions: Iterable[str], count: int) -> None:
        """Add `count` violations of a kind; read only the descriptions that are shown."""
        if count:
            self.counts[kind] = self.counts.get(kind, 0) + count
            shown = self._shown.setdefault(kind, [])
            shown += islice(descriptions, _SHOWN - len(shown))

    def lines(self) -> list[str]:
        """Return a line for each described violation, and one for the others of its kind."""
        lines = []
        for kind, count in sorted(self.counts.items(), key=lambda item: item[0] in _CONSEQUENCES):
            lines += [f"{kind}: {line}" for line in self._shown[kind]]
            if count > len(self._shown[kind]):
                lines.append(f"{kind}: {count - len(self._shown[kind]):,} more, {count:,} in all")
        return lines


@dataclass(frozen=True)
class StatedDuplicates:
    """The rows of a file of duplicates, by document number. The other index is numbered first."""

    ids: pa.ChunkedArray  # of all documents
    others: int
    dropped: RowIds  # (rows of the table,) the dropped document
    kept_by: RowIds  # (rows of the table,) its representative
    scores: Scores
    reasons: npt.NDArray[np.object_]
    clusters: RowIds

    def name(self, document: int) -> str:
        """Return the name of a document for messages."""
        return f'"{self.ids[document].as_py()}"{" of the other index" if document < self.others else ""}'


def read_stated(
    duplicates: Duplicates, opened: Index, other: Index | None, findings: Findings
) -> StatedDuplicates | None:
    """Look up the ids of the table. Return None, with violations in `findings`, for unknown or contradicting ids."""
    foreign_ids, ids = _ids(other), _ids(opened)
    table, others = duplicates.table, len(foreign_ids)
    reasons = table.column("reason").to_numpy()
    if unknown := [f'"{reason}"' for reason in np.unique(reasons[~np.isin(reasons, REASONS)])]:
        findings.add("reason", (f"{reason} is none of {', '.join(REASONS)}" for reason in unknown), len(unknown))
    kept_by = np.where(
        np.char.startswith(reasons.astype(str), "against"),
        _look_up(table.column("kept_id"), foreign_ids, 0),
        _look_up(table.column("kept_id"), ids, others),
    )
    stated = StatedDuplicates(
        pa.chunked_array([*foreign_ids.chunks, *ids.chunks], pa.string()),
        others,
        _look_up(table.column("id"), ids, others),
        kept_by,
        table.column("score").to_numpy(),
        reasons,
        table.column("cluster").to_numpy(),
    )
    _check_ids(stated, table, findings)
    return None if findings else stated


def check_facts(facts: Mapping[str, Any], stated: StatedDuplicates, findings: Findings) -> None:
    """Compare the counts in the facts, the cluster numbers and the order of rows with the table."""
    numbers, order, sizes = _clusters(stated)
    wrong = np.flatnonzero(stated.clusters != numbers)
    lines = (
        f"{stated.name(stated.dropped[row])} is in {stated.clusters[row]}, should be in {numbers[row]}"
        for row in wrong.tolist()
    )
    findings.add("cluster", lines, len(wrong))
    place = np.lexsort((stated.dropped, numbers))
    if not findings and (place != np.arange(len(place))).any():
        findings.add("order", ["rows are not sorted by cluster and position in the corpus"], 1)
    documents = len(stated.ids) - stated.others
    names, counts = np.unique(stated.reasons.astype(str), return_counts=True)
    expected: dict[str, Any] = {
        "lowest": float(lowest_score(facts["threshold"])),
        "documents": documents,
        "dropped": len(stated.dropped),
        "kept": documents - len(stated.dropped),
        "reasons": dict(zip(names.tolist(), counts.tolist(), strict=True)),
        "clusters": len(order),
        "cluster_sizes": sizes,
    }
    for name, value in expected.items():
        fact = facts[name]
        if isinstance(fact, dict):
            fact = {key: count for key, count in fact.items() if count != 0}
        if fact != value:
            findings.add("facts", [f'"{name}" is {fact}; expected {value} from the table'], 1)


def _ids(index: Index | None) -> pa.ChunkedArray:
    ids = pa.array(index.documents.all_ids() if index else [], pa.string())
    return ids if isinstance(ids, pa.ChunkedArray) else pa.chunked_array([ids])  # chunked if over 2 GB


def _look_up(names: pa.ChunkedArray, ids: pa.ChunkedArray, first: int) -> RowIds:
    """Return the numbers of the documents with these ids, counted from `first`."""
    places = pc.index_in(names, value_set=ids).cast(pa.int64()).fill_null(_UNKNOWN).to_numpy()
    numbers: RowIds = np.where(places == _UNKNOWN, _UNKNOWN, places + first)
    return numbers


def _check_ids(stated: StatedDuplicates, table: pa.Table, findings: Findings) -> None:
    def add(kind: str, rows: RowIds, what: str) -> None:
        lines = (f'row {row}: "{table.column("id")[row]}" -> "{table.column("kept_id")[row]}": {what}' for row in rows)
        findings.add(kind, lines, len(rows))

    add("unknown id", np.flatnonzero(stated.dropped == _UNKNOWN), "the index has no such dropped document")
    add("unknown id", np.flatnonzero(stated.kept_by == _UNKNOWN), "no index has such a kept document")
    known = np.flatnonzero(stated.dropped != _UNKNOWN)
    _, first = np.unique(stated.dropped[known], return_index=True)
    add("dropped twice", np.delete(known, first), "dropped by an earlier row")
    resolved = np.flatnonzero(stated.kept_by != _UNKNOWN)
    gone = np.isin(stated.kept_by[resolved], stated.dropped[known])
    add("not kept", resolved[gone], "the kept document is itself dropped")


def _clusters(stated: StatedDuplicates) -> tuple[RowIds, RowIds, dict[str, int]]:
    """Return the correct cluster of each row, the kept document of each cluster, and the counts by size."""
    documents = len(stated.ids)
    place = (stated.kept_by - stated.others) % max(documents, 1)  # the other index comes last
    order, numbers, members = np.unique(place, return_inverse=True, return_counts=True)
    sizes, counts = np.unique(members + 1, return_counts=True)
    return numbers, order, {str(size): count for size, count in zip(sizes.tolist(), counts.tolist(), strict=True)}
