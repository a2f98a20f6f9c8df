"""Exact rankings: score every document and keep the best, ties in ascending order of id, as the engine does.

One 64-bit key contains a score and its document's place in the order of ids, so that selecting the largest keys also
breaks ties.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from indexer.ann.inner_products import matrix_products
from indexer.ann.score_order import pack, unpack
from indexer.arrays import RowIds, Scores, SearchResult, Vectors
from indexer.system.threads import single_blas_thread

_QUERY_BLOCK = 256


def id_order(ids: Sequence[str]) -> RowIds:
    """Return each document's place in the ascending order of ids, (n,)."""
    places = np.empty(len(ids), np.int64)
    places[sorted(range(len(ids)), key=ids.__getitem__)] = np.arange(len(ids))
    return places


def exact_top_k(
    queries: Vectors, blocks: Iterable[Vectors], places: RowIds, depth: int, document_of: RowIds | None = None
) -> list[SearchResult]:
    """Return for each query (q, k) the `depth` documents with the largest inner product over blocks of vectors.

    `document_of` (rows,), ascending, is the document of each vector if documents have several windows: the best window
    counts. A score is the float64 product rounded to float32, as on the engine's exact indexes. Memory holds one block
    of vectors, its products with 256 queries, and the best `depth` of every query.
    """
    best = [np.empty((group.stop - group.start, 0), np.int64) for group in _groups(len(queries))]
    for first, number, scores in _document_scores(queries, blocks, document_of):
        fresh = pack(scores, places[first : first + scores.shape[1]])
        keys = np.concatenate([best[number], fresh], axis=1)
        rest = keys.shape[1] - depth
        best[number] = np.partition(keys, rest, axis=1)[:, rest:] if rest > 0 else keys
    found, ranks = unpack(-np.sort(-np.concatenate(best), axis=1))
    row_at = np.empty_like(places)
    row_at[places] = np.arange(len(places))
    return list(zip(found, row_at[ranks], strict=True))


def exact_scores(
    queries: Vectors, blocks: Iterable[Vectors], wanted: Sequence[RowIds], document_of: RowIds | None = None
) -> list[Scores]:
    """Return for each query (q, k) the scores of its `wanted` documents, ascending numbers; else as `exact_top_k`."""
    pieces: list[list[Scores]] = [[] for _ in queries]
    for first, number, scores in _document_scores(queries, blocks, document_of):
        for query, row in enumerate(scores, start=number * _QUERY_BLOCK):
            low, high = np.searchsorted(wanted[query], [first, first + len(row)])
            pieces[query].append(row[wanted[query][low:high] - first])
    return [np.concatenate([np.zeros(0, np.float32), *parts]) for parts in pieces]


def _document_scores(
    queries: Vectors, blocks: Iterable[Vectors], document_of: RowIds | None
) -> Iterator[tuple[int, int, Scores]]:
    """Yield (first document, number of the query group, scores of its queries with the documents from there on)."""
    first = 0
    for block, starts in _whole_documents(blocks, document_of):
        for number, group in enumerate(_groups(len(queries))):
            with single_blas_thread():
                scores = matrix_products(queries[group], block).astype(np.float32)
            yield first, number, scores if len(starts) == len(block) else np.maximum.reduceat(scores, starts, axis=1)
        first += len(starts)


def _whole_documents(blocks: Iterable[Vectors], document_of: RowIds | None) -> Iterator[tuple[Vectors, RowIds]]:
    """Yield the vectors in blocks that end with a document, and the start of each document in its block."""
    if document_of is None:
        yield from ((block, np.arange(len(block))) for block in blocks if len(block))
        return
    pending, first = np.zeros((0, 0), np.float32), 0
    for block in blocks:
        pending = np.concatenate([pending, block]) if len(pending) else block
        documents = document_of[first : first + len(pending)]
        more = first + len(pending) < len(document_of)
        end = int(np.searchsorted(documents, document_of[first + len(pending)])) if more else len(pending)
        if end:
            yield pending[:end], np.flatnonzero(np.diff(documents[:end], prepend=-1))
        pending, first = pending[end:], first + end


def top_k_above_zero(scores: Scores, places: RowIds, depth: int) -> SearchResult:
    """Return scores and numbers of the best `depth` documents with `scores` (n,) above 0."""
    rows = np.flatnonzero(scores > 0)
    keys = pack(scores[rows], places[rows])
    best = np.argpartition(keys, len(keys) - depth)[len(keys) - depth :] if len(keys) > depth else np.arange(len(keys))
    best = best[np.argsort(-keys[best])]
    return scores[rows[best]], rows[best]


def _groups(queries: int) -> list[slice]:
    """Return blocks of queries; one empty block if there are none."""
    return [slice(start, min(start + _QUERY_BLOCK, queries)) for start in range(0, max(1, queries), _QUERY_BLOCK)]
