"""Types of metadata columns, inferred from Python values: of a stream or a part, merged, written as JSON.

The types are bool, int64, float64, string, binary, date32, time64[us], timestamp[us] (in UTC for zoned values),
decimal128, list and struct, and null for columns with only nulls in lists.

Two types of one column merge without loss: null with any type, whole numbers with floats (up to 2**53), structs field
by field, lists by their elements, decimals by widening. Anything else is a conflict for the user to resolve
(`--column name:type`).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa

from indexer.corpus.row import BadRow, read_as
from indexer.errors import StoreError

_INDEX = "the index"  # the place of types that come from an index
EXACT_INTEGER = 2**53  # float64 represents every whole number up to this
ColumnPath = tuple[str, ...]  # a column, then the fields inside it
_INT64 = range(-(2**63), 2**63)
_DECIMAL_DIGITS = 38  # of a decimal128
_TYPES: dict[str, tuple[type | None, pa.DataType | None, str]] = {  # Python's, Arrow's, and words for messages
    "null": (type(None), pa.null(), ""),
    "bool": (bool, pa.bool_(), "true or false"),
    "int64": (None, pa.int64(), "whole numbers"),
    "float64": (float, pa.float64(), "numbers"),
    "string": (str, pa.string(), "text"),
    "binary": (bytes, pa.binary(), "bytes"),
    "date32": (date, pa.date32(), "dates"),
    "time64[us]": (time, pa.time64("us"), "times"),
    "timestamp[us]": (None, pa.timestamp("us"), "times without a zone"),
    "struct": (None, None, "objects"),
    "list": (None, None, "lists"),
    "decimal128": (None, None, "decimals"),
}
_TYPE_NAMES = {python: name for name, (python, _, _) in _TYPES.items() if python}  # one Arrow type each
_ARROW_TYPES = {name: arrow for name, (_, arrow, _) in _TYPES.items() if arrow is not None}
_CONVERSIONS = {  # the conversion of text to an Arrow type
    "int": pa.types.is_integer, "float": pa.types.is_floating, "bool": pa.types.is_boolean,
    "timestamp": pa.types.is_timestamp, "date": pa.types.is_date, "json": pa.types.is_nested,
}  # fmt: skip
_SCALARS = {"bool": bool, "int64": int, "float64": float, "string": str}


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The type of a column so far, and the place where it first occurred."""

    name: str
    where: str
    fields: Mapping[str, "ColumnType"] = field(default_factory=dict)  # struct
    element: "ColumnType | None" = None  # list
    wide: str = ""  # int64: the place of the first number beyond 2**53
    digits: tuple[int, int] = (0, 0)  # decimal128: before and after the point


class SchemaBuilder:
    """The types of all metadata columns so far, beginning with those of a `known` index."""

    def __init__(self, known: pa.Schema | None = None) -> None:
        self._kinds: dict[str, ColumnType] = {}
        self._plain: dict[str, type] = {}  # columns of one scalar type, for which `observe` need not look closer
        self.merge({column.name: _column_type(column.type, _INDEX) for column in known or ()})

    def observe(self, metadata: Mapping[str, Any], where: str) -> None:
        """Merge the types of one document's metadata; `where` names its place in messages.

        Raises BadRow ("type") with both places if a value does not fit; the types then stay unchanged.
        """
        plain = self._plain
        types: dict[str, ColumnType] = {}
        for name, value in metadata.items():
            kind = type(value)
            if plain.get(name) is not kind or (kind is int and not -EXACT_INTEGER <= value <= EXACT_INTEGER):
                types[name] = infer_type(value, where, (name,))
        if types:
            self.merge(types)

    def merge(self, kinds: Mapping[str, ColumnType]) -> None:
        """Merge the types of some columns, all or none. Raises BadRow ("type")."""
        merged = {name: merge_types(self._kinds.get(name), kind, (name,)) for name, kind in kinds.items()}
        for name, kind in merged.items():
            self._kinds[name] = kind
            self._plain.pop(name, None)
            if kind.name in _SCALARS:
                self._plain[name] = _SCALARS[kind.name]

    def schema(self) -> pa.Schema:
        """Return the Arrow schema, columns in the order of first occurrence."""
        return pa.schema([(name, _arrow_type(kind)) for name, kind in self._kinds.items()])


