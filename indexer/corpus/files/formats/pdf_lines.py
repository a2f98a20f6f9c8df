"""The lines of a PDF's page, with the position and size of their type."""

import re
from ctypes import byref, c_int, create_string_buffer
from dataclasses import dataclass
from typing import Any

HYPHEN = "\ufffe"  # which PDFium writes for the hyphen and the line end within a word
_ENDS = re.compile(f"\n|(?<={HYPHEN})")
_WORD = re.compile(r"\w")
_FIXED_PITCH = 1  # a flag of fonts
_NAME = 64  # bytes read of a font's name
_FIXED_NAMES = ("mono", "courier", "cmtt", "consol", "typewriter", "code")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text; positions in points, from the page's lower left corner."""

    text: str
    left: float
    right: float
    bottom: float
    size: float  # height of the type
    is_fixed: bool  # typewriter type, as of code


def lines_of(raw: Any, page: Any) -> list[Line]:
    """Return the lines of a text page of pypdfium2, in its order."""
    lines = []
    position = 0  # in UTF-16, which PDFium counts in
    for text in _ENDS.split(page.get_text_range()):
        stripped = text.rstrip()
        start = position + len(text) - len(text.lstrip())
        last = position + _units(stripped) - 1
        if text.strip():
            lines.append(_line(raw, page, text.strip(), start, last))
        position += _units(text) + (not text.endswith(HYPHEN))
    return lines


def _units(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def _line(raw: Any, page: Any, text: str, start: int, last: int) -> Line:
    word = _WORD.search(text)  # a bullet can have another size
    middle = start + (_units(text[: word.start()]) if word else 0)
    first, inner, end = (max(0, raw.FPDFText_GetCharIndexFromTextIndex(page, at)) for at in (start, middle, last))
    left = page.get_charbox(first, loose=True)[0]
    _, bottom, _, top = page.get_charbox(inner, loose=True)
    right = page.get_charbox(end, loose=True)[2]
    is_fixed = _is_fixed(raw, page, first) and _is_fixed(raw, page, end)
    return Line(text, left, right, bottom, top - bottom, is_fixed)


def _is_fixed(raw: Any, page: Any, index: int) -> bool:
    name, flags = create_string_buffer(_NAME), c_int()
    raw.FPDFText_GetFontInfo(page, index, name, _NAME, byref(flags))
    return bool(flags.value & _FIXED_PITCH) or any(
        part in name.value.decode("latin-1").lower() for part in _FIXED_NAMES
    )
