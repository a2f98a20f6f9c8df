"""Hybrid rankings: what a setting's vectors find and what BM25 finds, fused as `isotrope query --hybrid` does."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from indexer.arrays import RowIds, SearchResult
from search.hybrid.fusion import CONSTANT, DEPTH, fuse, list_depth

FUSION: dict[str, Any] = {"method": "reciprocal rank", "constant": CONSTANT, "depth": DEPTH}


def hybrid_label(setting: str) -> str:
    """What the hybrid of a setting is called."""
    return f"hybrid {setting}"


def describe_hybrid() -> str:
    """How rankings are fused, in a few words."""
    return (
        f"hybrid: the first {DEPTH:,} of the vectors and of BM25, fused by {FUSION['method']} with constant {CONSTANT} "
        "(Cormack et al., 2009)"
    )


def fuse_answers(
    vectors: Sequence[SearchResult], words: Sequence[SearchResult], places: RowIds, depth: int
) -> list[SearchResult]:
    """For each query the best `depth` documents of two rankings, ties by id; both were asked for `depth`."""
    return [_fused([found[1], other[1]], places, depth) for found, other in zip(vectors, words, strict=True)]


def _fused(rankings: Sequence[RowIds], places: RowIds, depth: int) -> SearchResult:
    hits = fuse([numbers.tolist() for numbers in rankings], list_depth(depth))
    scores = np.array([score for score, _ in hits])
    numbers = np.array([number for _, number in hits], np.int64)
    best = np.lexsort((places[numbers], -scores))[:depth]
    return scores[best].astype(np.float32), numbers[best]
