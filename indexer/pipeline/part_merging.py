"""The small parts at the end of an index, which an addition rewrites into its own part, as a log-structured merge does.

A rewritten part is at most as large as the documents already collected, so n documents that arrive one at a time lie in
about log n parts and segments, and each is written about log n times. Documents, also deleted ones, keep their stored
numbers, so lists of deleted documents stay valid. The previous generation keeps its own parts.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from indexer.corpus.document import Document, text_bytes
from indexer.pipeline.drift import AddedSince
from indexer.pipeline.published_index import PublishedIndex
from indexer.pipeline.steps.index_segment import COUNTS, SMALL_ROWS
from indexer.recipe.index_config import PART_BYTES
from indexer.store import parts
from indexer.store.parts import PartRecord


class Arriving:
    """New documents: those `held` in memory, about one part, then the rest of the stream.

    `is_whole` means that all are held. Iterating releases each document.
    """

    def __init__(self, documents: Iterable[Document], most: int) -> None:
        self._others, self.held, self.bytes = iter(documents), deque[Document](), 0
        self.is_whole = True
        for document in self._others:
            self.held.append(document)
            self.bytes += text_bytes(document)
            if len(self.held) > most or self.bytes > PART_BYTES:
                self.is_whole = False
                break

    def __iter__(self) -> Iterator[Document]:
        while self.held:
            yield self.held.popleft()
        yield from self._others


@dataclass(frozen=True)
class Tail:
    """The last parts and segments of an index, to be rewritten; `parts` and `segments` count the earlier ones."""

    parts: int
    segments: int
    documents: list[Document] = field(default_factory=list)  # including deleted ones
    rows: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))


def tail_to_fold(published: PublishedIndex, arriving: Arriving) -> Tail:
    """Return the parts that an addition rewrites into its own: together one part, in one exact segment.

    Parts of the fitted documents are never merged with parts added later, because drift is measured between them.
    """
    manifest, since = published.manifest, AddedSince.of(published.manifest)
    entries, segments = manifest.parts, manifest.segments
    exact = len(segments)
    while exact and segments[exact - 1].factory == "Flat":
        exact -= 1
    begins = {segment.first_row: number for number, segment in enumerate(segments) if number >= exact}
    firsts = [0, *accumulate(entry.rows for entry in entries)]
    tail, records, documents, size = len(entries), list[PartRecord](), len(arriving.held), arriving.bytes
    for number in reversed(range(max(1, since.part + bool(since.row)), len(entries) if arriving.is_whole else 0)):
        entry = entries[number]
        size += published.documents.uncompressed_bytes(number)
        is_small = entry.documents <= documents and size <= PART_BYTES
        documents += entry.documents
        is_small &= documents <= published.config.store.part_documents and firsts[-1] - firsts[number] <= SMALL_ROWS
        record = _sound_record(published, entry.name) if is_small else None
        if record is None:
            break
        records.append(record)
        if firsts[number] in begins:
            tail = number
    if tail == len(entries):
        return Tail(tail, len(segments))
    records = records[: len(entries) - tail]
    counts = {count: sum(getattr(record, count) for record in records) for count in COUNTS}
    stored = published.stored_documents(sum(entry.documents for entry in entries[:tail]))
    return Tail(tail, begins[firsts[tail]], stored, firsts[-1] - firsts[tail], counts)


def _sound_record(published: PublishedIndex, name: str) -> PartRecord | None:
    """Return the record of a part that can be rewritten: intact, and without quarantined documents."""
    record = parts.read_record(published.index / name)
    sound = record is not None and not record.quarantined and parts.is_intact(published.index / name, record)
    return record if sound else None
