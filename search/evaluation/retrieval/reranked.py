"""Rankings reranked, for measuring: what `search.ranking.reranker` does for an index, on lists of documents.

A pair of a query and a text is scored once, however many rankings have it, so a ranking's milliseconds are those of as
many pairs as it has, at the speed of all. They are of this machine.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from indexer.arrays import Float64Array, RowIds, Scores, SearchResult, Vectors
from indexer.encoders.protocol import EncodeStats
from indexer.progress import Progress
from search.evaluation.target import Target
from search.index import Index
from search.ranking.reranker import Reranker, RerankerChoice, open_reranker, require_depth, rerank_order

TextsOf = Callable[[int, RowIds], Sequence[str]]
"""What is read of some documents, by their numbers, for a query by its number."""


@dataclass(frozen=True)
class RerankTask:
    """A cross-encoder, or another reranker, and how many of the first hits it puts in order. Raises ConfigError."""

    by: RerankerChoice
    depth: int = 50

    def __post_init__(self) -> None:
        require_depth(self.depth)

    def open(self, subject: Target) -> Reranker:
        """The reranker, loaded. Raises as `open_reranker` does."""
        return open_reranker(self.by, subject.config.rerank, subject.options)


def reranked_label(label: str, depth: int) -> str:
    """What a reranked ranking is called."""
    return f"{label}, reranked {depth}"


class PairScores:
    """Scores of queries with documents, each worked out once, and how long that took."""

    def __init__(self, reranker: Reranker, queries: Sequence[str], texts_of: TextsOf) -> None:
        self._reranker, self._queries, self._texts_of = reranker, queries, texts_of
        self._known: list[dict[int, float]] = [{} for _ in queries]
        self.log, self.seconds = EncodeStats(), 0.0

    def of(self, query: int, documents: RowIds) -> Float64Array:
        """The scores (n,) of some documents for a query, by its number."""
        known = self._known[query]
        if new := [number for number in documents.tolist() if number not in known]:
            texts = self._texts_of(query, np.array(new, np.int64))
            start = time.perf_counter()
            scores = self._reranker.scores([self._queries[query]] * len(new), texts, self.log)
            self.seconds += time.perf_counter() - start
            known.update(zip(new, scores.tolist(), strict=True))
        return np.array([known[number] for number in documents.tolist()])

    def milliseconds(self, pairs: float) -> float:
        """What so many pairs take, at the mean of those so far."""
        scored = len(self.log.lengths)
        return round(1000 * self.seconds / scored * pairs, 3) if scored else 0.0

    @property
    def facts(self) -> dict[str, Any]:
        """What scored, and how many pairs; JSON types."""
        return {**describe_reranker(self._reranker), "pairs": len(self.log.lengths), "cut": self.log.truncated}


def rerank_run(
    scores: PairScores, found: Sequence[SearchResult], places: RowIds, depth: int, progress: Progress
) -> list[SearchResult]:
    """Rankings with the first `depth` documents by their scores, ties by id; `places` orders documents as ids do.

    The scores of those are the reranker's, and of the others what they were.
    """
    progress.phase("reranking", len(found))
    reranked = []
    for query, (first, rows) in enumerate(found):
        reranked.append(_reranked(scores.of(query, rows[:depth]), first, rows, places))
        progress.advance(1)
    return reranked


def _reranked(scores: Float64Array, first: Scores, rows: RowIds, places: RowIds) -> SearchResult:
    head = rows[: len(scores)]
    order = np.array(rerank_order(scores, lambda some: places[head[list(some)]].tolist()), np.int64)
    own = np.concatenate([scores[order], first[len(scores) :]]).astype(np.float32)
    return own, np.concatenate([head[order], rows[len(scores) :]])


def describe_reranker(reranker: Reranker) -> dict[str, Any]:
    """A reranker in JSON types: of a cross-encoder its name, hash, limit and what runs it."""
    spec = getattr(reranker, "spec", None)
    if spec is None:
        return {"model": type(reranker).__name__, "backend": "given"}
    return {
        "model": spec.model,
        "sha256": spec.fingerprint,
        "max_length": spec.identity.max_length,
        "precision": spec.identity.precision,
        "backend": getattr(reranker, "backend", ""),
    }


def whole_texts(texts: Sequence[str]) -> TextsOf:
    """Documents are read whole."""
    return lambda _, documents: [texts[number] for number in documents.tolist()]


def best_windows(index: Index, vectors: Vectors, texts: Sequence[str]) -> TextsOf:
    """Of each document the window that is closest to the query, as hits have them; `vectors` (n, k) are of queries."""

    def read(query: int, documents: RowIds) -> list[str]:
        found = []
        for number in documents.tolist():
            rows = index.numbering.rows_of(np.array([number]))
            best = rows[np.argmax(index.vectors(rows) @ vectors[query])] if len(rows) > 1 else rows[0]
            start, end = index.numbering.spans(np.array([best]))[0].tolist()
            found.append(texts[number][start:end])
        return found

    return read
