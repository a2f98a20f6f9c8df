"""What a filter compares: columns, literals and results of functions, and of which kind their values are."""

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pyarrow as pa

TEXT = "text"
NUMBERS = "numbers"
TRUTH = "true or false"
DATES = "dates"
MOMENTS = "dates with a time of day"
TIMES = "times of day"
BYTES = "bytes"
LISTS = "lists"
OBJECTS = "objects"
NULLS = "nothing"  # a column without a value fits everything

_MOMENT = re.compile(r"\d+-\d+-\d+([ T]\d+(:\d+(:\d+(\.\d+)?)?)?)?")  # of a time without a zone
_LIKE_ONE_ANOTHER = ({NUMBERS, TRUTH}, {DATES, MOMENTS})


@dataclass(frozen=True, slots=True)
class Operand:
    """A piece of SQL with one value a document."""

    sql: str
    kind: str
    shown: str  # as the filter has it
    start: int
    literal: bool = False
    text: str = ""  # of a literal that is text: what stands between the quotes
    element: str = NULLS  # the kind of a list's elements

    @property
    def named(self) -> str:
        """For messages: as the filter has it, and its kind."""
        return f"{self.shown} ({self.kind})"


def kind_of(kind: pa.DataType) -> str:
    """The kind of a column's values."""
    types = pa.types
    tests = {
        TEXT: types.is_string,
        NUMBERS: lambda kind: types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind),
        TRUTH: types.is_boolean,
        DATES: types.is_date,
        MOMENTS: types.is_timestamp,
        TIMES: types.is_time,
        BYTES: types.is_binary,
        LISTS: types.is_list,
        OBJECTS: types.is_struct,
    }
    return next((name for name, test in tests.items() if test(kind)), NULLS)


def quote(text: str) -> str:
    """Text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def are_comparable(one: Operand, other: Operand) -> bool:
    """Whether two operands can be equal, one before the other: text between quotes is read as what it meets."""
    if {one.kind, other.kind} & {LISTS, OBJECTS}:
        return NULLS in (one.kind, other.kind)
    kinds = {one.kind, other.kind} - {NULLS}
    written = any(operand.literal and operand.kind == TEXT for operand in (one, other))
    return len(kinds) < 2 or written or kinds in _LIKE_ONE_ANOTHER


def fitted(operand: Operand, other: Operand) -> Operand:
    """Text between quotes that meets dates with a time: with a zone, it becomes the same moment in UTC.

    Raises ValueError for text that is no such date. (DuckDB would pass over the zone.)
    """
    if other.kind != MOMENTS or not (operand.literal and operand.kind == TEXT):
        return operand
    return replace(operand, sql=quote(_in_utc(operand.text)))


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
