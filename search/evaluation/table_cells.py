"""Cells of tables: figures, intervals and names as text. Missing values are blank."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from search.evaluation.result import Row

_LARGEST = 1e300  # JSON integers can exceed the range of floats
WITH_INTERVAL = "[95 %]"


@dataclass(frozen=True)
class Table:
    """A table of text whose first column names the rows; `remarks` are lines below it."""

    caption: str
    columns: list[str]
    rows: list[list[str]]
    remarks: tuple[str, ...] = ()


def interval_text(interval: Any, key: str = "value", form: str = ".2f", scale: float = 100) -> str:
    """Return a figure with its interval, if it has one: "82.03 [79.69, 84.05]".

    `interval` holds the figure under `key`, "low" and "high", as `bootstrap.Interval.to_dict` returns it.
    """
    if not isinstance(interval, Mapping) or key not in interval:
        return ""
    value, low, high = interval[key], interval.get("low"), interval.get("high")
    if not is_number(value):
        return "undefined"
    ends = f" [{scale * low:{form}}, {scale * high:{form}}]" if is_number(low) and is_number(high) else ""
    return f"{scale * value:{form}}{ends}"


def figure_text(value: Any, form: str = ".2f", scale: float = 100) -> str:
    return f"{scale * value:{form}}" if is_number(value) else ""


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST


def mapping_of(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def list_of(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def name_of(row: Row) -> str:
    model = f"{row['model']}: " if row.get("model") else ""
    return f"{model}{row.get('setting', '')}"


def plain_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if isinstance(value, str | int) else ""
