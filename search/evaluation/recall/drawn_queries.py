"""Queries drawn from the documents of an index."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np

from indexer.arrays import RowIds
from indexer.corpus.document import Document, pseudo_query
from indexer.errors import ConfigError, EvaluationError, spelled
from search.formatting import counted
from search.index import LiveRows
from search.queries import QuerySet, numbered

DrawnFrom = Literal["titles", "sentences", "halves"]
SAMPLE = 1000


def draw_queries(stored: LiveRows, origin: DrawnFrom | None = None, size: int = SAMPLE) -> QuerySet:
    """Return at most `size` queries drawn from the documents with the smallest id hashes.

    "titles"; "sentences": the first sentence of the text, or its first words if it is long; "halves": the first half
    of the text's words. Without an origin: titles if at least half of the first `size` documents have a title, else
    sentences. Documents without a query are skipped and counted. If the embeddings came with the corpus, the queries
    are embeddings of documents.
    Raises ConfigError for a size below 1 and for an origin if no text can be encoded, and EvaluationError if no
    document has a query.
    """
    if size < 1:
        raise ConfigError(f"the sample is {size}; expected at least 1 query.")
    if not stored.index.config.encoder.traits.encodes_texts:
        return _documents_themselves(stored, origin, size)
    order = np.argsort(stored.id_hashes, kind="stable")
    if origin is None:
        documents = stored.index.documents.fetch(order[:size].tolist())
        titled = sum(bool(_title(document)) for document in documents)
        origin = "titles" if 2 * titled >= len(documents) else "sentences"
    texts: list[str] = []
    rows: list[int] = []
    seen = 0
    for row, document in _documents(stored, order, size):
        seen += 1
        if text := _DRAW[origin](document):
            texts.append(text)
            rows.append(row)
        if len(texts) == size:
            break
    if not texts:
        raise EvaluationError(
            f"{stored.index.path}: none of its {counted(stored.index.manifest.documents, 'document')} has a query "
            f"({_NEED[origin]}). Fix: choose another kind with {spelled('origin', '--draw')}, or a file "
            f"of queries with {spelled('file', '--queries')}."
        )
    skipped = seen - len(texts)
    notes = (f"no query from {skipped:,} of {counted(seen, 'sampled document')} ({_NEED[origin]})",) if skipped else ()
    return QuerySet(numbered(len(texts)), np.array(rows, np.int64), tuple(texts), origin=origin, notes=notes)


def _documents_themselves(stored: LiveRows, origin: DrawnFrom | None, size: int) -> QuerySet:
    if origin:
        raise ConfigError(
            f"{stored.index.path}: its embeddings came with the corpus, so no {origin} can be encoded. Fix: leave out "
            f"{spelled('origin', '--draw')} to query with the documents themselves, or name a .npy file of query "
            "embeddings."
        )
    rows = np.sort(np.argsort(stored.id_hashes, kind="stable")[:size])
    return QuerySet(numbered(len(rows)), rows, embeddings=stored.index.embeddings(rows), origin="documents")


def _documents(stored: LiveRows, order: RowIds, batch: int) -> Iterator[tuple[int, Document]]:
    for start in range(0, len(order), batch):
        rows = order[start : start + batch].tolist()
        yield from zip(rows, stored.index.documents.fetch(rows), strict=True)


def _title(document: Document) -> str:
    return (document.title or "").strip()


def _sentence(document: Document) -> str:
    return pseudo_query(dataclasses.replace(document, title=None))


def _half(document: Document) -> str:
    words = document.text.split()
    return " ".join(words[: len(words) // 2])


_DRAW: dict[DrawnFrom, Callable[[Document], str]] = {"titles": _title, "sentences": _sentence, "halves": _half}
_NEED: dict[DrawnFrom, str] = {
    "titles": "no title",
    "sentences": "no text besides the title",
    "halves": "fewer than two words of text",
}
