"""The type of a metadata column, found from Python values and merged from row to row.

Two types of one column are merged by few rules, all free of loss: null gives way to anything, whole numbers
become floats where both occur (up to 2**53), structs merge field by field, lists by their elements, decimals
widen. Anything else is a conflict, and the user decides (`--column name:type`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

from indexer.corpus.rejection import BadRow

INDEX = "the index"  # where a type was met that is an index's
EXACT_INTEGER = 2**53  # a float64 holds every whole number up to this
Path = tuple[str, ...]  # a column, then the fields inside it
_INT64 = range(-(2**63), 2**63)
_DECIMAL_DIGITS = 38  # of a decimal128


@dataclass(frozen=True, slots=True)
class Kind:
    """The type of a column so far, and where it was first met."""

    name: str
    where: str
    fields: Mapping[str, "Kind"] = field(default_factory=dict)  # struct
    element: "Kind | None" = None  # list
    wide: str = ""  # int64: where a number beyond 2**53 was first met
    digits: tuple[int, int] = (0, 0)  # decimal128: before and after the point


_FIXED = {
    type(None): "null",
    bool: "bool",
    float: "float64",
    str: "string",
    bytes: "binary",
    date: "date32",
    time: "time64[us]",
}
_SAID = {
    "bool": "true or false",
    "int64": "whole numbers",
    "float64": "numbers",
    "string": "text",
    "binary": "bytes",
    "date32": "dates",
    "time64[us]": "times",
    "struct": "objects",
    "list": "lists",
    "decimal128": "decimals",
}


def kind_of(value: Any, where: str, path: Path) -> Kind:
    """The type of one canonical value at `path`. Raises BadRow ("type") for a value that has none."""
    kind = type(value)
    if kind in _FIXED:
        return Kind(_FIXED[kind], where)
    if kind is int:
        return _integer(value, where, path)
    if kind is datetime:
        return Kind("timestamp[us]" if value.tzinfo is None else "timestamp[us, tz=UTC]", where)
    if kind is Decimal:
        return _decimal(value, where, path)
    if kind is dict:
        fields = {key: kind_of(inner, where, (*path, key)) for key, inner in value.items()}
        return Kind("struct", where, fields=fields)
    if kind is list:
        return _list(value, where, path)
    raise _unfit(path, f"a value of type {kind.__name__}, which cannot be stored")


def _list(value: list[Any], where: str, path: Path) -> Kind:
    element = Kind("null", where)
    for inner in value:
        element = merge_kinds(element, kind_of(inner, where, path), path)
    return Kind("list", where, element=element)


def _integer(value: int, where: str, path: Path) -> Kind:
    if value not in _INT64:
        raise _unfit(path, f"the number {value}, which is beyond 64 bits")
    wide = where if not -EXACT_INTEGER <= value <= EXACT_INTEGER else ""
    return Kind("int64", where, wide=wide)


def _decimal(value: Decimal, where: str, path: Path) -> Kind:
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise _unfit(path, f"the decimal {value}, which cannot be stored")
    after = max(-exponent, 0)
    before = max(len(digits) + exponent, 1)
    return _fitting(Kind("decimal128", where, digits=(before, after)), path)


def _fitting(kind: Kind, path: Path) -> Kind:
    if sum(kind.digits) > _DECIMAL_DIGITS:
        raise _unfit(path, f"decimals of more than {_DECIMAL_DIGITS} digits")
    return kind


def merge_kinds(old: Kind | None, new: Kind, path: Path) -> Kind:
    """The type that holds both, `old` itself when it does. Raises BadRow ("type") naming both places."""
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
    raise _unfit(path, f"{_said(new)} {_at(new.where)}, but {_said(old)} {_at(old.where)}")


def _merge_same(old: Kind, new: Kind, path: Path) -> Kind:
    if old.name == "int64" and new.wide and not old.wide:
        return replace(old, wide=new.wide)
    if old.name == "decimal128" and old.digits != new.digits:
        digits = (max(old.digits[0], new.digits[0]), max(old.digits[1], new.digits[1]))
        return _fitting(replace(old, digits=digits), path)
    if old.name == "list" and old.element is not None and new.element is not None:
        element = merge_kinds(old.element, new.element, path)
        return old if element is old.element else replace(old, element=element)
    if old.name == "struct":
        fields = {key: merge_kinds(old.fields.get(key), kind, (*path, key)) for key, kind in new.fields.items()}
        if any(old.fields.get(key) is not kind for key, kind in fields.items()):
            return replace(old, fields={**old.fields, **fields})
    return old


def _merge_numbers(old: Kind, new: Kind, path: Path) -> Kind:
    whole, broken = (old, new) if old.name == "int64" else (new, old)
    if whole.wide:
        raise _unfit(
            path,
            f"a whole number beyond 2**53 {_at(whole.wide)}, but fractions {_at(broken.where)}, "
            "and as a float the number would lose digits",
        )
    return broken if old is broken else replace(broken, where=old.where)


def _unfit(path: Path, what: str) -> BadRow:
    way_out = f"pass --column {path[0]}:string to read the column as text (or another type that fits all rows)"
    return BadRow("type", f'metadata column "{".".join(path)}" holds {what}', way_out)


def _at(where: str) -> str:
    return f"in {where}" if where == INDEX else f"at {where}"


def _said(kind: Kind) -> str:
    if kind.name.startswith("timestamp"):
        return "times with a zone" if "tz" in kind.name else "times without a zone"
    return _SAID[kind.name]
