"""Hybrid search of an open index: the best by its vectors and the best by BM25, each scored in both, then fused."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from indexer import ann
from indexer.arrays import Float64Array, RowIds, Scores, Vectors
from indexer.progress import Progress
from indexer.ranking_config import HybridConfig
from search.hits import HybridScores
from search.index import Index
from search.ranking.bm25 import BM25Index, WordScores
from search.ranking.documents import RankedDocument, break_ties
from search.ranking.fusion import BothScores, Spread, drawn_rows, reciprocal_rank_fusion


class HybridRanking:
    """Fuses rankings of the documents of an open index. Made as `BM25Index` is, and raises what that does."""

    def __init__(self, index: Index, progress: Progress | None = None) -> None:
        self._index, self.bm25 = index, BM25Index(index, progress)

    def fused(
        self, vector: Vectors, near: Sequence[RankedDocument], words: WordScores, reach: int, config: HybridConfig
    ) -> list[RankedDocument]:
        """All documents of either list, best first, ties by id: `near`, the best for a query's `vector` (k,), and
        those of `words`.

        Each has the row that is closest to the vector, and both its scores.
        """
        near = near[:reach]  # it may hold more, where they tie
        documents = np.unique([*(found.document for found in near), *words.best.tolist()]).astype(np.int64)
        if not len(documents):
            return []
        vectors, rows = self._closest(vector, near, documents)
        bm25 = words.scores[documents]
        if config.fusion == "rrf":
            order = [[found.document for found in near], words.best.tolist()]
            total = {document: score for score, document in reciprocal_rank_fusion(order, reach)}
            scores = [total[document] for document in documents.tolist()]
        else:
            spreads = self._spreads(vector, words, config)
            scores = BothScores(vectors, bm25, *spreads).combined(config).tolist()
        ranked = [
            RankedDocument(document, score, row, parts=HybridScores(*parts))
            for document, score, row, *parts in zip(
                documents.tolist(), scores, rows.tolist(), vectors.tolist(), bm25.tolist(), strict=True
            )
        ]
        ranked.sort(key=lambda found: -found.score)
        return break_ties(ranked, self.bm25.places)

    def _closest(self, vector: Vectors, near: Sequence[RankedDocument], documents: RowIds) -> tuple[Scores, RowIds]:
        """The score of each document by its closest row, and that row: as found, or of stored vectors for the rest."""
        known = {found.document: found for found in near}
        scores, rows = np.zeros(len(documents), np.float32), np.zeros(len(documents), np.int64)
        for place, document in enumerate(documents.tolist()):
            if document in known:
                scores[place], rows[place] = known[document].score, known[document].row
        missed = np.array([document not in known for document in documents.tolist()])
        if missed.any():
            scores[missed], rows[missed] = self._best_rows(vector, documents[missed])
        return scores, rows

    def _best_rows(self, vector: Vectors, documents: RowIds) -> tuple[Scores, RowIds]:
        """The best score of each document's rows, (m,), and the row; `documents` ascend."""
        rows = self._index.numbering.rows_of(documents)
        owners = self._index.numbering.documents_of(rows)
        vectors = self._index.vectors(rows)
        first = np.zeros(len(rows), np.int64)
        scores = ann.pair_scores(vector[None], first, vectors, np.arange(len(rows))).astype(np.float32)
        order = np.lexsort((rows, -scores, owners))
        best = order[np.searchsorted(owners, documents)]  # the first of each document's, which stand together
        return scores[best], rows[best]

    def _spreads(self, vector: Vectors, words: WordScores, config: HybridConfig) -> tuple[Spread, Spread]:
        """How the query's scores spread over documents: those drawn by chance, and for BM25 all, where it matters."""
        drawn = np.einsum("nd,d->n", self._drawn, vector.astype(np.float64))  # no BLAS: the same for any threads
        return Spread.of(drawn), Spread.of(words.scores) if config.scaling == "zscore" else Spread(0.0, 0.0)

    @cached_property
    def _drawn(self) -> Float64Array:
        """Vectors (m, k) of rows drawn by chance."""
        return self._index.vectors(drawn_rows(self._index.numbering.rows)).astype(np.float64)
