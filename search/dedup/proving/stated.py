"""What a file of duplicates says, in numbers of documents, and whether that is sound in itself."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from search.dedup.files.duplicates_file import REASONS, Duplicates
from search.dedup.pairs import Rows, Scores
from search.dedup.proving.proof import Findings
from search.dedup.settings import lowest_score
from search.opened import OpenIndex

_UNKNOWN = -1


@dataclass(frozen=True)
class Stated:
    """Documents of the other index, if any, are numbered first, then those of the index itself."""

    ids: pa.ChunkedArray  # of all documents
    others: int
    dropped: Rows  # (rows of the table,) the dropped document
    kept_by: Rows  # (rows of the table,) the kept document that stands for it
    scores: Scores
    reasons: npt.NDArray[np.object_]
    clusters: Rows

    @property
    def is_kept(self) -> npt.NDArray[np.bool_]:
        """Which documents the file does not list as dropped, (documents,)."""
        kept = np.ones(len(self.ids), bool)
        kept[self.dropped] = False
        return kept

    def name(self, document: int) -> str:
        """A document in words."""
        return f'"{self.ids[document].as_py()}"{" of the other index" if document < self.others else ""}'


def read_stated(duplicates: Duplicates, opened: OpenIndex, other: OpenIndex | None, found: Findings) -> Stated | None:
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
    stated = Stated(
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


def check_facts(facts: Mapping[str, Any], stated: Stated, found: Findings) -> None:
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


def _ids(opened: OpenIndex | None) -> pa.ChunkedArray:
    ids = pa.array(opened.documents.all_ids() if opened else [], pa.string())
    return ids if isinstance(ids, pa.ChunkedArray) else pa.chunked_array([ids])  # chunked if over 2 GB


def _look_up(names: pa.ChunkedArray, ids: pa.ChunkedArray, first: int) -> Rows:
    """Numbers of the documents with these ids, counted from `first`."""
    places = pc.index_in(names, value_set=ids).cast(pa.int64()).fill_null(_UNKNOWN).to_numpy()
    numbers: Rows = np.where(places == _UNKNOWN, _UNKNOWN, places + first)
    return numbers


def _check_ids(stated: Stated, table: pa.Table, found: Findings) -> None:
    def tell(kind: str, rows: Rows, what: str) -> None:
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


def _clusters(stated: Stated) -> tuple[Rows, Rows, dict[str, int]]:
    """The number each row's cluster should have, the kept document of each cluster, and how many have which size."""
    documents = len(stated.ids)
    place = (stated.kept_by - stated.others) % max(documents, 1)  # documents of the other index after all of this one
    order, numbers, members = np.unique(place, return_inverse=True, return_counts=True)
    sizes, counts = np.unique(members + 1, return_counts=True)
    return numbers, order, {str(size): count for size, count in zip(sizes.tolist(), counts.tolist(), strict=True)}


def _wrong_clusters(stated: Stated, wrong: Rows, numbers: Rows) -> Iterator[str]:
    for row in wrong.tolist():
        yield f"{stated.name(stated.dropped[row])} is in {stated.clusters[row]}, should be in {numbers[row]}"
