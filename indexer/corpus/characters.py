"""Which strings can be stored: no NUL character, no lone surrogate, and nothing nested beyond reason."""

from typing import Any

from indexer.corpus.rejection import BadRow, printable

MAX_NESTING = 64  # levels of metadata; Arrow and Python recurse on it


def check_value(value: Any, name: str, depth: int = 0) -> None:
    """Raises BadRow ("nul", "surrogate", or "malformed" for nesting beyond MAX_NESTING) naming the column."""
    if isinstance(value, str):
        check_string(value, name)
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
