"""Near-duplicate hits, folded under a better hit instead of counting as hits.

The rule is greedy, down a ranking: a document stays unless its vector has an inner product of at least `fold` with that
of a staying document above it. Otherwise it is folded under the closest of these, the first among equals. Folded
documents are compared with nothing, so the cost is the number of documents read times the number that stay. Reading
ends at the document that would be the (k + 1)-th to stay. Later documents are neither hits nor folded, so an answer
does not depend on the depth of the search.

A document's vector is that of its row closest to the query: its best window if documents are chunked. Grouping and the
lowest score apply before folding, so only the first document of each group takes part.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from indexer.arrays import Float64Array, Int64Array, Scores, Vectors
from search.abandonment import require_awaited
from search.dedup.settings import lowest_score
from search.ranking.documents import FoldedDocument, RankedDocument

LISTED = 100  # folded documents listed under a hit; more are only counted
_BLOCK = 1024  # most documents whose vectors are read together
VectorsOf = Callable[[int, Sequence[RankedDocument]], Vectors]
"""Returns unit vectors (n, k) of n documents in the ranking of a query, by the query's number."""


@dataclass(frozen=True)
class Folding:
    """Folds documents with an inner product of at least `fold`, among documents with a score of at least `min_score`.

    As in de-duplication, a `fold` of 1 means "identical up to rounding".
    """

    fold: float
    vectors_of: VectorsOf
    min_score: float | None = None

    def hits(self, query: int, ranked: Sequence[RankedDocument], k: int) -> tuple[list[RankedDocument], int]:
        """Return the first k staying documents of a ranking, best first, with their folded documents, and a count.

        The count is the number of ranked documents that determine the answer, or one more than `ranked` has if further
        documents could change it.
        """
        low = self.min_score
        enough = len(ranked) if low is None else sum(hit.score >= low for hit in ranked)
        stayed = _Stayed(lowest_score(self.fold))
        start, size = 0, k + 1
        while start < enough:
            require_awaited()
            block = ranked[start : min(enough, start + min(size, _BLOCK))]
            if (place := stayed.add(block, self.vectors_of(query, block), k)) < len(block):
                return stayed.hits(), start + place + 1
            start, size = start + len(block), 2 * size
        return stayed.hits(), enough + 1


class _Stayed:
    """The documents that stayed so far, their vectors, and the documents folded under each."""

    def __init__(self, least: np.float32) -> None:
        self._least = least
        self._documents: list[RankedDocument] = []
        self._vectors: list[Vectors] = []
        self._folded: list[list[FoldedDocument]] = []
        self._counts: list[int] = []

    def add(self, block: Sequence[RankedDocument], vectors: Vectors, k: int) -> int:
        """Add documents until one more than k would stay. Returns the place of that document, or the end of the block.

        Products are in float64, rounded to float32 like scores.
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
        """Return the documents that stayed, best first."""
        return [
            hit._replace(folded=tuple(folded), folded_count=count) if count else hit
            for hit, folded, count in zip(self._documents, self._folded, self._counts, strict=True)
        ]

    def _closest(self, vectors: Float64Array) -> tuple[Scores, Int64Array]:
        """Return each vector's product with the closest staying document, and that document's number: (n,) each."""
        if not self._vectors:
            return np.full(len(vectors), -np.inf, np.float32), np.full(len(vectors), -1)
        products = (vectors @ np.array(self._vectors, np.float64).T).astype(np.float32)
        holder = products.argmax(axis=1)
        return products[np.arange(len(vectors)), holder], holder

    def _keep(self, document: RankedDocument, vector: Vectors) -> None:
        self._documents.append(document)
        self._vectors.append(vector)
        self._folded.append([])
        self._counts.append(0)

    def _fold(self, holder: int, hit: RankedDocument, similarity: float) -> None:
        self._counts[holder] += 1
        if len(self._folded[holder]) < LISTED:
            self._folded[holder].append(FoldedDocument(hit.document, hit.score, similarity))
