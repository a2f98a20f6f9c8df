"""Documents in Parquet: those of one part written and read, and those of a published index looked up."""

import bisect
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from indexer.arrays import RowIds
from indexer.corpus.document import Document, encoded_columns
from indexer.corpus.schema import ColumnPath, infer_schema
from indexer.errors import CorruptIndexError
from indexer.store import layout
from indexer.store.document_tables import (
    STORED,
    column_at,
    documents_of,
    gathered_rows,
    long_columns,
    numbers_array,
    texts_array,
    type_at,
    with_schema,
)
from indexer.store.files import FileDigest, atomic_write
from indexer.store.integrity import CheckedFile, as_damage
from indexer.store.manifest import Manifest
from indexer.store.similar_ids import most_similar
from indexer.store.stores import Store, open_stored, store_at

GROUP_BYTES = 48 << 10  # of a row group; small, so that fetching the text of a hit reads little
_GROUP_ROWS = (32, 256)  # minimum and maximum documents in a row group; `_MOST_GROUP_BYTES` overrides the minimum
_MOST_GROUP_BYTES = 16 << 20
HELD_BYTES = 32 << 20  # of row groups that a reader keeps in memory
OPEN_PARTS = 384  # whose footers stay in memory
_LOOKED_UP = 1 << 20  # ids in memory at a time during a look-up
STRETCH_BYTES = 16 << 20  # of row groups, with all columns, that a reader reads before releasing the lock
_COMPARED = 20_000  # ids searched for one similar to an unknown id


def parquet_options() -> dict[str, Any]:
    """Return the options of every Parquet file of an index. By default pyarrow writes no page checksums."""
    return {"compression": "zstd", "write_page_checksum": True}


def _document_options(table: pa.Table) -> dict[str, Any]:
    """Return options for look-ups of single documents: opening a column of a row group costs more than its bytes. For
    so few rows, a dictionary or the minimum and maximum are about as long as the values, and numbers and short texts
    hardly compress."""
    packed = dict.fromkeys(long_columns(table), "zstd")
    least, most = _GROUP_ROWS
    size = max(1, table.nbytes)
    rows = min(most, max(least, GROUP_BYTES * len(table) // size), max(1, _MOST_GROUP_BYTES * len(table) // size))
    options = {"compression": packed, "use_dictionary": False, "write_statistics": False, "row_group_size": rows}
    return parquet_options() | options


def write_documents(folder: Path, documents: Sequence[Document]) -> tuple[FileDigest, pa.Schema]:
    """Write a part's `documents.parquet`; return its digest and the schema of its metadata."""
    metadata = infer_schema(document.metadata for document in documents)
    columns: list[list[Any]] = [[getattr(document, field.name) for document in documents] for field in STORED]
    columns += [[document.metadata.get(name) for document in documents] for name in metadata.names]
    schema = pa.schema([*STORED, *metadata])
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    table = pa.table(arrays, schema=schema)
    with atomic_write(folder / layout.DOCUMENTS) as file:
        pq.write_table(table, pa.PythonFile(file, mode="w"), **_document_options(table))
    return file.digest, metadata


def read_encoded(folder: Path, columns: Sequence[str]) -> list[Document]:
    """Return the documents of a part in row order, without ids, with only the columns that are encoded."""
    wanted = encoded_columns(columns)
    with _opened(folder) as file:
        present = [name for name in wanted if name in file.schema_arrow.names]
        table = file.read(columns=present, use_threads=False)
        count = file.metadata.num_rows
    read = {name: table.column(name).to_pylist() for name in present}
    texts, titles = read.pop("text", [""] * count), read.pop("title", [None] * count)
    rows = zip(*read.values(), strict=True) if read else [()] * count
    return [
        Document("", text or "", title, dict(zip(read, values, strict=True)))
        for text, title, values in zip(texts, titles, rows, strict=True)
    ]


def read_column(folder: Path, name: str) -> pa.ChunkedArray | None:
    """Return a column of a part in its stored type; None if the part lacks it."""
    with _opened(folder) as file:
        if name not in file.schema_arrow.names:
            return None
        return file.read(columns=[name], use_threads=False).column(name)


def read_documents_at(folder: Path, rows: Sequence[int]) -> Iterator[Document]:
    """Yield some documents of a part by ascending row, reading only their row groups."""
    with _opened(folder) as file:
        for group, offsets in _ranges(rows, PartFile(file).ends):
            yield from documents_of(file.read_row_group(group, use_threads=False).take(numbers_array(offsets)))


@contextmanager
def _opened(folder: Path) -> Iterator[pq.ParquetFile]:
    """Open the documents of a part. As a Python file, because pyarrow rejects names that are not UTF-8."""
    path = folder / layout.DOCUMENTS
    with (
        as_damage(path),
        open_stored(path) as source,
        pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False) as file,
    ):
        yield file


@dataclass(frozen=True)
class PartFile:
    """The open file of a part, with the lengths of its row groups, which are longer in older indexes."""

    file: pq.ParquetFile

    @cached_property
    def ends(self) -> list[int]:
        """One after the last row of each row group."""
        metadata = self.file.metadata
        return list(accumulate(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)))


