"""The documents of one part in Parquet: written, read whole, and looked up by row."""

import bisect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from indexer.corpus.document import Document, join_columns
from indexer.corpus.schema import canonical, part_schema
from indexer.regular_files import open_regular
from indexer.store import layout
from indexer.store.checked import as_damage
from indexer.store.document_columns import long_columns
from indexer.store.files import FileStamp, write_file

GROUP_BYTES = 48 << 10  # of a row group; small, so that fetching one hit's text reads little
_GROUP_ROWS = (32, 256)  # documents in one, at least and at most, however long they are
STORED = [
    pa.field("id", pa.string(), nullable=False),
    pa.field("title", pa.string()),
    pa.field("text", pa.string(), nullable=False),
]


def parquet_options() -> dict[str, Any]:
    """How every Parquet file of an index is written. pyarrow writes no page checksums unless asked."""
    return {"compression": "zstd", "write_page_checksum": True}


def _document_options(table: pa.Table) -> dict[str, Any]:
    """For looking up single documents: setting up a column of a row group costs more than its bytes do.

    A dictionary, or the least and greatest value, of so few rows is about as long as they are, and numbers and short
    texts become hardly smaller by compression.
    """
    packed = dict.fromkeys(long_columns(table), "zstd")
    least, most = _GROUP_ROWS
    rows = min(most, max(least, GROUP_BYTES * len(table) // max(1, table.nbytes)))
    options = {"compression": packed, "use_dictionary": False, "write_statistics": False, "row_group_size": rows}
    return parquet_options() | options


def write_documents(folder: Path, documents: Sequence[Document]) -> tuple[FileStamp, pa.Schema]:
    """Write a part's `documents.parquet`; returns its stamp and the schema of its metadata."""
    metadata = part_schema(document.metadata for document in documents)
    columns: list[Any] = [
        [document.id for document in documents],
        [document.title for document in documents],
        [document.text for document in documents],
        *([document.metadata.get(name) for document in documents] for name in metadata.names),
    ]
    schema = pa.schema([*STORED, *metadata])
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    table = pa.table(arrays, schema=schema)
    with write_file(folder / layout.DOCUMENTS) as file:
        pq.write_table(table, pa.PythonFile(file, mode="w"), **_document_options(table))
    return file.stamp, metadata


def read_texts(folder: Path, columns: Sequence[str]) -> list[str]:
    """The texts of a part as they are encoded (`joined_text`), in row order. Only those columns are read."""
    with _opened(folder) as file:
        there = [name for name in columns if name in file.schema_arrow.names]
        table = file.read(columns=there, use_threads=False)
        count = file.metadata.num_rows
    read = [table.column(name).to_pylist() for name in there]
    return [join_columns(values) for values in zip(*read, strict=True)] if read else [""] * count


def read_column(folder: Path, name: str) -> pa.ChunkedArray | None:
    """A column of a part in the type that it has there; None where it has no such column."""
    with _opened(folder) as file:
        if name not in file.schema_arrow.names:
            return None
        return file.read(columns=[name], use_threads=False).column(name)


def read_some(folder: Path, rows: Sequence[int]) -> Iterator[Document]:
    """Some rows of a part, ascending; only the row groups they are in are read."""
    with _opened(folder) as file:
        part = OpenPart.of(file)
        places = [part.place(row) for row in rows]
        for group, members in groupby(places, key=lambda place: place[0]):
            table = file.read_row_group(group, use_threads=False)
            yield from (document_of(row, None) for row in picked(table, [offset for _, offset in members]))


@contextmanager
def _opened(folder: Path) -> Iterator[pq.ParquetFile]:
    """The documents of a part. Opened by us: pyarrow refuses names that are not UTF-8."""
    path = folder / layout.DOCUMENTS
    with (
        as_damage(path),
        open_regular(path, follow_links=False) as source,
        pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False) as file,
    ):
        yield file


@dataclass(frozen=True)
class OpenPart:
    """The open file of a part. How long its row groups are, the file says: older ones were longer."""

    file: pq.ParquetFile
    ends: list[int]  # of each row group: the number of the row after it

    @classmethod
    def of(cls, file: pq.ParquetFile) -> "OpenPart":
        metadata = file.metadata
        return cls(file, list(accumulate(metadata.row_group(group).num_rows for group in range(file.num_row_groups))))

    def place(self, row: int) -> tuple[int, int]:
        """(row group, offset in it)."""
        group = bisect.bisect_right(self.ends, row)
        return group, row - (self.ends[group - 1] if group else 0)


def picked(table: pa.Table, offsets: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Some rows of a table; a value at a time, which for a few rows is cheaper than to take a table of them."""
    columns = list(zip(table.column_names, table.columns, strict=True))
    return ({name: column[offset].as_py() for name, column in columns} for offset in offsets)


def document_of(row: dict[str, Any], schema: pa.Schema | None) -> Document:
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
