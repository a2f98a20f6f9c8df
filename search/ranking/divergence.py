"""Ranking by Jensen-Shannon divergence, for indexes of pooling "latte-mix": candidates by inner product, then exact.

A hit's score is 1 - JS / ln 2, averaged over the latent dimensions: 1 for equal mixtures, 0 for disjoint ones. Where
vectors are square roots (`whitening.kind = "hellinger"`), no document scores more than its inner product s with the
query, so once the k-th score is no less than the last candidate's s, nothing that was not looked at can be better: the
answer is then proved exact.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from indexer.arrays import Mask, RowIds, SearchResult
from indexer.errors import ConfigError
from indexer.pooling.latte_mix.divergence import js_similarities
from indexer.transforms import Hellinger
from search.index import Index

Probabilities = npt.NDArray[np.floating]
CANDIDATES = 10  # times k
FEWEST = 100  # candidates
_WIDER = 4
# By how much a score may exceed the inner product that bounds it: rounding of a float32 product over a few thousand
# numbers that are not negative, and of embeddings stored in 16 bits.
_ROUNDING = {"float32": 2.5e-5, "float16": 1e-3}
_SUM = 1e-2  # by which the sum of a distribution may differ from 1


@dataclass(frozen=True)
class ProvedTopK:
    """The rows that were compared, best first. No other row scores more than `bound`: infinity where nothing is known,
    and less than any score once all were compared."""

    scores: npt.NDArray[np.float32]
    rows: RowIds
    bound: float

    def proven(self, k: int) -> bool:
        """Whether no other row can be among the best k."""
        return self.bound == -math.inf or (len(self.scores) >= k and float(self.scores[k - 1]) >= self.bound)


def require_probabilities(index: Index) -> None:
    """Raises ConfigError unless embeddings are categorical distributions."""
    encoder = index.config.encoder
    if not index.config.gives_probabilities:
        latent = f' with latent "{encoder.latte_mix.latent}"' if encoder.pooling == "latte-mix" else ""
        raise ConfigError(
            f'{index.path}: similarity "js" compares categorical distributions; expected an index of '
            f'encoder.pooling = "latte-mix" with a categorical latent, but its pooling is "{encoder.pooling}"{latent}.'
        )


def require_mixtures(index: Index, rows: Probabilities) -> None:
    """Raises ConfigError for rows (n, d) that are not distributions side by side."""
    sums = rows.reshape(len(rows), index.config.encoder.latte_mix.dims, -1).sum(axis=2, dtype=np.float64)
    wrong = np.flatnonzero((rows < 0).any(axis=1) | (np.abs(sums - 1) > _SUM).any(axis=1))
    if len(wrong):
        raise ConfigError(
            f"query vector {wrong[0] + 1} is not made of distributions: expected numbers of 0 and more that sum to 1 "
            f"in each of {sums.shape[1]} dimensions, as the index's own encoder gives."
        )


def rank_by_divergence(
    index: Index, query: Probabilities, k: int, allowed: Mask | None = None, exact: bool = False, reach: int = 0
) -> ProvedTopK:
    """The rows closest to a query's distributions (d,) by Jensen-Shannon divergence, at least k where there are.

    The candidates are the `reach` rows (0: `CANDIDATES` times k) that the index finds for the transformed query.
    `exact` widens them until the best k are proved, or all rows are compared.
    """
    count = index.numbering.rows if allowed is None else int(np.count_nonzero(allowed))
    reach = min(reach or max(CANDIDATES * k, FEWEST), count)
    vector = index.transform.transform(query[None], "query")
    while True:
        found = index.search(vector, max(reach, 1), allowed, exact)[0]
        ranked = _ranked(index, query, found, len(found[1]) >= count, exact or _is_exact(index))
        if ranked.proven(k) or not exact or reach >= count:
            return ranked
        reach = min(count, reach * _WIDER)


def _is_exact(index: Index) -> bool:
    """Whether a search compares with every row, so that no other has a larger inner product than its candidates."""
    return all(segment.exact for segment in index.segments)


def _ranked(
    index: Index, query: Probabilities, found: SearchResult, everything: bool, all_compared: bool
) -> ProvedTopK:
    products, rows = found
    dims = index.config.encoder.latte_mix.dims
    scores = js_similarities(query[None], index.embeddings(rows), dims)[0].astype(np.float32)
    order = np.lexsort((rows, -scores))
    bound = -math.inf if everything else math.inf
    if not everything and all_compared and isinstance(index.transform, Hellinger) and len(rows):
        bound = float(products.min()) + _ROUNDING[index.config.store.embeddings]
    return ProvedTopK(scores[order], rows[order], bound)
