"""What an addition folds into the part it writes: the small parts at the end of an index, as merging logs do.

Each of them is no larger than what is written already, so that n documents that come one at a time lie in about log n
parts and segments, and each is written about log n times. Documents keep their stored numbers, and deleted ones stay
among them, so that lists of deleted documents stay true. The generation before keeps the parts that it names.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from indexer.corpus.document import Document, text_bytes
from indexer.pipeline.drift import AddedSince
from indexer.pipeline.published_index import PublishedIndex
from indexer.pipeline.steps.index_segment import COUNTS, SMALL_ROWS
from indexer.recipe.config import PART_BYTES
from indexer.store import parts
from indexer.store.parts import PartRecord


class Arriving:
    """Documents on their way into an index: those `held` in memory, at most a part of them, then the others.

    `is_whole` says that no others follow. Iterating lets go of each document.
    """

    def __init__(self, documents: Iterable[Document], most: int) -> None:
        self._others, self.held, self.bytes = iter(documents), deque[Document](), 0
        while not (len(self.held) > most or self.bytes > PART_BYTES):
            document = next(self._others, None)
            if document is None:
                break
            self.held.append(document)
            self.bytes += text_bytes(document)
        self.is_whole = len(self.held) <= most and self.bytes <= PART_BYTES

    def __iter__(self) -> Iterator[Document]:
        while self.held:
            yield self.held.popleft()
        yield from self._others


@dataclass(frozen=True)
class Tail:
    """The last parts and segments of an index, to be written anew: `parts` and `segments` are those before them."""

    parts: int
    segments: int
    documents: list[Document] = field(default_factory=list)  # deleted ones among them
    rows: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))


def tail_to_fold(published: PublishedIndex, arriving: Arriving) -> Tail:
    """The parts that an addition folds into its own: together they are one part, in one exact segment.

    Parts of the fit and parts of the documents added since then stay apart, as drift is measured between them.
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
    """The record of a part that can be written anew: one that is not damaged, all of whose documents were encoded."""
    record = parts.read_record(published.index / name)
    sound = record is not None and not record.set_aside and parts.is_intact(published.index / name, record)
    return record if sound else None
