"""Tables of documents: their rows as documents, and their columns by path (a column, then fields of its objects)."""

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from indexer.arrays import Int64Array
from indexer.corpus.document import Document
from indexer.corpus.schema import EXACT_INTEGER, ColumnPath, drop_nulls

_FEW = 32  # rows that are sliced one by one
LONG = 32  # bytes a value, on average, from which a column is compressed
STORED = [
    pa.field("id", pa.string(), nullable=False),
    pa.field("title", pa.string()),
    pa.field("text", pa.string(), nullable=False),
]


def numbers_array(numbers: Sequence[int] | Int64Array) -> pa.Array:
    """Return whole numbers as an Arrow array. `pa.array` would import pandas, if it is installed."""
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(np.asarray(numbers, np.int64))])


def texts_array(texts: Sequence[str]) -> pa.Array:
    """Return texts as an Arrow array. `pa.array` would import pandas, if it is installed."""
    encoded = [text.encode() for text in texts]
    ends = np.fromiter(accumulate(map(len, encoded), initial=0), np.int64, len(encoded) + 1)
    return pa.Array.from_buffers(
        pa.large_string(), len(encoded), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    )


def gathered_rows(places: Sequence[tuple[pa.Table, list[int]]]) -> pa.Table:
    """Return the rows at some offsets of each table, as one table that does not hold the others in memory."""
    if sum(len(offsets) for _, offsets in places) <= _FEW:  # Table.take imports pyarrow.compute, which takes longer
        return pa.concat_tables([table.slice(row, 1) for table, offsets in places for row in offsets])
    tables = [table for table, _ in places]
    starts = accumulate(map(len, tables), initial=0)
    rows = [start + row for (_, offsets), start in zip(places, starts, strict=False) for row in offsets]
    return pa.concat_tables(tables).take(numbers_array(rows))


def documents_of(table: pa.Table) -> Iterator[Document]:
    """Yield the document of each row. The first columns are those of `STORED`."""
    for identity, title, text, metadata in fields_of(table):
        yield Document(identity, text, title, metadata)


def fields_of(table: pa.Table) -> Iterator[tuple[str, str | None, str, dict[str, Any]]]:
    """Yield id, title, text and metadata of each row."""
    names = table.column_names[len(STORED) :]
    for identity, title, text, *values in zip(*(column.to_pylist() for column in table.columns), strict=True):
        yield identity, title, text, drop_nulls(dict(zip(names, values, strict=True))) if names else {}


def with_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a part's documents with the columns and types of the whole index: its whole numbers may be floats
    elsewhere."""
    if table.schema.equals(schema):
        return table
    own = dict(zip(table.column_names, table.columns, strict=True))
    columns = [
        column
        if (column := own.get(name)) is not None and column.type == kind
        else pa.array([None] * len(table) if column is None else column.to_pylist(), kind)  # cast breaks nested nulls
        for name, kind in zip(schema.names, schema.types, strict=True)
    ]
    return pa.table(columns, schema=schema)


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
