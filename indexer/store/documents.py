"""Documents in Parquet: those of one part written and read, and those of a published index looked up.

Columns are named by path: the column, then fields inside its objects.
"""

import bisect
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from indexer.arrays import RowIds
from indexer.corpus.document import Document, encoded_columns
from indexer.corpus.schema import EXACT_INTEGER, drop_nulls, infer_schema
from indexer.errors import CorruptIndexError
from indexer.store import layout
from indexer.store.files import FileDigest, atomic_write
from indexer.store.integrity import CheckedFile, as_damage
from indexer.store.manifest import Manifest
from indexer.store.similar_ids import most_similar
from indexer.store.stores import open_stored

GROUP_BYTES = 48 << 10  # of a row group; small, so that fetching the text of a hit reads little
_GROUP_ROWS = (32, 256)  # minimum and maximum documents in a row group; `_MOST_GROUP_BYTES` overrides the minimum
_MOST_GROUP_BYTES = 16 << 20
HELD_BYTES = 32 << 20  # of row groups that a reader keeps in memory
OPEN_PARTS = 384  # whose footers stay in memory
_LOOKED_UP = 1 << 20  # ids in memory at a time during a look-up
STRETCH_BYTES = 16 << 20  # of row groups, with all columns, that a reader reads before releasing the lock
_COMPARED = 20_000  # ids searched for one similar to an unknown id
LONG = 32  # bytes a value, on average, from which a column is compressed
STORED = [
    pa.field("id", pa.string(), nullable=False),
    pa.field("title", pa.string()),
    pa.field("text", pa.string(), nullable=False),
]
ColumnPath = tuple[str, ...]  # a column, then fields inside its objects


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
        part = PartFile(file)
        places = [part.place(row) for row in rows]
        for group, members in groupby(places, key=lambda place: place[0]):
            table = file.read_row_group(group, use_threads=False)
            yield from (document_of(row, None) for row in take_rows(table, [offset for _, offset in members]))


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

    def place(self, row: int) -> tuple[int, int]:
        """Return (row group, offset in it) of a row."""
        group = bisect.bisect_right(self.ends, row)
        return group, row - (self.ends[group - 1] if group else 0)


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


def take_rows(table: pa.Table, offsets: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield some rows of a table, value by value, which for a few rows is cheaper than Table.take."""
    columns = list(zip(table.column_names, table.columns, strict=True))
    return ({name: column[offset].as_py() for name, column in columns} for offset in offsets)


def document_of(row: dict[str, Any], schema: pa.Schema | None) -> Document:
    identity, title, text = row.pop("id"), row.pop("title"), row.pop("text")
    if schema is not None:
        row = {name: _promoted(value, schema.field(name).type) for name, value in row.items()}
    return Document(identity, text, title, drop_nulls(row))


def _promoted(value: Any, kind: pa.DataType) -> Any:
    """Return whole numbers as floats where the column is float elsewhere in the corpus."""
    if isinstance(value, int) and pa.types.is_floating(kind):
        return float(value)
    if isinstance(value, dict):
        return {name: _promoted(item, kind.field(name).type) for name, item in value.items()}
    if isinstance(value, list):
        return [_promoted(item, kind.value_type) for item in value]
    return value


def type_at(schema: pa.Schema, path: ColumnPath) -> pa.DataType:
    """Return the type of a column, or of a field inside its objects. Raises KeyError if there is none."""
    kind = schema.field(path[0]).type
    for name in path[1:]:
        if not pa.types.is_struct(kind):
            raise KeyError(name)
        kind = kind.field(name).type
    return kind


def column_at(table: pa.Table, path: ColumnPath, kind: pa.DataType, count: int) -> pa.ChunkedArray:
    """Return the `count` values at `path` as type `kind`; nulls if the table has no such column or field. NaN and
    infinity, which old indexes may contain, are nulls too, as in JSON."""
    import pyarrow.compute as pc  # slow to import, so not before the first query

    nothing = pa.chunked_array([pa.nulls(count)])
    column = table.column(path[0]) if path[0] in table.column_names else nothing
    for name in path[1:]:
        there = pa.types.is_struct(column.type) and column.type.get_field_index(name) >= 0
        column = pc.struct_field(column, [name]) if there else nothing
    return _finite(column if column.type == kind else column.cast(kind))


def _finite(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column with numbers that are not finite, also inside lists, as nulls."""
    import pyarrow.compute as pc  # slow to import, so not before the first query

    numbers = column
    while pa.types.is_list(numbers.type):
        numbers = pc.list_flatten(numbers)
    if not pa.types.is_floating(numbers.type) or pc.all(pc.is_finite(numbers), min_count=0).as_py():
        return column
    return pa.chunked_array([pa.array(map(_finite_value, column.to_pylist()), column.type)])


def _finite_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite_value(inner) for inner in value]
    return value if value is None or math.isfinite(value) else None


