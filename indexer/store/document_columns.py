"""Columns of documents, by path: their types, their values, and how they are packed in Parquet."""

import math
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from indexer.corpus.schema import EXACT_INTEGER

LONG = 32  # bytes a value, on average
ColumnPath = tuple[str, ...]  # a column, then fields inside its objects


def type_at(schema: pa.Schema, path: ColumnPath) -> pa.DataType:
    """The type of a column, or of a field inside its objects. Raises KeyError where there is none."""
    kind = schema.field(path[0]).type
    for name in path[1:]:
        if not pa.types.is_struct(kind):
            raise KeyError(name)
        kind = kind.field(name).type
    return kind


def column_at(table: pa.Table, path: ColumnPath, kind: pa.DataType, count: int) -> pa.ChunkedArray:
    """The `count` values at `path` as type `kind`; nulls where the table has no such column or field.

    NaN and infinity, which indexes of older versions may hold, are nulls too, as they are in JSON.
    """
    nothing = pa.chunked_array([pa.nulls(count)])
    column = table.column(path[0]) if path[0] in table.column_names else nothing
    for name in path[1:]:
        there = pa.types.is_struct(column.type) and column.type.get_field_index(name) >= 0
        column = pc.struct_field(column, [name]) if there else nothing
    return _finite(column if column.type == kind else column.cast(kind))


def _finite(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The numbers of a column, also inside lists, those that are not finite as nulls."""
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


def loses_digits(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> bool:
    """Whether values would be rounded as type `kind`: whole numbers beyond 2**53 as floats, at any depth."""
    if pa.types.is_integer(column.type) and pa.types.is_floating(kind):
        least, most = (value.as_py() or 0 for value in pc.min_max(column).values())
        return max(-least, most) > EXACT_INTEGER
    if pa.types.is_struct(column.type):
        inside = (inner.name for inner in column.type)
        return any(loses_digits(pc.struct_field(column, [name]), kind.field(name).type) for name in inside)
    if pa.types.is_list(column.type):
        return loses_digits(pc.list_flatten(column), kind.value_type)
    return False


def long_columns(table: pa.Table) -> list[str]:
    """The Parquet columns of long texts or bytes, and those inside lists and objects."""
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
