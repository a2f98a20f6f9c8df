"""Documents written as a corpus of any format, compressed or not: what the readers read.

Metadata that a format has no type for is written as text where `--column NAME:TYPE` reads it back, and refused else:

    Parquet, Arrow  every type
    JSON Lines      dates and timestamps are ISO 8601 text; no bytes, decimals, times
    CSV, TSV        everything is text, lists and objects are JSON, an empty text is the same as none; no bytes,
                    decimals, times; TSV: no tabs and line breaks either
"""

import bz2
import csv
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from indexer.corpus.columns import ColumnRoles, RowMapper
from indexer.corpus.document import Document
from indexer.errors import ConfigError
from indexer.recipe.config import CorpusConfig

Documents = Iterator[Document]
_HELD_BYTES = 4 << 20
_GZIP = zlib.MAX_WBITS | 16  # a gzip stream, which bears no name and no time
_GZIP_LEVEL = 6
_GROUP_ROWS = 1 << 16
_GROUP_BYTES = 32 << 20
_BATCH = 1024  # documents made into one batch of a table
_NAMES = {"jsonl": "JSON Lines", "csv": "CSV", "tsv": "TSV", "text": "plain text"}
_WAY_OUT = "Name a .parquet or .arrow file, which holds every type"


class Writable(Protocol):
    """Anything that takes bytes, such as a file open for writing."""

    def write(self, data: bytes, /) -> object:
        """Take in all of it."""
        ...


class CompressedWriter:
    """Bytes collected to a few MiB, compressed, and then written; what pyarrow wants of a file is here too."""

    closed = False

    def __init__(self, file: Writable, compression: str) -> None:
        self._file = file
        self._compressor = _compressor(compression)
        self._held: list[bytes] = []
        self._size = 0
        self._detached = False

    def write(self, data: Any) -> int:
        """Take in bytes, or anything that holds them."""
        if self._detached:
            return len(data)
        held = bytes(data)
        self._held.append(held)
        self._size += len(held)
        if self._size >= _HELD_BYTES:
            self._empty()
        return len(held)

    def flush(self) -> None:
        """Nothing that a library could want on the disk early."""

    def writable(self) -> bool:
        """Yes."""
        return True

    def finish(self) -> None:
        """Write what is held and what ends the compressed stream."""
        self._empty()
        self._file.write(self._compressor.flush())

    def detach(self) -> None:
        """From now on write nothing: libraries that tidy up late must not reach a descriptor that is another's."""
        self._detached = True

    def _empty(self) -> None:
        self._file.write(self._compressor.compress(b"".join(self._held)))
        self._held.clear()
        self._size = 0


@contextmanager
def compressed(file: Writable, compression: str) -> Iterator[CompressedWriter]:
    """A file to write into, compressed as gzip, bz2 or zstd, or "" for as it is."""
    sink = CompressedWriter(file, compression)
    try:
        yield sink
        sink.finish()
    finally:
        sink.detach()


class _Compressor(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


class _Plain:
    def compress(self, data: bytes, /) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""


class _Zstd:
    """One frame after another, which every reader takes for one stream."""

    def __init__(self) -> None:
        self._codec = pa.Codec("zstd")

    def compress(self, data: bytes, /) -> bytes:
        frame: bytes = self._codec.compress(data, asbytes=True)
        return frame

    def flush(self) -> bytes:
        return b""


def _compressor(compression: str) -> _Compressor:
    if compression == "gzip":
        return zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP)
    if compression == "bz2":
        return bz2.BZ2Compressor()
    return _Zstd() if compression == "zstd" else _Plain()


