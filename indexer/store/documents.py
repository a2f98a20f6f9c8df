"""Documents in Parquet: written a part at a time, read back a few rows or a whole part at a time."""

import bisect
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from indexer.corpus.document import Document, join_columns
from indexer.corpus.schema import canonical, part_schema
from indexer.errors import CorruptIndexError
from indexer.store import layout
from indexer.store.checked import CheckedFile
from indexer.store.files import FileStamp, write_file
from indexer.store.manifest import Manifest

ROW_GROUP = 256  # rows; small, so that fetching one hit's text reads little
HELD_BYTES = 32 << 20  # of row groups that a reader keeps in memory
_STORED = [
    pa.field("id", pa.string(), nullable=False),
    pa.field("title", pa.string()),
    pa.field("text", pa.string(), nullable=False),
]


def parquet_options() -> dict[str, Any]:
    """How every Parquet file of an index is written. pyarrow writes no page checksums unless asked."""
    return {"compression": "zstd", "write_page_checksum": True, "row_group_size": ROW_GROUP}


def write_documents(folder: Path, documents: Sequence[Document]) -> tuple[FileStamp, pa.Schema]:
    """Write a part's `documents.parquet`; returns its stamp and the schema of its metadata."""
    metadata = part_schema(document.metadata for document in documents)
    columns: list[Any] = [
        [document.id for document in documents],
        [document.title for document in documents],
        [document.text for document in documents],
        *([document.metadata.get(name) for document in documents] for name in metadata.names),
    ]
    schema = pa.schema([*_STORED, *metadata])
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    with write_file(folder / layout.DOCUMENTS) as file:
        pq.write_table(pa.table(arrays, schema=schema), pa.PythonFile(file, mode="w"), **parquet_options())
    return file.stamp, metadata


def read_texts(folder: Path, columns: Sequence[str]) -> list[str]:
    """The texts of a part as they are encoded (`joined_text`), in row order. Only those columns are read."""
    with _opened(folder) as file:
        there = [name for name in columns if name in file.schema_arrow.names]
        table = file.read(columns=there, use_threads=False)
        count = file.metadata.num_rows
    read = [table.column(name).to_pylist() for name in there]
    return [join_columns(values) for values in zip(*read, strict=True)] if read else [""] * count


def read_some(folder: Path, rows: Sequence[int]) -> Iterator[Document]:
    """Some rows of a part, ascending; only the row groups they are in are read."""
    with _opened(folder) as file:
        for group, members in groupby(rows, key=lambda row: row // ROW_GROUP):
            table = file.read_row_group(group, use_threads=False)
            taken = table.take([row % ROW_GROUP for row in members])
            yield from (_document(row, None) for row in taken.to_pylist())


@contextmanager
def _opened(folder: Path) -> Iterator[pq.ParquetFile]:
    """The documents of a part. Opened by us: pyarrow refuses names that are not UTF-8."""
    with (
        open(folder / layout.DOCUMENTS, "rb") as source,
        pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False) as file,
    ):
        yield file


class DocumentReader:
    """Documents of a published index by row number; every byte is checked before it is used.

    Open files and footers are kept, and row groups read lately, so that a second look-up in the same place is cheap.
    Not thread-safe. Arrow's threads are not used: one that still holds a Python file when the interpreter ends aborts
    the process.
    """

    def __init__(self, index: Path, manifest: Manifest, schema: pa.Schema) -> None:
        self._index, self._manifest, self._schema = index, manifest, schema
        self._ends = list(accumulate(part.rows for part in manifest.parts))
        self._files: dict[int, pq.ParquetFile] = {}
        self._groups: OrderedDict[tuple[int, int], pa.Table] = OrderedDict()  # the one used last at the end
        self._held = 0  # bytes of those

    def close(self) -> None:
        """Let go of the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._groups.clear()
        self._held = 0

    def fetch(self, rows: Sequence[int]) -> list[Document]:
        """The documents of the given rows, in the order given; each row group is read once."""
        return [_document(row, self._schema) for row in self._rows(rows, None)]

    def ids(self, rows: Sequence[int]) -> list[str]:
        """Just the ids of the given rows, in the order given."""
        return [row["id"] for row in self._rows(rows, ["id"])]

    def all_ids(self) -> Iterator[str]:
        """Every id, in row order."""
        for part in range(len(self._manifest.parts)):
            yield from self._open(part).read(columns=["id"], use_threads=False).column("id").to_pylist()

    def all_documents(self) -> Iterator[Document]:
        """Every document, in row order, a few row groups in memory at a time."""
        count = self._ends[-1] if self._ends else 0
        for start in range(0, count, 4 * ROW_GROUP):
            yield from self.fetch(range(start, min(start + 4 * ROW_GROUP, count)))

    def _rows(self, rows: Sequence[int], columns: list[str] | None) -> list[dict[str, Any]]:
        """One dict for each row. Rows are sorted by where they lie, so that a group serves all its rows at once."""
        found: list[dict[str, Any]] = [{}] * len(rows)
        places = sorted((*self._place(row), position) for position, row in enumerate(rows))
        for (part, group), members in groupby(places, key=lambda place: place[:2]):
            table = self._group(part, group) if columns is None else self._read(part, group, columns)
            for _, _, offset, position in members:
                found[position] = table.slice(offset, 1).to_pylist()[0]
        return found

    def _group(self, part: int, group: int) -> pa.Table:
        """A row group with all its columns, from memory where it was read lately."""
        if (part, group) in self._groups:
            self._groups.move_to_end((part, group))
            return self._groups[part, group]
        table = self._groups[part, group] = self._read(part, group, None)
        self._held += table.nbytes
        while self._held > HELD_BYTES and len(self._groups) > 1:
            self._held -= self._groups.popitem(last=False)[1].nbytes
        return table

    def _read(self, part: int, group: int, columns: list[str] | None) -> pa.Table:
        return self._open(part).read_row_group(group, columns=columns, use_threads=False)

    def _place(self, row: int) -> tuple[int, int, int]:
        """(part, row group, offset in it)."""
        part = bisect.bisect_right(self._ends, row)
        offset = row - (self._ends[part - 1] if part else 0)
        return part, offset // ROW_GROUP, offset % ROW_GROUP

    def _open(self, part: int) -> pq.ParquetFile:
        if part not in self._files:
            name = f"{self._manifest.parts[part].name}/{layout.DOCUMENTS}"
            path = self._index / name
            source = pa.PythonFile(CheckedFile(path, self._manifest.files[name]), mode="r")
            file = pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False)
            if file.metadata.num_rows != self._manifest.parts[part].documents:
                raise CorruptIndexError(
                    f"{path}: {file.metadata.num_rows:,} rows, the manifest says "
                    f"{self._manifest.parts[part].documents:,}. Build the index again."
                )
            self._files[part] = file
        return self._files[part]


def _document(row: dict[str, Any], schema: pa.Schema | None) -> Document:
    identity, title, text = row.pop("id"), row.pop("title"), row.pop("text")
    if schema is not None:
        row = {name: _promoted(value, schema.field(name).type) for name, value in row.items()}
    return Document(identity, text, title, canonical(row))


def _promoted(value: Any, kind: pa.DataType) -> Any:
    """A part may hold whole numbers in a column that is float elsewhere in the corpus."""
    if isinstance(value, int) and pa.types.is_floating(kind):
        return float(value)
    if isinstance(value, dict):
        return {name: _promoted(item, kind.field(name).type) for name, item in value.items()}
    if isinstance(value, list):
        return [_promoted(item, kind.value_type) for item in value]
    return value
