"""DOCX as Markdown: paragraphs, headings, list items and tables in reading order."""

import io
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from indexer.corpus.files.extracted import ExtractedText
from indexer.corpus.files.formats.tables import table_lines
from indexer.corpus.files.formats.titles import usable_title
from indexer.lazy_imports import require_extra

_HEADING = re.compile(r"heading (\d)", re.IGNORECASE)
_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_BREAKS = {f"{_W}tab": "\t", f"{_W}br": "\n", f"{_W}cr": "\n", f"{_W}noBreakHyphen": "-"}


def read_docx(data: bytes) -> ExtractedText:
    """Return the text of a document; the title is its first title or heading, else its property."""
    document = require_extra("docx", "files").Document(io.BytesIO(data))
    body = document.element.body
    for copy in list(body.iter(_FALLBACK)):  # of a text box
        copy.getparent().remove(copy)
    styles = {style.styleId: style for style in document.styles.element.style_lst}
    level_of = cache(lambda name: _level(styles.get(name)))
    blocks, title, in_list = [], None, False
    for element in _blocks(body):
        if element.tag == f"{_W}tbl":
            block, is_item = "\n".join(table_lines(_rows(element))), False
        else:
            text, style = _text(element), _style(element)
            level = level_of(style)
            if text and level is not None:
                title = title or " ".join(text.split())
            is_item = level is None and _is_item(element, style)
            block = _paragraph(text, level, _depth(element) if is_item else None)
        if block:
            blocks.append(f"{'' if is_item and in_list else chr(10)}{block}")
            in_list = is_item
    return ExtractedText("\n".join(blocks).strip(), title or usable_title(document.core_properties.title))


def _blocks(parent: Any) -> Iterator[Any]:
    """Yield paragraphs and tables in order, also those of content controls."""
    for child in parent:
        if child.tag in (f"{_W}p", f"{_W}tbl"):
            yield child
        elif child.tag in (f"{_W}sdt", f"{_W}sdtContent", f"{_W}ins", f"{_W}customXml", f"{_W}smartTag"):
            yield from _blocks(child)


def _level(style: Any) -> int | None:
    """Return the level of the headings with a style; the name of a built-in style is English in every file."""
    for _ in range(8):  # styles are based on others
        if style is None:
            break
        name = style.name_val or ""
        if match := _HEADING.fullmatch(name):
            return min(6, max(1, int(match[1])))
        if name.lower() == "title":
            return 1
        style = style.base_style
    return None


def _style(paragraph: Any) -> str:
    return str(paragraph.style or "")


def _is_item(paragraph: Any, style: str) -> bool:
    number = paragraph.find(f"{_W}pPr/{_W}numPr/{_W}numId")
    if number is not None:
        return bool(number.get(f"{_W}val") != "0")
    return style.startswith("List") and style != "ListParagraph"


def _depth(paragraph: Any) -> int:
    level = paragraph.find(f"{_W}pPr/{_W}numPr/{_W}ilvl")
    value = "0" if level is None else level.get(f"{_W}val", "0")
    return int(value) if value.isdigit() else 0


def _paragraph(text: str, level: int | None, depth: int | None) -> str:
    if level is not None:
        return f"{'#' * level} {' '.join(text.split())}" if text else ""
    if depth is not None and text:
        return f"{'  ' * depth}- {' '.join(text.split())}"
    return text


def _text(paragraph: Any) -> str:
    parts = []
    for node in paragraph.iter():  # also links, text boxes and inserted text; deleted text has other elements
        if node.tag == f"{_W}t":
            parts.append(node.text or "")
        elif node.tag in _BREAKS and node.getparent().tag == f"{_W}r":
            parts.append(_BREAKS[node.tag])
        elif node.tag == f"{_W}p" and parts:  # in a text box
            parts.append("\n")
    return "".join(parts).strip()


def _rows(table: Any) -> Iterator[list[str]]:
    for row in table.iter(f"{_W}tr"):
        yield ["\n".join(filter(None, map(_text, cell.iter(f"{_W}p")))) for cell in row.iterchildren(f"{_W}tc")]
