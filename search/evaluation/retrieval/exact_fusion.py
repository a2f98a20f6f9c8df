"""Fusion with BM25 by exact search: what `search.ranking.hybrid` does for an index, for a setting that is measured.

The scores are those that an index of the setting would give: every candidate is scored in both lists, and the same rows
stand for documents drawn by chance.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from indexer.arrays import RowIds, SearchResult, Vectors
from indexer.models.identity import PoolingKey
from indexer.recipe.ranking import HybridConfig
from indexer.transforms import Transform
from search.evaluation.retrieval.corpus import SearchedCorpus
from search.ranking.bm25 import WordScores
from search.ranking.exact import exact_scores
from search.ranking.fusion import BothScores, Spread, drawn_rows, list_depth, reciprocal_rank_fusion


@dataclass(frozen=True)
class ComparedRows:
    """The vectors of a collection by a fitted transform, made anew each time they are read."""

    collection: SearchedCorpus
    key: PoolingKey
    transform: Transform

    def blocks(self) -> Iterator[Vectors]:
        """All of them, (m, k) at a time, in order."""
        return (self.transform.transform(block, "document") for block in self.collection.blocks(self.key))

    def drawn(self) -> Vectors:
        """Those that stand for documents drawn by chance, (m, k)."""
        rows, kept, first = drawn_rows(sum(map(len, self.collection.blocks(self.key)))), [], 0
        for block in self.collection.blocks(self.key):
            here = rows[(rows >= first) & (rows < first + len(block))] - first
            kept.append(block[here])
            first += len(block)
        return self.transform.transform(np.concatenate(kept), "document")


@dataclass(frozen=True)
class Candidates:
    """The documents of either list of a query, (m,), and what they score; `near` and `words` are the lists."""

    documents: RowIds
    scores: BothScores
    near: RowIds
    words: RowIds

    def fused(self, config: HybridConfig, places: RowIds, depth: int) -> SearchResult:
        """The best `depth` by one fusion, ties by id."""
        if config.fusion == "rrf":
            ranked = reciprocal_rank_fusion([self.near.tolist(), self.words.tolist()], list_depth(depth))
            documents, scores = np.array([one for _, one in ranked], np.int64), np.array([score for score, _ in ranked])
        else:
            found = self.scores.found(config)
            documents, scores = self.documents[found], self.scores.combined(config)[found]
        best = np.lexsort((places[documents], -scores))[:depth]
        return scores[best].astype(np.float32), documents[best]


def candidates_of(
    rows: ComparedRows, vectors: Vectors, near: Sequence[SearchResult], words: Iterator[WordScores]
) -> list[Candidates]:
    """What the vectors (n, k) of queries found, `near`, and what BM25 did, scored in both lists."""
    lists, documents, bm25 = [], [], []
    for found, (_, numbers) in zip(words, near, strict=True):
        documents.append(np.unique(np.concatenate([numbers, found.best])))
        lists.append(found.best)
        bm25.append((found.scores[documents[-1]], Spread.of(found.scores)))
    scored = exact_scores(vectors, rows.blocks(), documents, rows.collection.document_of)
    drawn = rows.drawn().astype(np.float64)
    candidates = []
    for query, (_, numbers) in enumerate(near):
        chance = Spread.of(np.einsum("nd,d->n", drawn, vectors[query].astype(np.float64)))
        scores = BothScores(scored[query], bm25[query][0], chance, bm25[query][1])
        candidates.append(Candidates(documents[query], scores, numbers, lists[query]))
    return candidates
