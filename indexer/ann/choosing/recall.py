"""Recall: the true answers to some queries, and the share of them that an index gives.

The truth is found by brute force as vectors stream by: a float32 matrix product finds candidates, float64 products
decide (`indexer.ann.products`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from indexer.ann.products import candidates, float32_slack, pair_products
from indexer.arrays import Float64Array, Int64Array, Mask, RowIds, SearchResult, Vectors

SCORE_TOLERANCE = 1e-6  # of a score
RECALL_DEPTH = 10
MOST_TIES = 1000  # rows kept of those that score as much as the last of the best
_MOST_EXCLUDED = 16  # a search for many more answers than usual finds more of them
_QUERY_ROWS, _VECTOR_ROWS = 1024, 16_384  # that a matrix product takes at once
_LOWEST = -2.0  # below every score
_ROW_BITS = 40  # of a number that stands for a query and a row
_COPY_SPAN = 1.5e-3  # more than |x - y| of unit vectors that score 1 - SCORE_TOLERANCE: sqrt(2e-6) = 1.41e-3


class GroundTruthBuilder:
    """The `depth` best rows of each query so far, and the rows that tie with the last of them up to `SCORE_TOLERANCE`.

    `queries` (n, d) are unit vectors. Rows that count for neither side are given, `excluded` for each query, and
    found: with `origins` (n, d), the unit vectors of the rows that the queries were drawn from, every row that scores
    at least 1 - `SCORE_TOLERANCE` with its query's origin is passed over too. The attribute `excluded` names both.
    """

    def __init__(
        self,
        queries: Vectors,
        depth: int = RECALL_DEPTH,
        excluded: Sequence[RowIds] | None = None,
        origins: Vectors | None = None,
    ) -> None:
        self.queries, self.depth = queries, depth
        self._origins = origins
        self._own = None if origins is None else np.einsum("nd,nd->n", queries, origins, dtype=np.float64)
        given = [np.zeros(0, np.int64) for _ in queries] if excluded is None else excluded
        self._owner = [np.repeat(np.arange(len(given)), [len(rows) for rows in given])]
        self._passed = [np.concatenate([*given, np.zeros(0, np.int64)])]
        self._scores = [np.zeros(0) for _ in queries]  # float64, best first
        self._rows = [np.zeros(0, np.int64) for _ in queries]
        self._cut = np.full(len(queries), -np.inf)

    def update(self, first: int, vectors: Vectors, live: Mask | None = None) -> None:
        """Take in vectors (m, d), the rows from `first` on; of those only the `live` ones (m,), where that is given."""
        numbers = np.arange(first, first + len(vectors))
        if live is not None:
            numbers, vectors = numbers[live], vectors[live]
        for start in range(0, len(vectors), _VECTOR_ROWS):  # a part of long documents has a million windows
            self._take(vectors[start : start + _VECTOR_ROWS], numbers[start : start + _VECTOR_ROWS])

    def absorb(self, other: "GroundTruthBuilder") -> None:
        """Take in the rows that another has seen, made as this one was."""
        for number, (scores, rows) in enumerate(other.best):
            if len(rows):
                self._keep(number, scores, rows)
        self._owner += other._owner[1:]
        self._passed += other._passed[1:]

    def _take(self, vectors: Vectors, numbers: RowIds) -> None:
        for start in range(0, len(self.queries), _QUERY_ROWS):
            rough = self.queries[start : start + _QUERY_ROWS] @ vectors.T
            self._pass_copies(start, rough, vectors, numbers)
            self._pass_given(start, rough, numbers)
            self._merge(start, rough, vectors, numbers)

    @property
    def last_scores(self) -> Float64Array:
        """The score of the last of the best of each query, (n,); -inf where there are fewer than `depth`."""
        return self._cut.copy()

    @property
    def best(self) -> list[tuple[Float64Array, RowIds]]:
        """(scores, rows) of each query, best first, with the ties of the last: at most `MOST_TIES` of them."""
        return list(zip(self._scores, self._rows, strict=True))

    @property
    def excluded(self) -> list[RowIds]:
        """The rows that count for neither side, ascending, for each query."""
        owner, rows = np.concatenate(self._owner), np.concatenate(self._passed)
        return [np.unique(rows[owner == number]) for number in range(len(self.queries))]

    def _pass_copies(self, start: int, rough: Vectors, vectors: Vectors, numbers: RowIds) -> None:
        """Take copies of the origins out. One of them scores with the query what the origin does, up to its span."""
        if self._origins is None or self._own is None:
            return
        own = self._own[start : start + len(rough), None]
        query, place = np.nonzero(np.abs(rough - own) <= _COPY_SPAN + float32_slack(vectors.shape[1]))
        copies = pair_products(self._origins, query + start, vectors, place) >= 1 - SCORE_TOLERANCE
        query, place = query[copies], place[copies]
        rough[query, place] = -np.inf
        self._owner.append(query + start)
        self._passed.append(numbers[place])

    def _pass_given(self, start: int, rough: Vectors, numbers: RowIds) -> None:
        owner, rows = self._owner[0], self._passed[0]
        place = np.minimum(np.searchsorted(numbers, rows), len(numbers) - 1)
        here = (numbers[place] == rows) & (owner >= start) & (owner < start + len(rough))
        rough[owner[here] - start, place[here]] = -np.inf

    def _merge(self, start: int, rough: Vectors, vectors: Vectors, numbers: RowIds) -> None:
        cut = self._cut[start : start + len(rough)]
        if self.depth <= len(vectors):
            cut = np.maximum(cut, np.partition(rough, -self.depth, axis=1)[:, -self.depth])
        least = np.maximum(cut - SCORE_TOLERANCE, _LOWEST)  # rows that are passed over score -inf
        query, place = candidates(rough, least, vectors.shape[1])
        if not len(query):
            return
        exact = pair_products(self.queries, query + start, vectors, place)
        distinct, starts = np.unique(query, return_index=True)
        for number, first, end in zip(distinct.tolist(), starts, [*starts[1:], len(query)], strict=True):
            self._keep(number + start, exact[first:end], numbers[place[first:end]])

    def _keep(self, number: int, scores: Float64Array, rows: RowIds) -> None:
        scores, rows = np.concatenate([self._scores[number], scores]), np.concatenate([self._rows[number], rows])
        order = np.lexsort((rows, -scores))[: self.depth + MOST_TIES]
        scores, rows = scores[order], rows[order]
        if len(scores) >= self.depth:
            self._cut[number] = scores[self.depth - 1]
        keep = scores >= self._cut[number] - SCORE_TOLERANCE
        self._scores[number], self._rows[number] = scores[keep], rows[keep]


@dataclass(frozen=True)
class GroundTruth:
    """What the answers to some queries are held against: for each the rows that are right, and those that count for
    neither side. Queries with so many of either that one search is not like another are left out."""

    queries: Vectors
    right: list[RowIds]
    excluded: list[RowIds]
    depth: int

    @classmethod
    def of(cls, best: GroundTruthBuilder) -> "GroundTruth":
        """What `best` has seen, once it has seen every row."""
        right, excluded = [rows for _, rows in best.best], best.excluded
        usual = np.median([len(rows) for rows in excluded]) if excluded else 0  # many where documents have many windows
        kept = [
            number
            for number, rows in enumerate(right)
            if len(rows) and len(rows) < best.depth + MOST_TIES and len(excluded[number]) <= max(_MOST_EXCLUDED, usual)
        ]
        return cls(
            best.queries[kept], [right[number] for number in kept], [excluded[number] for number in kept], best.depth
        )

    def __len__(self) -> int:
        """Queries that count."""
        return len(self.queries)

    @property
    def reach(self) -> int:
        """Answers to ask an index for, so that `depth` are left when excluded rows are passed over."""
        return self.depth + max(map(len, self.excluded), default=0)

    def recall(self, answers: Sequence[SearchResult]) -> float:
        """Mean recall@depth: the share of a query's first answers that are right; 1 if there is no query.

        A row that scores as much as the last of the best, up to `SCORE_TOLERANCE`, is as right as that one.
        """
        if not len(self):
            return 1.0
        there = np.array([min(self.depth, len(rows)) for rows in self.right])
        given = _keyed([rows for _, rows in answers])
        given = given[~np.isin(given, _keyed(self.excluded))]
        owner = given >> _ROW_BITS
        place = np.arange(len(owner)) - np.searchsorted(owner, owner)  # among the answers to the same query
        hits = owner[(place < there[owner]) & np.isin(given, _keyed(self.right))]
        return float(np.mean(np.bincount(hits, minlength=len(self)) / there))


def _keyed(rows: Sequence[RowIds]) -> Int64Array:
    """One number for each pair of a query and a row, (n,)."""
    owner = np.repeat(np.arange(len(rows)), [len(some) for some in rows])
    keyed: Int64Array = (owner << _ROW_BITS) | np.concatenate([np.zeros(0, np.int64), *rows])
    return keyed
