"""Surviving documents of an index as a corpus of any format that can hold them.

Metadata that a format has no type for is written as text where `--column NAME:TYPE` reads it back, and refused else:

    Parquet, Arrow  every type
    JSON Lines      dates and timestamps are ISO 8601 text; no bytes, decimals, times
    CSV, TSV        everything is text, lists and objects are JSON, an empty text is the same as none; no bytes,
                    decimals, times; TSV: no tabs and line breaks either
"""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from indexer.config import CorpusConfig
from indexer.corpus.columns import ColumnRoles, RowMapper
from indexer.corpus.document import Document
from indexer.errors import ConfigError
from search.dedup.keeping.packed import PackedFile
from search.dedup.keeping.table_file import TableFile

Documents = Iterator[Document]
_BATCH = 1024
_NAMES = {"jsonl": "JSON Lines", "csv": "CSV", "tsv": "TSV", "text": "plain text"}
_WAY_OUT = "Name a .parquet or .arrow file, which holds every type"


@dataclass(frozen=True)
class Columns:
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


def choose_columns(schema: pa.Schema, config: CorpusConfig, layout: ColumnRoles | None) -> Columns:
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
        columns = Columns(identity, named, text, schema, typed, config.vector_column)
        if _reads_back(columns, config):
            return columns
    raise ConfigError(
        f"the survivors cannot be written as a corpus: their columns would be {', '.join(columns.names)}, of which the "
        "index's own settings would take others for id, title and text. Name those metadata columns otherwise."
    )


def _reads_back(columns: Columns, config: CorpusConfig) -> bool:
    found = RowMapper(config).roles(columns.names)
    return (found.id, found.title, found.text, found.metadata, found.vector) == (
        columns.id,
        columns.title,
        columns.text,
        tuple(columns.schema.names),
        columns.vector,
    )


def check_types(path: Path, file_format: str, schema: pa.Schema) -> None:
    """Raises ConfigError for metadata that the format cannot hold such that it could be read back."""
    if file_format in ("parquet", "arrow"):
        return
    for column in schema:
        if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
            continue
        if (kind := _foreign(column.type)) is not None:
            raise ConfigError(
                f'--kept {path}: the metadata column "{column.name}" holds values of type {kind}, which '
                f"{_NAMES[file_format]} cannot hold. {_WAY_OUT}."
            )


def _foreign(kind: pa.DataType) -> pa.DataType | None:
    """A type that JSON does not have."""
    if pa.types.is_nested(kind):
        inner = (_foreign(kind.field(place).type) for place in range(kind.num_fields))
        return next((found for found in inner if found is not None), None)
    return None if kind in (pa.null(), pa.bool_(), pa.int64(), pa.float64(), pa.string()) else kind


def write_documents(sink: PackedFile, documents: Documents, file_format: str, columns: Columns) -> None:
    """Write the documents. Raises ConfigError naming the one that holds what the format cannot."""
    if file_format in ("parquet", "arrow"):
        _write_table(sink, documents, file_format, columns)
    elif file_format == "jsonl":
        _write_objects(sink, documents, columns)
    elif file_format == "csv":
        _write_cells(documents, columns, csv.writer(_Lines(sink)).writerow)
    else:
        _write_cells(documents, columns, lambda cells: sink.write(_tsv_line(cells, columns).encode()))


def _write_table(sink: PackedFile, documents: Documents, file_format: str, columns: Columns) -> None:
    schema = columns.fields
    with TableFile(sink, file_format, schema) as table:
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


def _write_objects(sink: PackedFile, documents: Documents, columns: Columns) -> None:
    for document in documents:
        values = {
            name: _plain(value)
            for name, value in zip(columns.names, columns.values(document), strict=True)
            if value is not None or name == columns.title  # settings that name this column want to find it
        }
        sink.write(_json(values, document).encode() + b"\n")


def _write_cells(documents: Documents, columns: Columns, write: Callable[[list[str]], object]) -> None:
    if "" in columns.names:
        raise ConfigError(f"a metadata column has no name, which a header cannot hold. {_WAY_OUT}.")
    write(columns.names)
    for document in documents:
        write([_cell(_plain(value), document) for value in columns.values(document)])


def _tsv_line(cells: Sequence[str], columns: Columns) -> str:
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

    def __init__(self, sink: PackedFile) -> None:
        self._sink = sink

    def write(self, line: str) -> int:
        return self._sink.write(line.encode())
