"""From rows with scores to documents in order: one row a document, one document a group, ties by id."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.arrays import RowIds
from indexer.store.numbering import LiveNumbering
from search.grouping import UNGROUPED, Codes

Scores = npt.NDArray[np.floating]
IdsOf = Callable[[Sequence[int]], Sequence[Any]]
"""Ids of some documents, or what is ordered as they are."""


@dataclass(frozen=True)
class Place:
    """A document in a ranking, and the row that brought it there (-1: none did)."""

    document: int
    score: float
    row: int


def documents_of(scores: Scores, rows: RowIds, numbering: LiveNumbering, ids_of: IdsOf) -> list[Place]:
    """Documents by their best row, best first, ties by id. `rows` come best first."""
    documents = numbering.documents_of(rows)
    if not numbering.one_to_one:
        _, first = np.unique(documents, return_index=True)
        first.sort()
        documents, scores, rows = documents[first], scores[first], rows[first]
    places = [Place(*place) for place in zip(documents.tolist(), scores.tolist(), rows.tolist(), strict=True)]
    return by_id(places, ids_of)


def by_id(places: list[Place], ids_of: IdsOf) -> list[Place]:
    """The same with equal scores in ascending order of id; ids are only looked up where they decide."""
    times = Counter(place.score for place in places)
    tied = [place.document for place in places if times[place.score] > 1]
    if not tied:
        return places
    names = dict(zip(tied, ids_of(tied), strict=True))
    return sorted(places, key=lambda place: (-place.score, names.get(place.document)))


@dataclass(frozen=True)
class Groups:
    """The groups that documents fall into, by a metadata column's `codes` (documents,); None: each is one of its own.

    `documents` are all there are, `allowed` (documents,) says which may be found, None all.
    """

    codes: Codes | None
    documents: int
    allowed: npt.NDArray[np.bool_] | None = None

    @cached_property
    def count(self) -> int:
        """How many groups there are among the allowed documents: more hits there cannot be."""
        if self.codes is None:
            return self.documents
        some = self.codes if self.allowed is None else self.codes[self.allowed]
        grouped = some[some != UNGROUPED]
        return len(some) - len(grouped) + int(np.count_nonzero(np.bincount(grouped)))

    def first_of(self, places: Sequence[Place]) -> list[Place]:
        """The first document of each group; those without a value are groups of their own."""
        if self.codes is None:
            return list(places)
        seen: set[int] = set()
        kept = []
        for place in places:
            code = int(self.codes[place.document])
            if code == UNGROUPED or code not in seen:
                seen.add(code)
                kept.append(place)
        return kept