def infer_schema(rows: Iterable[Mapping[str, Any]]) -> pa.Schema:
    """Return the schema of one part's metadata, columns in the order of first occurrence. Raises BadRow ("type")."""
    types = SchemaBuilder()
    for number, row in enumerate(rows):
        if row:
            types.observe(row, f"row {number} of the part")
    return types.schema()


def merge_schemas(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """Return one schema with the columns of all. Raises BadRow ("type") if types of a column do not merge."""
    types = SchemaBuilder()
    for number, schema in enumerate(schemas):
        types.merge({column.name: _column_type(column.type, f"part {number}") for column in schema})
    return types.schema()


def conversions_to(schema: pa.Schema) -> dict[str, str]:
    """Return the conversions (see `indexer.corpus.columns`) that turn text cells into an index's types.

    Text columns are omitted, as are decimals, times and bytes, which have no conversion.
    """
    return {column.name: name for column in schema for name, is_one in _CONVERSIONS.items() if is_one(column.type)}


def drop_nulls(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata without nulls at any depth, and without objects of nulls only.

    Nulls in lists are kept, since they occupy a position.
    """
    return {name: clean for name, value in metadata.items() if (clean := _canonical_value(value)) is not None}


def _canonical_value(value: Any) -> Any:
    if isinstance(value, dict):
        return drop_nulls(value) or None
    if isinstance(value, list):
        return [_canonical_value(element) for element in value]
    return value


def schema_to_json(schema: pa.Schema) -> dict[str, Any]:
    """Return the schema as JSON: `{"year": "int64", "tags": {"list": "string"}, "meta": {"struct": {...}}}`.

    Raises StoreError for a type that this module does not make.
    """
    return {column.name: _described(column.type) for column in schema}


def schema_from_json(described: Mapping[str, Any]) -> pa.Schema:
    """Return the schema that `schema_to_json` wrote. Raises StoreError for anything else."""
    return pa.schema([(name, _parsed(form)) for name, form in described.items()])


def infer_type(value: Any, where: str, path: ColumnPath) -> ColumnType:
    """Return the type of one canonical value at `path`. Raises BadRow ("type") for a value without one."""
    kind = type(value)
    if kind in _TYPE_NAMES:
        return ColumnType(_TYPE_NAMES[kind], where)
    if kind is int and value in _INT64:
        return ColumnType("int64", where, wide="" if -EXACT_INTEGER <= value <= EXACT_INTEGER else where)
    if kind is datetime:
        return ColumnType("timestamp[us]" if value.tzinfo is None else "timestamp[us, tz=UTC]", where)
    if kind is Decimal:
        return _decimal(value, where, path)
    if kind is dict:
        fields = {key: infer_type(inner, where, (*path, key)) for key, inner in value.items()}
        return ColumnType("struct", where, fields=fields)
    if kind is list:
        element = ColumnType("null", where)
        for inner in value:
            element = merge_types(element, infer_type(inner, where, path), path)
        return ColumnType("list", where, element=element)
    if kind is int:
        raise _unfit(path, f"the number {value}, which is beyond 64 bits")
    raise _unfit(path, f"a value of type {kind.__name__}, which cannot be stored")


def _decimal(value: Decimal, where: str, path: ColumnPath) -> ColumnType:
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise _unfit(path, f"the decimal {value}, which cannot be stored")
    after = max(-exponent, 0)
    before = max(len(digits) + exponent, 1)
    return _require_digits(ColumnType("decimal128", where, digits=(before, after)), path)


def _require_digits(kind: ColumnType, path: ColumnPath) -> ColumnType:
    if sum(kind.digits) > _DECIMAL_DIGITS:
        raise _unfit(path, f"decimals of more than {_DECIMAL_DIGITS} digits")
    return kind


def merge_types(old: ColumnType | None, new: ColumnType, path: ColumnPath) -> ColumnType:
    """Return the type that fits both, `old` itself if possible. Raises BadRow ("type") with both places."""
    if old is None or old.name == "null":
        return new
    if new.name == "null":
        return old
    if old.name == new.name:
        return _merge_same(old, new, path)
    if {old.name, new.name} == {"int64", "float64"}:
        return _merge_numbers(old, new, path)
    if old.name.startswith("timestamp[us, tz") and new.name.startswith("timestamp[us, tz"):
        return replace(old, name="timestamp[us, tz=UTC]")
    raise _unfit(path, f"{_in_words(new)} {_at(new.where)}, but {_in_words(old)} {_at(old.where)}")


def _merge_same(old: ColumnType, new: ColumnType, path: ColumnPath) -> ColumnType:
    if old.name == "int64" and new.wide and not old.wide:
        return replace(old, wide=new.wide)
    if old.name == "decimal128" and old.digits != new.digits:
        digits = (max(old.digits[0], new.digits[0]), max(old.digits[1], new.digits[1]))
        return _require_digits(replace(old, digits=digits), path)
    if old.name == "list" and old.element is not None and new.element is not None:
        element = merge_types(old.element, new.element, path)
        return old if element is old.element else replace(old, element=element)
    if old.name == "struct":
        fields = {key: merge_types(old.fields.get(key), kind, (*path, key)) for key, kind in new.fields.items()}
        if any(old.fields.get(key) is not kind for key, kind in fields.items()):
            return replace(old, fields={**old.fields, **fields})
    return old


def _merge_numbers(old: ColumnType, new: ColumnType, path: ColumnPath) -> ColumnType:
    whole, real = (old, new) if old.name == "int64" else (new, old)
    if whole.wide:
        raise _unfit(
            path,
            f"a whole number beyond 2**53 {_at(whole.wide)}, but fractions {_at(real.where)}, "
            "and as a float the number would lose digits",
        )
    return real if old is real else replace(real, where=old.where)


def _unfit(path: ColumnPath, what: str) -> BadRow:
    way_out = f"{read_as(path[0], 'string')} to read the column as text (or another type that fits all rows)"
    return BadRow("type", f'metadata column "{".".join(path)}" contains {what}', way_out)


def _at(where: str) -> str:
    return f"in {where}" if where == _INDEX else f"at {where}"


def _in_words(kind: ColumnType) -> str:
    return _TYPES[kind.name][2] if kind.name in _TYPES else "times with a zone"


def _arrow_type(kind: ColumnType) -> pa.DataType:
    if kind.name == "struct":
        return pa.struct([(key, _arrow_type(inner)) for key, inner in kind.fields.items()])
    if kind.name == "list" and kind.element is not None:
        return pa.list_(_arrow_type(kind.element))
    if kind.name == "decimal128":
        return pa.decimal128(sum(kind.digits), kind.digits[1])
    return _parsed(kind.name)


def _column_type(kind: pa.DataType, where: str) -> ColumnType:
    if pa.types.is_struct(kind):
        return ColumnType("struct", where, fields={inner.name: _column_type(inner.type, where) for inner in kind})
    if pa.types.is_list(kind):
        return ColumnType("list", where, element=_column_type(kind.value_type, where))
    if pa.types.is_decimal128(kind):
        return ColumnType("decimal128", where, digits=(kind.precision - kind.scale, kind.scale))
    return ColumnType(_described(kind), where)


def _described(kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        return {"struct": {inner.name: _described(inner.type) for inner in kind}}
    if pa.types.is_list(kind):
        return {"list": _described(kind.value_type)}
    if pa.types.is_decimal128(kind) or (pa.types.is_timestamp(kind) and kind.unit == "us"):
        return str(kind)
    for name, plain in _ARROW_TYPES.items():
        if kind == plain:
            return name
    raise StoreError(f"metadata cannot be stored as Arrow type {kind}; expected one of {', '.join(_ARROW_TYPES)}.")


def _parsed(form: Any) -> pa.DataType:
    match form:
        case {"struct": dict(fields)} if len(form) == 1:
            return pa.struct([(name, _parsed(inner)) for name, inner in fields.items()])
        case {"list": element} if len(form) == 1:
            return pa.list_(_parsed(element))
        case str() if form in _ARROW_TYPES:
            return _ARROW_TYPES[form]
        case str() if decimal := re.fullmatch(r"decimal128\((\d+), (\d+)\)", form):
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        case str() if zoned := re.fullmatch(r"timestamp\[us, tz=(.+)\]", form):
            return pa.timestamp("us", zoned[1])
    raise StoreError(f"unknown type of a metadata column: {form!r}; expected one of {', '.join(_ARROW_TYPES)}.")
