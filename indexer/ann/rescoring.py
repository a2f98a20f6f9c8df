"""Candidates of a search scored again by finer vectors, read in the order of their rows.

FAISS's IndexRefine reads the candidates of one query after another, by rank. Here those of all queries are sorted by
row and scored block by block, so that memory is read forwards.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from indexer.ann.faiss_index import faiss_module
from indexer.ann.leaves import codes_of
from indexer.arrays import RowIds, Scores, Vectors

_BLOCK = 2048  # candidates: 0.5 MB of 128 dimensions with 16 bits
_PLACE_BITS = 32  # of a candidate's place behind its row, to sort both at once
_HALF_SCALE = np.float32(2.0**112)  # exponents of float16 begin at 2**-15, those of float32 at 2**-127


def best_candidates(store: Any, queries: Vectors, rows: RowIds, count: int) -> tuple[Scores, RowIds]:
    """Return the best `count` of each query's candidates (n, m) by the vectors of `store`, best first, (n, count).

    `queries` are (n, d). Row -1 is no candidate. `store` is an IndexFlatCodes, which has a code for each row.
    """
    scores = rescored(store, queries, rows)
    if count < rows.shape[1]:
        kept = np.argpartition(scores, -count, axis=1)[:, -count:]
        scores, rows = np.take_along_axis(scores, kept, axis=1), np.take_along_axis(rows, kept, axis=1)
    order = np.argsort(-scores, axis=1)
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)


def rescored(store: Any, queries: Vectors, rows: RowIds) -> Scores:
    """Return the inner products of queries (n, d) with candidates (n, m), (n, m); -inf for row -1."""
    packed = (rows.ravel() << _PLACE_BITS) | np.arange(rows.size)
    packed.sort()
    scores, read = np.empty(rows.size, np.float32), _reader(store, min(_BLOCK, rows.size))
    queries = np.ascontiguousarray(queries * _HALF_SCALE if _is_half(store) else queries, np.float32)
    for start in range(0, rows.size, _BLOCK):
        block = packed[start : start + _BLOCK]
        places = block & ((1 << _PLACE_BITS) - 1)
        scores[places] = _products(queries, places // rows.shape[1], read(block >> _PLACE_BITS))
    return np.where(rows < 0, np.float32(-np.inf), scores.reshape(rows.shape))


def stored_vectors(store: Any, rows: RowIds) -> Vectors:
    """Return the vectors (n, d) of some rows of an IndexFlatCodes."""
    vectors: Vectors = store.sa_decode(np.take(codes_of(store), rows, axis=0))
    return vectors


def _reader(store: Any, most: int) -> Callable[[RowIds], Vectors]:
    """Return a function that returns the vectors (n, d) of at most `most` rows, float16 numbers divided by
    `_HALF_SCALE`. The next call overwrites them: new memory for each would take longer than the reading."""
    codes, taken = codes_of(store), np.empty((most, store.code_size), np.uint8)
    bits = np.empty((most, store.d), np.int32)

    def read(rows: RowIds) -> Vectors:
        count = len(rows)
        np.take(codes, rows, axis=0, out=taken[:count], mode="clip")
        if not _is_half(store):
            vectors: Vectors = store.sa_decode(taken[:count])
            return vectors
        # Sign, exponent and mantissa move to their places in float32. The conversions of NumPy and FAISS take three
        # times as long.
        moved = bits[:count]
        np.copyto(moved, taken[:count].view(np.int16))
        moved <<= 13
        moved &= ~(7 << 28)  # copies of the sign
        return moved.view(np.float32)

    return read


def _is_half(store: Any) -> bool:
    faiss = faiss_module()
    return isinstance(store, faiss.IndexScalarQuantizer) and store.sq.qtype == faiss.ScalarQuantizer.QT_fp16


def _products(queries: Vectors, owners: RowIds, vectors: Vectors) -> Scores:
    """Return the inner products (n,) of queries[owners] with vectors (n, d)."""
    faiss, products, places = faiss_module(), np.empty(len(vectors), np.float32), np.arange(len(vectors))
    given = map(faiss.swig_ptr, (queries, owners, vectors, places, products))
    faiss.pairwise_indexed_inner_product(queries.shape[1], len(vectors), *given)
    return products
