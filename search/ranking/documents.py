"""From rows with scores to documents in order: one row per document, one document per group, ties by id.

A group is the documents with one value in a metadata column. A document without a value is a group by itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from indexer.arrays import Int64Array, Mask, SearchResult
from indexer.errors import ConfigError
from indexer.store.numbering import LiveNumbering
from search.formatting import did_you_mean
from search.hits import HybridScores
from search.index import Index

UNGROUPED = -1  # the code of a document without a value
IdsOf = Callable[[Sequence[int]], Sequence[Any]]
"""Returns the ids of documents, or values with the same order."""


@dataclass(frozen=True)
class FoldedDocument:
    """A document folded under a better one, and the inner product of their vectors."""

    document: int
    score: float
    similarity: float


class RankedDocument(NamedTuple):
    """A document in a ranking, and the row of the document that is closest to the query.

    `folded_count` near-duplicates are folded under it, and `folded` lists the best of them, best first
    (`search.ranking.folding`). `parts` are the two scores of a hybrid score. `rerank_score` is the reranker's score.
    """

    document: int
    score: float
    row: int
    folded: tuple[FoldedDocument, ...] = ()
    folded_count: int = 0
    parts: HybridScores | None = None
    rerank_score: float | None = None


def best_rows(found: Sequence[SearchResult], numbering: LiveNumbering, ids_of: IdsOf) -> list[list[RankedDocument]]:
    """Return for each query the documents by their best row, best first, ties by id. Rows must be best first."""
    if not found:
        return []
    scores, rows = (np.concatenate(columns) for columns in zip(*found, strict=True))
    owners, documents = np.repeat(np.arange(len(found)), [len(best) for _, best in found]), numbering.documents_of(rows)
    if not numbering.one_to_one:
        _, first = np.unique(owners * np.int64(numbering.documents) + documents, return_index=True)
        first.sort()
        owners, documents, scores, rows = owners[first], documents[first], scores[first], rows[first]
    ranked = list(map(RankedDocument, documents.tolist(), scores.tolist(), rows.tolist()))
    ends = np.searchsorted(owners, np.arange(len(found) + 1)).tolist()
    return break_ties([ranked[start:end] for start, end in pairwise(ends)], ids_of)


def break_ties(rankings: Sequence[list[RankedDocument]], ids_of: IdsOf) -> list[list[RankedDocument]]:
    """Return rankings, best first, with equal scores in ascending order of id. Looks up only the ids of tied documents,
    of all rankings at once."""
    tied = {
        hit.document
        for ranked in rankings
        for pair in pairwise(ranked)
        if pair[0].score == pair[1].score
        for hit in pair
    }
    if not tied:
        return list(rankings)
    names = dict(zip(tied, ids_of(list(tied)), strict=True))
    return [sorted(ranked, key=lambda hit: (-hit.score, names.get(hit.document))) for ranked in rankings]


@dataclass(frozen=True)
class Groups:
    """The groups of documents by a metadata column's `codes` (documents,); None: every document is a group.

    `documents` is their number. `allowed` (documents,) marks the documents that can be returned, None all.
    """

    codes: Int64Array | None
    documents: int
    allowed: Mask | None = None

    @cached_property
    def count(self) -> int:
        """The number of groups with an allowed document, which is the most hits there can be."""
        if self.codes is None:
            return self.documents if self.allowed is None else int(np.count_nonzero(self.allowed))
        codes = self.codes if self.allowed is None else self.codes[self.allowed]
        grouped = codes[codes != UNGROUPED]
        return len(codes) - len(grouped) + int(np.count_nonzero(np.bincount(grouped)))

    def first_of(self, ranked: Sequence[RankedDocument]) -> list[RankedDocument]:
        """Return the first document of each group."""
        if self.codes is None:
            return list(ranked)
        seen: set[int] = set()
        kept = []
        for hit in ranked:
            code = int(self.codes[hit.document])
            if code == UNGROUPED or code not in seen:
                seen.add(code)
                kept.append(hit)
        return kept


def group_codes(index: Index, column: str) -> Int64Array:
    """Return a number for each document's value in `column`, (documents,); `UNGROUPED` for no value.

    Raises ConfigError for a column that the index does not have, or whose values cannot be compared.
    """
    import pyarrow.compute as pc  # slow to import, and few queries need groups

    schema = index.documents.schema
    if column not in schema.names:
        hint = did_you_mean(column, schema.names, f"it has {', '.join(schema.names)}.")
        raise ConfigError(f'group by "{column}": the index has no such column; {hint}')
    if pa.types.is_nested(schema.field(column).type):
        kind = schema.field(column).type
        raise ConfigError(f'group by "{column}": the column contains {kind}; expected one plain value per document.')
    parts = (index.documents.columns(part, [(column,)])[0] for part in range(len(index.manifest.parts)))
    values = [chunk for part in parts for chunk in part.chunks]
    encoded = pc.dictionary_encode(pa.chunked_array(values, type=schema.field(column).type))
    chunks = [chunk.indices.fill_null(UNGROUPED).to_numpy() for chunk in encoded.chunks]
    return np.concatenate([np.zeros(0, np.int64), *chunks]).astype(np.int64)
