"""Exact search of an index that holds the vectors as they are.

Float32 scores choose candidates, float64 dot products decide: the last bits of a float32 score depend on how many
queries come at once, and on the device. A float32 sum of d products of unit vectors, added up in any order, is wrong by
at most d * 2**-24, for the row that was found and for the one that was not, so candidates are asked for until the last
of them is further than twice that below the k-th.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from indexer.ann.arrays import Found, Mask, Rows, Scores, Vectors, best_first, best_of
from indexer.ann.asking import ask
from indexer.ann.making import add_vectors, make_index, vectors_at
from indexer.ann.parameters import SPARE, SPARSE

Ask = Callable[
    [Vectors, int], tuple[Scores, Rows]
]  # the best `reach` rows of each query, by float32 scores, best first
_BLOCK_BYTES = 32 << 20  # of allowed vectors, copied at once
_FEW_QUERIES = 4  # for more, copies are worth it: FAISS compares allowed rows with one query after the other


def search_flat(index: Any, queries: Vectors, k: int, allowed: Mask | None = None) -> list[Found]:
    """For each query (n, d) the best `k` rows and all that tie with the k-th. `k` is at most the rows allowed."""
    most = index.ntotal if allowed is None else int(np.count_nonzero(allowed))
    if allowed is not None and (len(queries) > _FEW_QUERIES or most * SPARSE < index.ntotal):
        return search_copies(index, queries, k, np.flatnonzero(allowed))
    return until_certain(index, lambda some, reach: ask(index, some, reach, {}, allowed=allowed), queries, k, most)


def until_certain(index: Any, ask_for: Ask, queries: Vectors, k: int, most: int) -> list[Found]:
    """Ask for candidates, `most` there are, until none of the others can be among the best `k` or tie with the k-th.

    `index` is the flat index that has their vectors.
    """
    results: dict[int, Found] = {}
    pending, reach = list(range(len(queries))), min(k + SPARE, most)
    while pending:
        scores, rows = ask_for(queries[pending], reach)
        again = []
        for position, query in enumerate(pending):
            results[query] = best_first(_exact(index, queries[query], rows[position]), rows[position], k)
            if reach < most and scores[position][-1] >= results[query][0][-1] - index.d * 2.0**-23:
                again.append(query)
        pending, reach = again, min(4 * reach, most)
    return [results[query] for query in range(len(queries))]


def search_copies(index: Any, queries: Vectors, k: int, rows: Rows) -> list[Found]:
    """The same of some rows only, which are copied into an index of their own block by block."""
    most, found = max(1, _BLOCK_BYTES // (4 * index.d)), [list[Found]() for _ in queries]
    for start in range(0, len(rows), most):
        some = rows[start : start + most]
        block = make_index("Flat", index.d)
        add_vectors(block, vectors_at(index, some))
        for answers, (scores, places) in zip(found, search_flat(block, queries, min(k, len(some))), strict=True):
            answers.append((scores, some[places]))
    return [best_of(answers, k) for answers in found]


def _exact(index: Any, query: Vectors, rows: Rows) -> Scores:
    scores: Scores = (vectors_at(index, rows).astype(np.float64) @ query.astype(np.float64)).astype(np.float32)
    return scores
