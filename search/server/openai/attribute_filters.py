"""Filters of OpenAI's vector stores as SQL conditions for `search.filters`.

An attribute is a metadata column, `id`, `title` or `text`, or a field of a column's objects: author.name. OpenAI's API
leaves some cases open. Here `ne` and `nin` negate `eq` and `in`, so they also match documents without the attribute. A
list equals each of its values. A value of another type than the attribute's, such as true for numbers, is an error.
"""

import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Annotated, Any, Literal, Union

import pyarrow as pa
from pydantic import AfterValidator, Field, ValidationError, WithJsonSchema, WrapValidator, model_validator

from indexer.corpus.schema import ColumnPath
from indexer.store.document_tables import type_at
from search.filters.conditions import membership, quote, quote_path
from search.filters.expressions import Kind, kind_of, shortened
from search.filters.scanner import UNFIT
from search.formatting import did_you_mean
from search.server.http.failures import RequestError
from search.server.http.field_faults import in_words
from search.server.http.messages import Name, Request

DEEPEST = 10  # levels of nested filters
MOST = 64  # comparisons of a filter
LONGEST = 20_000  # characters of a filter, written as SQL
_MOST_VALUES = LONGEST // 3  # each has at least one character, a comma and a space in SQL
_COMPARISON, _COMPOUND = ("type", "key", "value"), ("type", "filters")
_INT64 = range(-(2**63), 2**63)
_HUGE = 2**100  # integers below are compared exactly
_LISTED = 30  # attributes named in a message
_SIGNS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_TYPES = ("eq", "ne", "gt", "gte", "lt", "lte", "in", "nin", "and", "or")
_EXPECTED = {
    Kind.TEXT: "text",
    Kind.NUMBERS: "a number",
    Kind.TRUTH: "true or false",
    Kind.DATES: 'a date as text: "2020-12-31"',
    Kind.MOMENTS: 'a date with a time as text: "2020-12-31T23:59:59Z"',
    Kind.TIMES: 'a time as text: "23:59:59"',
}
_TIMED = (Kind.DATES, Kind.MOMENTS, Kind.TIMES)
_ONE = {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}]}
Scalar = str | int | float | bool


def _checked(value: Any) -> Scalar | list[Scalar]:
    """Return a value or a list of values. Raises ValueError for the first invalid one."""
    if isinstance(value, list) and len(value) > _MOST_VALUES:
        raise ValueError(f"contains {len(value):,} values; expected at most {_MOST_VALUES:,}")
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, str | int | float):
            kind = "null" if item is None else f"of type {type(item).__name__}"
            raise ValueError(f"is {kind}; expected text, a number, true or false, or a list of these for in and nin")
        if isinstance(item, str) and UNFIT.search(item):
            raise ValueError("contains a null character or half a surrogate pair, which no document does")
        if not isinstance(item, str) and not abs(item) <= sys.float_info.max:
            raise ValueError("expected a finite number")
    checked: Scalar | list[Scalar] = value
    return checked


class ComparisonFilter(Request):
    """A comparison of an attribute with a value."""

    type: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]
    """How the attribute is compared; `in` and `nin` compare with a list."""
    key: Name
    """A metadata column, `id`, `title` or `text`, or a field of a column's objects: author.name."""
    value: Annotated[
        Any, AfterValidator(_checked), WithJsonSchema({"anyOf": [*_ONE["anyOf"], {"type": "array", "items": _ONE}]})
    ]
    """A text, number, true or false; a date as text; for `in` and `nin` a list of these."""

    @model_validator(mode="after")
    def _as_many_as_the_type_takes(self) -> "ComparisonFilter":
        if isinstance(self.value, list) != (self.type in ("in", "nin")):
            expected = "a list of values" if self.type in ("in", "nin") else "one value, not a list"
            raise ValueError(f'"{self.type}" needs {expected}')
        return self

    @property
    def values(self) -> list[Scalar]:
        """The values as a list."""
        return self.value if isinstance(self.value, list) else [self.value]


class CompoundFilter(Request):
    """Filters of which all or any must match."""

    type: Literal["and", "or"]
    """Whether all or any of the filters must match."""
    filters: list["AttributeFilter"] = Field(min_length=1)
    """Filters, nested at most ten deep."""


AttributeFilter = Annotated[
    Union[ComparisonFilter, CompoundFilter],  # noqa: UP007  # a quoted name cannot be joined with |
    Field(discriminator="type"),
]
CompoundFilter.model_rebuild()


def _refuse_outline(value: Any) -> None:
    """Raise RequestError for the first filter that is nested too deeply, one too many, or without a part.

    Pydantic would check all, report an error for each, and repeat the input.
    """
    level, comparisons = [value], 0
    for _ in range(DEEPEST):
        inner: list[Any] = []
        for part in level:
            _refuse_parts(part)
            nested = part.get("filters", [])
            comparisons += "key" in part
            if comparisons + len(inner) + len(nested) > MOST:  # each contains at least one
                raise _refusal(f"more than {MOST} comparisons; expected at most {MOST}. Use in for several values")
            inner += nested
        level = inner
    if level:
        raise _refusal(f"nested more than {DEEPEST} deep")


