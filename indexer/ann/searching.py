"""Searching an index: the best rows of each query, of all rows or of those that are allowed, ties included."""

from typing import Any

import numpy as np

from indexer.ann.approximate import search_all, search_allowed
from indexer.ann.arrays import Found, Mask, Vectors, nothing
from indexer.ann.devices import Accelerated
from indexer.ann.flat import search_flat
from indexer.ann.layers import inside_transforms, is_flat, row_store
from indexer.ann.work import reads, score_rows
from indexer.errors import ConfigError


def search_index(index: Any, queries: Vectors, k: int, allowed: Mask | None = None) -> list[Found]:
    """For each query (n, d), the best `k` rows of the index and all that tie with the k-th, best first.

    Returns (scores, rows) a query. `allowed` (ntotal,) says which rows may be found; None is all of them. The search
    is as much wider as fewer rows are allowed, so filters cost no recall; where that is more work than to score each
    of them, the index does so if it holds what that takes (see `row_store`).

    Fewer than k come back only when there are no more, or from an index that cannot be searched for some rows only
    (see `takes_selector`) and cannot score them either: the caller scores them. On an exact index each score is the
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
    if isinstance(index, Accelerated):
        return index.search(queries, min(k, count), allowed)
    if is_flat(index):
        return search_flat(index, queries, min(k, count), allowed)
    if allowed is None:
        return search_all(index, queries, min(k, count))
    return _search_some(*inside_transforms(index, queries), k, allowed, count)


def _search_some(index: Any, queries: Vectors, k: int, allowed: Mask, count: int) -> list[Found]:
    """Search for allowed rows only, or score each of them: what is less work, and what finds enough."""
    if is_flat(index):
        return search_flat(index, queries, min(k, count), allowed)
    store, scoring = row_store(index), score_rows(index, index.ntotal, count)
    if store is None or scoring is None:
        return search_allowed(index, queries, min(k, count), allowed, count)
    if scoring.cost <= reads(index, k, allowed=count).cost:
        return _search_some(store, queries, k, allowed, count)
    found = search_allowed(index, queries, min(k, count), allowed, count)
    short = [query for query, (_, rows) in enumerate(found) if len(rows) < min(k, count)]
    if short:
        for query, best in zip(short, _search_some(store, queries[short], k, allowed, count), strict=True):
            found[query] = best
    return found


def _count_allowed(index: Any, allowed: Mask | None) -> int:
    if allowed is None:
        return int(index.ntotal)
    if allowed.dtype != np.bool_ or allowed.shape != (index.ntotal,):
        raise ConfigError(
            f"allowed rows are {allowed.dtype} of shape {allowed.shape}; expected a bool for each of "
            f"{index.ntotal:,} rows."
        )
    return int(np.count_nonzero(allowed))
