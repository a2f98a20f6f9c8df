"""Exact rankings: every document scored, the best kept, ties in ascending order of id as the engine has them.

A score and the place of its document in the order of ids are packed into one 64-bit key, so that a plain
selection of the largest keys settles ties as well.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from indexer.arrays import Int64Array, RowIds, Scores, SearchResult, Vectors
from indexer.parallel import single_blas_thread

_QUERY_BLOCK = 256
_PLACE_BITS = 32
_PLACE_MASK = (1 << _PLACE_BITS) - 1


def id_order(ids: Sequence[str]) -> RowIds:
    """For each document its place in the ascending order of ids, (n,)."""
    places = np.empty(len(ids), np.int64)
    places[sorted(range(len(ids)), key=ids.__getitem__)] = np.arange(len(ids))
    return places


def exact_top_k(
    queries: Vectors, blocks: Iterable[Vectors], places: RowIds, depth: int, document_of: RowIds | None = None
) -> list[SearchResult]:
    """For each query (q, k) the `depth` documents with the largest inner product, of vectors that come block by block.

    `document_of` (rows,), ascending, says whose each vector is where documents have several windows: the best one
    counts. A score is the float64 product rounded to float32, as on the engine's exact indexes. Holds one block of
    vectors, its products with 256 queries, and the best `depth` of every query.
    """
    best = np.empty((len(queries), 0), np.int64)
    first = 0
    for block, starts in _whole_documents(blocks, document_of):
        here = places[first : first + len(starts)]
        kept = []
        for group in _groups(len(queries)):
            scores = _products(queries[group], block)
            if len(starts) < len(block):
                scores = np.maximum.reduceat(scores, starts, axis=1)
            kept.append(_largest(np.concatenate([best[group], _packed(scores, here)], axis=1), depth))
        best = np.concatenate(kept)
        first += len(starts)
    return _unpacked(best, places)


def exact_scores(
    queries: Vectors, blocks: Iterable[Vectors], wanted: Sequence[RowIds], document_of: RowIds | None = None
) -> list[Scores]:
    """For each query (q, k) the scores of the documents wanted of it, whose numbers ascend; else as `exact_top_k`."""
    found: list[list[Scores]] = [[] for _ in queries]
    first = 0
    for block, starts in _whole_documents(blocks, document_of):
        for group in _groups(len(queries)):
            scores = _products(queries[group], block)
            if len(starts) < len(block):
                scores = np.maximum.reduceat(scores, starts, axis=1)
            for query, row in enumerate(scores, start=group.start or 0):
                low, high = np.searchsorted(wanted[query], [first, first + len(starts)])
                found[query].append(row[wanted[query][low:high] - first])
        first += len(starts)
    return [np.concatenate([np.zeros(0, np.float32), *pieces]) for pieces in found]


def _whole_documents(blocks: Iterable[Vectors], document_of: RowIds | None) -> Iterator[tuple[Vectors, RowIds]]:
    """The same vectors in blocks that end with a document, and where each document's begin, (documents of it,)."""
    if document_of is None:
        yield from ((block, np.arange(len(block))) for block in blocks if len(block))
        return
    held, first = np.zeros((0, 0), np.float32), 0
    for block in blocks:
        held = np.concatenate([held, block]) if len(held) else block
        documents = document_of[first : first + len(held)]
        more = first + len(held) < len(document_of)
        end = int(np.searchsorted(documents, document_of[first + len(held)])) if more else len(held)
        if end:
            yield held[:end], np.flatnonzero(np.diff(documents[:end], prepend=-1))
        held, first = held[end:], first + end


def top_k_above_zero(scores: Scores, places: RowIds, depth: int) -> SearchResult:
    """The best `depth` documents of one query by its `scores` (n,), of those that score above 0."""
    rows = np.flatnonzero(scores > 0)
    keys = _packed(scores[rows], places[rows])
    best = np.argpartition(keys, len(keys) - depth)[len(keys) - depth :] if len(keys) > depth else np.arange(len(keys))
    best = best[np.argsort(-keys[best])]
    return scores[rows[best]], rows[best]


def sort_key(scores: Scores) -> Int64Array:
    """Whole numbers in the order of finite float32 scores; neighbouring floats are neighbouring numbers."""
    bits = scores.view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def from_sort_key(numbers: Int64Array) -> Scores:
    """The scores that `sort_key` numbered."""
    bits = np.where(numbers < 0, -numbers | 0x80000000, numbers)
    scores: Scores = bits.astype(np.uint32).view(np.float32)
    return scores


def _groups(queries: int) -> list[slice]:
    return [slice(start, start + _QUERY_BLOCK) for start in range(0, queries, _QUERY_BLOCK)] or [slice(0)]


def _products(queries: Vectors, vectors: Vectors) -> Scores:
    with single_blas_thread():
        products: Scores = (queries.astype(np.float64) @ vectors.astype(np.float64).T).astype(np.float32)
    return products


def _packed(scores: Scores, places: RowIds) -> Int64Array:
    """One key for each score (..., n): larger for a larger score, then for an earlier id."""
    return (sort_key(scores) << _PLACE_BITS) | (_PLACE_MASK - places)


def _largest(keys: Int64Array, depth: int) -> Int64Array:
    if keys.shape[1] <= depth:
        return keys
    return np.partition(keys, keys.shape[1] - depth, axis=1)[:, keys.shape[1] - depth :]


def _unpacked(keys: Int64Array, places: RowIds) -> list[SearchResult]:
    keys = -np.sort(-keys, axis=1)
    row_at = np.empty_like(places)
    row_at[places] = np.arange(len(places))
    scores, rows = from_sort_key(keys >> _PLACE_BITS), row_at[_PLACE_MASK - (keys & _PLACE_MASK)]
    return list(zip(scores, rows, strict=True))
