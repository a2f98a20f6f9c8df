"""Text and numbers, fit to be shown: escaped, shortened, with their nouns and units."""

import unicodedata
from typing import Any

_UNSHOWN = ("Cc", "Cf", "Cs")


def escape(text: str, newlines: bool = False) -> str:
    """Control and formatting characters, which could steer a terminal, and halves of surrogate pairs as escapes.

    `newlines` stay as they are, if asked.
    """
    return "".join(
        character
        if unicodedata.category(character) not in _UNSHOWN or (newlines and character == "\n")
        else ascii(character)[1:-1]
        for character in text
    )


def counted(number: int, one: str, many: str = "") -> str:
    """A number with its noun; the plural of the noun is `many`, or ends in "s"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def number(value: Any, digits: int = 4) -> str:
    """A whole number with separators, another with so many significant digits, and what is no number as it is."""
    if value is None:
        return "undefined"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}g}"


def percent(value: float | None) -> str:
    """A share as a percentage."""
    return "undefined" if value is None else f"{100 * value:.1f} %"


def decimal(value: float | None) -> str:
    """A number from -1 to 1, three places."""
    return "undefined" if value is None else f"{value:.3f}"


def size(count: int) -> str:
    """Bytes for people."""
    amount, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while amount >= 1000 and len(units) > 1:
        amount, units = amount / 1000, units[1:]
    return f"{amount:.0f} {units[0]}" if units[0] == "B" else f"{amount:.1f} {units[0]}"
