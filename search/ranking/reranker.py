"""Reranking: a model that reads question and document together puts the first hits in order.

Whatever found the hits, the first `depth` of them are sorted by the reranker's scores, ties by id; hits beyond come
after them in the order they were found in. Filters, groups, folding and the lowest score are of the first stage. What
is read of a document is what it was found by: its window where documents are chunked, else its whole joined text.

The reranker is the one that the recipe names (`[rerank]`), and must be the one it recorded; or another one that is
asked for.
"""

import dataclasses
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from indexer.arrays import Float64Array
from indexer.corpus.document import joined_text
from indexer.errors import ConfigError
from indexer.recipe.ranking import MOST_DEPTH, RerankConfig
from indexer.recipe.run_options import RunOptions
from search.abandonment import require_awaited
from search.hits import Answer
from search.index import Index
from search.ranking.documents import IdsOf, RankedDocument
from search.ranking.options import DEPTH

if TYPE_CHECKING:
    from indexer.encoders.protocol import EncodeStats
    from search.ranking.cross_encoder import CrossEncoder

_BATCH = 64  # questions whose hits are read at once


class Reranker(Protocol):
    """Scores questions with texts. Threads may share one."""

    def scores(self, queries: Sequence[str], texts: Sequence[str], log: "EncodeStats | None" = None) -> Float64Array:
        """How well each text answers its query, (n,): higher is better, and finite.

        A score does not depend on the other pairs. `log` counts pairs, and those that were cut.
        """
        ...


RerankerChoice = str | Path | Reranker
"""The hub id or folder of a cross-encoder, or a reranker that is loaded already."""


def open_reranker(chosen: RerankerChoice, config: RerankConfig, options: RunOptions) -> "Reranker":
    """A reranker that is asked for in place of the recipe's: loaded, unless it is already.

    Raises ConfigError for a blank name, and what `resolve_cross_encoder` and `open_cross_encoder` raise.
    """
    if not isinstance(chosen, str | Path):
        return chosen
    from search.ranking.cross_encoder import another_model

    return _opened(another_model(config, chosen), options)


def require_depth(depth: int) -> int:
    """Raises ConfigError for no number of hits that can be reranked."""
    if not 1 <= depth <= MOST_DEPTH:
        raise ConfigError(f"the rerank depth is {depth}; expected 1 to {MOST_DEPTH:,} hits.")
    return depth


class Reranking:
    """How the answers of an open index are reranked: by what, which the first question that needs it loads.

    Safe to share between threads.
    """

    def __init__(self, config: RerankConfig, options: RunOptions) -> None:
        self._config, self._options = config, options
        self._reranker: Reranker | None = None
        self._replaced = False
        self._lock = threading.Lock()

    def replace(self, chosen: RerankerChoice) -> None:
        """Rerank by another one than the recipe's. Raises as `open_reranker` does."""
        reranker = open_reranker(chosen, self._config, self._options)
        with self._lock:
            self._reranker, self._replaced = reranker, True

    def take_over(self, earlier: "Reranking") -> None:
        """Go on with the reranker of an earlier generation: one that replaced its recipe's, or one that is the same."""
        with earlier._lock:
            reranker, replaced = earlier._reranker, earlier._replaced
        if replaced or dataclasses.replace(earlier._config, depth=self._config.depth) == self._config:
            self._reranker, self._replaced = reranker, replaced

    def depth(self, asked: int | None) -> int:
        """How many hits are reranked where so many are asked for, None: as the recipe says; 0: none.

        Raises ConfigError for a depth without a reranker.
        """
        on = self._replaced or bool(self._config.model)
        if asked and not on:
            raise ConfigError(
                f"{DEPTH} is {asked}, but the recipe of the index names no cross-encoder. Name one (--rerank MODEL, in "
                "Python rerank_by), or record one: isotrope refit INDEX --set rerank.model=MODEL."
            )
        if asked is None:
            return self._config.depth if on else 0
        return asked

    def load(self) -> Reranker:
        """The reranker. Raises as `resolve_cross_encoder` and `open_cross_encoder` do."""
        with self._lock:
            if self._reranker is None:
                self._reranker = _opened(self._config, self._options)
            return self._reranker

    def answers(
        self, index: Index, queries: Sequence[str], found: Sequence[Answer[RankedDocument]], depth: int
    ) -> list[Answer[RankedDocument]]:
        """The answers to `queries`, the first `depth` hits of each in the reranker's order. Raises as `load` does."""
        reranker = self.load()
        reranked: list[Answer[RankedDocument]] = []
        for start in range(0, len(queries), _BATCH):
            require_awaited()
            some = found[start : start + _BATCH]
            texts = hit_texts(index, [answer[:depth] for answer in some])
            asked = [query for query, own in zip(queries[start : start + _BATCH], texts, strict=True) for _ in own]
            scores = reranker.scores(asked, [text for own in texts for text in own])
            ends = np.cumsum([len(own) for own in texts])
            for answer, own in zip(some, np.split(scores, ends[:-1]), strict=True):
                reranked.append(Answer(in_order(answer, own, index.documents.ids), answer.missing))
        return reranked


def in_order(found: Sequence[RankedDocument], scores: Float64Array, ids_of: IdsOf) -> list[RankedDocument]:
    """A ranking whose first documents have these scores (n,): those by their scores, ties by id, then the others."""
    order = rerank_order(scores, lambda places: ids_of([found[place].document for place in places]))
    first = [dataclasses.replace(found[place], rerank_score=float(scores[place])) for place in order]
    return [*first, *found[len(scores) :]]


def rerank_order(scores: Float64Array, ids_at: Callable[[Sequence[int]], Sequence[str]]) -> list[int]:
    """The places 0..n-1 by their scores (n,), the highest first, ties by id; `ids_at` gives the ids at some places."""
    values, counts = np.unique(scores, return_counts=True)
    tied = np.flatnonzero(np.isin(scores, values[counts > 1])).tolist()
    names = dict(zip(tied, ids_at(tied), strict=True)) if tied else {}
    return sorted(range(len(scores)), key=lambda place: (-scores[place], names.get(place, "")))


def hit_texts(index: Index, found: Sequence[Sequence[RankedDocument]]) -> list[list[str]]:
    """What a reranker reads of each hit: the window it was found by, or the whole joined text of its document."""
    numbers = sorted({one.document for own in found for one in own})
    columns = index.config.corpus.text
    joined = {
        number: joined_text(document, columns)
        for number, document in zip(numbers, index.documents.fetch(numbers), strict=True)
    }
    return [[_window(index, joined[one.document], one.row) for one in own] for own in found]


def _window(index: Index, text: str, row: int) -> str:
    if index.numbering.one_to_one or row < 0:
        return text
    start, end = index.numbering.spans(np.array([row]))[0].tolist()
    return text[start:end]


def _opened(config: RerankConfig, options: RunOptions) -> "CrossEncoder":
    from indexer.models.cross_encoder_spec import resolve_cross_encoder
    from search.ranking.cross_encoder import open_cross_encoder

    return open_cross_encoder(resolve_cross_encoder(config), options)
