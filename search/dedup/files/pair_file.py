"""The file of pairs: a join kept, so that every threshold from its floor up is answered without joining again.

Columns: `left` and `right`, row numbers, left < right; `score`; `identical`. Sorted by left, then right. Of rows with
the very same vector, the first stands for all: each other one has a row with `identical` true, whose `left` is that
first; pairs of different vectors are stated of the first ones only. So a text copied a million times takes a million
rows and not their square. The facts are JSON under the key "isotrope" of the file's key-value metadata.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from indexer.errors import ConfigError, CorruptIndexError
from search.dedup.deciding.distinct import Distinct
from search.dedup.files.origin import check_origin, check_other
from search.dedup.files.pair_writer import SCHEMA
from search.dedup.files.parquet_files import Count, open_parquet
from search.dedup.pairs import Pairs, Rows, Scores
from search.dedup.settings import check_threshold, lowest_score
from search.opened import OpenIndex

MADE_BY = "isotrope dedup INDEX --threshold T --save-pairs FILE --floor F"
_BATCH = 1 << 18  # pairs
_PAIR_BYTES = 64  # of a held pair, with what is made of it on the way


class Facts(TypedDict):
    """What is asked of the facts beside the rows; JSON types."""

    format: Count
    floor: float
    method: dict[str, Any]
    fingerprint: str
    transform: str
    index: dict[str, Any]
    against: dict[str, Any] | None
    rows: Count
    pairs: Count
    identical: Count


@dataclass(frozen=True)
class _Content:
    """What one pass over the file finds: who is identical to whom, and the pairs themselves if they fit."""

    distinct: Distinct
    self_scores: Scores
    held: Pairs | None


class StoredPairs:
    """A `PairSource` over a file of pairs: all that score at least `threshold`, by numbers of distinct vectors.

    Pairs that fit in `memory` bytes are read once, others anew for every question. Raises EvaluationError for a file
    that is no such file, ConfigError for a threshold below its floor, and CorruptIndexError for a damaged one.
    """

    def __init__(self, path: Path, threshold: float, memory: int = 1 << 30) -> None:
        check_threshold(threshold)
        self.path, self.memory = path, memory
        self.lowest = lowest_score(threshold)
        with open_parquet(path, SCHEMA, Facts, MADE_BY) as (file, facts):
            self.facts = facts
            rows = file.metadata.num_rows
        if rows != facts["pairs"] + facts["identical"]:
            raise self._damaged(f"holds {rows:,} pairs, says {facts['pairs'] + facts['identical']:,}")
        if threshold < facts["floor"]:
            raise ConfigError(
                f"{path}: holds the pairs that score {facts['floor']:g} or more; {threshold:g} was asked for. Ask for "
                f"{facts['floor']:g} or more, or save pairs from a lower floor: {MADE_BY}"
            )

    def check(self, opened: OpenIndex, other: OpenIndex | None = None) -> None:
        """Raises MismatchError unless the pairs are those of this index (and of the other one, if any)."""
        check_origin(self.facts, opened, self.path)
        check_other(self.facts, other, self.path)
        rows = opened.manifest.rows + (other.manifest.rows if other else 0)
        if self.facts["rows"] != rows:
            raise self._damaged(f"says it is of {self.facts['rows']:,} rows, where there are {rows:,}")

    @property
    def distinct(self) -> Distinct:
        """Which rows hold the same vector."""
        return self._content.distinct

    @property
    def self_scores(self) -> Scores:
        """Score of each distinct vector with itself, (distinct,); NaN for a vector that only one row has."""
        return self._content.self_scores

    def within(self, members: Rows) -> Iterator[Pairs]:
        """See `PairSource`."""
        if len(members):
            yield from self._both(members, members, int(members[0]), int(members[-1]))

    def between(self, left: Rows, right: Rows) -> Iterator[Pairs]:
        """See `PairSource`."""
        if len(left) and len(right):  # the lower number of a pair is the stored left one
            lowest, highest = min(left[0], right[0]), min(left[-1], right[-1])
            yield from self._both(left, right, int(lowest), int(highest))

    def _both(self, one: Rows, other: Rows, lowest: int, highest: int) -> Iterator[Pairs]:
        count = len(self.distinct.first)
        in_one, in_other = _mask(one, count), _mask(other, count)
        for pairs in self._pairs(lowest, highest):
            ends = (in_one[pairs.left] & in_other[pairs.right]) | (in_other[pairs.left] & in_one[pairs.right])
            if ends.any():
                yield _chosen(pairs, ends)

    def _pairs(self, lowest: int, highest: int) -> Iterator[Pairs]:
        """Batches of all pairs whose left number is in [lowest, highest], and perhaps some more."""
        held = self._content.held
        if held is None:
            first, number_of = self.distinct.first, self.distinct.number_of
            for pairs, _ in self._read(int(first[lowest]), int(first[highest])):
                yield Pairs(number_of[pairs.left], number_of[pairs.right], pairs.scores)
            return
        start, end = np.searchsorted(held.left, [lowest, highest + 1]).tolist()
        for place in range(start, end, _BATCH):
            yield _chosen(held, slice(place, min(place + _BATCH, end)))

    @cached_property
    def _content(self) -> _Content:
        stars: list[Pairs] = []
        held: list[Pairs] = []
        room = self.memory // _PAIR_BYTES
        for pairs, identical in self._read(0, self.facts["rows"]):
            stars.append(identical)
            room -= len(pairs)
            held = [*held, pairs] if room >= 0 else []
        distinct, self_scores = self._distinct(_joined(stars))
        if room < 0:
            return _Content(distinct, self_scores, None)
        whole = _joined(held)
        numbers = Pairs(distinct.number_of[whole.left], distinct.number_of[whole.right], whole.scores)
        return _Content(distinct, self_scores, numbers)

    def _distinct(self, stars: Pairs) -> tuple[Distinct, Scores]:
        """Which rows are the first with their vector, from the pairs of all others with them."""
        stands_for = np.arange(self.facts["rows"])
        stands_for[stars.right] = stars.left
        is_first = np.ones(len(stands_for), bool)
        is_first[stars.right] = False
        if len(stars) != np.count_nonzero(~is_first) or not is_first[stars.left].all():
            raise self._damaged("rows said to be identical have no one first row")
        first = np.flatnonzero(is_first)
        number_of = np.searchsorted(first, stands_for)
        self_scores = np.full(len(first), np.nan, np.float32)
        self_scores[number_of[stars.right]] = stars.scores
        return Distinct(first, number_of), self_scores

    def _read(self, lowest: int, highest: int) -> Iterator[tuple[Pairs, Pairs]]:
        """A row group at a time those with left rows in [lowest, highest]: pairs that score enough, identical rows."""
        with open_parquet(self.path, SCHEMA, Facts, MADE_BY) as (file, _):
            for group in range(file.num_row_groups):
                if _overlaps(file.metadata.row_group(group).column(0).statistics, lowest, highest):
                    yield self._group(file, group)

    def _group(self, file: pq.ParquetFile, group: int) -> tuple[Pairs, Pairs]:
        table = file.read_row_group(group, use_threads=False)
        left, right, scores, identical = (table.column(name).to_numpy() for name in SCHEMA.names)
        # Row numbers are used to look things up, so none may be out of range; the order lets questions skip pairs.
        if len(left) and not (left[0] >= 0 and (left < right).all() and right.max() < self.facts["rows"]):
            raise self._damaged("names rows that the index cannot have")
        if (left[1:] < left[:-1]).any():
            raise self._damaged("is not sorted by its left rows")
        every = Pairs(left, right, scores)
        return _chosen(every, (scores >= self.lowest) & ~identical), _chosen(every, identical)

    def _damaged(self, what: str) -> CorruptIndexError:
        return CorruptIndexError(f"{self.path}: {what}. Write it again: {MADE_BY}")


def pair_facts(floor: float, method: dict[str, Any], origin: dict[str, Any], against: dict[str, Any] | None) -> Any:
    """What `PairWriter.save` writes beside the pairs, JSON types; `origin` and `against` as of `origin`."""
    return {"floor": floor, "method": method, **origin, "against": against}


def _overlaps(statistics: Any, lowest: int, highest: int) -> bool:
    return statistics is None or not (statistics.max < lowest or statistics.min > highest)


def _mask(members: Rows, count: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros(count, bool)
    mask[members] = True
    return mask


def _chosen(pairs: Pairs, which: npt.NDArray[np.bool_] | slice) -> Pairs:
    return Pairs(pairs.left[which], pairs.right[which], pairs.scores[which])


def _joined(batches: list[Pairs]) -> Pairs:
    if not batches:
        return Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))
    return Pairs(*(np.concatenate([getattr(batch, name) for batch in batches]) for name in ("left", "right", "scores")))
