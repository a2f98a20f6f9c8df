"""Ranking by Jensen-Shannon divergence, for indexes of pooling "latte-mix": candidates by inner product, then exact.

A hit's score is 1 - JS / ln 2, averaged over the latent dimensions: 1 for equal mixtures, 0 for disjoint ones. Where
vectors are square roots (`whitening.kind = "hellinger"`), no document scores more than its inner product s with the
query, so once the k-th score is no less than the last candidate's s, nothing that was not looked at can be better: the
answer is then proved exact.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from indexer.errors import ConfigError
from indexer.lattemix.divergence import js_similarities
from indexer.store.numbering import Mask, Numbers
from indexer.transforms import Hellinger
from search.opened import OpenIndex
from search.segments import Found

Probabilities = npt.NDArray[np.floating]
CANDIDATES = 10  # times k
FEWEST = 100  # candidates
_WIDER = 4
_ROUNDING = 2.5e-5  # of an inner product in float32, over a few thousand numbers that are not negative


@dataclass(frozen=True)
class Ranked:
    """The rows that were compared, best first; `proven` if no other row can be among the best k."""

    scores: npt.NDArray[np.float32]
    rows: Numbers
    proven: bool


def require_probabilities(opened: OpenIndex) -> None:
    """Raises ConfigError unless embeddings are categorical distributions."""
    if not opened.config.gives_probabilities:
        raise ConfigError(
            f'{opened.path}: similarity "js" compares categorical distributions; expected an index of '
            f'encoder.pooling = "latte-mix", but its pooling is "{opened.config.encoder.pooling}".'
        )


def rank_by_divergence(
    opened: OpenIndex, query: Probabilities, k: int, allowed: Mask | None = None, exact: bool = False, reach: int = 0
) -> Ranked:
    """The rows closest to a query's distributions (d,) by Jensen-Shannon divergence, at least k where there are.

    The candidates are the `reach` rows (0: `CANDIDATES` times k) that the index finds for the transformed query.
    `exact` widens them until the best k are proved, or all rows are compared.
    """
    count = opened.numbering.rows if allowed is None else int(np.count_nonzero(allowed))
    reach = min(reach or max(CANDIDATES * k, FEWEST), count)
    vector = opened.transform.transform(query[None], "query")
    while True:
        found = opened.search(vector, max(reach, 1), allowed, exact)[0]
        ranked = _ranked(opened, query, k, found, len(found[1]) >= count, exact or _is_exact(opened))
        if ranked.proven or not exact or reach >= count:
            return ranked
        reach = min(count, reach * _WIDER)


def _is_exact(opened: OpenIndex) -> bool:
    """Whether a search compares with every row, so that no other has a larger inner product than its candidates."""
    return all(segment.exact for segment in opened.segments)


def _ranked(
    opened: OpenIndex, query: Probabilities, k: int, found: Found, everything: bool, all_compared: bool
) -> Ranked:
    products, rows = found
    dims = opened.config.encoder.latte_mix.dims
    scores = js_similarities(query[None], opened.embeddings(rows), dims)[0].astype(np.float32)
    order = np.lexsort((rows, -scores))
    proven = everything
    if not proven and all_compared and isinstance(opened.transform, Hellinger) and len(rows) > k:
        proven = bool(scores[order[k - 1]] >= products.min() + _ROUNDING)
    return Ranked(scores[order], rows[order], proven)
