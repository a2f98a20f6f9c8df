"""Similarities other than the inner product: what a ranking by one must offer, and the module that offers it.

A module is imported when a question names its similarity, so that papers cost nothing to others.
"""

import math
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, cast

from indexer.arrays import Embeddings, Mask, RowIds, Scores
from search.index import Index
from search.segments import MissingRows

_MODULES = {"js": "search.papers.divergence"}


@dataclass(frozen=True)
class ProvedTopK:
    """The rows that were compared, best first. No other row scores more than `bound`: infinity where nothing is known,
    and less than any score once all were compared."""

    scores: Scores
    rows: RowIds
    bound: float

    def proven(self, k: int) -> bool:
        """Whether no other row can be among the best k."""
        return self.bound == -math.inf or (len(self.scores) >= k and float(self.scores[k - 1]) >= self.bound)


class RowRanking(Protocol):
    """Ranks the rows of an index by their raw embeddings."""

    def require_index(self, index: Index) -> None:
        """Raises ConfigError for an index that cannot be ranked."""
        ...

    def require_queries(self, index: Index, rows: Embeddings) -> None:
        """Raises ConfigError for raw embeddings (n, d) of queries that cannot be compared."""
        ...

    def first_reach(self, k: int) -> int:
        """How many candidates are compared first when k are wanted."""
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
        """The best of `reach` candidates for each query (n, d).

        `allowed` (rows,) says which rows may be found, None all; with `exact` every row is compared when candidates
        are chosen; `missing` is as in `Index.search`.
        """
        ...


def ranking_by(similarity: str) -> RowRanking | None:
    """The ranking by a similarity; None for the inner product, by which an index itself ranks."""
    return None if similarity == "cosine" else cast("RowRanking", import_module(_MODULES[similarity]))
