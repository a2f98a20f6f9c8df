"""Documents written as a corpus of any format, compressed or not.

Metadata of types that a format lacks are written as text if `--column NAME:TYPE` can read them back, and rejected
otherwise:

    Parquet, Arrow  every type
    JSON Lines      dates and timestamps as ISO 8601 text; no bytes, decimals, times
    CSV, TSV        text; lists and objects as JSON; empty text equals null; no bytes, decimals, times; TSV: no tabs
                    and line breaks
"""

import bz2
import csv
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from indexer.corpus.columns import ColumnRoles, RowMapper
from indexer.corpus.document import Document
from indexer.errors import ConfigError
from indexer.recipe.corpus_config import CorpusConfig
from indexer.system.output_files import OutputFile

Documents = Iterator[Document]
_HELD_BYTES = 4 << 20
_GZIP = zlib.MAX_WBITS | 16  # a gzip stream without a name and a time
_GZIP_LEVEL = 6
_GROUP_ROWS = 1 << 16
_GROUP_BYTES = 32 << 20
_BATCH = 1024  # documents of a record batch
_NAMES = {"jsonl": "JSON Lines", "csv": "CSV", "tsv": "TSV", "text": "plain text"}
_JSON_TYPES = (pa.null(), pa.bool_(), pa.int64(), pa.float64(), pa.string())
_FIX = "Fix: name a .parquet or .arrow file, which stores every type"


class _Plain:
    def compress(self, data: bytes) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""


class _Zstd(_Plain):
    """Consecutive frames, which readers accept as one stream."""

    def compress(self, data: bytes) -> bytes:
        frame: bytes = pa.Codec("zstd").compress(data, asbytes=True)
        return frame


_COMPRESSORS: dict[str, Callable[[], Any]] = {
    "": _Plain,
    "bz2": bz2.BZ2Compressor,
    "gzip": partial(zlib.compressobj, _GZIP_LEVEL, zlib.DEFLATED, _GZIP),
    "zstd": _Zstd,
}


class CompressedWriter:
    """Collects a few MiB, compresses ("": not at all) and writes them; a file for pyarrow, and a context manager."""

    closed = False

    def __init__(self, file: OutputFile, compression: str) -> None:
        self._file = file
        self._compressor = _COMPRESSORS[compression]()
        self._held: list[bytes] = []
        self._size = 0
        self._detached = False

    def __enter__(self) -> "CompressedWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._empty()
                self._file.write(self._compressor.flush())
        finally:
            self._detached = True  # the clean-up of a library must not write to a reused descriptor

    def write(self, data: Any) -> int:
        """Write bytes or another buffer."""
        if self._detached:
            return len(data)
        content = bytes(data)
        self._held.append(content)
        self._size += len(content)
        if self._size >= _HELD_BYTES:
            self._empty()
        return len(content)

    def flush(self) -> None:
        """Do nothing; the end of the block writes the rest."""

    def writable(self) -> bool:
        """Return True."""
        return True

    def _empty(self) -> None:
        self._file.write(self._compressor.compress(b"".join(self._held)))
        self._held.clear()
        self._size = 0


class TableWriter:
    """A context manager that writes batches of one schema. `stream` selects Arrow's streaming format."""

    def __init__(self, sink: CompressedWriter, file_format: str, schema: pa.Schema, stream: bool = False) -> None:
        self._schema, file = schema, pa.PythonFile(sink, mode="w")
        if file_format == "parquet":
            self._writer: Any = pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True)
        else:
            self._writer = (pa.ipc.new_stream if stream else pa.ipc.new_file)(file, schema)
        # Dictionaries of different batches are not joined, because they may exceed one index type.
        self._joined = not has_dictionaries(schema)
        self._held: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def __enter__(self) -> "TableWriter":
        self._writer.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *more: object) -> None:
        try:
            if kind is None:
                self._empty()
        finally:
            self._writer.__exit__(kind, *more)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows; they are written in larger groups."""
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
    """Return whether any column is dictionary-encoded, at any depth."""
    return any(pa.types.is_dictionary(kind) for column in schema for kind in _all_types(column.type))


def _all_types(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yield a type and the types in it, at any depth."""
    yield kind
    for place in range(kind.num_fields):
        yield from _all_types(kind.field(place).type)