def _refuse_parts(one: Any) -> None:
    """Raise RequestError for an object that is not a filter, or has a missing or unknown part."""
    if not isinstance(one, dict) or one.get("type") not in _TYPES:
        raise _refusal(f'expected objects, each with a "type" of {", ".join(_TYPES)}')
    kind = one["type"]
    parts = _COMPOUND if kind in ("and", "or") else _COMPARISON
    if missing := next((part for part in parts if part not in one), None):
        raise _refusal(f'"{kind}" needs {" and ".join(parts[1:])}, but "{missing}" is missing')
    if unknown := next((part for part in one if part not in parts), None):
        raise _refusal(f'"{kind}" needs {" and ".join(parts[1:])}; "{shortened(unknown)}" is unknown')
    if parts == _COMPOUND and not (isinstance(one["filters"], list) and one["filters"]):
        raise _refusal(f'"{kind}" needs a list of at least one filter')


def _outlined(value: Any, validated: Callable[[Any], Any]) -> Any:
    """Return the filter. Raises RequestError, which pydantic passes through, for every fault."""
    _refuse_outline(value)
    try:
        return validated(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, ("filters", *first["loc"])))
        raise RequestError(400, f"{place}: {in_words(first)}", "filters") from None


OutlinedFilter = Annotated[AttributeFilter, WrapValidator(_outlined)]


def condition_of(given: ComparisonFilter | CompoundFilter, schema: pa.Schema) -> str:
    """Return a filter as SQL for documents of a schema. Raises RequestError."""
    sql = _condition(given, schema)
    if len(sql) > LONGEST:
        raise _refusal(f"{len(sql):,} characters as SQL; expected at most {LONGEST:,}")
    return sql


def _condition(given: ComparisonFilter | CompoundFilter, schema: pa.Schema) -> str:
    if isinstance(given, ComparisonFilter):
        return _comparison(given, schema)
    return f"({f' {given.type.upper()} '.join(_condition(inner, schema) for inner in given.filters)})"


def _comparison(given: ComparisonFilter, schema: pa.Schema) -> str:
    path, data_type = _column(given.key, schema)
    name = quote_path(path)
    kind = kind_of(data_type)
    item = data_type.value_type if kind == Kind.LISTS else data_type
    if kind_of(item) == Kind.NULLS:
        return str(given.type in ("ne", "nin")).upper()
    if kind_of(item) not in _EXPECTED or (kind == Kind.LISTS and kind_of(item) in _TIMED):
        inner = f" of {kind_of(item)}" if kind == Kind.LISTS else ""
        raise _refusal(f'"{given.key}" contains {kind}{inner}, which filters cannot compare')
    if given.type in _SIGNS:
        if kind in (Kind.LISTS, Kind.TRUTH):
            raise _refusal(f'"{given.key}" contains {kind}, which have no order; expected eq, ne, in or nin')
        return f"{name} {_SIGNS[given.type]} {_literal(given, given.value, item)}"
    literals = [_literal(given, value, item) for value in given.values if _may_equal(value, item)]
    return membership(name, literals, given.type in ("eq", "in"), kind == Kind.LISTS)


def _column(key: str, schema: pa.Schema) -> tuple[ColumnPath, pa.DataType]:
    if key in schema.names:
        return (key,), schema.field(key).type
    path = tuple(key.split("."))
    try:
        return path, type_at(schema, path)
    except KeyError:
        hint = did_you_mean(key, schema.names, f"expected one of {', '.join(schema.names[:_LISTED])}.")
        raise RequestError.of_field("filters", f'no document has an attribute "{key}"; {hint}') from None


def _may_equal(value: Scalar, data_type: pa.DataType) -> bool:
    """Return False for a number that no int64 equals; DuckDB would compare all as float64 with it."""
    if not pa.types.is_integer(data_type) or isinstance(value, str | bool):
        return True
    return value == int(value) and int(value) in _INT64


def _literal(given: ComparisonFilter, value: Scalar, data_type: pa.DataType) -> str:
    """Return a value as SQL for a comparison with `data_type`. Raises RequestError for a value of another type."""
    kind = kind_of(data_type)
    try:
        if kind == Kind.TRUTH and isinstance(value, bool):
            return str(value).upper()
        if kind == Kind.NUMBERS and not isinstance(value, str | bool):
            return _number(value, data_type)
        if isinstance(value, str) and kind not in (Kind.TRUTH, Kind.NUMBERS):
            return quote(_text(value, kind))
    except (ValueError, OverflowError):
        pass
    found = "text" if isinstance(value, str) else "true or false" if isinstance(value, bool) else "a number"
    found = f"text that is invalid: {value!r:.60}" if found == "text" and kind in _TIMED else found
    raise _refusal(f'"{given.key}" contains {kind}; expected {_EXPECTED[kind]}, found {found}')


def _number(value: float, data_type: pa.DataType) -> str:
    """Return a number as SQL: DuckDB reads a float64 with an exponent, an integer or a decimal without one."""
    if pa.types.is_decimal(data_type):
        plain = format(Decimal(repr(value)), "f")
        if len(plain.strip("-").replace(".", "")) <= 38:
            return plain
    elif not pa.types.is_floating(data_type) and value == int(value) and abs(value) < _HUGE:
        return str(int(value))
    text = repr(float(value))
    return text if "e" in text else f"{text}e0"


def _text(value: str, kind: str) -> str:
    """Return text for DuckDB; dates in ISO 8601, with times in UTC. Raises ValueError and OverflowError."""
    if kind == Kind.DATES:
        return date.fromisoformat(value).isoformat()
    if kind == Kind.TIMES:
        hour = time.fromisoformat(value)
        if hour.tzinfo:
            raise ValueError(value)  # without a day the zone means nothing
        return hour.isoformat()
    if kind == Kind.MOMENTS:
        moment = datetime.fromisoformat(value)
        return (moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment).isoformat(" ")
    return value


def _refusal(fault: str) -> RequestError:
    return RequestError.of_field("filters", f"{fault}.")
