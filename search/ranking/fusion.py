"""Fusion of two rankings: by a convex combination of their scores, or by reciprocal ranks.

The convex combination (Bruch, Gai and Ingber, ACM TOIS 2023, arXiv:2210.11934) adds the vectors' score with a weight w
to BM25's score with 1 - w. Both are scaled for each query, and computed for every candidate: a document that one list
missed has its true score there, not 0. There are two scales (`hybrid.scaling`):

    minmax   0 is the score of a random document (the mean of 1,000 documents for the vectors, 0 for BM25), 1 the best
             score, or a standard deviation of those 1,000 if no candidate reaches it
    zscore   0 is the mean of those 1,000 documents, of all documents for BM25, and 1 a standard deviation above it

The paper's 0, the least score of the candidates, would depend on the number of candidates. Reciprocal rank fusion
(Cormack, Clarke and Buettcher, SIGIR 2009) uses only ranks, and has no weight.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from indexer.arrays import Float64Array, Mask, RowIds, Scores
from indexer.recipe.ranking import HybridConfig

RRF_K = 60  # as in the paper
DEPTH = 1000
_DRAWN = 1000  # rows that estimate the score of a random document
_ROUNDING = 1e-6  # scores are rounded to float32: smaller differences are none


def list_depth(k: int) -> int:
    """Return the depth of each ranking for k hits: equal for every k up to 1,000, so that k changes no first hits."""
    return max(DEPTH, k)


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of a query's scores over documents: numbers, or columns (queries, 1)."""

    mean: Any
    deviation: Any

    @classmethod
    def of(cls, scores: Any) -> "Spread":
        """Return the spread of scores (n,), or of each query's scores (queries, n); 0 and 0 without scores."""
        wide = np.asarray(scores, np.float64)
        if not wide.shape[-1]:
            return cls(0.0, 0.0)
        keep = wide.ndim > 1
        return cls(wide.mean(axis=-1, keepdims=keep), wide.std(axis=-1, keepdims=keep))


@dataclass(frozen=True)
class BothScores:
    """Scores of candidates in both rankings, (m,) or (queries, m), and the spread of each over documents."""

    vector: Scores | Float64Array
    bm25: Scores | Float64Array
    vector_spread: Spread
    bm25_spread: Spread

    def combined(self, config: HybridConfig) -> Float64Array:
        """Return the convex combination, of the same shape."""
        if config.scaling == "zscore":
            near, words = _in_deviations(self.vector, self.vector_spread), _in_deviations(self.bm25, self.bm25_spread)
        else:
            near, words = _to_the_best(self.vector, self.vector_spread), _to_the_best(self.bm25, Spread(0.0, 0.0))
        total: Float64Array = config.weight * near + (1 - config.weight) * words
        return total

    def found(self, config: HybridConfig) -> Mask:
        """Return a mask of the candidates that are hits: all, or those with a BM25 score if only words count."""
        return np.asarray(self.bm25 > 0) if not config.weight else np.ones(np.shape(self.bm25), bool)


def _to_the_best(scores: Scores | Float64Array, chance: Spread) -> Float64Array:
    """Return scores scaled to 0 at the mean of `chance` and 1 at the best; all 0 if they are equal.

    The best is at least a standard deviation above the mean: after filtering it can be lower, and the scores still
    need an order.
    """
    wide = np.asarray(scores, np.float64)
    height = np.maximum(wide.max(axis=-1, keepdims=True, initial=-np.inf) - chance.mean, chance.deviation)
    apart = np.broadcast_to(height > _ROUNDING, wide.shape)
    scaled: Float64Array = np.divide(wide - chance.mean, height, out=np.zeros_like(wide), where=apart)
    return scaled


def _in_deviations(scores: Scores | Float64Array, spread: Spread) -> Float64Array:
    wide = np.asarray(scores, np.float64)
    varied = np.broadcast_to(np.asarray(spread.deviation) > _ROUNDING, wide.shape)
    scaled: Float64Array = np.divide(wide - spread.mean, spread.deviation, out=np.zeros_like(wide), where=varied)
    return scaled


def drawn_rows(rows: int) -> RowIds:
    """Return the rows that represent random documents: at most 1,000, evenly spaced."""
    return np.unique(np.linspace(0, max(rows - 1, 0), min(rows, _DRAWN)).astype(np.int64))


def reciprocal_rank_fusion(rankings: Sequence[Iterable[int]], depth: int) -> list[tuple[float, int]]:
    """Return (score, document) of all documents in the first `depth` of any ranking, best first, ties by number.

    A document's score is the sum of 1 / (60 + rank) over the rankings that contain it, ranks from 1. Each
    ranking contains a document once, best first. The order of the rankings does not matter.
    """
    shares: defaultdict[int, list[float]] = defaultdict(list)
    for ranking in rankings:
        for rank, document in zip(range(1, depth + 1), ranking, strict=False):
            shares[document].append(1 / (RRF_K + rank))
    totals = [(math.fsum(share), document) for document, share in shares.items()]
    return sorted(totals, key=lambda hit: (-hit[0], hit[1]))


def fusion_parameters(config: HybridConfig) -> dict[str, Any]:
    """Return everything that determines a fused score, as JSON types."""
    if config.fusion == "rrf":
        return {"method": "reciprocal rank", "constant": RRF_K, "depth": DEPTH}
    return {"method": "convex combination", "weight": config.weight, "scaling": config.scaling, "depth": DEPTH}


def fusion_name(parameters: Mapping[str, Any]) -> str:
    """Return a short name of a fusion: "rrf", or the weight of the vectors."""
    return f"{parameters['weight']:g}" if "weight" in parameters else "rrf"


def describe_fusion(parameters: Mapping[str, Any]) -> str:
    """Return the parameters as one line of text."""
    lists = f"hybrid: the first {parameters.get('depth', 0):,} of the vectors and of BM25, fused by "
    if "weight" in parameters:
        return (
            f"{lists}convex combination ({parameters.get('scaling')}, weight of the vectors "
            f"{parameters.get('weight')}; Bruch et al., 2023)"
        )
    return f"{lists}{parameters.get('method')} with constant {parameters.get('constant')} (Cormack et al., 2009)"
