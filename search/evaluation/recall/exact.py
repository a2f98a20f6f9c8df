"""Exact search over the stored vectors, as they stream by: what an index's answers are held against.

A float32 matrix product finds candidates, a float64 dot product decides. A float32 sum of d products of unit
vectors is wrong by at most d * 2**-24, so a row within twice that of the cut is a candidate too.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from indexer.quality import ROUNDING
from search.stored import Rows, StoredRows, Vectors

Scores = npt.NDArray[np.float64]
_QUERY_ROWS = 1024  # queries a matrix product takes at once
_PAIRS = 8192  # float64 dot products at once


def duplicates_of(stored: StoredRows, rows: Rows) -> list[Rows]:
    """For each of some rows, itself and the rows that are the same to search, ascending; none for a row of -1.

    The same are rows with the same text hash, and rows whose vectors score at least 1 - `ROUNDING` together.
    """
    known = np.flatnonzero(rows >= 0)
    found: list[Rows] = [np.zeros(0, np.int64)] * len(rows)
    if len(known):
        same_text, same_vector = _same_text(stored, rows[known]), _same_vector(stored, rows[known])
        for position, text, vector in zip(known.tolist(), same_text, same_vector, strict=True):
            found[position] = np.unique(np.concatenate([rows[position : position + 1], text, vector]))
    return found


def exact_recall(
    stored: StoredRows, queries: Vectors, answers: Rows, excluded: Sequence[Rows]
) -> npt.NDArray[np.float64]:
    """recall@k of each query, (n,): the share of its answers that are among the exact k best.

    `queries` (n, d) are unit vectors, `answers` (n, k) rows of the index (-1: none), `excluded` rows of each
    query that count for neither side. An answer that scores as much as the k-th best, up to `ROUNDING`, is right:
    which of several equal rows is named does not matter.
    """
    best = _KthBest(queries, answers.shape[1], excluded)
    scores = np.full(answers.shape, -np.inf)
    for first, vectors in stored.vector_blocks():
        best.update(first, vectors)
        query, place = np.nonzero((answers >= first) & (answers < first + len(vectors)))
        scores[query, place] = _dots(queries, query, vectors, answers[query, place] - first)
    share: npt.NDArray[np.float64] = (scores >= best.scores[:, :1] - ROUNDING).mean(axis=1)
    return share


class _KthBest:
    """The k best exact scores of each query so far: `scores` (n, k) float64, ascending, -inf where there are fewer."""

    def __init__(self, queries: Vectors, k: int, excluded: Sequence[Rows]) -> None:
        self.scores = np.full((len(queries), k), -np.inf)
        self._queries, self._k = queries, k
        self._owner = np.repeat(np.arange(len(queries)), [len(rows) for rows in excluded])
        self._excluded = np.concatenate([*excluded, np.zeros(0, np.int64)])

    def update(self, first: int, vectors: Vectors) -> None:
        """Take in the rows from `first` on."""
        inside = (self._excluded >= first) & (self._excluded < first + len(vectors))
        owner, row = self._owner[inside], self._excluded[inside] - first
        for start in range(0, len(self._queries), _QUERY_ROWS):
            rough = self._queries[start : start + _QUERY_ROWS] @ vectors.T
            ours = (owner >= start) & (owner < start + len(rough))
            rough[owner[ours] - start, row[ours]] = -np.inf
            self._merge(start, rough, vectors)

    def _merge(self, start: int, rough: Vectors, vectors: Vectors) -> None:
        cut = self.scores[start : start + len(rough), 0]
        if self._k <= len(vectors):
            cut = np.maximum(cut, np.partition(rough, -self._k, axis=1)[:, -self._k])
        query, row = np.nonzero((rough >= (cut - vectors.shape[1] * 2.0**-23)[:, None]) & (rough > -np.inf))
        if not len(query):
            return
        exact = _dots(self._queries, query + start, vectors, row)
        distinct, starts = np.unique(query, return_index=True)
        for number, fresh in zip((distinct + start).tolist(), np.split(exact, starts[1:]), strict=True):
            self.scores[number] = np.sort(np.concatenate([self.scores[number], fresh]))[-self._k :]


def _dots(queries: Vectors, query: Rows, vectors: Vectors, row: Rows) -> Scores:
    """float64 dot products of pairs: queries[query[i]] with vectors[row[i]]."""
    found = np.zeros(len(query))
    for start in range(0, len(query), _PAIRS):
        part = slice(start, start + _PAIRS)
        left, right = queries[query[part]].astype(np.float64), vectors[row[part]].astype(np.float64)
        found[part] = np.einsum("nd,nd->n", left, right)
    return found


def _same_text(stored: StoredRows, rows: Rows) -> list[Rows]:
    own, group = np.unique(stored.text_hashes(rows), axis=0, return_inverse=True)
    numbers = {tuple(pair): number for number, pair in enumerate(own.tolist())}
    found: list[list[int]] = [[] for _ in numbers]
    for first, hashes in stored.hash_blocks():
        for row in np.flatnonzero(np.isin(hashes[:, 0], own[:, 0])).tolist():
            if (number := numbers.get(tuple(hashes[row].tolist()))) is not None:
                found[number].append(first + row)
    members = [np.array(rows, np.int64) for rows in found]
    return [members[number] for number in group.ravel().tolist()]


def _same_vector(stored: StoredRows, rows: Rows) -> list[Rows]:
    own, group = np.unique(stored.vectors(rows), axis=0, return_inverse=True)
    found: list[list[Rows]] = [[] for _ in own]
    limit = 1 - ROUNDING
    for first, vectors in stored.vector_blocks():
        for start in range(0, len(own), _QUERY_ROWS):
            rough = own[start : start + _QUERY_ROWS] @ vectors.T
            number, row = np.nonzero(rough >= limit - vectors.shape[1] * 2.0**-23)
            same = _dots(own, number + start, vectors, row) >= limit
            for one in np.unique(number[same]).tolist():
                found[start + one].append(first + row[same & (number == one)])
    members = [np.concatenate([*rows, np.zeros(0, np.int64)]) for rows in found]
    return [members[number] for number in group.ravel().tolist()]
