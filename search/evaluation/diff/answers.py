"""The answers of two indexes to one question, and what differs between them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from search.evaluation.diff.documents import DocumentChanges
from search.hits import Answer
from search.index import Index
from search.ranking.documents import RankedDocument

Ranked = dict[str, float]  # id to score, best first


@dataclass(frozen=True)
class TwoAnswers:
    """The answers of both indexes to a question."""

    question: str
    before: Ranked
    after: Ranked

    @property
    def changed(self) -> float:
        """The share of the hits that the other answer lacks; of answers of unequal lengths, of the longer one."""
        longest = max(len(self.before), len(self.after))
        return 1 - len(self.before.keys() & self.after.keys()) / longest if longest else 0.0

    @property
    def first_changed(self) -> bool:
        """Whether another document is the first hit."""
        return next(iter(self.before), None) != next(iter(self.after), None)

    @cached_property
    def score_changes(self) -> list[float]:
        """By how much the score of each common hit rose."""
        return [score - self.before[name] for name, score in self.after.items() if name in self.before]


def ranked_ids(
    index: Index, answers: Sequence[Answer[RankedDocument]], sources: Sequence[str | None], k: int
) -> list[Ranked]:
    """Return the first k hits of each answer without the document that its question was drawn from (`sources`)."""
    numbers = np.unique(np.array([hit.document for answer in answers for hit in answer], np.int64))
    names = dict(zip(numbers.tolist(), index.documents.ids(numbers.tolist()), strict=True))
    ranked = []
    for answer, source in zip(answers, sources, strict=True):
        others = [(names[hit.document], hit.score) for hit in answer if names[hit.document] != source]
        ranked.append(dict(others[:k]))
    return ranked


def reasons(answers: Sequence[TwoAnswers], changes: DocumentChanges) -> dict[str, dict[str, int]]:
    """Return how many hits only one index returned, by what happened to their documents.

    "gained" are hits of the second index, of documents that were "added", "changed", or that both contain ("same");
    "lost" are hits of the first, of documents "removed", "changed" or "same".
    """
    gained = [name for each in answers for name in each.after if name not in each.before]
    lost = [name for each in answers for name in each.before if name not in each.after]
    return {
        "gained": _counted(gained, added=changes.added, changed=changes.changed),
        "lost": _counted(lost, removed=changes.removed, changed=changes.changed),
    }


def _counted(names: Sequence[str], **kinds: frozenset[str]) -> dict[str, int]:
    counts = {kind: sum(name in ids for name in names) for kind, ids in kinds.items()}
    return counts | {"same": len(names) - sum(counts.values())}


def examples(answers: Sequence[TwoAnswers], most: int, before: Index, after: Index) -> list[dict[str, Any]]:
    """Return the questions whose answers changed most, with the hits of both and their titles, as JSON types."""
    order = sorted(
        (each for each in answers if each.changed or each.first_changed),
        key=lambda each: (-each.changed, not each.first_changed, each.question),
    )[:most]
    return [
        {
            "question": each.question,
            "changed": each.changed,
            "before": _titled(before, each.before),
            "after": _titled(after, each.after),
        }
        for each in order
    ]


def _titled(index: Index, ranked: Ranked) -> list[dict[str, Any]]:
    numbers = index.ids.find(ranked)
    titles = dict(index.documents.names([numbers[name] for name in ranked]))
    return [{"id": name, "score": score, "title": titles[name]} for name, score in ranked.items()]
