"""What a filter is made of: pieces of SQL, each with the kind of its values and what they may cost; comparing them."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pyarrow as pa

MOST_TIMES = 256  # that a value may be as large as what the document holds
MOST_EXTRA = 100_000  # bytes that it may be larger still

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
_SIZED = (TEXT, BYTES, LISTS)  # kinds whose values have a size of their own


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
_KINDS: dict[int, str] = {}  # by Arrow's number of a type, as they are met: a long list asks often


def kind_of(kind: pa.DataType) -> str:
    """The kind of a column's values."""
    if kind.id not in _KINDS:
        _KINDS[kind.id] = next((name for name, test in _TESTS.items() if test(kind)), NULLS)
    return _KINDS[kind.id]


def shortened(text: str, most: int = _SHOWN) -> str:
    """Text for a message, its end cut off where it is long."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


@dataclass(frozen=True, slots=True)
class TypedExpression:
    """A piece of SQL with one value a document: its type, where the filter has it, and what it may cost."""

    sql: str
    type: pa.DataType
    shown: str  # as the filter has it
    start: int
    end: int
    text: str | None = None  # of a literal that is text: what it says
    literal: bool = False
    column: bool = False
    nodes: int = 1  # that DuckDB plans, copies by macros included
    times: int = 0  # a value is at most so many times as large as what the document holds,
    extra: int = 0  # and so many bytes larger
    weight: int = 0  # how often what the document holds is looked at on the way
    made: int = 0  # bytes made on the way, whatever the document holds

    @property
    def kind(self) -> str:
        """The kind of its values."""
        return kind_of(self.type)

    @property
    def named(self) -> str:
        """For messages: as the filter has it, and its kind."""
        return f"{self.shown} ({self.kind})"


def quote(text: str) -> str:
    """Text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def are_comparable(one: TypedExpression, other: TypedExpression) -> bool:
    """Whether two values can be equal, one before the other: text between quotes is read as what it meets."""
    texts = (one, other)
    if any(side.text is not None and side.kind == TEXT for side in texts) and LISTS not in {one.kind, other.kind}:
        return OBJECTS not in {one.kind, other.kind}
    return _types_fit(one.type, other.type)


def _types_fit(one: pa.DataType, other: pa.DataType) -> bool:
    kinds = {kind_of(one), kind_of(other)}
    if NULLS in kinds:
        return True
    if kinds == {LISTS}:
        return _types_fit(one.value_type, other.value_type)
    return OBJECTS not in kinds and (len(kinds) == 1 or kinds in _LIKE_ONE_ANOTHER)


def fitted(expression: TypedExpression, other: pa.DataType) -> TypedExpression:
    """Text between quotes that meets dates with a time: with a zone, it becomes the same moment in UTC.

    Raises ValueError for text that is no such date. (DuckDB would pass over the zone.)
    """
    if expression.text is None or kind_of(other) != MOMENTS:
        return expression
    return replace(expression, sql=quote(_in_utc(expression.text)))


def compared(expressions: Sequence[TypedExpression]) -> list[TypedExpression]:
    """Values as they can be compared with the first, or it with them. Raises ValueError where they cannot."""
    first = expressions[0]
    for other in expressions[1:]:
        if not are_comparable(first, other):
            raise ValueError(f"{first.named} cannot be compared with {other.named}{_way_out(first, other)}")
    return _alike(expressions)


def united(name: str, expressions: Sequence[TypedExpression]) -> tuple[pa.DataType, list[TypedExpression]]:
    """The type of a value that is one of several, and these as they have it. Raises ValueError: they have not one."""
    model = _model(expressions)
    for expression in expressions:
        if not are_comparable(model, expression):
            raise ValueError(f"{name} takes values of one kind, not {model.named} and {expression.named}")
    return model.type, _alike(expressions)


def _alike(expressions: Sequence[TypedExpression]) -> list[TypedExpression]:
    model = _model(expressions)
    return [fitted(expression, model.type) for expression in expressions]


def _model(expressions: Sequence[TypedExpression]) -> TypedExpression:
    """The one that says of which type they all are: no NULL, and rather a column than text between quotes.

    Among dates, one with a time of day, which the others are then read as.
    """
    known = [one for one in expressions if one.kind != NULLS] or list(expressions)
    known = [one for one in known if one.text is None] or known
    return next((one for one in known if one.kind == MOMENTS), known[0])


def _way_out(left: TypedExpression, right: TypedExpression) -> str:
    """How to compare values of two kinds."""
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


def combined(
    sql: str,
    kind: pa.DataType,
    parts: Sequence[TypedExpression],
    growth: tuple[int, int] = (1, 0),
    copies: int = 1,
    pattern: int = 0,
) -> TypedExpression:
    """What is made of several values: at most growth[0] times as large as all of them, and growth[1] bytes more.

    A macro plans its arguments `copies` times; a pattern is compared with each character. Raises ValueError for what
    may become too large.
    """
    sized = kind_of(kind) in _SIZED
    times = growth[0] * sum(part.times for part in parts) if sized else 0
    extra = growth[0] * sum(part.extra for part in parts) + growth[1] if sized else 0
    if times > MOST_TIMES or extra > MOST_EXTRA:
        raise ValueError(
            f"this may be {times:,} times as long as what a document holds, and {extra:,} bytes more; at most "
            f"{MOST_TIMES} times and {MOST_EXTRA:,} bytes are made"
        )
    return TypedExpression(
        sql,
        kind,
        shown="",
        start=0,
        end=0,
        nodes=copies * sum(part.nodes for part in parts) + 1,
        times=times,
        extra=extra,
        weight=copies * sum(part.weight for part in parts) + max(1, times) + pattern // 4,
        made=copies * sum(part.made for part in parts) + extra,
    )
