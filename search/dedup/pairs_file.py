"""The file of pairs: the result of a join, for every threshold from its floor up.

Columns: `left` and `right`, row numbers, left < right; `score`; `identical`. Sorted by left, then right. The first of
rows with equal vectors represents them: each copy has a row with `identical` true and the first as `left`, and pairs of
different vectors name first rows only. So a million copies of a text take a million rows, not their square. The facts
are JSON under the key "isotrope" of the file's key-value metadata.

The writer needs bounded memory, and the bytes do not depend on the order of pairs: sorted runs of pairs are spilled to
a temporary folder, then merged a stretch of left rows at a time. Only the pairs of one left row must fit in memory.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from indexer.arrays import RowIds, Scores
from indexer.errors import ConfigError, CorruptIndexError, StoreError, as_argument, spelled
from indexer.store.files import FileDigest
from indexer.system.output_files import open_output
from search.dedup.distinct import Distinct
from search.dedup.pairs import Pairs
from search.dedup.provenance import FORMAT, Count, check_origin, check_other, open_parquet, with_facts
from search.dedup.settings import check_threshold, lowest_score
from search.index import Index

SCHEMA = pa.schema([("left", pa.int64()), ("right", pa.int64()), ("score", pa.float32()), ("identical", pa.bool_())])
Rows = npt.NDArray[np.void]  # of the type _ROW
_ROW = np.dtype([("left", "<i8"), ("right", "<i8"), ("score", "<f4"), ("identical", "?")])
_RUN = 1 << 21  # pairs sorted and spilled together
_STRETCH = 1 << 20  # pairs merged together; fixed, because it decides the pages of the file
_ROW_GROUP = 1 << 18
_FIX = "Fix: free some disk space, name another folder for temporary files (the environment variable TMPDIR)"


def made_by() -> str:
    """Return the call that writes such a file."""
    return spelled(
        "deduplicate(INDEX, T, pairs=PairFiles(write=FILE, floor=F))",
        "isotrope dedup INDEX --threshold T --save-pairs FILE --floor F",
    )


def _higher() -> str:
    return f"or raise {as_argument('floor')} to write fewer pairs."


_BATCH = 1 << 18  # pairs
_PAIR_BYTES = 64  # of a pair in memory, with temporary copies


class Facts(TypedDict):
    """The facts of the file, JSON types."""

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


class PairsFile:
    """A `PairSource` of the pairs in a file that score at least `threshold`.

    Pairs that fit in `memory` bytes are read once; otherwise each call reads the file. Raises EvaluationError for
    another kind of file, ConfigError for a threshold below its floor, and CorruptIndexError for a damaged file.
    """

    def __init__(self, path: Path, threshold: float, memory: int = 1 << 30) -> None:
        check_threshold(threshold)
        self.path, self.memory = path, memory
        self.lowest = lowest_score(threshold)
        with open_parquet(path, SCHEMA, Facts, made_by()) as (file, facts):
            self.facts = facts
            rows = file.metadata.num_rows
        if rows != facts["pairs"] + facts["identical"]:
            raise self._damaged(f"contains {rows:,} pairs instead of {facts['pairs'] + facts['identical']:,}")
        if threshold < facts["floor"]:
            raise ConfigError(
                f"{path}: contains only pairs that score {facts['floor']:g} or more, but the threshold is "
                f"{threshold:g}. Fix: raise the threshold, or save pairs from a lower floor: {made_by()}"
            )

    def check(self, index: Index, other: Index | None = None) -> None:
        """Raise MismatchError if the pairs are of another index or were compared with another index than `other`."""
        check_origin(self.facts, index, self.path)
        check_other(self.facts, other, self.path)
        rows = index.manifest.rows + (other.manifest.rows if other else 0)
        if self.facts["rows"] != rows:
            raise self._damaged(f"is for {self.facts['rows']:,} rows instead of {rows:,}")

    @property
    def distinct(self) -> Distinct:
        """Numbers of the distinct vectors."""
        return self._content[0]

    @property
    def self_scores(self) -> Scores:
        """Score of each distinct vector with itself, (distinct,); NaN for a vector without copies."""
        return self._content[1]

    def within(self, members: RowIds) -> Iterator[Pairs]:
        return self._both(members, members)

    def between(self, left: RowIds, right: RowIds) -> Iterator[Pairs]:
        return self._both(left, right)

    def _both(self, first: RowIds, second: RowIds) -> Iterator[Pairs]:
        if not (len(first) and len(second)):
            return
        in_first, in_second = np.zeros((2, len(self.distinct.first)), bool)
        in_first[first] = in_second[second] = True
        # The file stores the lower number of a pair as left.
        for pairs in self._pairs(int(min(first[0], second[0])), int(min(first[-1], second[-1]))):
            ends = (in_first[pairs.left] & in_second[pairs.right]) | (in_second[pairs.left] & in_first[pairs.right])
            if ends.any():
                yield pairs.take(ends)

    def _pairs(self, lowest: int, highest: int) -> Iterator[Pairs]:
        """Yield at least all pairs whose left number is in [lowest, highest], in batches."""
        held = self._content[2]
        if held is None:
            first = self.distinct.first
            for pairs, _ in self._read(int(first[lowest]), int(first[highest])):
                yield _numbered(pairs, self.distinct)
            return
        start, end = np.searchsorted(held.left, [lowest, highest + 1]).tolist()
        for place in range(start, end, _BATCH):
            yield held.take(slice(place, min(place + _BATCH, end)))

    @cached_property
    def _content(self) -> tuple[Distinct, Scores, Pairs | None]:
        """The distinct vectors, their self-scores, and all pairs if they fit in memory, from one pass."""
        copies: list[Pairs] = []
        held: list[Pairs] = []
        room = self.memory // _PAIR_BYTES
        for pairs, identical in self._read(0, self.facts["rows"]):
            copies.append(identical)
            room -= len(pairs)
            held = [*held, pairs] if room >= 0 else []
        distinct, self_scores = self._distinct(Pairs.concatenate(copies))
        if room < 0:
            return distinct, self_scores, None
        whole = Pairs.concatenate(held)
        return distinct, self_scores, _numbered(whole, distinct)

    def _distinct(self, copies: Pairs) -> tuple[Distinct, Scores]:
        """Return the distinct vectors and their self-scores, given the identical pairs (first row, copy)."""
        first_of = np.arange(self.facts["rows"])
        first_of[copies.right] = copies.left
        is_first = np.ones(len(first_of), bool)
        is_first[copies.right] = False
        if len(copies) != np.count_nonzero(~is_first) or not is_first[copies.left].all():
            raise self._damaged("identical rows do not share one first row")
        first = np.flatnonzero(is_first)
        number_of = np.searchsorted(first, first_of)
        self_scores = np.full(len(first), np.nan, np.float32)
        self_scores[number_of[copies.right]] = copies.scores
        return Distinct(first, number_of), self_scores

    def _read(self, lowest: int, highest: int) -> Iterator[tuple[Pairs, Pairs]]:
        """Yield pairs and identical pairs of the row groups that overlap with left rows [lowest, highest]."""
        with open_parquet(self.path, SCHEMA, Facts, made_by()) as (file, _):
            for group in range(file.num_row_groups):
                statistics = file.metadata.row_group(group).column(0).statistics
                if statistics is None or (statistics.max >= lowest and statistics.min <= highest):
                    yield self._group(file, group)

    def _group(self, file: pq.ParquetFile, group: int) -> tuple[Pairs, Pairs]:
        table = file.read_row_group(group, use_threads=False)
        left, right, scores, identical = (table.column(name).to_numpy() for name in SCHEMA.names)
        # Row numbers are array indices, and reading relies on the order.
        if len(left) and not (left[0] >= 0 and (left < right).all() and right.max() < self.facts["rows"]):
            raise self._damaged("contains row numbers out of range")
        if (left[1:] < left[:-1]).any():
            raise self._damaged("is not sorted by left row")
        every = Pairs(left, right, scores)
        return every.take((scores >= self.lowest) & ~identical), every.take(identical)

    def _damaged(self, what: str) -> CorruptIndexError:
        return CorruptIndexError(f"{self.path}: {what}. Fix: write it again: {made_by()}")


def _numbered(rows: Pairs, distinct: Distinct) -> Pairs:
    return Pairs(distinct.number_of[rows.left], distinct.number_of[rows.right], rows.scores)


class PairsFileWriter:
    """Writes pairs of `rows` rows to a file, through the temporary `folder`, which the caller removes."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.folder, self.rows = folder, rows
        self.pairs = 0  # of different vectors
        self.identical = 0
        self._waiting: list[Rows] = []
        self._held = 0  # waiting pairs
        self._runs = 0
        self._counts = np.zeros(rows, np.int64)  # pairs of each left row

    def add(self, left: RowIds, right: RowIds, scores: Scores, identical: bool = False) -> None:
        """Add pairs of row numbers in either order, each pair once.

        Copies of a vector are paired only with its first row, as `identical`; other pairs name first rows only. Raises
        StoreError if the temporary folder is full.
        """
        rows = np.empty(len(left), _ROW)
        rows["left"], rows["right"] = np.minimum(left, right), np.maximum(left, right)
        rows["score"], rows["identical"] = scores, identical
        self._waiting.append(rows)
        if identical:
            self.identical += len(rows)
        else:
            self.pairs += len(rows)
        self._held += len(rows)
        if self._held >= _RUN:
            self._spill()

    def save(self, path: Path, facts: Mapping[str, Any], force: bool = False) -> FileDigest:
        """Write the file atomically, with the counts and the other `facts` (floor, method, origin); follow links.

        Raises ConfigError for a path that cannot be written, ExistsError for an existing file without `force`, and
        StoreError for a full disk.
        """
        self._spill()
        counts = {"format": FORMAT, "rows": self.rows, "pairs": self.pairs, "identical": self.identical}
        schema = with_facts(SCHEMA, {**facts, **counts})
        try:
            with (
                open_output(path, spelled("pairs.write", "--save-pairs"), force, stream=False) as file,
                pq.ParquetWriter(pa.PythonFile(file, mode="w"), schema, **_options()) as to,
            ):
                for rows in self._stretches():
                    arrays = [pa.array(np.ascontiguousarray(rows[name])) for name in SCHEMA.names]
                    to.write_table(pa.table(arrays, schema=schema), row_group_size=_ROW_GROUP)
        except StoreError as error:
            total = self.pairs + self.identical
            raise StoreError(f"{error} The file needs {total:,} pairs; {_higher()}") from error
        return file.digest

    def _spill(self) -> None:
        """Write the waiting pairs as one sorted run."""
        if not self._held:
            return
        waiting = np.concatenate(self._waiting)
        self._waiting, self._held = [], 0
        run = _sorted(waiting)
        self._counts += np.bincount(run["left"], minlength=self.rows)
        try:
            with self._path(self._runs).open("wb") as file:  # not tofile(), which hides the error
                file.write(run.data)
        except OSError as error:
            raise StoreError(
                f"{self.folder}: temporary pairs cannot be written: {error.strerror}, after "
                f"{self.pairs + self.identical:,} pairs. {_FIX}, {_higher()}"
            ) from error
        self._runs += 1

    def _stretches(self) -> Iterator[Rows]:
        """Yield all pairs in order, about `_STRETCH` at a time."""
        edges = [0, *_ends(self._counts, _STRETCH)]
        cuts = [
            np.searchsorted(np.memmap(self._path(run), _ROW, "r")["left"], edges).tolist() for run in range(self._runs)
        ]
        for number in range(len(edges) - 1):
            yield _sorted(np.concatenate([self._piece(run, *cut[number : number + 2]) for run, cut in enumerate(cuts)]))

    def _piece(self, run: int, start: int, end: int) -> Rows:
        """Read the pairs [start, end) of a run; pages of a mapped file would stay in memory."""
        return np.fromfile(self._path(run), _ROW, end - start, offset=start * _ROW.itemsize)

    def _path(self, run: int) -> Path:
        return self.folder / f"pairs-{run:06d}"


def _options() -> dict[str, Any]:
    return {  # encodings for rows that grow in small steps and for scores with similar high bytes
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


def _sorted(rows: Rows) -> Rows:
    """Return pairs of fewer than 2**32 rows, each pair once, in order."""
    return rows[np.argsort(rows["left"].astype(np.uint64) << np.uint64(32) | rows["right"].astype(np.uint64))]


def _ends(counts: RowIds, limit: int) -> Iterator[int]:
    """Yield the end of each stretch of left rows with at most `limit` pairs; a single row may have more."""
    ends = np.cumsum(counts)
    last, done = 0, 0
    while len(ends) and done < ends[-1]:
        last = max(last + 1, int(np.searchsorted(ends, done + limit, side="right")))
        if ends[last - 1] > done:
            yield last
        done = int(ends[last - 1])
