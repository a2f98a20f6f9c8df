"""Names and numbers, fit to be shown."""

import unicodedata

_UNSHOWN = ("Cc", "Cf", "Cs")


def printable(text: str) -> str:
    """Control and formatting characters, and halves of surrogate pairs, are written out as escapes."""
    return "".join(
        ascii(character)[1:-1] if unicodedata.category(character) in _UNSHOWN else character for character in text
    )


def counted(number: int, one: str, many: str) -> str:
    """A number with its noun."""
    return f"{number:,} {one if number == 1 else many}"
