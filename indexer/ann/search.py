"""The best rows of an index, among all or among those allowed, ties included.

An approximate search is repeated with more reach until it has found enough.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from indexer.ann.choosing.cost import query_cost, score_rows
from indexer.ann.exact import DeviceIndex, exact_search, nothing
from indexer.ann.faiss_index import apply_pretransforms, is_flat, storage_of
from indexer.ann.parameters import (
    REACHING,
    SPARE,
    WIDEST_WALK,
    faiss_search,
    largest_parameters,
    oversampling,
    search_parameters,
    supports_filter,
    widened_for_filter,
)
from indexer.arrays import Mask, RowIds, Scores, SearchResult, Vectors
from indexer.errors import ConfigError


def search_index(index: Any, queries: Vectors, k: int, allowed: Mask | None = None) -> list[SearchResult]:
    """For each query (n, d), the best `k` rows of the index and those that tie with the k-th, best first.

    An exact index returns all ties, an approximate one those that its search reaches. Returns (scores, rows) a query.
    `allowed` (ntotal,) says which rows may be found; None is all of them. The search is as much wider as fewer rows
    are allowed, so filters cost no recall; where that is more work than to score each of them, the index does so if it
    holds what that takes (see `storage_of`).

    Fewer than k come back only when there are no more, or from an index that cannot be searched for some rows only
    (see `supports_filter`) and cannot score them either: the caller scores them. On an exact index each score is the
    float64 dot product rounded to float32, so one query and a batch of queries give the same answer.

    Raises ConfigError for k under 1 and for `allowed` that is not a bool for each row.
    """
    if k < 1:
        raise ConfigError(f"k is {k}; expected at least 1.")
    count = _count_allowed(index, allowed)
    if count == 0 or not len(queries):
        return [nothing() for _ in queries]
    if count == index.ntotal:
        allowed = None
    if isinstance(index, DeviceIndex):
        return index.search(queries, min(k, count), allowed)
    if is_flat(index):
        return exact_search(index, queries, min(k, count), allowed)
    if allowed is None:
        return approximate_search(index, queries, min(k, count))
    return _search_some(*apply_pretransforms(index, queries), k, allowed, count)


def _count_allowed(index: Any, allowed: Mask | None) -> int:
    if allowed is None:
        return int(index.ntotal)
    if allowed.dtype != np.bool_ or allowed.shape != (index.ntotal,):
        raise ConfigError(
            f"allowed rows are {allowed.dtype} of shape {allowed.shape}; expected a bool for each of "
            f"{index.ntotal:,} rows."
        )
    return int(np.count_nonzero(allowed))


def _search_some(index: Any, queries: Vectors, k: int, allowed: Mask, count: int) -> list[SearchResult]:
    """Search for allowed rows only, or score each of them: what is less work, and what finds enough."""
    if is_flat(index):
        return exact_search(index, queries, min(k, count), allowed)
    store, scoring = storage_of(index), score_rows(index, index.ntotal, count)
    if store is None or scoring is None:
        return filtered_search(index, queries, min(k, count), allowed, count)
    if scoring.cost <= query_cost(index, k, allowed=count).cost:
        return _search_some(store, queries, k, allowed, count)
    found = filtered_search(index, queries, min(k, count), allowed, count)
    short = [query for query, (_, rows) in enumerate(found) if len(rows) < min(k, count)]
    if short:
        for query, best in zip(short, _search_some(store, queries[short], k, allowed, count), strict=True):
            found[query] = best
    return found


class _Limits(NamedTuple):
    """How far a search may go: the widest parameters, and as many rows as there are to find."""

    parameters: dict[str, int]
    rows: int


def approximate_search(index: Any, queries: Vectors, k: int) -> list[SearchResult]:
    """For each query (n, d) the best `k` rows that are found, and all that tie with the k-th."""
    parameters = search_parameters(index)
    widest = {**parameters, **{name: most for name, most in largest_parameters(index).items() if name in REACHING}}
    return _until_full(index, queries, k, parameters, _Limits(widest, index.ntotal))


def filtered_search(index: Any, queries: Vectors, k: int, allowed: Mask, count: int) -> list[SearchResult]:
    """The same of the allowed rows (ntotal,), `count` of them."""
    if not supports_filter(index):
        return _and_drop(index, queries, k, allowed, count)
    parameters = widened_for_filter(index, search_parameters(index), count / index.ntotal)
    widest = widened_for_filter(index, parameters, 1 / index.ntotal)
    for some in (parameters, widest):
        if "efSearch" in some:
            some["efSearch"] = min(some["efSearch"], max(WIDEST_WALK, search_parameters(index)["efSearch"]))
    return _until_full(index, queries, k, parameters, _Limits(widest, count), allowed)


def _until_full(
    index: Any,
    queries: Vectors,
    k: int,
    parameters: dict[str, int],
    limits: _Limits,
    allowed: Mask | None = None,
) -> list[SearchResult]:
    """Queries that got too few rows again with wider parameters, those that tie at the cut for more rows."""
    results: list[SearchResult] = [nothing()] * len(queries)
    widest, most = limits
    candidates = k * parameters.get("k_factor", 1)
    pending, reach = np.arange(len(queries)), min(k + SPARE, most)
    while len(pending):
        scores, rows = faiss_search(index, queries[pending], reach, parameters, candidates, allowed)
        given = rows >= 0  # FAISS pads with -1
        found = given if allowed is None else given & allowed[rows]
        best = _top_k(scores, rows, found, k)
        for query, answer in zip(pending.tolist(), best, strict=True):
            results[query] = answer
        lacks = np.count_nonzero(found, axis=1) < k
        again = _may_tie(scores, found, best, k) & (reach < most)
        if parameters != widest:
            again |= lacks
        if lacks.any():
            parameters = {name: min(2 * value, widest[name]) for name, value in parameters.items()}
        else:
            reach = min(4 * reach, most)
        pending = pending[again]
    return results


def _and_drop(index: Any, queries: Vectors, k: int, allowed: Mask, count: int) -> list[SearchResult]:
    """Search for so many rows that enough of them are allowed, but for no more than are allowed in all."""
    results: list[SearchResult] = [nothing()] * len(queries)
    parameters = search_parameters(index)
    most = min(index.ntotal, max(count, k + SPARE))
    pending, reach = np.arange(len(queries)), oversampling(k, count, index.ntotal)
    while len(pending):
        scores, rows = faiss_search(index, queries[pending], reach, parameters, reach * parameters.get("k_factor", 1))
        given = rows >= 0
        found = given & allowed[rows]
        best = _top_k(scores, rows, found, k)
        for query, answer in zip(pending.tolist(), best, strict=True):
            results[query] = answer
        lacks = np.count_nonzero(found, axis=1) < k
        pending = pending[(lacks | _may_tie(scores, given, best, k)) & (reach < most)]
        reach = min(4 * reach, most)
    return results


def _top_k(scores: Scores, rows: RowIds, found: Mask, k: int) -> list[SearchResult]:
    """`top_k` of each query: of scores and rows (n, m), those that are `found` (n, m)."""
    scores = np.where(found, scores, -np.inf)
    order = np.lexsort((rows, -scores))
    scores, rows = np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)
    there = np.count_nonzero(found, axis=1)
    last = np.take_along_axis(scores, np.clip(there, 1, k)[:, None] - 1, axis=1)
    kept = np.minimum(np.count_nonzero(scores >= last, axis=1), there)  # all beyond `there` are -inf
    return [(scores[query, :count], rows[query, :count]) for query, count in enumerate(kept.tolist())]


def _may_tie(scores: Scores, given: Mask, best: Sequence[SearchResult], k: int) -> Mask:
    """For each query whether rows beyond those that FAISS gave could tie with the last of the best `k`, (n,)."""
    last = np.array([answer[0][k - 1] if len(answer[1]) >= k else np.inf for answer in best], np.float32)
    may: Mask = given.all(axis=1) & (scores[:, -1] >= last)
    return may