class TableWriter:
    """Takes batches of one schema; a context manager. `stream` asks for the streaming form of Arrow."""

    def __init__(self, sink: CompressedWriter, file_format: str, schema: pa.Schema, stream: bool = False) -> None:
        self._schema = schema
        self._writer = _writer(pa.PythonFile(sink, mode="w"), file_format, schema, stream)
        # dictionaries that differ from batch to batch need not fit one index type, so they are left apart
        self._joined = not has_dictionaries(schema)
        self._held: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def __enter__(self) -> "TableWriter":
        self._writer.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._empty()
        finally:
            self._writer.__exit__(kind, error, trace)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add some rows; they are written in groups of a useful size."""
        self._held.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._empty()

    def _empty(self) -> None:
        table = pa.Table.from_batches(self._held, self._schema)
        self._writer.write_table(table.combine_chunks() if self._joined else table)
        self._held.clear()
        self._rows = self._bytes = 0


def has_dictionaries(schema: pa.Schema) -> bool:
    """Whether any column holds, at any depth, numbers that stand for the entries of a dictionary."""
    return any(_has_dictionary(column.type) for column in schema)


def _has_dictionary(kind: pa.DataType) -> bool:
    inner = (kind.field(place).type for place in range(kind.num_fields))
    return pa.types.is_dictionary(kind) or any(map(_has_dictionary, inner))


def _writer(sink: Any, file_format: str, schema: pa.Schema, stream: bool) -> Any:
    if file_format == "parquet":
        return pq.ParquetWriter(sink, schema, compression="zstd", write_page_checksum=True)
    return (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, schema)


@dataclass(frozen=True)
class CorpusColumns:
    """The columns of the file: what id, title and text are called ("": no titles), and the metadata, as `schema`.

    `vector` is what the embeddings are called that documents came with ("": they came with none), the last column.
    `json` names the columns whose texts are read back as JSON.
    """

    id: str
    title: str
    text: str
    schema: pa.Schema
    json: frozenset[str]
    vector: str = ""

    @property
    def names(self) -> list[str]:
        """All, in order."""
        roles = [name for name in (self.id, self.title, self.text) if name]
        return [*roles, *self.schema.names, *([self.vector] if self.vector else [])]

    @property
    def fields(self) -> pa.Schema:
        """All, as Arrow fields, in order."""
        roles = [name for name in (self.id, self.title, self.text) if name]
        texts = [pa.field(name, pa.string(), nullable=name == self.title) for name in roles]
        vectors = [pa.field(self.vector, pa.list_(pa.float32()), nullable=False)] if self.vector else []
        return pa.schema([*texts, *self.schema, *vectors])

    def values(self, document: Document) -> list[Any]:
        """The document's values, in the order of `names`. Raises ConfigError for a title without a column."""
        values: list[Any] = [document.id, *([document.title] if self.title else []), document.text]
        if not self.title and document.title is not None:
            raise ConfigError(f'document "{document.id}" has a title, but the column "title" is the id or the text.')
        values += [document.metadata.get(name) for name in self.schema.names]
        values += [document.vector] if self.vector else []
        return [self._written(name, value) for name, value in zip(self.names, values, strict=True)]

    def _written(self, name: str, value: Any) -> Any:
        return _json_text(value) if name in self.json and isinstance(value, str) else value


def choose_columns(schema: pa.Schema, config: CorpusConfig, layout: ColumnRoles | None) -> CorpusColumns:
    """The columns as they were in the corpus (`layout`, if it is at hand), or by their usual names.

    The names are such that reading with the settings `config` gives the same documents. Raises ConfigError where
    there are none.
    """
    typed = frozenset(name for name, kind in config.columns.items() if kind == "json")
    for found in (layout, None):
        identity = config.id_column or (found and found.id) or "id"
        text = config.text_column or (found and found.text) or "text"
        title = config.title_column or (found and found.title) or "title"
        named = title if title not in (identity, text) else ""
        columns = CorpusColumns(identity, named, text, schema, typed, config.vector_column)
        if _reads_back(columns, config):
            return columns
    raise ConfigError(
        f"the documents cannot be written as a corpus: their columns would be {', '.join(columns.names)}, of which the "
        "index's own settings would take others for id, title and text. Name those metadata columns otherwise."
    )


def _reads_back(columns: CorpusColumns, config: CorpusConfig) -> bool:
    found = RowMapper(config).roles(columns.names)
    return (found.id, found.title, found.text, found.metadata, found.vector) == (
        columns.id,
        columns.title,
        columns.text,
        tuple(columns.schema.names),
        columns.vector,
    )


