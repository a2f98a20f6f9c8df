"""Filters of OpenAI's vector stores, written as the conditions in SQL that `search.filters` takes.

An attribute is a metadata column, `id`, `title` or `text`, or a field of a column's objects: author.name. That API
leaves some cases open. Here `ne` and `nin` are the opposites of `eq` and `in`, so they also match documents without the
attribute; a list equals each value that it holds; a value of another kind than the attribute's, such as true for a
column of numbers, is an error.
"""

import difflib
import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Annotated, Any, Literal, Union

import pyarrow as pa
from pydantic import AfterValidator, Field, ValidationError, WithJsonSchema, WrapValidator, model_validator

from indexer.store.documents import ColumnPath, type_at
from search.filters.expressions import (
    DATES,
    LISTS,
    MOMENTS,
    NULLS,
    NUMBERS,
    TEXT,
    TIMES,
    TRUTH,
    kind_of,
    quote,
    shortened,
)
from search.server.http.failures import RequestError
from search.server.http.messages import Name, Request

DEEPEST = 10  # filters within filters
MOST = 64  # comparisons of a filter
LONGEST = 20_000  # characters of a filter, written as SQL
_MOST_VALUES = LONGEST // 3  # in SQL each has one character at least, a comma and a space
_COMPARISON, _COMPOUND = ("type", "key", "value"), ("type", "filters")
_INT64 = range(-(2**63), 2**63)
_HUGE = 2**100  # whole numbers below it are compared exactly
_LISTED = 30  # attributes named in a message
_SIGNS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_TYPES = ("eq", "ne", "gt", "gte", "lt", "lte", "in", "nin", "and", "or")
_EXPECTED = {
    TEXT: "text",
    NUMBERS: "a number",
    TRUTH: "true or false",
    DATES: 'a date as text: "2020-12-31"',
    MOMENTS: 'a date with a time as text: "2020-12-31T23:59:59Z"',
    TIMES: 'a time as text: "23:59:59"',
}
_ONE = {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}]}
Scalar = str | int | float | bool


def _checked(value: Any) -> Scalar | list[Scalar]:
    """A value, or several. Raises ValueError at the first that is none."""
    if isinstance(value, list) and len(value) > _MOST_VALUES:
        raise ValueError(f"holds {len(value):,} values; expected at most {_MOST_VALUES:,}")
    for one in value if isinstance(value, list) else [value]:
        if not isinstance(one, str | int | float):
            found = "null" if one is None else f"of type {type(one).__name__}"
            raise ValueError(f"is {found}; expected text, a number, true or false, or for in and nin a list of those")
        if isinstance(one, str) and any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in one):
            raise ValueError("holds a null character or half a surrogate pair, which no document does")
        if not isinstance(one, str) and not _is_finite(one):
            raise ValueError("expected a finite number")
    found_value: Scalar | list[Scalar] = value
    return found_value


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number that is longer than a float64 reaches
        return False


class ComparisonFilter(Request):
    """An attribute compared with a value."""

    type: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]
    key: Name
    value: Annotated[
        Any, AfterValidator(_checked), WithJsonSchema({"anyOf": [*_ONE["anyOf"], {"type": "array", "items": _ONE}]})
    ]

    @model_validator(mode="after")
    def _as_many_as_the_type_takes(self) -> "ComparisonFilter":
        if isinstance(self.value, list) != (self.type in ("in", "nin")):
            expected = "a list of values" if self.type in ("in", "nin") else "one value, not a list"
            raise ValueError(f'"{self.type}" takes {expected}')
        return self

    @property
    def values(self) -> list[Scalar]:
        """The value as a list, or the list."""
        return self.value if isinstance(self.value, list) else [self.value]


class CompoundFilter(Request):
    """Filters of which all, or any, must be met."""

    type: Literal["and", "or"]
    filters: list["AttributeFilter"] = Field(min_length=1)


AttributeFilter = Annotated[
    Union[ComparisonFilter, CompoundFilter],  # noqa: UP007  # a name in quotes cannot be joined with |
    Field(discriminator="type"),
]
CompoundFilter.model_rebuild()


def _refuse_outline(value: Any) -> None:
    """Raises RequestError for filters that lie too deep, are too many or lack a part, at the first that is found.

    Pydantic would look at each, however many, make an error of each, and repeat what was given.
    """
    level, comparisons = [value], 0
    for _ in range(DEEPEST):
        inner: list[Any] = []
        for one in level:
            _refuse_parts(one)
            within = one.get("filters", [])
            comparisons += "key" in one
            if comparisons + len(inner) + len(within) > MOST:  # each of them holds one at least
                raise _refusal(f"more than {MOST} comparisons; expected at most {MOST}. Many values go in one, with in")
            inner += within
        level = inner
    if level:
        raise _refusal(f"they lie more than {DEEPEST} deep in one another")


def _refuse_parts(one: Any) -> None:
    """Raises RequestError for an object that is no filter, or has a missing or unknown part."""
    if not isinstance(one, dict) or one.get("type") not in _TYPES:
        raise _refusal(f'expected objects, each with a "type" of {", ".join(_TYPES)}')
    kind = one["type"]
    parts = _COMPOUND if kind in ("and", "or") else _COMPARISON
    if missing := next((part for part in parts if part not in one), None):
        raise _refusal(f'"{kind}" takes {" and ".join(parts[1:])}, and there is no "{missing}"')
    if unknown := next((part for part in one if part not in parts), None):
        raise _refusal(f'"{kind}" takes {" and ".join(parts[1:])}, and no "{shortened(unknown)}"')
    if parts == _COMPOUND and not (isinstance(one["filters"], list) and one["filters"]):
        raise _refusal(f'"{kind}" takes a list of filters, one at least')


