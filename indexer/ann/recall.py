"""Recall: the true answers to some queries, and operating points: settings, the recall they reach, and what they cost.

The truth is found by brute force as vectors stream by. A float32 matrix product finds candidates, a float64 dot
product decides: a float32 sum of d products of unit vectors is wrong by at most d * 2**-24, so a row within twice that
of the cut is a candidate too. Settings of the search parameters are tried in the order of the work they make.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, Protocol

import numpy as np

from indexer.ann.cost import QueryCost, query_cost
from indexer.ann.faiss_index import single_faiss_thread
from indexer.ann.parameters import WIDEST_WALK, largest_parameters, search_parameters, set_search_parameters
from indexer.ann.search import search_index
from indexer.arrays import Float64Array, Mask, RowIds, SearchResult, Vectors
from indexer.errors import ConfigError

SCORE_TOLERANCE = 1e-6  # of a score
RECALL_DEPTH = 10
MOST_TIES = 1000  # rows kept of those that score as much as the last of the best
_MOST_EXCLUDED = 16  # a search for many more answers than usual finds more of them
_QUERY_ROWS, _VECTOR_ROWS = 1024, 16_384  # that a matrix product takes at once
_PAIRS = 8192  # float64 dot products at once
_COPY_SPAN = 1.5e-3  # more than |x - y| of unit vectors that score 1 - SCORE_TOLERANCE: sqrt(2e-6) = 1.41e-3
_ALL = 0.9995  # recall beyond which nothing more is looked for
LEAST_WIDTH = 16  # of a walk through a graph, which keeps as many nodes as rows are wanted anyway
_MOST_CANDIDATES = 1024  # for each row wanted: to sort more takes longer than to scan
_LEAST_SHARE, _MOST_SHARE = 1 / 256, 4  # of the cost of scanning, what scoring again may cost


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
        query, place = np.nonzero(np.abs(rough - own) <= _COPY_SPAN + vectors.shape[1] * 2.0**-23)
        copies = pair_scores(self._origins, query + start, vectors, place) >= 1 - SCORE_TOLERANCE
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
        slack = vectors.shape[1] * 2.0**-23 + SCORE_TOLERANCE
        query, place = np.nonzero((rough >= (cut - slack)[:, None]) & (rough > -np.inf))
        if not len(query):
            return
        exact = pair_scores(self.queries, query + start, vectors, place)
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
        shares = []
        for (_, rows), right, excluded in zip(answers, self.right, self.excluded, strict=True):
            there = min(self.depth, len(right))
            others = rows[~np.isin(rows, excluded)][:there]
            shares.append(np.count_nonzero(np.isin(others, right)) / there)
        return float(np.mean(shares)) if shares else 1.0


def pair_scores(queries: Vectors, query: RowIds, vectors: Vectors, row: RowIds) -> Float64Array:
    """float64 inner products of pairs, (n,): queries[query[i]] with vectors[row[i]]."""
    found = np.zeros(len(query))
    for start in range(0, len(query), _PAIRS):
        part = slice(start, start + _PAIRS)
        left, right = queries[query[part]].astype(np.float64), vectors[row[part]].astype(np.float64)
        found[part] = np.einsum("nd,nd->n", left, right)
    return found


@dataclass(frozen=True)
class OperatingPoint:
    """Search parameters, the recall they reach, and the work of a query."""

    search_parameters: dict[str, int]
    recall: float
    work: QueryCost

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {"search_parameters": self.search_parameters, "recall": self.recall} | asdict(self.work)


def recall_curve(
    index: Any,
    truth: GroundTruth,
    allowed: Mask | None = None,
    enough: float = _ALL,
    begun: Sequence[OperatingPoint] = (),
) -> list[OperatingPoint]:
    """Points of ever more work and ever higher recall, until `enough` is reached or there is no other setting.

    `allowed` (rows of the index,) are those that may be found. `begun` is a curve of the same index and queries that
    had enough earlier. The index keeps the parameters it had.
    """
    before, points, settings = search_parameters(index), list(begun), parameter_grid(index, truth.depth)
    if points:
        done = points[-1].search_parameters
        where = next(number for number, setting in enumerate(settings) if setting.items() <= done.items())
        settings = settings[where + 1 :] if points[-1].recall < enough else []
    try:
        for parameters in settings:
            set_search_parameters(index, parameters)
            with single_faiss_thread():
                recall = truth.recall(search_index(index, truth.queries, truth.reach, allowed))
            if not points or recall > points[-1].recall:
                points.append(OperatingPoint(search_parameters(index), recall, query_cost(index, truth.depth)))
            if recall >= enough:
                break
    finally:
        set_search_parameters(index, before)
    return points


def cheapest_point(curve: Sequence[OperatingPoint], recall: float) -> OperatingPoint:
    """The point of least work that reaches `recall`, or else the one that reaches most."""
    return next((point for point in curve if point.recall >= recall), curve[-1])


class CurvePoint(Protocol):
    """A point of a curve, measured now or read from a manifest."""

    @property
    def search_parameters(self) -> Mapping[str, int]: ...

    @property
    def recall(self) -> float: ...


def parameters_for(curve: Sequence[CurvePoint], recall: float) -> dict[str, int]:
    """The search parameters of least work that reach `recall`, of a curve of ascending work.

    Raises ConfigError naming the highest recall there is.
    """
    for point in curve:
        if point.recall >= recall:
            return dict(point.search_parameters)
    raise ConfigError(
        f"no search parameters of this index reach a recall@10 of {recall:g}; the highest measured is "
        f"{curve[-1].recall:.4f}. Ask for that, search exactly (--exact), or build with a higher index.recall."
    )


def parameter_grid(index: Any, k: int = 10) -> list[dict[str, int]]:
    """Settings for a query for the best `k`, in ascending work; a parameter grows by doubling up to its largest value.

    An index with one parameter has one setting for each doubling. With two, a search whose candidates are scored
    again, there are all pairs but those that spend nearly everything on one of the two and could spend it on the
    other. An index without parameters has one setting, which is empty.
    """
    steps = {name: _doublings(least, most) for name, (least, most) in _bounds(index, k).items()}
    settings = [dict(zip(steps, values, strict=True)) for values in product(*steps.values())]
    if len(steps) > 1:
        settings = [setting for setting in settings if _is_balanced(index, k, setting, steps)]
    return sorted(
        settings, key=lambda setting: (query_cost(index, k, parameters=setting).cost, sorted(setting.items()))
    )


def _bounds(index: Any, k: int) -> dict[str, tuple[int, int]]:
    least, bounds = {"nprobe": 1, "efSearch": LEAST_WIDTH, "k_factor": 1}, {}
    for name, most in largest_parameters(index).items():
        if name == "k_factor":
            most = min(_MOST_CANDIDATES, -(-most // k))  # as many candidates as there are rows
        if name == "efSearch":
            most = min(most, WIDEST_WALK)
        bounds[name] = (min(least[name], most), most)
    return bounds


def _doublings(least: int, most: int) -> list[int]:
    found = [least]
    while found[-1] < most:
        found.append(min(2 * found[-1], most))
    return found


def _is_balanced(index: Any, k: int, setting: dict[str, int], steps: dict[str, list[int]]) -> bool:
    """Whether work could not be moved between scanning and scoring again to where there is far less of it."""
    scan = query_cost(index, k, parameters={**setting, "k_factor": 1}).cost
    share = (query_cost(index, k, parameters=setting).cost - scan) / scan
    can_scan_more = any(setting[name] < values[-1] for name, values in steps.items() if name != "k_factor")
    can_score_more = setting["k_factor"] < steps["k_factor"][-1]
    return not (share < _LEAST_SHARE and can_score_more) and not (share > _MOST_SHARE and can_scan_more)
