"""What can be stored: no NUL character, no lone surrogate, no NaN or infinity, and nothing nested beyond reason."""

import math
from typing import Any

from indexer.corpus.rejection import BadRow, printable

MAX_NESTING = 64  # levels of metadata; Arrow and Python recurse on it


def check_value(value: Any, name: str, depth: int = 0) -> None:
    """Raises BadRow naming the column: "nul", "surrogate", "number" for NaN and infinity, "malformed" for nesting
    beyond MAX_NESTING.
    """
    if isinstance(value, str):
        check_string(value, name)
    elif isinstance(value, float):
        if not math.isfinite(value):
            what = f'column "{printable(name)}" holds {"NaN" if math.isnan(value) else "infinity"}, which is no number'
            raise BadRow("number", what, "write null where there is no number")
    elif isinstance(value, dict | list):
        if depth == MAX_NESTING:
            raise BadRow("malformed", f'column "{name}" is nested deeper than {MAX_NESTING} levels')
        if isinstance(value, list):
            for element in value:
                check_value(element, name, depth + 1)
        else:
            for key, element in value.items():
                check_string(key, name)
                check_value(element, name, depth + 1)


def check_string(text: str, name: str) -> None:
    """Raises BadRow ("nul", "surrogate") naming the column."""
    if "\0" in text:
        raise BadRow("nul", f'column "{printable(name)}" holds a NUL character', "take the character out")
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        what = f'column "{printable(name)}" holds half of a character (U+{ord(text[error.start]):04X})'
        raise BadRow("surrogate", what, "write the file with valid Unicode") from None
