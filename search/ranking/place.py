"""The place of a window in the file that its document was read from."""

from functools import lru_cache

from indexer.corpus.document import Document
from indexer.corpus.files.extracted import PAGE_BREAK
from indexer.corpus.files.markup import kind_of
from indexer.corpus.files.outline import outline
from indexer.recipe.config import BuildConfig
from search.hits import Place, Window

_outline = lru_cache(256)(outline)  # of the documents that are found most often


def place_of(document: Document, config: BuildConfig, window: Window) -> Place | None:
    """Return the lines, the page and the headings of a window.

    Documents without `path` have headings only, with windows by structure. None if nothing is known, as for a window
    outside column `text`.
    """
    is_file = "path" in document.metadata
    if "text" not in window.columns or not (is_file or config.chunk.by == "structure"):
        return None
    text, kind = document.text, kind_of(document.metadata)
    start, end = window.columns["text"]
    passage = text[start:end]
    start, end = start + len(passage) - len(passage.lstrip()), start + len(passage.rstrip())
    lines = page = None
    if is_file and kind.has_lines:
        first = 1 + text.count("\n", 0, start)
        lines = (first, first + text.count("\n", start, end))
    if document.metadata.get("pages"):
        page = 1 + text.count(PAGE_BREAK, 0, start)
    place = Place(lines, page, _outline(text, kind).path(start))
    return None if place == Place() else place
