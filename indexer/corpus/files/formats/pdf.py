"""PDF as Markdown: lines joined into paragraphs, headings by bookmarks or size of type, pages with page breaks."""

from typing import Any

from indexer.corpus.files.extracted import ExtractedText, between_pages
from indexer.corpus.files.formats.pdf_layout import markdown_of
from indexer.corpus.files.formats.pdf_lines import Line, lines_of
from indexer.corpus.files.formats.titles import usable_title
from indexer.corpus.files.formats.zipped import encrypted
from indexer.corpus.row import BadRow
from indexer.lazy_imports import require_extra


def read_pdf(data: bytes) -> ExtractedText:
    """Return the text of a PDF; the title is its property, else the largest line of the first page.

    A page that cannot be read is empty, so that the numbers of the other pages hold.
    """
    pdfium = require_extra("pypdfium2", "files")
    document = _open(pdfium, data)
    pages = [_lines(pdfium, document, number) for number in range(len(document))]
    if not any(pages) and len(document) == 0:
        raise BadRow("broken", "the file is broken (no pages)", "replace it with an intact copy")
    texts, heading = markdown_of(pages, _bookmarks(pdfium, document))
    title = usable_title(document.get_metadata_value("Title")) or heading
    return ExtractedText(between_pages(texts), title, len(pages))


def _open(pdfium: Any, data: bytes) -> Any:
    try:
        return pdfium.PdfDocument(data)
    except pdfium.PdfiumError as error:
        if getattr(error, "err_code", None) in (pdfium.raw.FPDF_ERR_PASSWORD, pdfium.raw.FPDF_ERR_SECURITY):
            raise encrypted() from error
        raise BadRow("broken", "the file is not a complete PDF", "replace it with an intact copy") from error


def _lines(pdfium: Any, document: Any, number: int) -> list[Line]:
    try:
        page = document[number]
    except pdfium.PdfiumError:
        return []
    text = page.get_textpage()
    try:
        return lines_of(pdfium.raw, text)
    finally:
        text.close()
        page.close()


def _bookmarks(pdfium: Any, document: Any) -> list[tuple[int, int, str]]:
    """Return (page from 0, level from 1, title) of the bookmarks."""
    found = []
    for mark in document.get_toc():
        target = mark.get_dest()
        page = target.get_index() if target is not None else None
        if page is not None:
            found.append((page, mark.level + 1, mark.get_title()))
    return found
