"""Similarities other than the inner product: the protocol of such a ranking, and the module of each.

A module is imported when a query names its similarity.
"""

import math
from dataclasses import dataclass
from typing import Protocol, cast

from indexer.arrays import Embeddings, Mask, RowIds, Scores
from indexer.recipe.paper_methods import load_module
from search.index import Index
from search.segments import MissingRows

_MODULES = {"js": "search.papers.divergence"}


@dataclass(frozen=True)
class ProvedTopK:
    """The compared rows, best first. No other row scores more than `bound`.

    The bound is infinite if unknown, and minus infinity if all rows were compared.
    """

    scores: Scores
    rows: RowIds
    bound: float

    def proven(self, k: int) -> bool:
        """Return whether no other row can be among the best k."""
        return self.bound == -math.inf or (len(self.scores) >= k and float(self.scores[k - 1]) >= self.bound)


class RowRanking(Protocol):
    """Ranks the rows of an index by their raw embeddings."""

    def require_index(self, index: Index) -> None:
        """Raise ConfigError for an index that cannot be ranked."""
        ...

    def require_queries(self, index: Index, rows: Embeddings) -> None:
        """Raise ConfigError for raw embeddings (n, d) of queries that cannot be compared."""
        ...

    def first_reach(self, k: int) -> int:
        """Return the number of candidates to compare first for k hits."""
        ...

    def rank(
        self,
        index: Index,
        queries: Embeddings,
        reach: int,
        allowed: Mask | None = None,
        exact: bool = False,
        missing: MissingRows | None = None,
    ) -> list[ProvedTopK]:
        """Return the best of `reach` candidates for each query (n, d).

        `allowed` (rows,) marks the rows that can be returned, None all; with `exact` every row is compared to choose
        the candidates; `missing` is as in `Index.search`.
        """
        ...


def ranking_by(similarity: str) -> RowRanking | None:
    """Return the ranking by a similarity; None for the inner product, which an index implements itself."""
    return None if similarity == "cosine" else cast("RowRanking", load_module(_MODULES[similarity]))
