"""From rows with scores to documents in order: one row a document, one document a group, ties by id.

A group is the documents with one value in a metadata column; those without a value are groups of their own.
"""

import difflib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from indexer.arrays import Int64Array, Mask, RowIds, Scores
from indexer.errors import ConfigError
from indexer.store.numbering import LiveNumbering
from search.hits import HybridScores
from search.index import Index

UNGROUPED = -1  # the code of a document without a value
IdsOf = Callable[[Sequence[int]], Sequence[Any]]
"""Ids of some documents, or values in the same order."""


@dataclass(frozen=True)
class FoldedDocument:
    """A document that is folded under a better one, and the inner product of its vector with the other's."""

    document: int
    score: float
    similarity: float


@dataclass(frozen=True)
class RankedDocument:
    """A document in a ranking, and the row that brought it there: of its rows the one closest to the query.

    `folded` are the near-duplicates that are folded under it, best first, `folded_count` of them, of which the best are
    listed (`search.ranking.folding`). `parts` are the scores that a hybrid one is made of.
    `rerank_score` is the reranker's, of what it read.
    """

    document: int
    score: float
    row: int
    folded: tuple[FoldedDocument, ...] = ()
    folded_count: int = 0
    parts: HybridScores | None = None
    rerank_score: float | None = None


def best_rows(scores: Scores, rows: RowIds, numbering: LiveNumbering, ids_of: IdsOf) -> list[RankedDocument]:
    """Documents by their best row, best first, ties by id. `rows` come best first."""
    documents = numbering.documents_of(rows)
    if not numbering.one_to_one:
        _, first = np.unique(documents, return_index=True)
        first.sort()
        documents, scores, rows = documents[first], scores[first], rows[first]
    places = [RankedDocument(*place) for place in zip(documents.tolist(), scores.tolist(), rows.tolist(), strict=True)]
    return break_ties(places, ids_of)


def break_ties(places: list[RankedDocument], ids_of: IdsOf) -> list[RankedDocument]:
    """Return the places with equal scores in ascending order of id. Ids are looked up only where they decide."""
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

    codes: Int64Array | None
    documents: int
    allowed: Mask | None = None

    @cached_property
    def count(self) -> int:
        """How many groups the allowed documents fall into: more hits there cannot be."""
        if self.codes is None:
            return self.documents if self.allowed is None else int(np.count_nonzero(self.allowed))
        some = self.codes if self.allowed is None else self.codes[self.allowed]
        grouped = some[some != UNGROUPED]
        return len(some) - len(grouped) + int(np.count_nonzero(np.bincount(grouped)))

    def first_of(self, places: Sequence[RankedDocument]) -> list[RankedDocument]:
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


def group_codes(index: Index, column: str) -> Int64Array:
    """A number for each document's value in `column`, (documents,); `UNGROUPED` where it has none.

    Raises ConfigError for a column that the index does not have, or whose values cannot be compared.
    """
    import pyarrow.compute as pc  # here, as it takes time, and most questions ask for no groups

    schema = index.documents.schema
    if column not in schema.names:
        close = difflib.get_close_matches(column, schema.names, n=1)
        hint = f'did you mean "{close[0]}"?' if close else f"it has {', '.join(schema.names)}."
        raise ConfigError(f'group by "{column}": the index has no such column; {hint}')
    if pa.types.is_nested(schema.field(column).type):
        raise ConfigError(
            f'group by "{column}": the column holds {schema.field(column).type}; expected one plain value a document.'
        )
    parts = (index.documents.columns(part, [(column,)])[0] for part in range(len(index.manifest.parts)))
    values = [chunk for part in parts for chunk in part.chunks]
    encoded = pc.dictionary_encode(pa.chunked_array(values, type=schema.field(column).type))
    chunks = [chunk.indices.fill_null(UNGROUPED).to_numpy() for chunk in encoded.chunks]
    return np.concatenate([np.zeros(0, np.int64), *chunks]).astype(np.int64)
