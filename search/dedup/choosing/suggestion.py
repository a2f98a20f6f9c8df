"""What is suggested: candidates for the threshold, each with numbers and with pairs to read."""

from dataclasses import dataclass
from typing import Any

from search.dedup.choosing.background import Background
from search.dedup.choosing.labelled import LabelledResult


@dataclass(frozen=True)
class Side:
    """A document of an example: its title and the first words of it or its window, white space folded."""

    id: str
    text: str


@dataclass(frozen=True)
class Example:
    """Two documents and their score."""

    score: float
    first: Side
    second: Side

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {"score": self.score, "first": vars(self.first).copy(), "second": vars(self.second).copy()}


@dataclass(frozen=True)
class Chance:
    """Pairs that chance would give; the ends of the interval are None where it has no value."""

    expected: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Candidate:
    """A threshold. `above` are the pairs nearest to it that reach it, `below` those that do not."""

    threshold: float
    chance: Chance | None  # None without a background
    pairs: int
    dropped: int
    dropped_exactly: bool  # else at most so many
    above: tuple[Example, ...]
    below: tuple[Example, ...]

    @property
    def by_chance(self) -> float | None:
        """Share of the pairs that chance explains, at most 1; None without a background or pairs."""
        return min(1.0, self.chance.expected / self.pairs) if self.chance and self.pairs else None

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {
            "threshold": self.threshold,
            "chance": vars(self.chance).copy() if self.chance else None,
            "pairs": self.pairs,
            "by_chance": self.by_chance,
            "dropped": self.dropped,
            "dropped_exactly": self.dropped_exactly,
            "above": [example.to_dict() for example in self.above],
            "below": [example.to_dict() for example in self.below],
        }


@dataclass(frozen=True)
class Suggestion:
    """Candidates in ascending order, in words what the background says, and what labelled pairs say if there are."""

    documents: int
    windows: int | None  # pairs are of windows; None: of documents
    floor: float
    background: Background | None
    sentences: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    labelled: LabelledResult | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {
            "documents": self.documents,
            "windows": self.windows,
            "floor": self.floor,
            "background": self.background.to_dict() if self.background else None,
            "sentences": list(self.sentences),
            "candidates": [candidate.to_dict() for candidate in self.candidates],
            "labelled": self.labelled.to_dict() if self.labelled else None,
        }
