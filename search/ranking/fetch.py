"""Turns ranked documents into hits: reads their texts and cuts out the windows that were found."""

from collections.abc import Callable, Sequence

import numpy as np

from indexer.corpus.document import Document, column_spans, joined_text
from search.hits import Answer, FoldedHit, Hit, Window, bytes_of
from search.index import Index
from search.ranking.documents import RankedDocument

_READ_AT_ONCE = 16  # documents, where their size is limited


def fetch_hits(
    index: Index, ranked: Sequence[Answer[RankedDocument]], on_read: Callable[[int], None] | None = None
) -> list[Answer[Hit]]:
    """The hits of each answer, in order.

    `on_read` is called every few documents with the bytes read so far, and may raise to stop reading.
    """
    numbers = sorted({found.document for answer in ranked for found in answer})
    documents, size = dict[int, Document](), 0
    step = _READ_AT_ONCE if on_read else max(1, len(numbers))
    for start in range(0, len(numbers), step):
        some = numbers[start : start + step]
        read = index.documents.fetch(some)
        documents.update(zip(some, read, strict=True))
        if on_read:
            size += sum(bytes_of((one.title, one.text, one.metadata)) for one in read)
            on_read(size)
    folded = sorted({one.document for answer in ranked for found in answer for one in found.folded})
    names = dict(zip(folded, index.documents.names(folded), strict=True))
    return [
        Answer((_hit(index, documents[found.document], found, names) for found in answer), answer.missing)
        for answer in ranked
    ]


def _hit(index: Index, document: Document, found: RankedDocument, names: dict[int, tuple[str, str | None]]) -> Hit:
    """A hit; `names` are the id and the title of each document that is folded."""
    window = None
    if not index.numbering.one_to_one and found.row >= 0:
        window = _window(index, document, found.row)
    folded = tuple(
        FoldedHit(names[one.document][0], one.score, one.similarity, names[one.document][1]) for one in found.folded
    )
    about = (window, folded, found.folded_count, found.parts, found.rerank_score)
    return Hit(document.id, found.score, document.title, document.text, document.metadata, *about)


def _window(index: Index, document: Document, row: int) -> Window:
    start, end = index.numbering.spans(np.array([row]))[0].tolist()
    columns = index.config.corpus.text
    return Window(start, end, joined_text(document, columns)[start:end], column_spans(document, columns, start, end))
