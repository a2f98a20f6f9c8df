"""Typed SQL expressions of a filter, and the rules for comparing their values."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache

import pyarrow as pa

from indexer.errors import spelled
from search.filters.conditions import quote


class Kind(StrEnum):
    """The kind of the values of a column or an expression, as messages name it."""

    TEXT = "text"
    NUMBERS = "numbers"
    TRUTH = "true or false"
    DATES = "dates"
    MOMENTS = "dates with a time of day"
    TIMES = "times of day"
    INTERVALS = "intervals"
    BYTES = "bytes"
    LISTS = "lists"
    OBJECTS = "objects"
    NULLS = "nothing"  # of columns without a value; comparable with everything


_SHOWN = 60  # characters of an expression in a message
_MOMENT = re.compile(r"\d+-\d+-\d+([ T]\d+(:\d+(:\d+(\.\d+)?)?)?)?")  # of a time without a zone
_COMPARABLE = ({Kind.NUMBERS, Kind.TRUTH}, {Kind.DATES, Kind.MOMENTS})
_TESTS: dict[Kind, Callable[[pa.DataType], bool]] = {
    Kind.TEXT: pa.types.is_string,
    Kind.NUMBERS: lambda type_: pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_),
    Kind.TRUTH: pa.types.is_boolean,
    Kind.DATES: pa.types.is_date,
    Kind.MOMENTS: pa.types.is_timestamp,
    Kind.TIMES: pa.types.is_time,
    Kind.INTERVALS: pa.types.is_interval,
    Kind.BYTES: pa.types.is_binary,
    Kind.LISTS: pa.types.is_list,
    Kind.OBJECTS: pa.types.is_struct,
}


@lru_cache
def kind_of(type_: pa.DataType) -> Kind:
    """Return the kind of a type's values."""
    return next((kind for kind, test in _TESTS.items() if test(type_)), Kind.NULLS)


