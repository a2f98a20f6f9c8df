"""Values read as the type the user asks for: `--column name:type`, `columns = {name = "type"}` in a recipe.

    string     text as it is; numbers and times written out; anything nested as JSON
    int        a whole number, also as text or as a float without a fraction
    float      a number, also as text
    bool       true or false, also as text, 1 or 0
    timestamp  a datetime, also as ISO 8601 text; zoned ones in UTC
    date       a date, also as ISO 8601 text
    json       text parsed as JSON; other values as they are

Null stays null. A value that does not fit exactly is an error of its row.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

from indexer.corpus.column_kinds import EXACT_INTEGER
from indexer.corpus.jsonl import parse_json
from indexer.corpus.rejection import BadRow, shown
from indexer.errors import ConfigError

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,25}", re.ASCII)
_BELOW_MICROSECONDS = re.compile(r"[.,]\d{6}\d*[1-9]")
_TRUTH = {"true": True, "1": True, "false": False, "0": False}


def check_types(columns: Mapping[str, str]) -> None:
    """Raises ConfigError for a type that is not in the table above."""
    for name, kind in columns.items():
        if kind not in _CONVERTERS:
            known = ", ".join(_CONVERTERS)
            raise ConfigError(f'column "{name}" is to be read as "{kind}"; expected one of {known}.')


def convert(value: Any, kind: str, name: str) -> Any:
    """The value as type `kind` (see the table above). Raises BadRow ("type") when it does not fit exactly."""
    if value is None:
        return None
    try:
        return _CONVERTERS[kind](value)
    except (ValueError, OverflowError, RecursionError):
        text = shown(str(value))[:80]
        what = f'column "{name}" holds "{text}", which cannot be read as {kind}'
        raise BadRow("type", what, f"fix the row, or pass --column {name}:string") from None


def _string(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float | dict | list):
        return json.dumps(value, ensure_ascii=False, default=_string)
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return str(value)


def _int(value: Any) -> int:
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and abs(value) <= EXACT_INTEGER and value.is_integer():
        return int(value)
    if isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value():
        return int(value)
    raise ValueError


def _float(value: Any) -> float:
    if isinstance(value, str):
        return _written_float(value.strip())
    too_large = isinstance(value, int) and abs(value) > EXACT_INTEGER
    if isinstance(value, bool) or too_large or not isinstance(value, int | float | Decimal):
        raise ValueError
    return float(value)


def _written_float(text: str) -> float:
    if not _NUMBER.fullmatch(text) or math.isinf(number := float(text)):
        raise ValueError
    return number


def _bool(value: Any) -> bool:
    if isinstance(value, str):
        value = _TRUTH.get(value.strip().lower())
    if isinstance(value, bool) or value in (0, 1):
        return bool(value)
    raise ValueError


def _timestamp(value: Any) -> datetime:
    if isinstance(value, str) and not _BELOW_MICROSECONDS.search(value):
        value = datetime.fromisoformat(value.strip())
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if not isinstance(value, datetime):
        raise ValueError
    return value if value.tzinfo is None else value.astimezone(UTC)


def _date(value: Any) -> date:
    if isinstance(value, str):
        return date.fromisoformat(value.strip())
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    raise ValueError


def _json(value: Any) -> Any:
    return parse_json(value) if isinstance(value, str) else value


_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "string": _string,
    "int": _int,
    "float": _float,
    "bool": _bool,
    "timestamp": _timestamp,
    "date": _date,
    "json": _json,
}
