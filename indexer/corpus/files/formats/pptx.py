"""PPTX as Markdown: each slide is a page with its title as the heading, then texts, tables and notes."""

import io
from collections.abc import Iterator
from typing import Any

from indexer.corpus.files.extracted import ExtractedText, between_pages
from indexer.corpus.files.formats.tables import table_lines
from indexer.corpus.files.formats.titles import usable_title
from indexer.lazy_imports import require_extra


def read_pptx(data: bytes) -> ExtractedText:
    """Return the text of the slides; the title is that of the first slide with one, else its property."""
    presentation = require_extra("pptx", "files").Presentation(io.BytesIO(data))
    pages, titles = [], []
    for slide in presentation.slides:
        heading = slide.shapes.title
        title = " ".join(heading.text_frame.text.split()) if heading is not None else ""
        titles.append(title)
        blocks = [f"# {title}"] if title else []
        blocks += _blocks(shape for shape in slide.shapes if heading is None or shape.shape_id != heading.shape_id)
        if slide.has_notes_slide and (notes := slide.notes_slide.notes_text_frame):
            blocks.append(notes.text.replace("\v", "\n").strip())
        pages.append("\n\n".join(filter(None, blocks)))
    first = next(filter(None, titles), None)
    return ExtractedText(between_pages(pages), first or usable_title(presentation.core_properties.title), len(pages))


def _blocks(shapes: Any) -> Iterator[str]:
    for shape in shapes:
        if hasattr(shape, "shapes"):  # a group
            yield from _blocks(shape.shapes)
        elif getattr(shape, "has_table", False):
            yield "\n".join(table_lines([cell.text for cell in row.cells] for row in shape.table.rows))
        elif shape.has_text_frame:
            paragraphs = [(each.level, " ".join(each.text.split())) for each in shape.text_frame.paragraphs]
            lines = [(level, text) for level, text in paragraphs if text]
            if len(lines) == 1 and lines[0][0] == 0:
                yield lines[0][1]
            else:
                yield "\n".join(f"{'  ' * level}- {text}" for level, text in lines)
