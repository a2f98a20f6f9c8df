"""Reciprocal rank fusion (Cormack, Clarke and Buettcher, SIGIR 2009): rankings whose scores cannot be compared.

`isotrope query --hybrid` fuses what the vectors find with what BM25 finds, and `isotrope evaluate retrieval --hybrid`
measures that fusion (`fuse_top_k`).
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from indexer.arrays import RowIds, SearchResult

RRF_K = 60  # the paper's
DEPTH = 1000


def list_depth(k: int) -> int:
    """How many hits each ranking is asked for when k are wanted.

    The same for every k up to 1,000, so that the first hits do not change when more are asked for.
    """
    return max(DEPTH, k)


def reciprocal_rank_fusion(
    rankings: Sequence[Iterable[int]], depth: int, constant: int = RRF_K
) -> list[tuple[float, int]]:
    """(score, document) of all documents among the first `depth` of any ranking, best first, ties by number.

    A document's score is the sum of 1 / (constant + rank) over the rankings that have it, ranks from 1. Each
    ranking holds a document once, best first. The order of the rankings does not matter.
    """
    shares: defaultdict[int, list[float]] = defaultdict(list)
    for ranking in rankings:
        for rank, document in zip(range(1, depth + 1), ranking, strict=False):
            shares[document].append(1 / (constant + rank))
    return sorted(
        ((math.fsum(share), document) for document, share in shares.items()), key=lambda hit: (-hit[0], hit[1])
    )


FUSION_PARAMETERS: dict[str, Any] = {"method": "reciprocal rank", "constant": RRF_K, "depth": DEPTH}


def describe_hybrid() -> str:
    """How rankings are fused, in a few words."""
    return (
        f"hybrid: the first {DEPTH:,} of the vectors and of BM25, fused by {FUSION_PARAMETERS['method']} with "
        f"constant {RRF_K} (Cormack et al., 2009)"
    )


def fuse_top_k(
    vectors: Sequence[SearchResult], words: Sequence[SearchResult], places: RowIds, depth: int
) -> list[SearchResult]:
    """For each query the best `depth` documents of two rankings, ties by id; both were asked for `depth`."""
    return [_fused([found[1], other[1]], places, depth) for found, other in zip(vectors, words, strict=True)]


def _fused(rankings: Sequence[RowIds], places: RowIds, depth: int) -> SearchResult:
    hits = reciprocal_rank_fusion([numbers.tolist() for numbers in rankings], list_depth(depth))
    scores = np.array([score for score, _ in hits])
    numbers = np.array([number for _, number in hits], np.int64)
    best = np.lexsort((places[numbers], -scores))[:depth]
    return scores[best].astype(np.float32), numbers[best]