def _ranges(rows: Sequence[int], ends: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """Divide ascending rows among the consecutive ranges with these ends: yield the number of a range, and the offsets
    in it of its rows. By bisection, since few rows are the usual case."""
    place = 0
    while place < len(rows):
        number = bisect.bisect_right(ends, rows[place])
        start, following = ends[number - 1] if number else 0, bisect.bisect_left(rows, ends[number], place)
        yield number, [row - start for row in rows[place:following]]
        place = following


def _stretches(metadata: pq.FileMetaData) -> list[list[int]]:
    """Group the row groups of a file into stretches of about `STRETCH_BYTES`; one empty list for an empty file."""
    runs, size = [list[int]()], 0
    for group in range(metadata.num_row_groups):
        if size >= STRETCH_BYTES:
            runs.append([])
            size = 0
        runs[-1].append(group)
        size += metadata.row_group(group).total_byte_size
    return runs


class DocumentReader:
    """Documents of a published index by number; every byte is checked before use.

    `stored` contains the stored number of each live document, ascending; None if none is deleted.

    Footers of recently used files and recently read row groups stay in memory, so that a second look-up in the same
    place is cheap. Safe to share between threads: one thread reads at a time, because a file has one position. Arrow's
    own threads are not used: if one still owns a Python file when the interpreter exits, the process aborts.
    """

    def __init__(self, index: Path, manifest: Manifest, schema: pa.Schema, stored: RowIds | None = None) -> None:
        self._index, self._manifest, self._schema, self._stored = index, manifest, schema, stored
        self._ends = list(accumulate(part.documents for part in manifest.parts))
        self._names = [f"{part.name}/{layout.DOCUMENTS}" for part in manifest.parts]
        self._parts: OrderedDict[int, PartFile] = OrderedDict()  # the most recently used last
        self._groups: OrderedDict[tuple[int, int], tuple[pa.Table, int]] = OrderedDict()  # with bytes, like `_parts`
        self._held = 0  # bytes of the row groups
        self._lock = threading.RLock()  # of the files and the row groups

    def close(self) -> None:
        """Close the files; they are opened again when needed."""
        with self._lock:
            for part in self._parts.values():
                part.file.close(force=True)
            self._parts.clear()
            self._groups.clear()
            self._held = 0

    def __len__(self) -> int:
        return (self._ends or [0])[-1] if self._stored is None else len(self._stored)

    @cached_property
    def schema(self) -> pa.Schema:
        """Every column and its type: id, title, text, then the metadata of the whole index."""
        return pa.schema([*STORED, *self._schema])

    def uncompressed_bytes(self, part: int) -> int:
        """Return the bytes of a part's documents before compression, at least its `text_bytes`."""
        with self._lock:
            metadata = self._part(part).file.metadata
            return sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))

    @property
    def counts(self) -> list[int]:
        """The number of live documents of each part."""
        live = (self._live(part) for part in range(len(self._ends)))
        return [
            part.documents if rows is None else len(rows) for part, rows in zip(self._manifest.parts, live, strict=True)
        ]

    def table(self, numbers: RowIds, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the documents of ascending numbers, with all columns of `schema` or some of them.

        Each row group is read once, and the table does not hold it in memory.
        """
        stored: list[int] = (numbers if self._stored is None else self._stored[numbers]).tolist()
        pieces, places, held = list[pa.Table](), list[tuple[pa.Table, list[int]]](), 0
        with as_damage(self._index / layout.PARTS):
            for part, rows in _ranges(stored, self._ends):
                with self._lock:
                    ends = self._part(part).ends
                for group, offsets in _ranges(rows, ends):
                    table, size = self._group(part, group, columns)
                    places.append((table, offsets))
                    held += size
                    if held > STRETCH_BYTES:
                        pieces.append(gathered_rows(places))
                        places, held = [], 0
            if places:
                pieces.append(gathered_rows(places))
            if not pieces:
                return self.schema.empty_table().select(columns or self.schema.names)
            return pa.concat_tables(pieces).combine_chunks()

    def fetch(self, numbers: Sequence[int]) -> list[Document]:
        """Return the documents of some numbers, in the given order."""
        distinct, places = np.unique(np.asarray(numbers, np.int64), return_inverse=True)
        table = self.table(distinct)
        with as_damage(self._index / layout.PARTS):
            documents = list(documents_of(table))
        return [documents[place] for place in places.tolist()]

    def ids(self, numbers: Sequence[int]) -> list[str]:
        """Return the ids of some numbers, in the given order."""
        return [identity for (identity,) in self._values(numbers, ["id"])]

    def names(self, numbers: Sequence[int]) -> list[tuple[str, str | None]]:
        """Return the ids and titles of some numbers, in the given order."""
        return [(identity, title) for identity, title in self._values(numbers, ["id", "title"])]

    def _values(self, numbers: Sequence[int], columns: Sequence[str]) -> list[tuple[Any, ...]]:
        distinct, places = np.unique(np.asarray(numbers, np.int64), return_inverse=True)
        table = self.table(distinct, columns)
        with as_damage(self._index / layout.PARTS):
            values = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
        return [values[place] for place in places.tolist()]

    def all_ids(self) -> Iterator[str]:
        """Yield every id, in order of number."""
        for part in range(len(self._ends)):
            yield from self.columns(part, [("id",)])[0].to_pylist()

    def closest_id(self, identity: str) -> str:
        """Return the most similar of the first 20,000 ids to an unknown one; empty if none is similar."""
        return most_similar(self._first_ids, identity)

    @cached_property
    def _first_ids(self) -> pa.Array:
        """The ids among which `closest_id` looks."""
        _, column = next(self._id_columns(_COMPARED), (0, pa.chunked_array([], pa.string())))
        return column.slice(0, _COMPARED).combine_chunks()

    def find_ids(self, ids: Collection[str]) -> dict[str, int]:
        """Return the number of each of these ids that is present; the last for repeated ids."""
        import pyarrow.compute as pc  # slow to import, so not before the first query

        # Documents and Arrow arrays contain no lone surrogates.
        valid = [name for name in ids if name.isascii() or name.encode(errors="ignore").decode() == name]
        wanted = texts_array(valid)
        numbers: dict[str, int] = {}
        for first, column in self._id_columns(_LOOKED_UP):
            places = pc.indices_nonzero(pc.is_in(column, value_set=wanted))
            numbers.update(zip(column.take(places).to_pylist(), (places.to_numpy() + first).tolist(), strict=True))
        return numbers

    def all_documents(self) -> Iterator[Document]:
        """Yield every document in order of number, with one row group in memory at a time."""
        for number in range(len(self._ends)):
            live, start = self._live(number), 0
            with self._lock:
                ends = self._part(number).ends
            for group, end in enumerate(ends):
                with as_damage(self._path(number)):
                    table = with_schema(self._read(number, group), self.schema)
                    if live is not None:
                        table = table.take(live[slice(*np.searchsorted(live, [start, end]))] - start)
                    documents = list(documents_of(table))
                start = end
                yield from documents

    def columns(
        self, part: int, paths: Sequence[ColumnPath], on_read: Callable[[int], None] = lambda _: None
    ) -> list[pa.ChunkedArray]:
        """Return some columns of a part's documents, in order of number, with the types of `schema`.

        A path names a column and, inside objects, a field; values are null if the part lacks it. `on_read` is called
        with the bytes of each stretch of row groups, and may raise to stop the reading. Several threads can read
        small parts at once.
        """
        live, stretches, whole = self._live(part), list[pa.Table](), self._in_memory(part)
        path, lock = self._path(part), self._lock if whole is None else nullcontext()
        with as_damage(path), lock:
            file = whole or self._part(part).file
            count = file.metadata.num_rows if live is None else len(live)
            names = list({column for column, *_ in paths if column in file.schema_arrow.names})
            runs = _stretches(file.metadata)
        for run in runs:
            with as_damage(path), lock:
                file = whole or self._part(part).file
                stretches.append(file.read_row_groups(run, columns=names, use_threads=False))
            on_read(stretches[-1].nbytes)
        with as_damage(path):
            table = pa.concat_tables(stretches)
            table = table.combine_chunks() if live is None else table.take(live)
            return [column_at(table, column, type_at(self.schema, column), count) for column in paths]

    def _id_columns(self, least: int) -> Iterator[tuple[int, pa.ChunkedArray]]:
        """Yield the number of the first document of some parts, and their ids, `least` or more except at the end."""
        first, chunks = 0, list[pa.Array]()
        for part in range(len(self._ends)):
            chunks += self.columns(part, [("id",)])[0].chunks
            if part == len(self._ends) - 1 or sum(map(len, chunks)) >= least:
                column = pa.chunked_array(chunks, pa.string())
                yield first, column
                first, chunks = first + len(column), []

    def _live(self, part: int) -> RowIds | None:
        """Return the live rows of a part, ascending; None if all are."""
        if self._stored is None:
            return None
        start, end = self._ends[part] - self._manifest.parts[part].documents, self._ends[part]
        low, high = np.searchsorted(self._stored, [start, end])
        return None if high - low == end - start else self._stored[low:high] - start

    def _group(self, part: int, group: int, columns: Sequence[str] | None) -> tuple[pa.Table, int]:
        """Return a row group, which stays in memory, or some of its columns, which do not; and its bytes."""
        with self._lock:
            if (part, group) in self._groups:
                self._groups.move_to_end((part, group))
                table, size = self._groups[part, group]
                return table if columns is None else table.select(columns), size
            table = self._read(part, group, columns)
            if columns is not None:
                return table, table.nbytes
            table = with_schema(table, self.schema)
            size = table.get_total_buffer_size()
            self._groups[part, group] = table, size
            self._held += size
            while self._held > HELD_BYTES and len(self._groups) > 1:
                self._held -= self._groups.popitem(last=False)[1][1]
            return table, size

    def _read(self, part: int, group: int, columns: Sequence[str] | None = None) -> pa.Table:
        with as_damage(self._path(part)), self._lock:
            return self._part(part).file.read_row_group(group, columns=columns, use_threads=False)

    def _part(self, part: int) -> PartFile:
        if part in self._parts:
            self._parts.move_to_end(part)
            return self._parts[part]
        self._parts[part] = self._opened(part)
        if len(self._parts) > OPEN_PARTS:
            self._parts.popitem(last=False)[1].file.close(force=True)
        return self._parts[part]

    def _opened(self, part: int) -> PartFile:
        path = self._path(part)
        with as_damage(path):
            source = pa.PythonFile(CheckedFile(path, self._digest(part)), mode="r")
        return PartFile(self._parquet(part, source))

    def _in_memory(self, part: int) -> pq.ParquetFile | None:
        """Return a part read as a whole, if it is small: many small reads through a Python file take longer."""
        digest = self._digest(part)
        if digest.bytes > STRETCH_BYTES or not self._store.is_local:
            return None
        return self._parquet(part, pa.BufferReader(self._store.read(self._names[part], digest)))

    @cached_property
    def _store(self) -> Store:
        return store_at(self._index)

    def _digest(self, part: int) -> FileDigest:
        return self._manifest.files[self._names[part]]

    def _parquet(self, part: int, source: Any) -> pq.ParquetFile:
        path, documents = self._path(part), self._manifest.parts[part].documents
        with as_damage(path):
            file = pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False)
            fields = list(file.schema_arrow)
        if file.metadata.num_rows != documents:
            rows = f"{file.metadata.num_rows:,} rows, the manifest says {documents:,}"
            raise CorruptIndexError(f"{path}: {rows}. Fix: build the index again.")
        metadata = {field.name for field in fields[len(STORED) :]}
        if fields[: len(STORED)] != STORED or not metadata <= {*self._schema.names}:
            raise CorruptIndexError(
                f"{path}: its columns differ from those in the manifest. Fix: build the index again."
            )
        return file

    def _path(self, part: int) -> Path:
        return self._index / self._names[part]
