"""Recall: the true answers to queries, and the share of them that an index returns.

The truth is found by brute force as vectors stream by: float32 products find candidates, float64 products decide
(`indexer.ann.inner_products`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from indexer.ann.inner_products import candidates, float32_slack, pair_products
from indexer.arrays import Float64Array, Int64Array, Mask, RowIds, SearchResult, Vectors

SCORE_TOLERANCE = 1e-6  # of a score
RECALL_DEPTH = 10
MOST_TIES = 1000  # rows kept that tie with the last of the best
_MOST_EXCLUDED = 16  # excluded rows of a query; a search for many more rows would find more of the true ones
_QUERY_ROWS, _VECTOR_ROWS = 1024, 16_384  # in one matrix product
_LOWEST = float(np.finfo(np.float32).min)  # an excluded row scores -inf
_ROW_BITS = 40  # of a number for a pair of query and row
_COPY_SPAN = 1.5e-3  # above |x - y| of unit vectors that score 1 - SCORE_TOLERANCE: sqrt(2e-6) = 1.41e-3


class GroundTruthBuilder:
    """The `depth` best rows so far of each query, and the rows that tie with the last of them within `SCORE_TOLERANCE`.

    `queries` (n, d) are unit vectors. Some rows count as neither right nor wrong: those in `excluded`, for each query,
    and, with `origins` (n, d), the unit vectors of the rows from which the queries were drawn, every row that scores at
    least 1 - `SCORE_TOLERANCE` with its query's origin. The attribute `excluded` lists both.
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
        self._origin_scores = None if origins is None else np.einsum("nd,nd->n", queries, origins, dtype=np.float64)
        empty = np.zeros(0, np.int64)
        given = [empty for _ in queries] if excluded is None else excluded
        self._excluded_queries = [np.repeat(np.arange(len(given)), [len(rows) for rows in given])]
        self._excluded_rows = [np.concatenate([*given, empty])]
        self._scores = [np.zeros(0) for _ in queries]  # float64, best first
        self._rows = [empty for _ in queries]
        self._cut = np.full(len(queries), -np.inf)

    def update(self, first: int, vectors: Vectors, live: Mask | None = None) -> None:
        """Process vectors (m, d), the rows from `first` on; with `live` (m,), only those rows."""
        numbers = np.arange(first, first + len(vectors))
        if live is not None:
            numbers, vectors = numbers[live], vectors[live]
        for start in range(0, len(vectors), _VECTOR_ROWS):  # a part of long documents has a million windows
            self._process(vectors[start : start + _VECTOR_ROWS], numbers[start : start + _VECTOR_ROWS])

    def absorb(self, other: "GroundTruthBuilder") -> None:
        """Add the rows of another builder with the same queries."""
        for number, (scores, rows) in enumerate(other.best):
            if len(rows):
                self._keep(number, scores, rows)
        self._excluded_queries += other._excluded_queries[1:]
        self._excluded_rows += other._excluded_rows[1:]

    def _process(self, vectors: Vectors, numbers: RowIds) -> None:
        for start in range(0, len(self.queries), _QUERY_ROWS):
            rough = self.queries[start : start + _QUERY_ROWS] @ vectors.T
            self._exclude_copies(start, rough, vectors, numbers)
            self._exclude_given(start, rough, numbers)
            self._merge(start, rough, vectors, numbers)

    @property
    def last_scores(self) -> Float64Array:
        """The score of the last of the best of each query, (n,); -inf for fewer than `depth`."""
        return self._cut.copy()

    @property
    def best(self) -> list[tuple[Float64Array, RowIds]]:
        """(scores, rows) of each query, best first, with at most `MOST_TIES` ties of the last."""
        return list(zip(self._scores, self._rows, strict=True))

    @property
    def excluded(self) -> list[RowIds]:
        """The excluded rows of each query, ascending."""
        owner, rows = np.concatenate(self._excluded_queries), np.concatenate(self._excluded_rows)
        return [np.unique(rows[owner == number]) for number in range(len(self.queries))]

    def _exclude_copies(self, start: int, rough: Vectors, vectors: Vectors, numbers: RowIds) -> None:
        """Exclude copies of the origins. A copy and the origin score the same with the query, within `_COPY_SPAN`."""
        if self._origins is None or self._origin_scores is None:
            return
        scores = self._origin_scores[start : start + len(rough), None]
        query, place = np.nonzero(np.abs(rough - scores) <= _COPY_SPAN + float32_slack(vectors.shape[1]))
        copies = pair_products(self._origins, query + start, vectors, place) >= 1 - SCORE_TOLERANCE
        query, place = query[copies], place[copies]
        rough[query, place] = -np.inf
        self._excluded_queries.append(query + start)
        self._excluded_rows.append(numbers[place])

    def _exclude_given(self, start: int, rough: Vectors, numbers: RowIds) -> None:
        owner, rows = self._excluded_queries[0], self._excluded_rows[0]
        place = np.minimum(np.searchsorted(numbers, rows), len(numbers) - 1)
        here = (numbers[place] == rows) & (owner >= start) & (owner < start + len(rough))
        rough[owner[here] - start, place[here]] = -np.inf

    def _merge(self, start: int, rough: Vectors, vectors: Vectors, numbers: RowIds) -> None:
        cut = self._cut[start : start + len(rough)]
        if self.depth <= len(vectors):
            cut = np.maximum(cut, np.partition(rough, -self.depth, axis=1)[:, -self.depth])
        least = np.maximum(cut - SCORE_TOLERANCE, _LOWEST)
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
    """The right and excluded rows of some queries, without queries that have too many of either for one search."""

    queries: Vectors
    right: list[RowIds]
    excluded: list[RowIds]
    depth: int

    @classmethod
    def of(cls, best: GroundTruthBuilder) -> "GroundTruth":
        """Return the truth of a builder that has processed every row."""
        right, excluded = [rows for _, rows in best.best], best.excluded
        usual = np.median([len(rows) for rows in excluded]) if excluded else 0  # high if documents have many windows
        kept = [
            number
            for number, rows in enumerate(right)
            if 0 < len(rows) < best.depth + MOST_TIES and len(excluded[number]) <= max(_MOST_EXCLUDED, usual)
        ]
        right, excluded = [right[number] for number in kept], [excluded[number] for number in kept]
        return cls(best.queries[kept], right, excluded, best.depth)

    def __len__(self) -> int:
        """Return the number of queries that count."""
        return len(self.queries)

    @property
    def reach(self) -> int:
        """Rows to request from an index, so that `depth` remain without the excluded ones."""
        return self.depth + max(map(len, self.excluded), default=0)

    @property
    def expected(self) -> Int64Array:
        """The right answers that each query can have, (n,): at most `depth`."""
        return np.array([min(self.depth, len(rows)) for rows in self.right], np.int64)

    def within(self, first: int, count: int) -> "GroundTruth":
        """Return the rows within [first, first + count), numbered from `first`; some queries have none."""
        right = [_between(rows, first, count) for rows in self.right]
        return replace(self, right=right, excluded=[_between(rows, first, count) for rows in self.excluded])

    def recall(self, answers: Sequence[SearchResult]) -> float:
        """Return the mean recall@depth: the share of a query's first answers that are right; 1 without queries. A row
        that ties with the last of the best, within `SCORE_TOLERANCE`, is also right."""
        return self.share(self.hits(answers))

    def share(self, hits: Int64Array) -> float:
        """Return the mean share of right answers for the number of them that each query found, (n,)."""
        return float(np.mean(np.minimum(hits, self.expected) / self.expected)) if len(self) else 1.0

    def hits(self, answers: Sequence[SearchResult]) -> Int64Array:
        """Return the number of right rows among the first `depth` answers of each query, (n,)."""
        pairs = _keyed([rows for _, rows in answers])
        pairs = pairs[~np.isin(pairs, _keyed(self.excluded))]
        query = pairs >> _ROW_BITS
        rank = np.arange(len(query)) - np.searchsorted(query, query)
        found = query[(rank < self.depth) & np.isin(pairs, _keyed(self.right))]
        return np.bincount(found, minlength=len(self)).astype(np.int64)


def _between(rows: RowIds, first: int, count: int) -> RowIds:
    return rows[(rows >= first) & (rows < first + count)] - first


def _keyed(rows: Sequence[RowIds]) -> Int64Array:
    """Return a number for each pair of query and row, (n,)."""
    query = np.repeat(np.arange(len(rows)), [len(some) for some in rows])
    keyed: Int64Array = (query << _ROW_BITS) | np.concatenate([np.zeros(0, np.int64), *rows])
    return keyed
