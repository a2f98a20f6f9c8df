"""Ranking by Jensen-Shannon divergence, for indexes of pooling "latte-mix": candidates by inner product, then exact.

A hit's score is 1 - JS / ln 2, averaged over the latent dimensions: 1 for equal mixtures, 0 for disjoint ones. Where
vectors are square roots (`whitening.kind = "hellinger"`), no document scores more than its inner product s with the
query, so once the k-th score is no less than the last candidate's s, nothing that was not looked at can be better: the
answer is then proved exact.
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
# By how much a score may exceed the inner product that bounds it: rounding of a float32 product over a few thousand
# numbers that are not negative, and of embeddings stored in 16 bits.
_ROUNDING = {"float32": 2.5e-5, "float16": 1e-3}
_SUM = 1e-2  # by which the sum of a distribution may differ from 1


def require_index(index: Index) -> None:
    """Raises ConfigError unless embeddings are categorical distributions."""
    encoder = index.config.encoder
    if not index.config.gives_probabilities:
        latent = f' with latent "{index.config.paper("latte_mix").latent}"' if encoder.pooling == "latte-mix" else ""
        raise ConfigError(
            f'{index.path}: similarity "js" compares categorical distributions; expected an index of '
            f'encoder.pooling = "latte-mix" with a categorical latent, but its pooling is "{encoder.pooling}"{latent}.'
        )


def require_queries(index: Index, rows: Embeddings) -> None:
    """Raises ConfigError for rows (n, d) that are not distributions side by side."""
    sums = rows.reshape(len(rows), index.config.paper("latte_mix").dims, -1).sum(axis=2, dtype=np.float64)
    wrong = np.flatnonzero((rows < 0).any(axis=1) | (np.abs(sums - 1) > _SUM).any(axis=1))
    if len(wrong):
        raise ConfigError(
            f"query vector {wrong[0] + 1} is not made of distributions: expected numbers of 0 and more that sum to 1 "
            f"in each of {sums.shape[1]} dimensions, as the index's own encoder gives."
        )


def first_reach(k: int) -> int:
    """How many candidates are compared first when k are wanted."""
    return max(CANDIDATES * k, FEWEST)


def rank(
    index: Index,
    mixtures: Embeddings,
    reach: int,
    allowed: Mask | None = None,
    exact: bool = False,
    missing: MissingRows | None = None,
) -> list[ProvedTopK]:
    """The `reach` rows that the index finds for each query's distributions (n, d), by Jensen-Shannon divergence.

    One step: who wants proof asks for more until there is one (`search.ranking.ranker`). `allowed` (rows,) says which
    rows may be found, None all; `exact` finds the candidates by comparing with every one of them; `missing` is as in
    `Index.search`.
    """
    count = index.numbering.rows if allowed is None else int(np.count_nonzero(allowed))
    all_compared = exact or all(segment.exact for segment in index.searched)  # no other has a larger inner product
    vectors = index.transform.transform(mixtures, "query")
    return [
        _ranked(index, mixture, found, len(found[1]) >= count, all_compared)
        for mixture, found in zip(mixtures, index.search(vectors, reach, allowed, exact, missing), strict=True)
    ]


def _ranked(index: Index, mixture: Embeddings, found: SearchResult, everything: bool, all_compared: bool) -> ProvedTopK:
    products, rows = found
    dims = index.config.paper("latte_mix").dims
    scores = js_similarities(mixture[None], index.embeddings(rows), dims)[0].astype(np.float32)
    order = np.lexsort((rows, -scores))
    bound = -math.inf if everything else math.inf
    if not everything and all_compared and isinstance(index.transform, Hellinger) and len(rows):
        bound = float(products.min()) + _ROUNDING[index.config.store.embeddings]
    return ProvedTopK(scores[order], rows[order], bound)
