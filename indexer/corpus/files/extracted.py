"""`ExtractedText`, the text of a file as the readers of all formats return it."""

from collections.abc import Iterable
from dataclasses import dataclass

PAGE_BREAK = "\f"  # between the pages of a text


@dataclass(frozen=True)
class ExtractedText:
    """The text of a file.

    Plain text, Markdown, reStructuredText and source code are the decoded file, character for character, so lines of
    the text are lines of the file. The text of other formats is Markdown: headings are lines with #, list items begin
    with "- ". `PAGE_BREAK` separates the pages of PDF and the slides of PPTX.
    """

    text: str
    title: str | None = None  # the first heading, <title> or the title in the properties of the file
    pages: int | None = None  # of PDF, slides of PPTX


def between_pages(pages: Iterable[str]) -> str:
    """Return the text of pages. A page break has its own line, so that each page begins with a line."""
    return f"\n{PAGE_BREAK}\n".join(pages)
