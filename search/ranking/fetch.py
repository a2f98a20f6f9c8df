"""Turns ranked documents into hits: reads their texts and cuts out the matching windows."""

from collections.abc import Callable, Sequence

import numpy as np

from indexer.corpus.document import Document, column_spans, joined_text
from search.hits import Answer, FoldedHit, Hit, Window, bytes_of
from search.index import Index
from search.ranking.documents import RankedDocument
from search.ranking.place import place_of

_READ_AT_ONCE = 16  # documents, if their size is limited


def fetch_hits(
    index: Index, ranked: Sequence[Answer[RankedDocument]], on_read: Callable[[int], None] | None = None
) -> list[Answer[Hit]]:
    """Return the hits of each answer, in order.

    `on_read` is called every few documents with the bytes read so far, and can raise to stop reading.
    """
    numbers = sorted({hit.document for answer in ranked for hit in answer})
    documents, size = dict[int, Document](), 0
    step = _READ_AT_ONCE if on_read else max(1, len(numbers))
    for start in range(0, len(numbers), step):
        block = numbers[start : start + step]
        fetched = index.documents.fetch(block)
        documents.update(zip(block, fetched, strict=True))
        if on_read:
            size += sum(bytes_of((document.title, document.text, document.metadata)) for document in fetched)
            on_read(size)
    folded = sorted({duplicate.document for answer in ranked for hit in answer for duplicate in hit.folded})
    names = dict(zip(folded, index.documents.names(folded), strict=True))
    return [
        Answer(
            (_hit(index, documents[hit.document], hit, names) for hit in answer), answer.missing, index.manifest.schema
        )
        for answer in ranked
    ]


def _hit(index: Index, document: Document, ranked: RankedDocument, names: dict[int, tuple[str, str | None]]) -> Hit:
    """Return a hit; `names` are the id and the title of each folded document."""
    window = None
    if not index.numbering.one_to_one and ranked.row >= 0:
        start, end = index.numbering.spans(np.array([ranked.row]))[0].tolist()
        columns = index.config.corpus.text
        text = joined_text(document, columns)[start:end]
        window = Window(start, end, text, column_spans(document, columns, start, end))
    folded = []
    for duplicate in ranked.folded:
        name, title = names[duplicate.document]
        folded.append(FoldedHit(name, duplicate.score, duplicate.similarity, title))
    place = place_of(document, index.config, window)
    about = (window, tuple(folded), ranked.folded_count, ranked.parts, ranked.rerank_score, place)
    return Hit(document.id, ranked.score, document.title, document.text, document.metadata, *about)
