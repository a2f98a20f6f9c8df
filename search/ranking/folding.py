"""Near-duplicate hits, folded under a better hit instead of taking places of their own.

The rule is greedy, down a ranking: a document stays unless its vector has an inner product of at least `fold` with that
of one that stays above it; then it is folded under the closest of those, the first among equals. Nothing is compared
with what was folded, so the cost is that of the documents that are looked at times those that stay. The ranking is read
until one more than k would stay: what comes after that is neither a hit nor folded, so an answer does not depend on how
far was searched.

The vector of a document is that of the row that brought it there, its best window where documents are chunked; one that
only its words brought there (`hybrid`) has the row that is closest to the query. Of a group only its first document is
there to be folded, or to have others folded under it: groups come first. The same holds for a lowest score.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from indexer.arrays import Float64Array, Int64Array, Scores, Vectors
from search.abandonment import require_awaited
from search.dedup.settings import lowest_score
from search.ranking.documents import FoldedDocument, RankedDocument

LISTED = 100  # documents named under the one they are folded under; those beyond are only counted
_BLOCK = 1024  # documents whose vectors are read at once, at most
VectorsOf = Callable[[int, Sequence[RankedDocument]], Vectors]
"""Unit vectors (n, k) of n documents in the ranking of a query, by its number."""


@dataclass(frozen=True)
class Folding:
    """Folds rankings: documents with an inner product of at least `fold`, of those that score `min_score` or more.

    As in de-duplication, a `fold` of 1 means "identical up to rounding".
    """

    fold: float
    vectors_of: VectorsOf
    min_score: float | None = None

    def hits(self, query: int, ranked: Sequence[RankedDocument], k: int) -> tuple[list[RankedDocument], int]:
        """The first k documents that stay of a ranking, best first, with those folded under them.

        And how many documents of the ranking tell so: one more than it has where further ones could change something.
        """
        low = self.min_score
        enough = len(ranked) if low is None else sum(found.score >= low for found in ranked)
        stayed = _Stayed(lowest_score(self.fold))
        for start, end in _blocks(enough, k):
            require_awaited()
            block = ranked[start:end]
            if (place := stayed.add(block, self.vectors_of(query, block), k)) < len(block):
                return stayed.hits(), start + place + 1
        return stayed.hits(), enough + 1


class _Stayed:
    """The documents that stayed so far, their vectors, and what was folded under each."""

    def __init__(self, least: np.float32) -> None:
        self._least = least
        self._documents: list[RankedDocument] = []
        self._vectors: list[Vectors] = []
        self._folded: list[list[FoldedDocument]] = []
        self._counts: list[int] = []

    def add(self, block: Sequence[RankedDocument], vectors: Vectors, k: int) -> int:
        """Add the documents that follow, until one more than k would stay; returns the place of that one, or the end.

        Products are in float64, rounded to float32 as scores are.
        """
        wide = vectors.astype(np.float64)
        closest, holder = self._closest(wide)
        place, done = 0, 0
        while True:
            apart = np.flatnonzero(closest[place:] < self._least)
            end = place + int(apart[0]) if len(apart) else len(block)
            for folded in range(done, end):
                self._fold(int(holder[folded]), block[folded], float(closest[folded]))
            if end == len(block) or len(self._documents) == k:
                return end
            self._keep(block[end], vectors[end])
            place = done = end + 1
            products = (wide[place:] @ wide[end]).astype(np.float32)
            nearer = products > closest[place:]
            closest[place:][nearer] = products[nearer]
            holder[place:][nearer] = len(self._documents) - 1

    def hits(self) -> list[RankedDocument]:
        """Those that stayed, best first."""
        return [
            replace(found, folded=tuple(folded), folded_count=count) if count else found
            for found, folded, count in zip(self._documents, self._folded, self._counts, strict=True)
        ]

    def _closest(self, vectors: Float64Array) -> tuple[Scores, Int64Array]:
        """For each vector (n, k) its product with the closest that stayed, and the number of that one: (n,) each."""
        if not self._vectors:
            return np.full(len(vectors), -np.inf, np.float32), np.full(len(vectors), -1)
        products = (vectors @ np.array(self._vectors, np.float64).T).astype(np.float32)
        holder = products.argmax(axis=1)
        return products[np.arange(len(vectors)), holder], holder

    def _keep(self, found: RankedDocument, vector: Vectors) -> None:
        self._documents.append(found)
        self._vectors.append(vector)
        self._folded.append([])
        self._counts.append(0)

    def _fold(self, holder: int, found: RankedDocument, similarity: float) -> None:
        self._counts[holder] += 1
        if len(self._folded[holder]) < LISTED:
            self._folded[holder].append(FoldedDocument(found.document, found.score, similarity))


def _blocks(count: int, k: int) -> Iterator[tuple[int, int]]:
    """The stretches of a ranking that are looked at together: at first as many as are needed, then more."""
    start, size = 0, k + 1
    while start < count:
        end = min(count, start + min(size, _BLOCK))
        yield start, end
        start, size = end, 2 * size
