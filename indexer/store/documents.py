"""Documents of a published index in Parquet, read back a few, a column or a whole part at a time."""

import bisect
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from indexer.corpus.document import Document
from indexer.errors import CorruptIndexError
from indexer.store import layout
from indexer.store.checked import CheckedFile, as_damage
from indexer.store.document_columns import ColumnPath, column_at, type_at
from indexer.store.document_files import STORED, OpenPart, document_of, picked
from indexer.store.manifest import Manifest

HELD_BYTES = 32 << 20  # of row groups that a reader keeps in memory
OPEN_PARTS = 384  # files open at a time; with as many of embeddings, below the 1,024 that a process may usually open
_LOOKED_UP = 1 << 20  # ids in memory at a time, while some are looked up
Numbers = npt.NDArray[np.int64]


class DocumentReader:
    """Documents of a published index by number; every byte is checked before it is used.

    `stored` holds the stored number of each live document, ascending; None when none is deleted.

    Files used lately stay open with their footers, and row groups read lately in memory, so that a second look-up in
    the same place is cheap. Safe to share between threads: one reads at a time, as a file is read from where it stands.
    Arrow's own threads are not used: one that still holds a Python file when the interpreter ends aborts the process.
    """

    def __init__(self, index: Path, manifest: Manifest, schema: pa.Schema, stored: Numbers | None = None) -> None:
        self._index, self._manifest, self._schema, self._stored = index, manifest, schema, stored
        self._ends = list(accumulate(part.documents for part in manifest.parts))
        self._parts: OrderedDict[int, OpenPart] = OrderedDict()  # the one used last at the end
        self._groups: OrderedDict[tuple[int, int], pa.Table] = OrderedDict()  # the one used last at the end
        self._held = 0  # bytes of those
        self._lock = threading.RLock()  # of the files and of what is held

    def close(self) -> None:
        """Let go of the files; they are opened again when they are needed."""
        with self._lock:
            for part in self._parts.values():
                part.file.close()
            self._parts.clear()
            self._groups.clear()
            self._held = 0

    def __len__(self) -> int:
        return (self._ends or [0])[-1] if self._stored is None else len(self._stored)

    @property
    def schema(self) -> pa.Schema:
        """Every column and its type: id, title, text, then metadata as it is in the whole index."""
        return pa.schema([*STORED, *self._schema])

    @property
    def counts(self) -> list[int]:
        """How many documents each part has."""
        live = (self._live(part) for part in range(len(self._ends)))
        return [
            part.documents if rows is None else len(rows) for part, rows in zip(self._manifest.parts, live, strict=True)
        ]

    def fetch(self, rows: Sequence[int]) -> list[Document]:
        """The documents of the given numbers, in the order given; each row group is read once."""
        with as_damage(self._index / layout.PARTS):
            return [document_of(row, self._schema) for row in self._rows(rows, None)]

    def ids(self, rows: Sequence[int]) -> list[str]:
        """Just the ids of the given numbers, in the order given."""
        with as_damage(self._index / layout.PARTS):
            return [row["id"] for row in self._rows(rows, ["id"])]

    def all_ids(self) -> Iterator[str]:
        """Every id, in order of number."""
        for part in range(len(self._ends)):
            yield from self.columns(part, [("id",)])[0].to_pylist()

    def find_ids(self, ids: Collection[str]) -> dict[str, int]:
        """The number of each of these ids that is there; the last where several documents have one id."""
        # Half a surrogate pair is in no document, nor in an array of Arrow's.
        known = [name for name in ids if name.isascii() or name.encode(errors="ignore").decode() == name]
        wanted = pa.array(known, pa.string())
        found: dict[str, int] = {}
        for first, column in self._id_columns():
            places = pc.indices_nonzero(pc.is_in(column, value_set=wanted))
            found.update(zip(column.take(places).to_pylist(), (places.to_numpy() + first).tolist(), strict=True))
        return found

    def all_documents(self) -> Iterator[Document]:
        """Every document, in order of number, a row group in memory at a time."""
        for number in range(len(self._ends)):
            live, start = self._live(number), 0
            with self._lock:
                ends = self._part(number).ends
            for group, end in enumerate(ends):
                table = self._read(number, group, None)
                if live is not None:
                    table = table.take(live[slice(*np.searchsorted(live, [start, end]))] - start)
                start = end
                with as_damage(self._path(number)):
                    documents = [document_of(row, self._schema) for row in table.to_pylist()]
                yield from documents

    def columns(self, part: int, paths: Sequence[ColumnPath]) -> list[pa.ChunkedArray]:
        """Some columns of a part's documents, in order of number, in the types that `schema` gives them.

        A path names a column and, inside objects, a field of a field; where the part has none, values are null.
        """
        live = self._live(part)
        with as_damage(self._path(part)):
            with self._lock:
                file = self._part(part).file
                there = file.schema_arrow.names
                table = file.read(columns=list({path[0] for path in paths if path[0] in there}), use_threads=False)
                count = file.metadata.num_rows if live is None else len(live)
            table = table.combine_chunks() if live is None else table.take(live)
            return [column_at(table, path, type_at(self.schema, path), count) for path in paths]

    def _id_columns(self) -> Iterator[tuple[int, pa.ChunkedArray]]:
        """The ids of a few parts at a time, and the number of the first."""
        first, chunks = 0, list[pa.Array]()
        for part in range(len(self._ends)):
            chunks += self.columns(part, [("id",)])[0].chunks
            if part == len(self._ends) - 1 or sum(map(len, chunks)) >= _LOOKED_UP:
                column = pa.chunked_array(chunks, pa.string())
                yield first, column
                first, chunks = first + len(column), []

    def _live(self, part: int) -> Numbers | None:
        """The rows of a part that are live, ascending; None when all are."""
        if self._stored is None:
            return None
        start, end = self._ends[part] - self._manifest.parts[part].documents, self._ends[part]
        low, high = np.searchsorted(self._stored, [start, end])
        return None if high - low == end - start else self._stored[low:high] - start

    def _rows(self, rows: Sequence[int], columns: list[str] | None) -> list[dict[str, Any]]:
        """One dict for each row. Rows are sorted by where they lie, so that a group serves all its rows at once."""
        found: list[dict[str, Any]] = [{}] * len(rows)
        with self._lock:
            places = sorted((*self._place(row), position) for position, row in enumerate(rows))
        for (part, group), members in groupby(places, key=lambda place: place[:2]):
            table = self._group(part, group) if columns is None else self._read(part, group, columns)
            _, _, offsets, positions = zip(*members, strict=True)
            for position, row in zip(positions, picked(table, offsets), strict=True):
                found[position] = row
        return found

    def _group(self, part: int, group: int) -> pa.Table:
        """A row group with all its columns, from memory where it was read lately."""
        with self._lock:
            if (part, group) in self._groups:
                self._groups.move_to_end((part, group))
                return self._groups[part, group]
            table = self._groups[part, group] = self._read(part, group, None)
            self._held += table.get_total_buffer_size()
            while self._held > HELD_BYTES and len(self._groups) > 1:
                self._held -= self._groups.popitem(last=False)[1].get_total_buffer_size()
            return table

    def _read(self, part: int, group: int, columns: list[str] | None) -> pa.Table:
        with as_damage(self._path(part)), self._lock:
            return self._part(part).file.read_row_group(group, columns=columns, use_threads=False)

    def _place(self, row: int) -> tuple[int, int, int]:
        """(part, row group, offset in it)."""
        row = row if self._stored is None else int(self._stored[row])
        part = bisect.bisect_right(self._ends, row)
        return part, *self._part(part).place(row - (self._ends[part - 1] if part else 0))

    def _part(self, part: int) -> OpenPart:
        if part in self._parts:
            self._parts.move_to_end(part)
            return self._parts[part]
        self._parts[part] = self._opened(part)
        if len(self._parts) > OPEN_PARTS:
            self._parts.popitem(last=False)[1].file.close()
        return self._parts[part]

    def _opened(self, part: int) -> OpenPart:
        path, documents = self._path(part), self._manifest.parts[part].documents
        stamp = self._manifest.files[path.relative_to(self._index).as_posix()]
        with as_damage(path):
            source = pa.PythonFile(CheckedFile(path, stamp), mode="r")
            file = pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False)
            found, fields = OpenPart.of(file), list(file.schema_arrow)
        if file.metadata.num_rows != documents:
            rows = f"{file.metadata.num_rows:,} rows, the manifest says {documents:,}"
            raise CorruptIndexError(f"{path}: {rows}. Build the index again.")
        metadata = {field.name for field in fields[len(STORED) :]}
        if fields[: len(STORED)] != STORED or not metadata <= {*self._schema.names}:
            raise CorruptIndexError(f"{path}: its columns are not those that the manifest says. Build the index again.")
        return found

    def _path(self, part: int) -> Path:
        return self._index / self._manifest.parts[part].name / layout.DOCUMENTS
