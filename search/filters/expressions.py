"""Typed pieces of SQL that a filter is written from, and the rules of comparing their values."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pyarrow as pa

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
NULLS = "nothing"  # a column without a value fits everything

_SHOWN = 60  # characters of a piece in a message
_MOMENT = re.compile(r"\d+-\d+-\d+([ T]\d+(:\d+(:\d+(\.\d+)?)?)?)?")  # of a time without a zone
_LIKE_ONE_ANOTHER = ({NUMBERS, TRUTH}, {DATES, MOMENTS})
_TESTS: dict[str, Callable[[pa.DataType], bool]] = {
    TEXT: pa.types.is_string,
    NUMBERS: lambda kind: pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind),
    TRUTH: pa.types.is_boolean,
    DATES: pa.types.is_date,
    MOMENTS: pa.types.is_timestamp,
    TIMES: pa.types.is_time,
    INTERVALS: pa.types.is_interval,
    BYTES: pa.types.is_binary,
    LISTS: pa.types.is_list,
    OBJECTS: pa.types.is_struct,
}
_KINDS: dict[int, str] = {}  # by Arrow's number of a type, filled on first use: a long list asks often


def kind_of(kind: pa.DataType) -> str:
    """Return the kind of a column's values."""
    if kind.id not in _KINDS:
        _KINDS[kind.id] = next((name for name, test in _TESTS.items() if test(kind)), NULLS)
    return _KINDS[kind.id]


def shortened(text: str, most: int = _SHOWN) -> str:
    """Return text for a message, its end cut off where it is long."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


@dataclass(frozen=True, slots=True)
class TypedExpression:
    """A piece of SQL with one value a document, its type, and its place in the filter.

    `nodes` counts what DuckDB plans, `weight` how often a document's bytes are read. `extra` are bytes of literals in
    the value, `made` all the bytes of literals that are copied for each document.
    """

    sql: str
    type: pa.DataType
    shown: str = ""  # as the filter has it
    start: int = 0
    end: int = 0
    text: str | None = None  # the content of a text literal
    literal: bool = False
    column: bool = False
    nodes: int = 1
    weight: int = 0
    extra: int = 0
    made: int = 0

    @property
    def kind(self) -> str:
        """The kind of its values."""
        return kind_of(self.type)

    @property
    def named(self) -> str:
        """The piece as the filter has it, and its kind, for messages."""
        return f"{self.shown} ({self.kind})"


def quote(text: str) -> str:
    """Return text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def combined(sql: str, kind: pa.DataType, parts: Sequence[TypedExpression], pattern: int = 0) -> TypedExpression:
    """Return the expression that `sql` makes of its parts; `pattern` is the size of a pattern that is matched."""
    extra = sum(part.extra for part in parts) if kind_of(kind) in (TEXT, LISTS) else 0
    return TypedExpression(
        sql,
        kind,
        nodes=sum(part.nodes for part in parts) + 1,
        weight=sum(part.weight for part in parts) + 1 + pattern // 4,
        extra=extra,
        made=sum(part.made for part in parts) + extra,
    )


def are_comparable(one: TypedExpression, other: TypedExpression) -> bool:
    """Return whether two values can be compared. A text literal is read as the type of the other side."""
    if OBJECTS in (one.kind, other.kind):
        return False
    is_literal = any(side.text is not None and side.kind == TEXT for side in (one, other))
    return (is_literal and LISTS not in (one.kind, other.kind)) or _types_fit(one.type, other.type)


def _types_fit(one: pa.DataType, other: pa.DataType) -> bool:
    kinds = {kind_of(one), kind_of(other)}
    if kinds == {LISTS}:
        return _types_fit(one.value_type, other.value_type)
    return NULLS in kinds or (OBJECTS not in kinds and (len(kinds) == 1 or kinds in _LIKE_ONE_ANOTHER))


def fitted(expression: TypedExpression, other: pa.DataType) -> TypedExpression:
    """Return a text literal that meets dates with a time as the same moment in UTC, anything else unchanged.

    DuckDB would ignore the zone. Raises ValueError for text that is no such date.
    """
    if expression.text is None or kind_of(other) != MOMENTS:
        return expression
    return replace(expression, sql=quote(_in_utc(expression.text)))


def compared(expressions: Sequence[TypedExpression]) -> list[TypedExpression]:
    """Return values such that they can be compared with the first. Raises ValueError where they cannot."""
    first = expressions[0]
    for other in expressions[1:]:
        if not are_comparable(first, other):
            raise ValueError(f"{first.named} cannot be compared with {other.named}{_fix(first, other)}")
    model = _model(expressions)
    return [fitted(expression, model.type) for expression in expressions]


def united(name: str, expressions: Sequence[TypedExpression]) -> tuple[pa.DataType, list[TypedExpression]]:
    """Return the common type of several values, and the values fitted to it. Raises ValueError without one."""
    model = _model(expressions)
    for expression in expressions:
        if not are_comparable(model, expression):
            raise ValueError(f"{name} takes values of one kind, not {model.named} and {expression.named}")
    return model.type, [fitted(expression, model.type) for expression in expressions]


def _model(expressions: Sequence[TypedExpression]) -> TypedExpression:
    """Return the expression that gives all the others their type: no NULL, and a column rather than a text literal.

    Among dates it is one with a time of day.
    """
    known = [one for one in expressions if one.kind != NULLS] or list(expressions)
    known = [one for one in known if one.text is None] or known
    return next((one for one in known if one.kind == MOMENTS), known[0])


def _fix(left: TypedExpression, right: TypedExpression) -> str:
    """Return the advice on how to compare values of two kinds."""
    if LISTS in (left.kind, right.kind):
        held, value = (left, right) if left.kind == LISTS else (right, left)
        return f"; write list_contains({held.shown}, {value.shown})"
    if left.kind == TEXT and right.kind == NUMBERS and right.literal:
        return f"; write {left.shown}::double to compare numbers, or '{right.shown}' in single quotes to compare text"
    if left.kind == TEXT and right.literal:
        return f"; write '{right.shown}' in single quotes"
    if left.kind in (DATES, MOMENTS) and right.literal:
        return f"; write a date in single quotes, such as '2020-12-31', or compare year({left.shown})"
    return "; write CAST(... AS ...) of one of them"


def _in_utc(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
        return text if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None).isoformat(" ")
    except (ValueError, OverflowError):
        if _MOMENT.fullmatch(text):  # DuckDB reads more forms, and says what is wrong
            return text
        raise ValueError(
            f"'{text}' is no date with a time; write '2020-12-31 23:59:59', in UTC, or '2020-12-31 23:59:59+02:00'"
        ) from None
