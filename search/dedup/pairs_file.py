"""The file of pairs: a join kept, so that every threshold from its floor up is answered without joining again.

Columns: `left` and `right`, row numbers, left < right; `score`; `identical`. Sorted by left, then right. Of rows with
the very same vector, the first stands for all: each other one has a row with `identical` true, whose `left` is that
first; pairs of different vectors are stated of the first ones only. So a text copied a million times takes a million
rows and not their square. The facts are JSON under the key "isotrope" of the file's key-value metadata.

Memory is bounded however many pairs are written, and the bytes do not depend on the order they come in: pairs are
spilled to a temporary folder in sorted runs, and the file is put together from all runs a stretch of left rows at a
time. Only the pairs of one left row must fit in memory together.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from indexer.arrays import Mask, RowIds, Scores
from indexer.errors import ConfigError, CorruptIndexError, StoreError
from indexer.store.files import FileDigest
from indexer.system.output_files import open_output
from search.dedup.distinct import Distinct
from search.dedup.origin import FORMAT, Count, check_origin, check_other, open_parquet, with_facts
from search.dedup.pairs import Pairs
from search.dedup.settings import check_threshold, lowest_score
from search.index import Index

SCHEMA = pa.schema(
    [("left", pa.int64()), ("right", pa.int64()), ("score", pa.float32()), ("identical", pa.bool_())]
)  # fmt: skip
Columns = Mapping[str, npt.NDArray[Any]]
_TYPES = {"left": np.int64, "right": np.int64, "score": np.float32, "identical": np.bool_}
_RUN = 1 << 21  # pairs sorted and spilled together
_STRETCH = 1 << 20  # pairs put together at a time; fixed, as the pages of the file follow from it
_ROW_GROUP = 1 << 18
_WAY_OUT = "Free some space, name a roomier place for temporary files (TMPDIR=/elsewhere isotrope dedup ...)"
_HIGHER = "or raise --floor, which leaves fewer pairs."

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


class PairsFile:
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

    def check(self, index: Index, other: Index | None = None) -> None:
        """Raises MismatchError unless the pairs are those of this index (and of the other one, if any)."""
        check_origin(self.facts, index, self.path)
        check_other(self.facts, other, self.path)
        rows = index.manifest.rows + (other.manifest.rows if other else 0)
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

    def within(self, members: RowIds) -> Iterator[Pairs]:
        """See `PairSource`."""
        if len(members):
            yield from self._both(members, members, int(members[0]), int(members[-1]))

    def between(self, left: RowIds, right: RowIds) -> Iterator[Pairs]:
        """See `PairSource`."""
        if len(left) and len(right):  # the lower number of a pair is the stored left one
            lowest, highest = min(left[0], right[0]), min(left[-1], right[-1])
            yield from self._both(left, right, int(lowest), int(highest))

    def _both(self, one: RowIds, other: RowIds, lowest: int, highest: int) -> Iterator[Pairs]:
        count = len(self.distinct.first)
        in_one, in_other = _mask(one, count), _mask(other, count)
        for pairs in self._pairs(lowest, highest):
            ends = (in_one[pairs.left] & in_other[pairs.right]) | (in_other[pairs.left] & in_one[pairs.right])
            if ends.any():
                yield pairs.take(ends)

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
            yield held.take(slice(place, min(place + _BATCH, end)))

    @cached_property
    def _content(self) -> _Content:
        stars: list[Pairs] = []
        held: list[Pairs] = []
        room = self.memory // _PAIR_BYTES
        for pairs, identical in self._read(0, self.facts["rows"]):
            stars.append(identical)
            room -= len(pairs)
            held = [*held, pairs] if room >= 0 else []
        distinct, self_scores = self._distinct(Pairs.concatenate(stars))
        if room < 0:
            return _Content(distinct, self_scores, None)
        whole = Pairs.concatenate(held)
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
        return every.take((scores >= self.lowest) & ~identical), every.take(identical)

    def _damaged(self, what: str) -> CorruptIndexError:
        return CorruptIndexError(f"{self.path}: {what}. Write it again: {MADE_BY}")


def pair_facts(floor: float, method: dict[str, Any], origin: dict[str, Any], against: dict[str, Any] | None) -> Any:
    """What `PairsFileWriter.save` writes beside the pairs, JSON types; `origin` and `against` as of `origin`."""
    return {"floor": floor, "method": method, **origin, "against": against}


def _overlaps(statistics: Any, lowest: int, highest: int) -> bool:
    return statistics is None or not (statistics.max < lowest or statistics.min > highest)


def _mask(members: RowIds, count: int) -> Mask:
    mask = np.zeros(count, bool)
    mask[members] = True
    return mask


class PairsFileWriter:
    """Pairs of rows on their way into a file. `folder` is temporary and the caller's to remove.

    `rows` is how many rows there are.
    """

    def __init__(self, folder: Path, rows: int) -> None:
        self.folder, self.rows = folder, rows
        self.pairs = 0  # of different vectors
        self.identical = 0
        self._waiting: list[Columns] = []
        self._held = 0  # pairs that wait
        self._runs = 0
        self._counts = np.zeros(rows, np.int64)  # pairs of each left row

    def add(self, left: RowIds, right: RowIds, scores: Scores, identical: bool = False) -> None:
        """Some pairs of row numbers, either way round, each pair once in all.

        Of rows with the very same vector all but the first are paired with the first, as `identical`; the first alone
        is paired with rows of other vectors. Raises StoreError when the temporary folder is full.
        """
        low, high = np.minimum(left, right), np.maximum(left, right)
        self._waiting.append({"left": low, "right": high, "score": scores, "identical": np.full(len(low), identical)})
        if identical:
            self.identical += len(low)
        else:
            self.pairs += len(low)
        self._held += len(low)
        if self._held >= _RUN:
            self._spill()

    def save(self, path: Path, facts: Mapping[str, Any], force: bool = False) -> FileDigest:
        """Write the file, whole or not at all, with `facts` and the counts beside it; through links.

        Raises ConfigError for a place that cannot be written, ExistsError for a file that is there already unless
        `force` is given, and StoreError when a disk is full.
        """
        self._spill()
        counts = {"format": FORMAT, "rows": self.rows, "pairs": self.pairs, "identical": self.identical}
        schema = with_facts(SCHEMA, {**facts, **counts})
        try:
            with (
                open_output(path, "--save-pairs", force, stream=False) as file,
                pq.ParquetWriter(pa.PythonFile(file, mode="w"), schema, **_options()) as to,
            ):
                for columns in self._stretches():
                    arrays = [pa.array(columns[name]) for name in SCHEMA.names]
                    to.write_table(pa.table(arrays, schema=schema), row_group_size=_ROW_GROUP)
        except StoreError as error:
            total = self.pairs + self.identical
            raise StoreError(f"{error} {total:,} pairs were to be written; {_HIGHER}") from error
        return file.digest

    def _spill(self) -> None:
        """Write what waits as one sorted run."""
        if not self._held:
            return
        run = _sorted(self._waiting)
        self._waiting, self._held = [], 0
        self._counts += np.bincount(run["left"], minlength=self.rows)
        try:
            for name, kind in _TYPES.items():
                with self._path(self._runs, name).open("wb") as file:  # not tofile(), which hides why it failed
                    file.write(np.ascontiguousarray(run[name], kind).data)
        except OSError as error:
            raise StoreError(
                f"{self.folder}: temporary pairs cannot be written: {error.strerror}, after "
                f"{self.pairs + self.identical:,} pairs. {_WAY_OUT}, {_HIGHER}"
            ) from error
        self._runs += 1

    def _stretches(self) -> Iterator[Columns]:
        """All pairs, sorted by left and then right row, so many at a time."""
        bounds = list(_bounds(self._counts, _STRETCH))
        edges = [0, *(last for _, last in bounds)]
        cuts = [
            np.searchsorted(np.memmap(self._path(run, "left"), np.int64, mode="r"), edges) for run in range(self._runs)
        ]
        for number in range(len(bounds)):
            yield _sorted(self._piece(run, *cut[number : number + 2].tolist()) for run, cut in enumerate(cuts))

    def _piece(self, run: int, start: int, end: int) -> Columns:
        """Pairs [start, end) of a run: read, as pages of a mapped file would stay in memory."""
        return {
            name: np.fromfile(self._path(run, name), kind, end - start, offset=start * np.dtype(kind).itemsize)
            for name, kind in _TYPES.items()
        }

    def _path(self, run: int, name: str) -> Path:
        return self.folder / f"pairs-{run:06d}.{name}"


def _options() -> dict[str, Any]:
    """Rows go up in small steps, and the bytes of scores are alike place by place: both then compress well."""
    return {
        "compression": "zstd",
        "write_page_checksum": True,
        "use_dictionary": False,
        "column_encoding": {
            "left": "DELTA_BINARY_PACKED",
            "right": "DELTA_BINARY_PACKED",
            "score": "BYTE_STREAM_SPLIT",
            "identical": "PLAIN",
        },
    }


def _sorted(pieces: Iterable[Columns]) -> Columns:
    several = list(pieces)
    whole = {name: np.concatenate([piece[name] for piece in several]) for name in _TYPES}
    order = np.lexsort((whole["right"], whole["left"]))
    return {name: column[order] for name, column in whole.items()}


def _bounds(counts: RowIds, limit: int) -> Iterator[tuple[int, int]]:
    """[first, last) left rows of one stretch after the other: at most `limit` pairs each, unless one row has more."""
    ends = np.cumsum(counts)
    first, done = 0, 0
    while len(ends) and done < ends[-1]:
        last = max(first + 1, int(np.searchsorted(ends, done + limit, side="right")))
        if ends[last - 1] > done:
            yield first, last
        first, done = last, int(ends[last - 1])