@dataclass(frozen=True)
class CorpusColumns:
    """Columns of a corpus file: the names of id, title ("": none) and text, the `schema` of the metadata, and `vector`,
    the name of the last column for embeddings ("": none). `json` names the columns that are read back as JSON.
    """

    id: str
    title: str
    text: str
    schema: pa.Schema
    json: frozenset[str]
    vector: str = ""

    @cached_property
    def names(self) -> list[str]:
        """All column names, in order."""
        return list(self.fields.names)

    @cached_property
    def fields(self) -> pa.Schema:
        """All columns as Arrow fields, in order."""
        roles = [name for name in (self.id, self.title, self.text) if name]
        texts = [pa.field(name, pa.string(), nullable=name == self.title) for name in roles]
        vectors = [pa.field(self.vector, pa.list_(pa.float32()), nullable=False)] if self.vector else []
        return pa.schema([*texts, *self.schema, *vectors])

    def values(self, document: Document) -> list[Any]:
        """Return a document's values in the order of `names`. Raises ConfigError for a title without a column."""
        values: list[Any] = [document.id, *([document.title] if self.title else []), document.text]
        if not self.title and document.title is not None:
            raise ConfigError(f'document "{document.id}" has a title, but the column "title" is the id or the text.')
        values += [document.metadata.get(name) for name in self.schema.names]
        values += [document.vector] if self.vector else []
        return [
            _json_text(value) if name in self.json and isinstance(value, str) else value
            for name, value in zip(self.names, values, strict=True)
        ]


def choose_columns(schema: pa.Schema, config: CorpusConfig, layout: ColumnRoles | None) -> CorpusColumns:
    """Return the columns of the corpus (`layout`, if known) or the default names, so that they can be read back.

    Reading them with the settings `config` gives the same documents. Raises ConfigError if no such names exist.
    """
    typed = frozenset(name for name, kind in config.columns.items() if kind == "json")
    for roles in (layout, None):
        identity = config.id_column or (roles and roles.id) or "id"
        text = config.text_column or (roles and roles.text) or "text"
        title = config.title_column or (roles and roles.title) or "title"
        distinct_title = title if title not in (identity, text) else ""
        columns = CorpusColumns(identity, distinct_title, text, schema, typed, config.vector_column)
        if _reads_back(columns, config):
            return columns
    raise ConfigError(
        f"the documents cannot be written as a corpus: from the columns {', '.join(columns.names)}, the settings of "
        "the index would read other columns as id, title and text. Fix: rename those metadata columns."
    )


def _reads_back(columns: CorpusColumns, config: CorpusConfig) -> bool:
    found = RowMapper(config).roles(columns.names)
    metadata = tuple(columns.schema.names)
    return found == ColumnRoles(columns.id, columns.title, columns.text, metadata, found.clashes, columns.vector)


def check_types(file: str, file_format: str, schema: pa.Schema) -> None:
    """Raise ConfigError for metadata that the format cannot store and read back; `file` names it in the message."""
    if file_format in ("parquet", "arrow"):
        return
    for column in schema:
        if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
            continue
        for kind in _all_types(column.type):
            if kind not in _JSON_TYPES and not pa.types.is_nested(kind):
                raise ConfigError(
                    f'{file}: the metadata column "{column.name}" contains values of type {kind}, which '
                    f"{_NAMES[file_format]} cannot store. {_FIX}."
                )


def write_documents(sink: CompressedWriter, documents: Documents, file_format: str, columns: CorpusColumns) -> None:
    """Write documents. Raises ConfigError for a document with a value that the format cannot store."""
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
            if value is not None or name == columns.title  # settings may name this column, so it must exist
        }
        sink.write(_json(values, document).encode() + b"\n")


def _write_cells(documents: Documents, columns: CorpusColumns, write: Callable[[list[str]], object]) -> None:
    if "" in columns.names:
        raise ConfigError(f"a metadata column has an empty name, which a header cannot store. {_FIX}.")
    write(columns.names)
    for document in documents:
        write([_cell(_plain(value), document) for value in columns.values(document)])


def _tsv_line(cells: Sequence[str], columns: CorpusColumns) -> str:
    for name, cell in zip(columns.names, cells, strict=True):
        if any(sign in cell for sign in "\t\r\n"):
            where = "the name" if cell == name else f'document "{cells[0]}"'
            raise ConfigError(
                f'{where} contains a tab or a line break in the column "{name}", which TSV cannot store. Fix: name a '
                ".csv file."
            )
    return "\t".join(cells) + "\n"


def _plain(value: Any) -> Any:
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
            f'document "{document.id}" contains a number that is NaN or infinite, which JSON cannot store. {_FIX}.'
        ) from None


class _Lines:
    """The file interface of csv.writer."""

    def __init__(self, sink: CompressedWriter) -> None:
        self._sink = sink

    def write(self, line: str) -> int:
        return self._sink.write(line.encode())