def shortened(text: str, most: int = _SHOWN) -> str:
    """Return text for a message, cut to `most` characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


@dataclass(frozen=True, slots=True)
class TypedExpression:
    """An SQL expression with one value a document, its type, and its place in the filter."""

    sql: str
    type: pa.DataType
    shown: str = ""  # the text in the filter
    start: int = 0
    end: int = 0
    text: str | None = None  # the content of a text literal
    literal: bool = False
    column: bool = False
    nodes: int = 1  # that DuckDB plans
    weight: int = 0  # how often a document's bytes are read
    extra: int = 0  # bytes of literals in the value
    made: int = 0  # bytes of literals copied for each document

    @property
    def kind(self) -> Kind:
        """The kind of its values."""
        return kind_of(self.type)

    @property
    def named(self) -> str:
        """The text in the filter and the kind, for messages."""
        return f"{self.shown} ({self.kind})"


def combined(sql: str, type_: pa.DataType, parts: Sequence[TypedExpression], pattern: int = 0) -> TypedExpression:
    """Return an expression with the costs of its parts; `pattern` is the size of a pattern that is matched."""
    extra = sum(part.extra for part in parts) if kind_of(type_) in (Kind.TEXT, Kind.LISTS) else 0
    return TypedExpression(
        sql,
        type_,
        nodes=sum(part.nodes for part in parts) + 1,
        weight=sum(part.weight for part in parts) + 1 + pattern // 4,
        extra=extra,
        made=sum(part.made for part in parts) + extra,
    )


def are_comparable(left: TypedExpression, right: TypedExpression) -> bool:
    """Return whether two values can be compared. A text literal takes the type of the other side."""
    kinds = {left.kind, right.kind}
    if Kind.OBJECTS in kinds:
        return False
    is_literal = left.text is not None or right.text is not None
    return (is_literal and Kind.LISTS not in kinds) or _types_fit(left.type, right.type)


def _types_fit(left: pa.DataType, right: pa.DataType) -> bool:
    kinds = {kind_of(left), kind_of(right)}
    if kinds == {Kind.LISTS}:
        return _types_fit(left.value_type, right.value_type)
    return Kind.NULLS in kinds or (Kind.OBJECTS not in kinds and (len(kinds) == 1 or kinds in _COMPARABLE))


def fitted(expression: TypedExpression, other: pa.DataType) -> TypedExpression:
    """Convert a text literal to UTC if it is compared with dates with a time: DuckDB would ignore the zone.

    Raises ValueError for text that is not such a date.
    """
    if expression.text is None or kind_of(other) != Kind.MOMENTS:
        return expression
    return replace(expression, sql=quote(_in_utc(expression.text)))


def compared(expressions: Sequence[TypedExpression]) -> list[TypedExpression]:
    """Return the values, fitted for a comparison with the first. Raises ValueError if they are not comparable."""
    first = expressions[0]
    for other in expressions[1:]:
        if not are_comparable(first, other):
            raise ValueError(f"{first.named} cannot be compared with {other.named}{_fix(first, other)}")
    model = _model(expressions)
    return [fitted(expression, model.type) for expression in expressions]


def united(name: str, expressions: Sequence[TypedExpression]) -> tuple[pa.DataType, list[TypedExpression]]:
    """Return the common type of the values, and the values fitted to it. Raises ValueError if there is none."""
    model = _model(expressions)
    for expression in expressions:
        if not are_comparable(model, expression):
            raise ValueError(f"{name} takes values of one kind, not {model.named} and {expression.named}")
    return model.type, [fitted(expression, model.type) for expression in expressions]


def _model(expressions: Sequence[TypedExpression]) -> TypedExpression:
    """Return the expression whose type decides: not NULL, rather a column than a text literal, rather with a time."""

    def rank(item: TypedExpression) -> tuple[bool, bool, bool]:
        return item.kind == Kind.NULLS, item.text is not None, item.kind != Kind.MOMENTS

    return min(expressions, key=rank)


def _fix(left: TypedExpression, right: TypedExpression) -> str:
    if Kind.LISTS in (left.kind, right.kind):
        column, value = (left, right) if left.kind == Kind.LISTS else (right, left)
        return f"; write list_contains({column.shown}, {value.shown})"
    if left.kind == Kind.TEXT and right.kind == Kind.NUMBERS and right.literal:
        built = _built(left, "int" if right.shown.isdecimal() else "float")
        return f"; write '{right.shown}' in quotes to compare text, {left.shown}::double in SQL for numbers{built}"
    if left.kind == Kind.TEXT and right.kind in (Kind.DATES, Kind.MOMENTS):
        return as_dates(left, right.kind)
    if left.kind == Kind.TEXT and right.literal:
        return f"; write '{right.shown}' in single quotes"
    if left.kind in (Kind.DATES, Kind.MOMENTS) and right.literal:
        return f"; write a date in single quotes, such as '2020-12-31', or compare year({left.shown})"
    return "; write CAST(... AS ...) of one of them"


def as_dates(text: TypedExpression, kind: Kind) -> str:
    """Return the part of a message that shows how to use text as values of `kind`: Kind.DATES or Kind.MOMENTS."""
    name = "date" if kind == Kind.DATES else "timestamp"
    return f"; write {text.shown}::{name} in SQL{_built(text, name)}"


def _built(text: TypedExpression, kind: str) -> str:
    if not text.column:
        return ""
    name = text.shown.strip('"')
    setting = spelled(f'corpus.columns = {{"{name}": "{kind}"}}', f"--column {name}:{kind}")
    return f", or build with {setting}"


def _in_utc(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
        return text if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None).isoformat(" ")
    except (ValueError, OverflowError):
        if _MOMENT.fullmatch(text):  # DuckDB accepts more forms, and reports errors in them
            return text
        raise ValueError(
            f"'{text}' is not a date with a time; write '2020-12-31 23:59:59', in UTC, or '2020-12-31 23:59:59+02:00'"
        ) from None
