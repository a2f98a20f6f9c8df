"""Reranking of rankings for measurement: `search.ranking.reranker` on lists of documents.

A pair of a query and a text is scored once for all rankings. The milliseconds of a ranking are estimated from its
number of pairs and the speed of all pairs on this machine.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from indexer.arrays import Float64Array, RowIds, Scores, SearchResult, Vectors
from indexer.encoders.protocol import EncodeStats
from indexer.progress import Progress
from indexer.typed_arguments import checked
from search.evaluation.target import Target
from search.index import Index
from search.ranking.reranker import Reranker, RerankerChoice, open_reranker, require_depth, rerank_order

TextsOf = Callable[[int, RowIds], Sequence[str]]
"""Returns the texts of documents (by number) for a query (by number)."""


@checked
@dataclass(frozen=True)
class RerankTask:
    """A cross-encoder or another reranker, and the number of first hits to rerank. Raises ConfigError."""

    by: RerankerChoice
    depth: int = 50

    def __post_init__(self) -> None:
        require_depth(self.depth)

    def open(self, subject: Target) -> Reranker:
        """Load the reranker. Raises as `open_reranker` does."""
        return open_reranker(self.by, subject.config.rerank, subject.options)


def reranked_label(label: str, depth: int) -> str:
    """Return the label of a reranked ranking."""
    return f"{label}, reranked {depth}"


class PairScores:
    """Scores of pairs of queries and documents, each computed once, and the time spent."""

    def __init__(self, reranker: Reranker, queries: Sequence[str], texts_of: TextsOf) -> None:
        self._reranker, self._queries, self._texts_of = reranker, queries, texts_of
        self._known: list[dict[int, float]] = [{} for _ in queries]
        self.log, self.seconds = EncodeStats(), 0.0

    def of(self, query: int, documents: RowIds) -> Float64Array:
        """Return the scores (n,) of documents for a query, by its number."""
        known = self._known[query]
        if new := [number for number in documents.tolist() if number not in known]:
            texts = self._texts_of(query, np.array(new, np.int64))
            start = time.perf_counter()
            scores = self._reranker.scores([self._queries[query]] * len(new), texts, self.log)
            self.seconds += time.perf_counter() - start
            known.update(zip(new, scores.tolist(), strict=True))
        return np.array([known[number] for number in documents.tolist()])

    def milliseconds(self, pairs: float) -> float:
        """Return the milliseconds for a number of pairs, by the mean of all scored pairs."""
        scored = len(self.log.lengths)
        return round(1000 * self.seconds / scored * pairs, 3) if scored else 0.0

    @property
    def facts(self) -> dict[str, Any]:
        """The reranker and the number of pairs, JSON types."""
        return {**describe_reranker(self._reranker), "pairs": len(self.log.lengths), "cut": self.log.truncated}


def rerank_run(
    scores: PairScores, found: Sequence[SearchResult], places: RowIds, depth: int, progress: Progress
) -> list[SearchResult]:
    """Rerank the first `depth` documents of each ranking, ties by id; `places` orders documents by id.

    Reranked documents have the reranker's scores; the others keep theirs.
    """
    progress.phase("reranking", len(found))
    reranked = []
    for query, (first, rows) in enumerate(found):
        reranked.append(_reranked(scores.of(query, rows[:depth]), first, rows, places))
        progress.advance(1)
    return reranked


def _reranked(scores: Float64Array, first: Scores, rows: RowIds, places: RowIds) -> SearchResult:
    head = rows[: len(scores)]
    order = np.array(rerank_order(scores, lambda tied: places[head[list(tied)]].tolist()), np.int64)
    merged = np.concatenate([scores[order], first[len(scores) :]]).astype(np.float32)
    return merged, np.concatenate([head[order], rows[len(scores) :]])


def describe_reranker(reranker: Reranker) -> dict[str, Any]:
    """Return a reranker in JSON types; for a cross-encoder its name, hash, limit, precision and backend."""
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
    """Return a function that reads whole documents."""
    return lambda _, documents: [texts[number] for number in documents.tolist()]


def best_windows(index: Index, vectors: Vectors, texts: Sequence[str]) -> TextsOf:
    """Return a function that reads each document's closest window to the query; `vectors` (n, k) are of queries."""

    def read(query: int, documents: RowIds) -> list[str]:
        windows = []
        for number in documents.tolist():
            rows = index.numbering.rows_of(np.array([number]))
            best = rows[np.argmax(index.vectors(rows) @ vectors[query])] if len(rows) > 1 else rows[0]
            start, end = index.numbering.spans(np.array([best]))[0].tolist()
            windows.append(texts[number][start:end])
        return windows

    return read
