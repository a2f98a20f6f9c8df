"""The hits of ranked documents: reads their texts, and cuts out the matching windows when a hit is looked at."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from indexer.arrays import Int64Array
from indexer.corpus.document import Document, column_spans, joined_text
from indexer.recipe.config import BuildConfig
from indexer.store.document_tables import fields_of
from indexer.store.integrity import as_damage
from search.hits import Answer, FoldedHit, Hit, Place, Window
from search.index import Index
from search.ranking.documents import FoldedDocument, RankedDocument

_READ_AT_ONCE = 16  # documents, if their size is limited


def fetch_hits(
    index: Index, ranked: Sequence[Answer[RankedDocument]], on_read: Callable[[int], None] | None = None
) -> list[Answer[Hit]]:
    """Return the hits of each answer, in order. They are columns, from which an answer makes its hits when it is read.

    `on_read` is called every few documents with the bytes read so far, and can raise to stop reading.
    """
    hits = [hit for answer in ranked for hit in answer]
    numbers, places = np.unique(np.array([hit.document for hit in hits], np.int64), return_inverse=True)
    tables, size, step = list[pa.Table](), 0, _READ_AT_ONCE if on_read else max(1, len(numbers))
    for start in range(0, len(numbers), step):
        tables.append(index.documents.table(numbers[start : start + step]))
        if on_read:
            size += tables[-1].nbytes
            on_read(size)
    spans = None
    if not index.numbering.one_to_one:
        rows = np.array([hit.row for hit in hits], np.int64)
        spans = np.where(rows[:, None] < 0, -1, index.numbering.spans(np.maximum(rows, 0)))
    folded = sorted({duplicate.document for hit in hits for duplicate in hit.folded})
    names = dict(zip(folded, index.documents.names(folded), strict=True)) if folded else {}
    columns = _Columns(
        pa.concat_tables(tables) if tables else index.documents.schema.empty_table(), index.path, index.config, names
    )
    schema, ends = index.manifest.schema, [0, *accumulate(map(len, ranked))]
    return [
        Answer(
            _Fetched(columns, answer, places[start:end], None if spans is None else spans[start:end]),
            answer.missing,
            schema,
        )
        for answer, (start, end) in zip(ranked, pairwise(ends), strict=True)
    ]


@dataclass(frozen=True)
class _Columns:
    """The documents of some answers, and what else their hits need: `names` are the id and the title of each folded
    document."""

    table: pa.Table
    index: Path
    config: BuildConfig
    names: dict[int, tuple[str, str | None]]

    @cached_property
    def fields(self) -> list[tuple[str, str | None, str, dict[str, Any]]]:
        """Id, title, text and metadata of each row, all converted at once: it costs a call for each column."""
        with as_damage(self.index):
            return list(fields_of(self.table))


@dataclass(frozen=True)
class _Fetched(Collection[Hit]):
    """The hits of one answer: the place of each in the table (n,), and its window's `spans` (n, 2) in characters, -1
    for none."""

    columns: _Columns
    ranked: Sequence[RankedDocument]
    places: Int64Array
    spans: Int64Array | None

    def __len__(self) -> int:
        return len(self.ranked)

    def __contains__(self, hit: object) -> bool:
        return hit in list(self)

    def __iter__(self) -> Iterator[Hit]:
        fields, spans = self.columns.fields, repeat((-1, -1)) if self.spans is None else self.spans.tolist()
        for ranked, number, span in zip(self.ranked, self.places.tolist(), spans, strict=False):
            identity, title, text, metadata = fields[number]
            window, place = (
                (None, None) if span[0] < 0 else self._window(Document(identity, text, title, metadata), *span)
            )
            folded = tuple(map(self._folded, ranked.folded))
            about = (window, folded, ranked.folded_count, ranked.parts, ranked.rerank_score, place)
            yield Hit(identity, ranked.score, title, text, metadata, *about)

    def _window(self, document: Document, start: int, end: int) -> tuple[Window, Place | None]:
        """Return a window of a document, and its place in the file."""
        from search.ranking.place import place_of  # imports the outlines of files, and most hits have no window

        columns = self.columns.config.corpus.text
        text = joined_text(document, columns)[start:end]
        window = Window(start, end, text, column_spans(document, columns, start, end))
        return window, place_of(document, self.columns.config, window)

    def _folded(self, duplicate: FoldedDocument) -> FoldedHit:
        name, title = self.columns.names[duplicate.document]
        return FoldedHit(name, duplicate.score, duplicate.similarity, title)
