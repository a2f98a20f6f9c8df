"""How a report writes numbers."""

from collections.abc import Mapping
from typing import Any, TypeGuard

_LARGEST = 1e300  # a whole number of JSON may be larger than any float


def number(value: Any, digits: int = 4) -> str:
    """A whole number with separators, another with so many significant digits, and what is no number as it is."""
    if value is None:
        return "undefined"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}g}"


def share(value: float | None) -> str:
    """A share as a percentage."""
    return "undefined" if value is None else f"{100 * value:.1f} %"


def decimal(value: float | None) -> str:
    """A number from -1 to 1, three places."""
    return "undefined" if value is None else f"{value:.3f}"


def count(value: int, what: str) -> str:
    """A number of things: "1 document", "2,000 documents"."""
    return f"{value:,} {what}" if value == 1 else f"{value:,} {what}s"


def with_interval(found: Any, key: str, form: str = ".2f", scale: float = 1) -> str:
    """The value of `key` in a result with its interval [low, high], as `resampling.Interval` is written."""
    if not isinstance(found, Mapping) or not _is_number(found.get(key)):
        return ""
    low, high = found.get("low"), found.get("high")
    ends = f" [{scale * low:{form}}, {scale * high:{form}}]" if _is_number(low) and _is_number(high) else ""
    return f"{scale * found[key]:{form}}{ends}"


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and not abs(value) > _LARGEST
