"""Fusion with BM25 by exact search: `search.ranking.hybrid` for a setting without an index.

The scores equal those of an index of the setting: every candidate is scored in both lists, and the same rows serve as
random documents.
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
    """The vectors of a collection by a fitted transform, computed on each read."""

    collection: SearchedCorpus
    key: PoolingKey
    transform: Transform

    def blocks(self) -> Iterator[Vectors]:
        """Yield all vectors in order, (m, k)."""
        return (self.transform.transform(block, "document") for block in self.collection.blocks(self.key))

    def drawn(self) -> Vectors:
        """Return the vectors of the random documents, (m, k)."""
        rows, selected, first = drawn_rows(sum(map(len, self.collection.blocks(self.key)))), [], 0
        for block in self.collection.blocks(self.key):
            selected.append(block[rows[(rows >= first) & (rows < first + len(block))] - first])
            first += len(block)
        return self.transform.transform(np.concatenate(selected), "document")


@dataclass(frozen=True)
class Candidates:
    """The documents of either list of a query, (m,), and their scores; `near` and `words` are the lists."""

    documents: RowIds
    scores: BothScores
    near: RowIds
    words: RowIds

    def fused(self, config: HybridConfig, places: RowIds, depth: int) -> SearchResult:
        """Return the best `depth` documents by one fusion, ties by id."""
        if config.fusion == "rrf":
            ranked = reciprocal_rank_fusion([self.near.tolist(), self.words.tolist()], list_depth(depth))
            documents = np.array([document for _, document in ranked], np.int64)
            scores = np.array([score for score, _ in ranked])
        else:
            hits = self.scores.found(config)
            documents, scores = self.documents[hits], self.scores.combined(config)[hits]
        best = np.lexsort((places[documents], -scores))[:depth]
        return scores[best].astype(np.float32), documents[best]


def candidates_of(
    rows: ComparedRows, vectors: Vectors, near: Sequence[SearchResult], words: Iterator[WordScores]
) -> list[Candidates]:
    """Return the hits `near` of the vectors (n, k) of queries and the hits of BM25, scored in both lists."""
    lists, documents, bm25 = [], [], []
    for hits, (_, numbers) in zip(words, near, strict=True):
        documents.append(np.unique(np.concatenate([numbers, hits.best])))
        lists.append(hits.best)
        bm25.append((hits.scores[documents[-1]], Spread.of(hits.scores)))
    scored = exact_scores(vectors, rows.blocks(), documents, rows.collection.document_of)
    drawn = rows.drawn().astype(np.float64)
    candidates = []
    for query, (_, numbers) in enumerate(near):
        chance = Spread.of(np.einsum("nd,d->n", drawn, vectors[query].astype(np.float64)))
        scores = BothScores(scored[query], bm25[query][0], chance, bm25[query][1])
        candidates.append(Candidates(documents[query], scores, numbers, lists[query]))
    return candidates