def _outlined(value: Any, validated: Callable[[Any], Any]) -> Any:
    """The filter that was given. Raises RequestError, which pydantic lets through: all faults of filters are alike."""
    _refuse_outline(value)
    try:
        return validated(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        what = str(first["msg"]).removeprefix("Value error, ")
        place = ".".join(map(str, ("filters", *first["loc"])))
        raise RequestError(400, f"{place}: {what}", "filters") from None


OutlinedFilter = Annotated[AttributeFilter, WrapValidator(_outlined)]


def condition_of(asked: ComparisonFilter | CompoundFilter, schema: pa.Schema) -> str:
    """A filter as SQL, for documents of a schema. Raises RequestError."""
    sql = _condition(asked, schema)
    if len(sql) > LONGEST:
        raise _refusal(f"{len(sql):,} characters, written as SQL; expected at most {LONGEST:,}")
    return sql


def _condition(asked: ComparisonFilter | CompoundFilter, schema: pa.Schema) -> str:
    if isinstance(asked, ComparisonFilter):
        return _comparison(asked, schema)
    return f"({f' {asked.type.upper()} '.join(_condition(inner, schema) for inner in asked.filters)})"


def _comparison(asked: ComparisonFilter, schema: pa.Schema) -> str:
    path, held = _column(asked.key, schema)
    name = ".".join('"' + part.replace('"', '""') + '"' for part in path)
    kind, item = kind_of(held), held.value_type if kind_of(held) == LISTS else held
    if kind_of(item) == NULLS:
        return str(asked.type in ("ne", "nin")).upper()
    if kind_of(item) not in _EXPECTED or (kind == LISTS and kind_of(item) not in (TEXT, NUMBERS, TRUTH)):
        inner = f" of {kind_of(item)}" if kind == LISTS else ""
        raise _refusal(f'"{asked.key}" holds {kind}{inner}, which filters do not compare')
    if asked.type in _SIGNS:
        if kind in (LISTS, TRUTH):
            raise _refusal(f'"{asked.key}" holds {kind}, which have no order; expected eq, ne, in or nin')
        return f"{name} {_SIGNS[asked.type]} {_literal(asked, asked.value, item)}"
    literals = [_literal(asked, value, item) for value in asked.values if _may_equal(value, item)]
    return _membership(name, literals, kind == LISTS, asked.type in ("eq", "in"))


def _membership(name: str, literals: Sequence[str], is_list: bool, wanted: bool) -> str:
    """That a column is one of some values, or holds one; or, not `wanted`, that it does not."""
    if not literals:
        return str(not wanted).upper()
    listed = ", ".join(literals)
    sql = f"list_has_any({name}, [{listed}])" if is_list else f"{name} IN ({listed})"
    return sql if wanted else f"({name} IS NULL OR NOT {sql})"


def _column(key: str, schema: pa.Schema) -> tuple[ColumnPath, pa.DataType]:
    if key in schema.names:
        return (key,), schema.field(key).type
    path = tuple(key.split("."))
    try:
        return path, type_at(schema, path)
    except KeyError:
        close = difflib.get_close_matches(key, schema.names, n=1)
        hint = f'did you mean "{close[0]}"?' if close else f"there are {', '.join(schema.names[:_LISTED])}."
        raise RequestError(400, f'filters: no document has an attribute "{key}"; {hint}', "filters") from None


def _may_equal(value: Scalar, held: pa.DataType) -> bool:
    """False for a number that no whole number of 64 bits equals: beside it DuckDB would compare all as float64."""
    if not pa.types.is_integer(held) or isinstance(value, str | bool):
        return True
    return value == int(value) and int(value) in _INT64


def _literal(asked: ComparisonFilter, value: Scalar, held: pa.DataType) -> str:
    """A value in SQL, to be compared with values of type `held`. Raises RequestError where it is of another kind."""
    kind = kind_of(held)
    try:
        if kind == TRUTH and isinstance(value, bool):
            return str(value).upper()
        if kind == NUMBERS and not isinstance(value, str | bool):
            return _number(value, held)
        if isinstance(value, str) and kind not in (TRUTH, NUMBERS):
            return quote(_text(value, kind))
    except (ValueError, OverflowError):
        pass
    found = "text" if isinstance(value, str) else "true or false" if isinstance(value, bool) else "a number"
    found = f"text that is none: {value!r:.60}" if found == "text" and kind in (DATES, MOMENTS, TIMES) else found
    raise _refusal(f'"{asked.key}" holds {kind}; expected {_EXPECTED[kind]}, found {found}')


def _number(value: float, held: pa.DataType) -> str:
    """A number as it is: with an exponent DuckDB reads a float64, without one a whole number or a decimal."""
    if pa.types.is_decimal(held):
        plain = format(Decimal(repr(value)), "f")
        if len(plain.strip("-").replace(".", "")) <= 38:
            return plain
    elif not pa.types.is_floating(held) and value == int(value) and abs(value) < _HUGE:
        return str(int(value))
    text = repr(float(value))
    return text if "e" in text else f"{text}e0"


def _text(value: str, kind: str) -> str:
    """Text as DuckDB reads it; dates as ISO 8601 has them, with a time in UTC. Raises ValueError, OverflowError."""
    if kind == DATES:
        return date.fromisoformat(value).isoformat()
    if kind == TIMES:
        hour = time.fromisoformat(value)
        if hour.tzinfo:
            raise ValueError(value)  # without a day it is no moment
        return hour.isoformat()
    if kind == MOMENTS:
        moment = datetime.fromisoformat(value)
        return (moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment).isoformat(" ")
    return value


def _refusal(fault: str) -> RequestError:
    return RequestError(400, f"filters: {fault}.", "filters")
