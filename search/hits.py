"""Hits and answers of a search. They load no numerical library, because clients of a server return them too."""

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

    The joined text consists of the columns without surrounding white space (`joined_text`). `columns` is the place of
    the window in each original column: name -> (start, end).
    """

    start: int
    end: int
    text: str
    columns: dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class FoldedHit:
    """A near-duplicate that is folded under a better hit; `similarity` is the inner product of their two vectors."""

    id: str
    score: float
    similarity: float
    title: str | None


@dataclass(frozen=True, slots=True)
class HybridScores:
    """The parts of a hybrid score: the inner product of unit vectors, and BM25, 0 without a word of the query."""

    vector: float
    bm25: float


@dataclass(frozen=True, slots=True)
class Hit:
    """One document of an answer. `score` is the inner product of two unit vectors: higher is closer, at most 1.

    With `hybrid` the score is made of `parts` by the recipe's `[hybrid]`: a convex combination of both, each scaled for
    the query (at most 1 by "minmax"), or a sum of reciprocal ranks. With `similarity="js"` it is 1 - JS / ln 2.
    `window` is set if documents are chunked. With `fold`, `folded` are the near-duplicates under this hit, best first:
    the first 100 of `folded_count`. Reranked hits are in the order of `rerank_score`, which the cross-encoder gives.
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
        """Return the hit as JSON has it, with its `rank` if given and without the fields that do not apply to it."""
        plain: dict[str, Any] = {} if rank is None else {"rank": rank}
        plain |= {name: getattr(self, name) for name in ("id", "score", "title", "text", "metadata")}
        if self.rerank_score is not None:
            plain["rerank_score"] = self.rerank_score
        if self.parts:
            plain["parts"] = asdict(self.parts)
        if self.window:
            plain["window"] = asdict(self.window)
        if self.folded:
            plain |= {"folded": [asdict(one) for one in self.folded], "folded_count": self.folded_count}
        return plain


@dataclass(frozen=True)
class Truncated:
    """A query of so many `tokens` was cut at the `limit`, because the encoder reads no more."""

    tokens: int
    limit: int


class Answer(list[Found]):
    """The hits for one question, best first. `missing` are the segments without an answer, which could have changed it:
    none, unless `SearchOptions.partial` allows such answers."""

    def __init__(self, found: Iterable[Found] = (), missing: "tuple[SegmentEntry, ...]" = ()) -> None:
        super().__init__(found)
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
        """Whether something is missing."""
        return bool(self.missing)


def bytes_of(value: object) -> int:
    """Bytes of memory that a value takes, including the texts in its lists and objects."""
    if isinstance(value, dict):
        return sum(bytes_of(name) + bytes_of(inner) for name, inner in value.items())
    if isinstance(value, list | tuple):
        return sum(map(bytes_of, value))
    return sys.getsizeof(value)
