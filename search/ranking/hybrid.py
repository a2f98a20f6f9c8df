"""Hybrid search of an open index: the best documents by vectors and by BM25, scored in both rankings, then fused."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from indexer import ann
from indexer.arrays import Float64Array, RowIds, Scores, Vectors
from indexer.progress import Progress
from indexer.recipe.ranking import HybridConfig
from search.hits import HybridScores
from search.index import Index
from search.ranking.bm25 import BM25Index, WordScores
from search.ranking.documents import RankedDocument
from search.ranking.fusion import BothScores, Spread, drawn_rows, reciprocal_rank_fusion


class HybridRanking:
    """Fuses rankings of the documents of an open index. Raises the errors of `BM25Index`."""

    def __init__(self, index: Index, progress: Progress | None = None) -> None:
        self._index, self.bm25 = index, BM25Index(index, progress)

    def fused(
        self, vector: Vectors, near: Sequence[RankedDocument], words: WordScores, config: HybridConfig, most: int | None
    ) -> list[RankedDocument]:
        """Return the best `most` documents of two lists (None: all), best first, ties by id.

        The lists are `near`, the best for a query's `vector` (k,), and the best of `words`. Each document has its row
        closest to the vector, and both scores. For a query that names a definition it is the best window by words.
        """
        order = np.fromiter((hit.document for hit in near), np.int64, len(near))
        documents: RowIds = np.union1d(order, words.best)
        vectors, rows = self._closest(vector, near, np.searchsorted(documents, order), documents)
        bm25 = words.scores[documents]
        if words.windows is not None:
            rows = np.where(bm25 > 0, self._best_windows(words.windows, documents), rows)
        is_hit = np.ones(len(documents), bool)
        if config.fusion == "rrf":
            ranked = reciprocal_rank_fusion([order.tolist(), words.best.tolist()], len(documents))
            total = np.zeros(len(documents))
            total[np.searchsorted(documents, [document for _, document in ranked])] = [score for score, _ in ranked]
        else:
            both = BothScores(vectors, bm25, *self._spreads(vector, words, config))
            total, is_hit = both.combined(config), both.found(config)
        best = np.lexsort((self.bm25.places[documents], -total))
        best = best[is_hit[best]][:most]
        columns = (array[best].tolist() for array in (documents, total, rows, vectors, bm25))
        return [
            RankedDocument(document, score, row, parts=HybridScores(*parts))
            for document, score, row, *parts in zip(*columns, strict=True)
        ]

    def _closest(
        self, vector: Vectors, near: Sequence[RankedDocument], places: RowIds, documents: RowIds
    ) -> tuple[Scores, RowIds]:
        """Return the score and number of each document's closest row: from `near` at these places, else computed."""
        scores, rows = np.zeros(len(documents), np.float32), np.zeros(len(documents), np.int64)
        scores[places] = [hit.score for hit in near]
        rows[places] = [hit.row for hit in near]
        missed = np.ones(len(documents), bool)
        missed[places] = False
        if missed.any():
            scores[missed], rows[missed] = self._best_rows(vector, documents[missed])
        return scores, rows

    def _best_rows(self, vector: Vectors, documents: RowIds) -> tuple[Scores, RowIds]:
        """Return the best score of each document's rows, (m,), and the row; `documents` ascend."""
        rows = self._index.numbering.rows_of(documents)
        owners = self._index.numbering.documents_of(rows)
        vectors = self._index.vectors(rows)
        first = np.zeros(len(rows), np.int64)
        scores = ann.pair_products(vector[None], first, vectors, np.arange(len(rows))).astype(np.float32)
        order = np.lexsort((rows, -scores, owners))
        best = order[np.searchsorted(owners, documents)]  # the first row of each document
        return scores[best], rows[best]

    def _best_windows(self, windows: Scores, documents: RowIds) -> RowIds:
        """Return the best window of each document by words, (m,)."""
        rows = self._index.numbering.rows_of(documents)
        owners = self._index.numbering.documents_of(rows)
        order = np.lexsort((rows, -windows[rows], owners))
        best: RowIds = rows[order[np.searchsorted(owners, documents)]]
        return best

    def _spreads(self, vector: Vectors, words: WordScores, config: HybridConfig) -> tuple[Spread, Spread]:
        """Return the spread of the query's scores over random documents, and for BM25 over all if it is needed."""
        drawn = np.einsum("nd,d->n", self._drawn, vector.astype(np.float64))  # without BLAS, which threads change
        return Spread.of(drawn), Spread.of(words.scores) if config.scaling == "zscore" else Spread(0.0, 0.0)

    @cached_property
    def _drawn(self) -> Float64Array:
        """Vectors (m, k) of rows that represent random documents."""
        return self._index.vectors(drawn_rows(self._index.numbering.rows)).astype(np.float64)
