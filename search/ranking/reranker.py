"""Reranking: sorts the first hits by a model that reads query and document together.

The first `depth` hits of any search are sorted by the reranker's scores, ties by id; later hits follow in their order.
Filters, groups, folding and the lowest score apply before reranking. The model reads the window of a hit if documents
are chunked, else the whole joined text.

The reranker is the model of the recipe (`[rerank]`), which must match the recorded hash, or another chosen model.
"""

import dataclasses
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from indexer.arrays import Float64Array
from indexer.corpus.document import joined_text
from indexer.errors import ConfigError, as_argument, spelled
from indexer.models.rescorer_spec import is_rescorer, resolve_rescorer
from indexer.recipe.ranking import MOST_DEPTH, RerankConfig
from indexer.recipe.run_options import RunOptions
from search.abandonment import require_awaited
from search.hits import Answer
from search.index import Index
from search.ranking.documents import IdsOf, RankedDocument

if TYPE_CHECKING:
    from indexer.encoders.protocol import EncodeStats
    from search.ranking.cross_encoder import CrossEncoder
    from search.ranking.rescorer import Rescorer

_BATCH = 64  # queries whose hits are read together


class Reranker(Protocol):
    """Scores texts for queries. Safe to share between threads."""

    def scores(self, queries: Sequence[str], texts: Sequence[str], log: "EncodeStats | None" = None) -> Float64Array:
        """Return how well each text answers its query, (n,): finite, higher is better.

        A score does not depend on the other pairs. `log` counts pairs and truncated pairs.
        """
        ...


RerankerChoice = str | Path | Reranker
"""The hub id or folder of a cross-encoder, the folder of a rescorer, or a loaded reranker."""


def open_reranker(chosen: RerankerChoice, config: RerankConfig, options: RunOptions) -> "Reranker":
    """Return the chosen reranker, loaded.

    Raises ConfigError for a blank name, and the errors of `resolve_cross_encoder` and `open_cross_encoder`.
    """
    if not isinstance(chosen, str | Path):
        return chosen
    from search.ranking.cross_encoder import another_model

    return _opened(another_model(config, chosen), options)


def require_depth(depth: int) -> int:
    """Return `depth`. Raises ConfigError for a depth that is not allowed."""
    if not 1 <= depth <= MOST_DEPTH:
        raise ConfigError(f"the rerank depth is {depth}; expected 1 to {MOST_DEPTH:,} hits.")
    return depth


class Reranking:
    """Reranks the answers of an open index. The first query that needs the model loads it.

    Safe to share between threads.
    """

    def __init__(self, config: RerankConfig, options: RunOptions) -> None:
        self._config, self._options = config, options
        self._reranker: Reranker | None = None
        self._replaced = False
        self._lock = threading.Lock()

    def replace(self, chosen: RerankerChoice) -> None:
        """Replace the recipe's reranker. Raises the errors of `open_reranker`."""
        reranker = open_reranker(chosen, self._config, self._options)
        with self._lock:
            self._reranker, self._replaced = reranker, True

    def take_over(self, earlier: "Reranking") -> None:
        """Keep the reranker of an earlier generation if it replaced the recipe's, or if the recipes agree."""
        with earlier._lock:
            reranker, replaced = earlier._reranker, earlier._replaced
        if replaced or dataclasses.replace(earlier._config, depth=self._config.depth) == self._config:
            self._reranker, self._replaced = reranker, replaced

    def depth(self, depth: int | None) -> int:
        """Return the number of hits to rerank: `depth`, or the recipe's for None.

        Raises ConfigError for a depth without a reranker.
        """
        on = self._replaced or bool(self._config.model)
        if depth and not on:
            from indexer.models.cross_encoder_spec import record_reranker

            raise ConfigError(
                f"{as_argument('rerank_depth')} is {depth}, but the recipe of the index names no cross-encoder. Fix: "
                f"name one ({spelled('rerank_by(MODEL)', '--rerank MODEL')}), or record one: {record_reranker()}."
            )
        if depth is None:
            return self._config.depth if on else 0
        return depth

    def load(self) -> Reranker:
        """Return the reranker. Raises the errors of `resolve_cross_encoder` and `open_cross_encoder`."""
        with self._lock:
            if self._reranker is None:
                self._reranker = _opened(self._config, self._options)
            return self._reranker

    def answers(
        self, index: Index, queries: Sequence[str], ranked: Sequence[Answer[RankedDocument]], depth: int
    ) -> list[Answer[RankedDocument]]:
        """Return the answers with the first `depth` hits in the reranker's order. Raises the errors of `load`."""
        reranker = self.load()
        reranked: list[Answer[RankedDocument]] = []
        for start in range(0, len(queries), _BATCH):
            require_awaited()
            answers = ranked[start : start + _BATCH]
            texts = hit_texts(index, [answer[:depth] for answer in answers])
            pairs = [
                (query, text)
                for query, of_query in zip(queries[start : start + _BATCH], texts, strict=True)
                for text in of_query
            ]
            scores = reranker.scores([query for query, _ in pairs], [text for _, text in pairs])
            ends = np.cumsum([len(of_query) for of_query in texts])
            for answer, of_answer in zip(answers, np.split(scores, ends[:-1]), strict=True):
                reranked.append(Answer(in_order(answer, of_answer, index.documents.ids), answer.missing))
        return reranked


def in_order(ranked: Sequence[RankedDocument], scores: Float64Array, ids_of: IdsOf) -> list[RankedDocument]:
    """Return a ranking with its first n documents sorted by `scores` (n,), ties by id, then the others."""
    order = rerank_order(scores, lambda places: ids_of([ranked[place].document for place in places]))
    first = [ranked[place]._replace(rerank_score=float(scores[place])) for place in order]
    return [*first, *ranked[len(scores) :]]


def rerank_order(scores: Float64Array, ids_at: Callable[[Sequence[int]], Sequence[str]]) -> list[int]:
    """Return the places 0..n-1 by descending scores (n,), ties by id. `ids_at` returns the ids at places."""
    values, counts = np.unique(scores, return_counts=True)
    tied = np.flatnonzero(np.isin(scores, values[counts > 1])).tolist()
    names = dict(zip(tied, ids_at(tied), strict=True)) if tied else {}
    return sorted(range(len(scores)), key=lambda place: (-scores[place], names.get(place, "")))


def hit_texts(index: Index, ranked: Sequence[Sequence[RankedDocument]]) -> list[list[str]]:
    """Return the text that a reranker reads for each hit: its window, or the whole joined text."""
    numbers = sorted({hit.document for answer in ranked for hit in answer})
    columns, documents = index.config.corpus.text, index.documents.fetch(numbers)
    joined = {number: joined_text(document, columns) for number, document in zip(numbers, documents, strict=True)}
    return [[_window(index, joined[hit.document], hit.row) for hit in answer] for answer in ranked]


def _window(index: Index, text: str, row: int) -> str:
    if index.numbering.one_to_one or row < 0:
        return text
    start, end = index.numbering.spans(np.array([row]))[0].tolist()
    return text[start:end]


def _opened(config: RerankConfig, options: RunOptions) -> "CrossEncoder | Rescorer":
    if is_rescorer(config.model):
        from search.ranking.rescorer import Rescorer

        return Rescorer(resolve_rescorer(config), options)
    from indexer.models.cross_encoder_spec import resolve_cross_encoder
    from search.ranking.cross_encoder import open_cross_encoder

    return open_cross_encoder(resolve_cross_encoder(config), options)
