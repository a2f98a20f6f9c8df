"""Hits and answers of a search. This module loads no numerical library, because `search.client` uses it."""

import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar, overload

if TYPE_CHECKING:
    from indexer.store.manifest import SegmentEntry

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Window:
    """The window of a document that matched: characters [start, end) of the joined text, and their text.

    The joined text consists of the stripped columns (`joined_text`). `columns` maps each original column of the window
    to the window's (start, end) in it.
    """

    start: int
    end: int
    text: str
    columns: dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class FoldedHit:
    """A near-duplicate folded under a better hit; `similarity` is the inner product of their vectors."""

    id: str
    score: float
    similarity: float
    title: str | None


@dataclass(frozen=True, slots=True)
class HybridScores:
    """The parts of a hybrid score: the inner product of unit vectors, and BM25, which is 0 without a query word."""

    vector: float
    bm25: float


@dataclass(frozen=True, slots=True)
class Hit:
    """A document of an answer. `score` is the inner product of two unit vectors: higher is closer, at most 1.

    With `hybrid`, `score` fuses `parts` as the recipe's `[hybrid]` says: a convex combination of both, each scaled for
    the query (at most 1 by "minmax"), or a sum of reciprocal ranks. With `similarity="js"`, it is 1 - JS / ln 2.
    `window` is set if documents are chunked. With `fold`, `folded` are the near-duplicates under this hit, best first:
    the first 100 of `folded_count`. Reranked hits are ordered by `rerank_score`, the cross-encoder's score.
    """

    id: str
    score: float
    title: str | None
    text: str
    metadata: dict[str, Any]
    window: Window | None = None
    folded: tuple[FoldedHit, ...] = ()
    folded_count: int = 0
    parts: HybridScores | None = None
    rerank_score: float | None = None

    def to_dict(self, rank: int | None = None) -> dict[str, Any]:
        """Return JSON types, with `rank` if given, without fields that do not apply."""
        plain: dict[str, Any] = {} if rank is None else {"rank": rank}
        plain |= {name: getattr(self, name) for name in ("id", "score", "title", "text", "metadata")}
        if self.rerank_score is not None:
            plain["rerank_score"] = self.rerank_score
        if self.parts:
            plain["parts"] = asdict(self.parts)
        if self.window:
            plain["window"] = asdict(self.window)
        if self.folded:
            plain |= {"folded": [asdict(hit) for hit in self.folded], "folded_count": self.folded_count}
        return plain


@dataclass(frozen=True)
class Truncated:
    """A text of `tokens` tokens, truncated at the encoder's `limit`."""

    tokens: int
    limit: int


class Answer(list[Found]):
    """The hits of one query, best first. `missing` are the segments that did not answer and could have changed it: none
    unless `SearchOptions.partial` is set."""

    def __init__(self, hits: Iterable[Found] = (), missing: "tuple[SegmentEntry, ...]" = ()) -> None:
        super().__init__(hits)
        self.missing = missing

    @overload
    def __getitem__(self, place: SupportsIndex) -> Found: ...

    @overload
    def __getitem__(self, place: slice) -> "Answer[Found]": ...

    def __getitem__(self, place: SupportsIndex | slice) -> "Found | Answer[Found]":
        """Return a hit, or for a slice an answer with the same missing segments."""
        if isinstance(place, slice):
            return Answer(super().__getitem__(place), self.missing)
        return super().__getitem__(place)

    @property
    def partial(self) -> bool:
        """Whether segments are missing."""
        return bool(self.missing)


def bytes_of(value: object) -> int:
    """Return the bytes of memory of a value, including the values in its lists and objects."""
    if isinstance(value, dict):
        return sum(bytes_of(name) + bytes_of(inner) for name, inner in value.items())
    if isinstance(value, list | tuple):
        return sum(map(bytes_of, value))
    return sys.getsizeof(value)
