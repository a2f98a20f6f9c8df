"""Ranking by Jensen-Shannon divergence, for indexes of pooling "latte-mix": candidates by inner product, then exact.

A hit's score is 1 - JS / ln 2, averaged over the latent dimensions: 1 for equal mixtures, 0 for disjoint mixtures. If
vectors are square roots (`whitening.kind = "hellinger"`), no document scores more than its inner product s with the
query. Once the k-th score is at least the last candidate's s, no other document can be better: the answer is proved
exact.
"""

import math

import numpy as np

from indexer.arrays import Embeddings, Mask, SearchResult
from indexer.errors import ConfigError
from indexer.papers.latte_mix.divergence import js_similarities
from indexer.papers.latte_mix.hellinger import Hellinger
from search.index import Index
from search.ranking.similarities import ProvedTopK
from search.segments import MissingRows

CANDIDATES = 10  # times k
FEWEST = 100  # candidates
# Rounding by which a score can exceed the inner product that bounds it: of a float32 product over a few thousand
# non-negative numbers, and of embeddings stored in 16 bits.
_ROUNDING = {"float32": 2.5e-5, "float16": 1e-3}
_SUM = 1e-2  # allowed difference of a distribution's sum from 1


def require_index(index: Index) -> None:
    """Raise ConfigError unless embeddings are categorical distributions."""
    encoder = index.config.encoder
    if not index.config.gives_probabilities:
        latent = f' with latent "{index.config.paper("latte_mix").latent}"' if encoder.pooling == "latte-mix" else ""
        raise ConfigError(
            f'{index.path}: similarity "js" compares categorical distributions; expected an index of '
            f'encoder.pooling = "latte-mix" with a categorical latent, but its pooling is "{encoder.pooling}"{latent}.'
        )


def require_queries(index: Index, rows: Embeddings) -> None:
    """Raise ConfigError for rows (n, d) that are not concatenated distributions."""
    sums = rows.reshape(len(rows), index.config.paper("latte_mix").dims, -1).sum(axis=2, dtype=np.float64)
    wrong = np.flatnonzero((rows < 0).any(axis=1) | (np.abs(sums - 1) > _SUM).any(axis=1))
    if len(wrong):
        raise ConfigError(
            f"query vector {wrong[0] + 1} is not made of distributions: expected numbers of at least 0 that sum to 1 "
            f"in each of {sums.shape[1]} dimensions, like embeddings of the index's encoder."
        )


def first_reach(k: int) -> int:
    """Return the number of candidates to compare first for k hits."""
    return max(CANDIDATES * k, FEWEST)


def rank(
    index: Index,
    mixtures: Embeddings,
    reach: int,
    allowed: Mask | None = None,
    exact: bool = False,
    missing: MissingRows | None = None,
) -> list[ProvedTopK]:
    """Rank the `reach` rows that the index finds for each query's distributions (n, d), by Jensen-Shannon divergence.

    This is one step: `search.ranking.ranker` widens the search until the answer is proved. `allowed` (rows,) marks the
    rows that can be returned, None all; `exact` compares with every row to find the candidates; `missing` is as in
    `Index.search`.
    """
    count = index.numbering.rows if allowed is None else int(np.count_nonzero(allowed))
    all_compared = exact or all(segment.exact for segment in index.searched)  # other rows have smaller inner products
    vectors = index.transform.transform(mixtures, "query")
    results = index.search(vectors, reach, allowed, exact, missing)
    return [
        _ranked(index, mixture, result, len(result[1]) >= count, all_compared)
        for mixture, result in zip(mixtures, results, strict=True)
    ]


def _ranked(
    index: Index, mixture: Embeddings, result: SearchResult, everything: bool, all_compared: bool
) -> ProvedTopK:
    products, rows = result
    dims = index.config.paper("latte_mix").dims
    scores = js_similarities(mixture[None], index.embeddings(rows), dims)[0].astype(np.float32)
    order = np.lexsort((rows, -scores))
    bound = -math.inf if everything else math.inf
    if not everything and all_compared and isinstance(index.transform, Hellinger) and len(rows):
        bound = float(products.min()) + _ROUNDING[index.config.store.embeddings]
    return ProvedTopK(scores[order], rows[order], bound)
