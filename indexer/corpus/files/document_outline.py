"""The outline of a document's joined text, from the outlines of its columns."""

from collections.abc import Iterable
from dataclasses import replace

from indexer.corpus.document import Document, column_spans, joined_text
from indexer.corpus.files.markup import kind_of
from indexer.corpus.files.outline import outline
from indexer.corpus.files.structure import AFTER_HEADING, PARAGRAPH, Break, Heading, Outline


def document_outline(document: Document, columns: Iterable[str]) -> Outline:
    """Return the outline of `joined_text`. Column `title` has no structure; the text below it belongs to it."""
    columns = tuple(columns)
    headings, breaks, first = list[Heading](), list[Break](), 0
    kind = kind_of(document.metadata)
    for name, (start, end) in column_spans(document, columns, 0, len(joined_text(document, columns))).items():
        length, shift = end - start, first - start
        if first:
            breaks.append(Break(first, AFTER_HEADING if breaks == [] and "title" in columns[:1] else PARAGRAPH))
        if name != "title":
            value = document.text if name == "text" else document.metadata[name]
            found = outline(value, kind)
            headings += [replace(each, start=max(each.start + shift, first)) for each in found.headings]
            breaks += [Break(each.at + shift, each.rank) for each in found.breaks if start < each.at < end]
        first += length + 1
    return Outline(tuple(headings), tuple(breaks))
