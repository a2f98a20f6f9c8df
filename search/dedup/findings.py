"""What a file of duplicates states, by document number, and what is found wrong with it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from indexer.arrays import Mask, RowIds, Scores
from indexer.errors import as_shown
from search.dedup.duplicates_file import REASONS, Duplicates
from search.dedup.settings import lowest_score
from search.index import Index

_CONSEQUENCES = ("cluster", "order", "facts")  # kinds that mostly follow from others, which are told first
_UNKNOWN = -1  # number of a document that no index has
_SHOWN = 3  # problems of each kind that are written out; all are counted


@dataclass
class DedupVerifyReport:
    """The outcome of `verify_duplicates`. `problems` is empty for a result that is proved right."""

    path: Path
    index: Path
    threshold: float
    method: str
    documents: int = 0
    dropped: int = 0
    compared: int = 0  # pairs of vectors
    exact: int = 0  # of those summed exactly, as float32 could not decide them
    violations: dict[str, int] = field(default_factory=dict)  # how many of each kind
    problems: list[str] = field(default_factory=list)  # the first few of each kind, and how many more there are

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {**vars(self), "path": str(self.path), "index": as_shown(str(self.index)), "passed": self.passed}


class Findings:
    """Gathers violations by kind: all are counted, the first few told."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._told: dict[str, list[str]] = {}

    def __bool__(self) -> bool:
        return bool(self.counts)

    def add(self, kind: str, told: Iterable[str], count: int) -> None:
        """`count` more violations of a kind; no more of `told` is made than will be shown."""
        if count:
            self.counts[kind] = self.counts.get(kind, 0) + count
            shown = self._told.setdefault(kind, [])
            shown += islice(told, _SHOWN - len(shown))

    def lines(self) -> list[str]:
        """One line a violation that is shown, and one for all others of its kind."""
        found = []
        for kind, count in sorted(self.counts.items(), key=lambda item: item[0] in _CONSEQUENCES):
            found += [f"{kind}: {line}" for line in self._told[kind]]
            if count > len(self._told[kind]):
                found.append(f"{kind}: {count - len(self._told[kind]):,} more, {count:,} in all")
        return found


@dataclass(frozen=True)
class StatedDuplicates:
    """What the rows say. Documents of the other index, if any, are numbered first, then those of the index itself."""

    ids: pa.ChunkedArray  # of all documents
    others: int
    dropped: RowIds  # (rows of the table,) the dropped document
    kept_by: RowIds  # (rows of the table,) the kept document that stands for it
    scores: Scores
    reasons: npt.NDArray[np.object_]
    clusters: RowIds

    @property
    def is_kept(self) -> Mask:
        """Which documents the file does not list as dropped, (documents,)."""
        kept = np.ones(len(self.ids), bool)
        kept[self.dropped] = False
        return kept

    def name(self, document: int) -> str:
        """A document in words."""
        return f'"{self.ids[document].as_py()}"{" of the other index" if document < self.others else ""}'


def read_stated(duplicates: Duplicates, opened: Index, other: Index | None, found: Findings) -> StatedDuplicates | None:
    """The table with ids looked up. None if it names documents wrongly; `found` then says which."""
    ids = [_ids(index) for index in (other, opened)]
    others = len(ids[0])
    table = duplicates.table
    reasons = table.column("reason").to_numpy()
    if unknown := [f'"{reason}"' for reason in np.unique(reasons[~np.isin(reasons, REASONS)])]:
        found.add("reason", (f"{reason} is none of {', '.join(REASONS)}" for reason in unknown), len(unknown))
    against = np.char.startswith(reasons.astype(str), "against")
    dropped = _look_up(table.column("id"), ids[1], others)
    own, strange = _look_up(table.column("kept_id"), ids[1], others), _look_up(table.column("kept_id"), ids[0], 0)
    kept_by = np.where(against, strange, own)
    stated = StatedDuplicates(
        pa.chunked_array([*ids[0].chunks, *ids[1].chunks], pa.string()),
        others,
        dropped,
        kept_by,
        table.column("score").to_numpy(),
        reasons,
        table.column("cluster").to_numpy(),
    )
    _check_ids(stated, table, found)
    return None if found else stated


def check_facts(facts: Mapping[str, Any], stated: StatedDuplicates, found: Findings) -> None:
    """Compares the counts among the facts, the cluster numbers and the order of rows with the table itself."""
    numbers, order, sizes = _clusters(stated)
    wrong = np.flatnonzero(stated.clusters != numbers)
    found.add("cluster", _wrong_clusters(stated, wrong, numbers), len(wrong))
    place = np.lexsort((stated.dropped, numbers))
    if not found and (place != np.arange(len(place))).any():
        found.add("order", ["rows are not sorted by cluster and place in the corpus"], 1)
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
        told = facts[name]
        if isinstance(told, dict):
            told = {key: count for key, count in told.items() if count != 0}
        if told != value:
            found.add("facts", [f'"{name}" is {told}; the table gives {value}'], 1)


def _ids(index: Index | None) -> pa.ChunkedArray:
    ids = pa.array(index.documents.all_ids() if index else [], pa.string())
    return ids if isinstance(ids, pa.ChunkedArray) else pa.chunked_array([ids])  # chunked if over 2 GB


def _look_up(names: pa.ChunkedArray, ids: pa.ChunkedArray, first: int) -> RowIds:
    """Numbers of the documents with these ids, counted from `first`."""
    places = pc.index_in(names, value_set=ids).cast(pa.int64()).fill_null(_UNKNOWN).to_numpy()
    numbers: RowIds = np.where(places == _UNKNOWN, _UNKNOWN, places + first)
    return numbers


def _check_ids(stated: StatedDuplicates, table: pa.Table, found: Findings) -> None:
    def tell(kind: str, rows: RowIds, what: str) -> None:
        lines = (f'row {row}: "{table.column("id")[row]}" -> "{table.column("kept_id")[row]}": {what}' for row in rows)
        found.add(kind, lines, len(rows))

    tell("unknown id", np.flatnonzero(stated.dropped == _UNKNOWN), "the index has no such dropped document")
    tell("unknown id", np.flatnonzero(stated.kept_by == _UNKNOWN), "no index has such a kept document")
    known = np.flatnonzero(stated.dropped != _UNKNOWN)
    _, first = np.unique(stated.dropped[known], return_index=True)
    tell("dropped twice", np.delete(known, first), "dropped in an earlier row already")
    resolved = np.flatnonzero(stated.kept_by != _UNKNOWN)
    gone = np.isin(stated.kept_by[resolved], stated.dropped[known])
    tell("not kept", resolved[gone], "the document said to be kept is dropped itself")


def _clusters(stated: StatedDuplicates) -> tuple[RowIds, RowIds, dict[str, int]]:
    """The number each row's cluster should have, the kept document of each cluster, and how many have which size."""
    documents = len(stated.ids)
    place = (stated.kept_by - stated.others) % max(documents, 1)  # documents of the other index after all of this one
    order, numbers, members = np.unique(place, return_inverse=True, return_counts=True)
    sizes, counts = np.unique(members + 1, return_counts=True)
    return numbers, order, {str(size): count for size, count in zip(sizes.tolist(), counts.tolist(), strict=True)}


def _wrong_clusters(stated: StatedDuplicates, wrong: RowIds, numbers: RowIds) -> Iterator[str]:
    for row in wrong.tolist():
        yield f"{stated.name(stated.dropped[row])} is in {stated.clusters[row]}, should be in {numbers[row]}"
