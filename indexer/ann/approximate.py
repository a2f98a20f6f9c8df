"""Approximate search, repeated with more reach until it found enough, of all rows or of those that are allowed."""

from typing import Any

from indexer.ann.arrays import Found, Mask, Scores, Vectors, best_first
from indexer.ann.asking import ask, takes_selector
from indexer.ann.parameters import (
    REACHING,
    SPARE,
    WIDEST_WALK,
    largest_parameters,
    reach_to_drop,
    search_parameters,
    wider_for,
)


def search_all(index: Any, queries: Vectors, k: int) -> list[Found]:
    """For each query (n, d) the best `k` rows that are found, and all that tie with the k-th."""
    parameters = search_parameters(index)
    widest = {**parameters, **{name: most for name, most in largest_parameters(index).items() if name in REACHING}}
    return _until_full(index, queries, k, parameters, widest, index.ntotal, None)


def search_allowed(index: Any, queries: Vectors, k: int, allowed: Mask, count: int) -> list[Found]:
    """The same of the allowed rows (ntotal,), `count` of them."""
    if not takes_selector(index):
        return _and_drop(index, queries, k, allowed, count)
    parameters = wider_for(index, search_parameters(index), count / index.ntotal)
    widest = wider_for(index, parameters, 1 / index.ntotal)
    for some in (parameters, widest):
        if "efSearch" in some:
            some["efSearch"] = min(some["efSearch"], max(WIDEST_WALK, search_parameters(index)["efSearch"]))
    return _until_full(index, queries, k, parameters, widest, count, allowed)


def _until_full(
    index: Any,
    queries: Vectors,
    k: int,
    parameters: dict[str, int],
    widest: dict[str, int],
    most: int,
    allowed: Mask | None,
) -> list[Found]:
    """Queries that got too few rows again with wider parameters, those that tie at the cut for more rows."""
    results: dict[int, Found] = {}
    candidates = k * parameters.get("k_factor", 1)
    pending, reach = list(range(len(queries))), min(k + SPARE, most)
    while pending:
        scores, rows = ask(index, queries[pending], reach, parameters, candidates, allowed)
        again, short = [], False
        for position, query in enumerate(pending):
            found = rows[position] >= 0  # FAISS pads with -1
            if allowed is not None:
                found &= allowed[rows[position]]
            results[query] = best_first(scores[position][found], rows[position][found], k)
            lacks = len(results[query][1]) < k
            short |= lacks
            may_tie = reach < most and _may_tie(scores[position], found, results[query], k)
            if may_tie or (lacks and parameters != widest):
                again.append(query)
        if short:
            parameters = {name: min(2 * value, widest[name]) for name, value in parameters.items()}
        else:
            reach = min(4 * reach, most)
        pending = again
    return [results[query] for query in range(len(queries))]


def _and_drop(index: Any, queries: Vectors, k: int, allowed: Mask, count: int) -> list[Found]:
    """Search for so many rows that enough of them are allowed, but for no more than are allowed in all."""
    results: dict[int, Found] = {}
    parameters = search_parameters(index)
    most = min(index.ntotal, max(count, k + SPARE))
    pending, reach = list(range(len(queries))), reach_to_drop(k, count, index.ntotal)
    while pending:
        scores, rows = ask(index, queries[pending], reach, parameters, reach * parameters.get("k_factor", 1))
        again = []
        for position, query in enumerate(pending):
            given = rows[position] >= 0
            found = given & allowed[rows[position]]
            results[query] = best_first(scores[position][found], rows[position][found], k)
            lacks = len(results[query][1]) < k
            if reach < most and (lacks or _may_tie(scores[position], given, results[query], k)):
                again.append(query)
        pending, reach = again, min(4 * reach, most)
    return [results[query] for query in range(len(queries))]


def _may_tie(scores: Scores, given: Mask, best: Found, k: int) -> bool:
    """Whether rows beyond those that FAISS gave could tie with the last of the best `k`."""
    return bool(given.all() and len(best[1]) >= k and scores[-1] >= best[0][k - 1])
