"""Rerankers of tests: shared words, and a slow oracle that sorts by any reranker."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from indexer.arrays import Float64Array
from indexer.encoders.protocol import EncodeStats
from search.hits import Hit
from search.ranking.reranker import Reranker

_CUT = 4000  # characters that it reads of a text


@dataclass
class SharedWords:
    """Scores a text by the share of the question's words that it has; keeps what it was asked."""

    asked: list[tuple[str, str]] = field(default_factory=list)

    def scores(self, queries: Sequence[str], texts: Sequence[str], log: EncodeStats | None = None) -> Float64Array:
        pairs = list(zip(queries, texts, strict=True))
        self.asked += pairs
        if log is not None:
            log.lengths.extend(len(text) for text in texts)
            log.truncated += sum(len(text) > _CUT for text in texts)
        return np.array([_shared(query, text[:_CUT]) for query, text in pairs], np.float64)


@dataclass
class Constant:
    """Finds all texts equally good."""

    def scores(self, queries: Sequence[str], texts: Sequence[str], log: EncodeStats | None = None) -> Float64Array:
        return np.zeros(len(texts))


def _shared(query: str, text: str) -> float:
    wanted, there = (set(re.findall(r"\w+", one.lower())) for one in (query, text))
    return len(wanted & there) / len(wanted)


def resorted(query: str, hits: Sequence[Hit], reranker: Reranker, depth: int) -> list[str]:
    """Ids of hits, the first `depth` sorted by a reranker that is asked of them one by one, ties by id."""

    def key(hit: Hit) -> tuple[float, str]:
        text = hit.window.text if hit.window else " ".join(filter(None, [hit.title, hit.text]))
        return -float(reranker.scores([query], [text])[0]), hit.id

    first = sorted(hits[:depth], key=key)
    return [hit.id for hit in [*first, *hits[depth:]]]
