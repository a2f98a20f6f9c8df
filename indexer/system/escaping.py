"""Text of others in messages, made safe for terminals."""

import unicodedata

_UNSHOWN = ("Cc", "Cf", "Cs")


def escape(text: str, newlines: bool = False) -> str:
    """Return text with control characters, formatting characters and lone surrogates escaped, to protect terminals.

    `newlines` keeps line breaks.
    """
    return "".join(
        character
        if unicodedata.category(character) not in _UNSHOWN or (newlines and character == "\n")
        else ascii(character)[1:-1]
        for character in text
    )


def shown(foreign: object, most: int = 500) -> str:
    """Return a text of others on one line, escaped and shortened; for an empty one the name of its type."""
    text = escape(" ".join(str(foreign).split())) or type(foreign).__name__
    return text if len(text) <= most else f"{text[:most]}..."