def loses_precision(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> bool:
    """Whether type `kind` would round values: whole numbers beyond 2**53 as floats, at any depth."""
    import pyarrow.compute as pc  # slow to import, so not before the first query

    if pa.types.is_integer(column.type) and pa.types.is_floating(kind):
        least, most = (value.as_py() or 0 for value in pc.min_max(column).values())
        return max(-least, most) > EXACT_INTEGER
    if pa.types.is_struct(column.type):
        inside = (inner.name for inner in column.type)
        return any(loses_precision(pc.struct_field(column, [name]), kind.field(name).type) for name in inside)
    if pa.types.is_list(column.type):
        return loses_precision(pc.list_flatten(column), kind.value_type)
    return False


def long_columns(table: pa.Table) -> list[str]:
    """Return the Parquet paths of columns of long texts or bytes, and of those in lists and objects."""
    return [
        path
        for field, column in zip(table.schema, table.columns, strict=True)
        if pa.types.is_nested(field.type) or column.nbytes >= LONG * len(column)
        for path in _text_columns(field.name, field.type)
    ]


def _text_columns(path: str, kind: pa.DataType) -> Iterator[str]:
    if pa.types.is_struct(kind):
        for inner in kind:
            yield from _text_columns(f"{path}.{inner.name}", inner.type)
    elif pa.types.is_list(kind):
        yield from _text_columns(f"{path}.list.element", kind.value_type)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        yield path


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
        self._parts: OrderedDict[int, PartFile] = OrderedDict()  # the most recently used last
        self._groups: OrderedDict[tuple[int, int], pa.Table] = OrderedDict()  # the most recently used last
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

    @property
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

    def fetch(self, rows: Sequence[int]) -> list[Document]:
        """Return the documents of some numbers, in the given order; each row group is read once."""
        with as_damage(self._index / layout.PARTS):
            return [document_of(row, self._schema) for row in self._rows(rows, None)]

    def ids(self, rows: Sequence[int]) -> list[str]:
        """Return the ids of some numbers, in the given order."""
        with as_damage(self._index / layout.PARTS):
            return [row["id"] for row in self._rows(rows, ["id"])]

    def names(self, rows: Sequence[int]) -> list[tuple[str, str | None]]:
        """Return the ids and titles of some numbers, in the given order."""
        with as_damage(self._index / layout.PARTS):
            return [(row["id"], row["title"]) for row in self._rows(rows, ["id", "title"])]

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
        wanted = pa.array(valid, pa.string())
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
                table = self._read(number, group, None)
                if live is not None:
                    table = table.take(live[slice(*np.searchsorted(live, [start, end]))] - start)
                start = end
                with as_damage(self._path(number)):
                    documents = [document_of(row, self._schema) for row in table.to_pylist()]
                yield from documents

    def columns(
        self, part: int, paths: Sequence[ColumnPath], on_read: Callable[[int], None] = lambda _: None
    ) -> list[pa.ChunkedArray]:
        """Return some columns of a part's documents, in order of number, with the types of `schema`.

        A path names a column and, inside objects, a field; values are null if the part lacks it. `on_read` is called
        with the bytes of each stretch of row groups, and may raise to stop the reading.
        """
        live, stretches = self._live(part), list[pa.Table]()
        with as_damage(self._path(part)), self._lock:
            file = self._part(part).file
            count = file.metadata.num_rows if live is None else len(live)
            names = list({path[0] for path in paths if path[0] in file.schema_arrow.names})
            runs = _stretches(file.metadata)
        for run in runs:
            with as_damage(self._path(part)), self._lock:
                stretches.append(self._part(part).file.read_row_groups(run, columns=names, use_threads=False))
            on_read(stretches[-1].nbytes)
        with as_damage(self._path(part)):
            table = pa.concat_tables(stretches)
            table = table.combine_chunks() if live is None else table.take(live)
            return [column_at(table, path, type_at(self.schema, path), count) for path in paths]

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

    def _rows(self, rows: Sequence[int], columns: list[str] | None) -> list[dict[str, Any]]:
        """Return a dict for each row, reading each row group once."""
        contents: list[dict[str, Any]] = [{}] * len(rows)
        with self._lock:
            places = sorted((*self._place(row), position) for position, row in enumerate(rows))
        for (part, group), members in groupby(places, key=lambda place: place[:2]):
            table = self._group(part, group) if columns is None else self._read(part, group, columns)
            _, _, offsets, positions = zip(*members, strict=True)
            for position, row in zip(positions, take_rows(table, offsets), strict=True):
                contents[position] = row
        return contents

    def _group(self, part: int, group: int) -> pa.Table:
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
        row = row if self._stored is None else int(self._stored[row])
        part = bisect.bisect_right(self._ends, row)
        return part, *self._part(part).place(row - (self._ends[part - 1] if part else 0))

    def _part(self, part: int) -> PartFile:
        if part in self._parts:
            self._parts.move_to_end(part)
            return self._parts[part]
        self._parts[part] = self._opened(part)
        if len(self._parts) > OPEN_PARTS:
            self._parts.popitem(last=False)[1].file.close(force=True)
        return self._parts[part]

    def _opened(self, part: int) -> PartFile:
        path, documents = self._path(part), self._manifest.parts[part].documents
        digest = self._manifest.files[path.relative_to(self._index).as_posix()]
        with as_damage(path):
            source = pa.PythonFile(CheckedFile(path, digest), mode="r")
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
        return PartFile(file)

    def _path(self, part: int) -> Path:
        return self._index / self._manifest.parts[part].name / layout.DOCUMENTS
