"""Schemas of metadata: of the whole stream, of one part, merged, and written as JSON.

The types are bool, int64, float64, string, binary, date32, time64[us], timestamp[us] (in UTC where values are
zoned), decimal128, list and struct, and null where only nulls in lists were met. See `column_kinds` for how they
merge.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from indexer.corpus.column_kinds import EXACT_INTEGER, INDEX, Kind, kind_of, merge_kinds
from indexer.errors import StoreError

_ARROW = {
    "null": pa.null(),
    "bool": pa.bool_(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date32": pa.date32(),
    "time64[us]": pa.time64("us"),
    "timestamp[us]": pa.timestamp("us"),
}
_READ_AS = {
    "int": pa.types.is_integer,
    "float": pa.types.is_floating,
    "bool": pa.types.is_boolean,
    "timestamp": pa.types.is_timestamp,
    "date": pa.types.is_date,
    "json": pa.types.is_nested,
}
_PLAIN = {"bool": bool, "int64": int, "float64": float, "string": str}


class MetadataTypes:
    """The types of all metadata columns met so far, those of an index, if one is `known`, before all others."""

    def __init__(self, known: pa.Schema | None = None) -> None:
        self._kinds: dict[str, Kind] = {}
        self._plain: dict[str, type] = {}  # columns of one scalar type, for which `observe` need not look closer
        self.merge({column.name: _kind_of_type(column.type, INDEX) for column in known or ()})

    def observe(self, metadata: Mapping[str, Any], where: str) -> None:
        """Take in one document's metadata; `where` names its place in messages.

        Raises BadRow ("type") naming both places when a value does not fit; nothing is then taken in.
        """
        plain = self._plain
        found: dict[str, Kind] = {}
        for name, value in metadata.items():
            kind = type(value)
            if plain.get(name) is not kind or (kind is int and not -EXACT_INTEGER <= value <= EXACT_INTEGER):
                found[name] = kind_of(value, where, (name,))
        if found:
            self.merge(found)

    def merge(self, kinds: Mapping[str, Kind]) -> None:
        """Take in the types of some columns, all or none. Raises BadRow ("type")."""
        merged = {name: merge_kinds(self._kinds.get(name), kind, (name,)) for name, kind in kinds.items()}
        for name, kind in merged.items():
            self._kinds[name] = kind
            self._plain.pop(name, None)
            if kind.name in _PLAIN:
                self._plain[name] = _PLAIN[kind.name]

    def schema(self) -> pa.Schema:
        """The Arrow schema, columns in the order first met."""
        return pa.schema([(name, _arrow_type(kind)) for name, kind in self._kinds.items()])


def part_schema(rows: Iterable[Mapping[str, Any]]) -> pa.Schema:
    """The schema of one part's metadata: its columns in the order first met. Raises BadRow ("type")."""
    types = MetadataTypes()
    for number, row in enumerate(rows):
        if row:
            types.observe(row, f"row {number} of the part")
    return types.schema()


def merge_schemas(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """One schema that holds the columns of all. Raises BadRow ("type") where types of a column do not merge."""
    types = MetadataTypes()
    for number, schema in enumerate(schemas):
        types.merge({column.name: _kind_of_type(column.type, f"part {number}") for column in schema})
    return types.schema()


def conversions_to(schema: pa.Schema) -> dict[str, str]:
    """What text has to be read as (see `conversions`) to be of an index's types; columns that text fits are left out.

    Decimals, times and bytes have no such form.
    """
    return {column.name: name for column in schema for name, is_one in _READ_AS.items() if is_one(column.type)}


def canonical(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata without nulls, at any depth: null is the same as absent, and so is an object of nulls only.

    Nulls that are elements of lists are kept, since they hold a place.
    """
    kept = {}
    for name, value in metadata.items():
        if (clean := _canonical_value(value)) is not None:
            kept[name] = clean
    return kept


def _canonical_value(value: Any) -> Any:
    if isinstance(value, dict):
        return canonical(value) or None
    if isinstance(value, list):
        return [_canonical_value(element) for element in value]
    return value


def describe(schema: pa.Schema) -> dict[str, Any]:
    """The schema as JSON: `{"year": "int64", "tags": {"list": "string"}, "meta": {"struct": {...}}}`.

    Raises StoreError for a type that this module does not make.
    """
    return {column.name: _described(column.type) for column in schema}


def parse(described: Mapping[str, Any]) -> pa.Schema:
    """What `describe` wrote, as a schema again. Raises StoreError for anything else."""
    return pa.schema([(name, _parsed(form)) for name, form in described.items()])


def _arrow_type(kind: Kind) -> pa.DataType:
    if kind.name == "struct":
        return pa.struct([(key, _arrow_type(inner)) for key, inner in kind.fields.items()])
    if kind.name == "list" and kind.element is not None:
        return pa.list_(_arrow_type(kind.element))
    if kind.name == "decimal128":
        return pa.decimal128(sum(kind.digits), kind.digits[1])
    return _parsed(kind.name)


def _kind_of_type(kind: pa.DataType, where: str) -> Kind:
    if pa.types.is_struct(kind):
        return Kind("struct", where, fields={inner.name: _kind_of_type(inner.type, where) for inner in kind})
    if pa.types.is_list(kind):
        return Kind("list", where, element=_kind_of_type(kind.value_type, where))
    if pa.types.is_decimal128(kind):
        return Kind("decimal128", where, digits=(kind.precision - kind.scale, kind.scale))
    return Kind(_described(kind), where)


def _described(kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        return {"struct": {inner.name: _described(inner.type) for inner in kind}}
    if pa.types.is_list(kind):
        return {"list": _described(kind.value_type)}
    if pa.types.is_decimal128(kind) or (pa.types.is_timestamp(kind) and kind.unit == "us"):
        return str(kind)
    for name, plain in _ARROW.items():
        if kind == plain:
            return name
    raise StoreError(f"metadata cannot be stored as Arrow type {kind}; expected one of {', '.join(_ARROW)}.")


def _parsed(form: Any) -> pa.DataType:
    match form:
        case {"struct": dict(fields)} if len(form) == 1:
            return pa.struct([(name, _parsed(inner)) for name, inner in fields.items()])
        case {"list": element} if len(form) == 1:
            return pa.list_(_parsed(element))
        case str() if form in _ARROW:
            return _ARROW[form]
        case str() if decimal := re.fullmatch(r"decimal128\((\d+), (\d+)\)", form):
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        case str() if zoned := re.fullmatch(r"timestamp\[us, tz=(.+)\]", form):
            return pa.timestamp("us", zoned[1])
    raise StoreError(f"unknown type of a metadata column: {form!r}; expected one of {', '.join(_ARROW)}.")
