"""Writing the file of pairs: gathered on disk in any order, then merged into one sorted file.

Memory is bounded however many pairs there are, and the bytes do not depend on the order they came in: pairs are
spilled to a temporary folder in sorted runs, and the file is put together from all runs a stretch of left rows at a
time. Only the pairs of one left row must fit in memory together.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from indexer.errors import StoreError
from indexer.output_files import open_output
from indexer.store.files import FileDigest
from search.dedup.files.parquet_files import FORMAT, with_facts
from search.dedup.pairs import Rows, Scores

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


class PairWriter:
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

    def add(self, left: Rows, right: Rows, scores: Scores, identical: bool = False) -> None:
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


def _bounds(counts: Rows, limit: int) -> Iterator[tuple[int, int]]:
    """[first, last) left rows of one stretch after the other: at most `limit` pairs each, unless one row has more."""
    ends = np.cumsum(counts)
    first, done = 0, 0
    while len(ends) and done < ends[-1]:
        last = max(first + 1, int(np.searchsorted(ends, done + limit, side="right")))
        if ends[last - 1] > done:
            yield first, last
        first, done = last, int(ends[last - 1])
