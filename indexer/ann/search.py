"""The best rows of an index, among all or the allowed rows, with ties.

An approximate search that returns too few rows is repeated with wider parameters.
"""

from collections.abc import Sequence
from typing import Any

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
    """Return (scores, rows) for each query (n, d): the best `k` rows and all ties with the k-th, best first.

    An exact index returns all ties, an approximate index those that its search reaches. `allowed` (ntotal,) marks the
    rows to search; None is all. The fewer rows are allowed, the wider the search, so filters cost no recall. If scoring
    each allowed row is less work, and the index stores their vectors (see `storage_of`), it does that instead.

    Fewer than k rows return only if there are no more, or if the index can neither filter during the search (see
    `supports_filter`) nor score allowed rows; the caller then scores them. On an exact index each score is the float64
    dot product rounded to float32, so one query gives the same answer alone and in a batch.

    Raises ConfigError for k under 1 and for `allowed` that is not a bool for each row.
    """
    if k < 1:
        raise ConfigError(f"k is {k}; expected at least 1.")
    count = _count_allowed(index, allowed)
    if count == 0 or not len(queries):
        return [nothing() for _ in queries]
    k = min(k, count)
    if count == index.ntotal:
        allowed = None
    if isinstance(index, DeviceIndex):
        return index.search(queries, k, allowed)
    if is_flat(index):
        return exact_search(index, queries, k, allowed)
    if allowed is None:
        return approximate_search(index, queries, k)
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
    """Search for allowed rows only, or score each of them, whichever is less work and finds enough."""
    if is_flat(index):
        return exact_search(index, queries, k, allowed)
    store, scoring = storage_of(index), score_rows(index, index.ntotal, count)
    if store is None or scoring is None:
        return filtered_search(index, queries, k, allowed, count)
    if scoring.cost <= query_cost(index, k, allowed=count).cost:
        return _search_some(store, queries, k, allowed, count)
    answers = filtered_search(index, queries, k, allowed, count)
    short = [query for query, (_, rows) in enumerate(answers) if len(rows) < k]
    if short:
        for query, answer in zip(short, _search_some(store, queries[short], k, allowed, count), strict=True):
            answers[query] = answer
    return answers


def approximate_search(index: Any, queries: Vectors, k: int) -> list[SearchResult]:
    """Return for each query (n, d) the best `k` rows that the search reaches, and all ties with the k-th."""
    parameters = search_parameters(index)
    widest = {**parameters, **{name: most for name, most in largest_parameters(index).items() if name in REACHING}}
    return _until_full(index, queries, k, parameters, widest)


def filtered_search(index: Any, queries: Vectors, k: int, allowed: Mask, count: int) -> list[SearchResult]:
    """Like `approximate_search`, among the allowed rows (ntotal,), `count` in number."""
    if not supports_filter(index):
        return _and_drop(index, queries, k, allowed, count)
    parameters = widened_for_filter(index, search_parameters(index), count / index.ntotal)
    widest = widened_for_filter(index, parameters, 1 / index.ntotal)
    for some in (parameters, widest):
        if "efSearch" in some:
            some["efSearch"] = min(some["efSearch"], max(WIDEST_WALK, search_parameters(index)["efSearch"]))
    return _until_full(index, queries, k, parameters, widest, allowed)


def _until_full(
    index: Any,
    queries: Vectors,
    k: int,
    parameters: dict[str, int],
    widest: dict[str, int],
    allowed: Mask | None = None,
) -> list[SearchResult]:
    """Repeat queries with too few rows with wider parameters, and queries with ties at the cut for more rows."""
    results: list[SearchResult] = [nothing()] * len(queries)
    most = index.ntotal if allowed is None else int(np.count_nonzero(allowed))
    candidates = k * parameters.get("k_factor", 1)
    pending, reach = np.arange(len(queries)), min(k + SPARE, most)
    while len(pending):
        scores, rows = faiss_search(index, queries[pending], reach, parameters, candidates, allowed)
        valid = rows >= 0  # FAISS pads with -1
        kept = valid if allowed is None else valid & allowed[rows]
        best = _top_k(scores, rows, kept, k)
        for query, answer in zip(pending.tolist(), best, strict=True):
            results[query] = answer
        lacks = np.count_nonzero(kept, axis=1) < k
        again = _may_tie(scores, kept, best, k) & (reach < most)
        if parameters != widest:
            again |= lacks
        if lacks.any():
            parameters = {name: min(2 * value, widest[name]) for name, value in parameters.items()}
        else:
            reach = min(4 * reach, most)
        pending = pending[again]
    return results


def _and_drop(index: Any, queries: Vectors, k: int, allowed: Mask, count: int) -> list[SearchResult]:
    """Search for enough rows that `k` of them are allowed, but at most as many as are allowed in all."""
    results: list[SearchResult] = [nothing()] * len(queries)
    parameters = search_parameters(index)
    most = min(index.ntotal, max(count, k + SPARE))
    pending, reach = np.arange(len(queries)), oversampling(k, count, index.ntotal)
    while len(pending):
        scores, rows = faiss_search(index, queries[pending], reach, parameters, reach * parameters.get("k_factor", 1))
        valid = rows >= 0
        kept = valid & allowed[rows]
        best = _top_k(scores, rows, kept, k)
        for query, answer in zip(pending.tolist(), best, strict=True):
            results[query] = answer
        lacks = np.count_nonzero(kept, axis=1) < k
        pending = pending[(lacks | _may_tie(scores, valid, best, k)) & (reach < most)]
        reach = min(4 * reach, most)
    return results


def _top_k(scores: Scores, rows: RowIds, kept: Mask, k: int) -> list[SearchResult]:
    """`top_k` for each query, among scores and rows (n, m) that are `kept` (n, m)."""
    scores = np.where(kept, scores, -np.inf)
    order = np.lexsort((rows, -scores))
    scores, rows = np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)
    finite = np.count_nonzero(kept, axis=1)
    last = np.take_along_axis(scores, np.clip(finite, 1, k)[:, None] - 1, axis=1)
    counts = np.minimum(np.count_nonzero(scores >= last, axis=1), finite)  # scores from `finite` on are -inf
    return [(scores[query, :count], rows[query, :count]) for query, count in enumerate(counts.tolist())]


def _may_tie(scores: Scores, kept: Mask, best: Sequence[SearchResult], k: int) -> Mask:
    """Whether rows beyond those of FAISS could tie with the last of the best `k`, for each query, (n,)."""
    last = np.array([answer[0][k - 1] if len(answer[1]) >= k else np.inf for answer in best], np.float32)
    return kept.all(axis=1) & (scores[:, -1] >= last)