def check_types(file: str, file_format: str, schema: pa.Schema) -> None:
    """Raises ConfigError for metadata that the format cannot hold such that it could be read back.

    `file` is what the message calls it: an option and a path, for one.
    """
    if file_format in ("parquet", "arrow"):
        return
    for column in schema:
        if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
            continue
        if (kind := _foreign(column.type)) is not None:
            raise ConfigError(
                f'{file}: the metadata column "{column.name}" holds values of type {kind}, which '
                f"{_NAMES[file_format]} cannot hold. {_WAY_OUT}."
            )


def _foreign(kind: pa.DataType) -> pa.DataType | None:
    """A type that JSON does not have."""
    if pa.types.is_nested(kind):
        inner = (_foreign(kind.field(place).type) for place in range(kind.num_fields))
        return next((found for found in inner if found is not None), None)
    return None if kind in (pa.null(), pa.bool_(), pa.int64(), pa.float64(), pa.string()) else kind


def write_documents(sink: CompressedWriter, documents: Documents, file_format: str, columns: CorpusColumns) -> None:
    """Write the documents. Raises ConfigError naming the one that holds what the format cannot."""
    if file_format in ("parquet", "arrow"):
        _write_table(sink, documents, file_format, columns)
    elif file_format == "jsonl":
        _write_objects(sink, documents, columns)
    elif file_format == "csv":
        _write_cells(documents, columns, csv.writer(_Lines(sink)).writerow)
    else:
        _write_cells(documents, columns, lambda cells: sink.write(_tsv_line(cells, columns).encode()))


def _write_table(sink: CompressedWriter, documents: Documents, file_format: str, columns: CorpusColumns) -> None:
    schema = columns.fields
    with TableWriter(sink, file_format, schema) as table:
        held = []
        for document in documents:
            held.append(columns.values(document))
            if len(held) == _BATCH:
                table.write(_batch(held, schema))
                held = []
        table.write(_batch(held, schema))


def _batch(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    cells = zip(*rows, strict=True) if rows else ([] for _ in schema)
    arrays = [pa.array(column, field.type) for column, field in zip(cells, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _write_objects(sink: CompressedWriter, documents: Documents, columns: CorpusColumns) -> None:
    for document in documents:
        values = {
            name: _plain(value)
            for name, value in zip(columns.names, columns.values(document), strict=True)
            if value is not None or name == columns.title  # settings that name this column want to find it
        }
        sink.write(_json(values, document).encode() + b"\n")


def _write_cells(documents: Documents, columns: CorpusColumns, write: Callable[[list[str]], object]) -> None:
    if "" in columns.names:
        raise ConfigError(f"a metadata column has no name, which a header cannot hold. {_WAY_OUT}.")
    write(columns.names)
    for document in documents:
        write([_cell(_plain(value), document) for value in columns.values(document)])


def _tsv_line(cells: Sequence[str], columns: CorpusColumns) -> str:
    for name, cell in zip(columns.names, cells, strict=True):
        if any(sign in cell for sign in "\t\r\n"):
            where = "the name" if cell == name else f'document "{cells[0]}"'
            raise ConfigError(
                f'{where} holds a tab or a line break in the column "{name}", which TSV cannot hold. Name a .csv file.'
            )
    return "\t".join(cells) + "\n"


def _plain(value: Any) -> Any:
    """The value as JSON has it."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.isoformat() if isinstance(value, date) else value  # a datetime is a date too


def _cell(value: Any, document: Document) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else _json(value, document)


def _json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _json(value: Any, document: Document) -> str:
    try:
        return _json_text(value)
    except ValueError:
        raise ConfigError(
            f'document "{document.id}" holds a number that is NaN or infinite, which JSON cannot hold. {_WAY_OUT}.'
        ) from None


class _Lines:
    """What csv.writer writes to."""

    def __init__(self, sink: CompressedWriter) -> None:
        self._sink = sink

    def write(self, line: str) -> int:
        return self._sink.write(line.encode())
