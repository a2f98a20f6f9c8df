"""The first step of a build: cut the corpus into parts and write their documents; keep the parts that are there.

The whole corpus is read before anything is encoded, so a bad row shows in seconds and not after hours, and the
encoder knows how much there is to do.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.corpus import Corpus
from indexer.corpus.document import Document, joined_text
from indexer.corpus.schema import describe
from indexer.errors import CorpusError, ExistsError
from indexer.pipeline.context import BuildContext
from indexer.pipeline.progress import Progress
from indexer.pipeline.reuse import KnownRows, TextReuse
from indexer.sampling import id_hash
from indexer.store import layout, parts
from indexer.store.documents import write_documents
from indexer.store.files import FileStamp, make_folder


@dataclass(frozen=True)
class PartSlot:
    """A part of this build. `record` is set when its embeddings are there already."""

    name: str  # folder, relative to the index
    documents: int
    document_key: str
    embedding_key: str
    schema: dict[str, Any]
    stamp: FileStamp  # of documents.parquet
    record: parts.PartRecord | None
    known: KnownRows | None = None  # rows whose embeddings an earlier generation has

    @property
    def missing(self) -> int:
        """Rows that are left to encode."""
        return 0 if self.record else self.documents - (len(self.known) if self.known else 0)


@dataclass(frozen=True)
class Ingested:
    """The corpus as parts, and one hash an id, in row order, that sampling is done by."""

    slots: list[PartSlot]
    id_hashes: npt.NDArray[np.uint64]

    @property
    def documents(self) -> int:
        return len(self.id_hashes)


def ingest(corpus: Iterable[Document], build: BuildContext, progress: Progress) -> Ingested:
    """Read the whole corpus. Raises CorpusError for an empty one, ExistsError for one that is not the published one."""
    progress.phase("reading", None)
    place = _Placing(build)
    slots: list[PartSlot] = []
    hashes: list[npt.NDArray[np.uint64]] = []
    for documents in _cut(corpus, build.config.store.part_documents):
        slots.append(place(documents, len(slots)))
        hashes.append(np.array([id_hash(document.id) for document in documents], np.uint64))
        progress.advance(len(documents))
    if not slots:
        raise CorpusError(f"the corpus holds no documents{_rejected(corpus)}; there is nothing to index.")
    if build.published and not build.overwrite and len(slots) < len(build.published.parts):
        raise corpus_differs(build, f"{sum(map(len, hashes)):,} documents instead of {build.published.documents:,}")
    return Ingested(slots, np.concatenate(hashes))


def _rejected(corpus: Iterable[Document]) -> str:
    if not isinstance(corpus, Corpus) or not corpus.report.rejected:
        return ""
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(corpus.report.rejected.items()))
    return f", because all rows were left out ({reasons}), see {corpus.report.rejects_file}"


def corpus_differs(build: BuildContext, how: str) -> ExistsError:
    """The error for a complete index of another corpus."""
    return ExistsError(
        f"{build.index}: holds a complete index of another corpus: {how}. "
        "Pass --overwrite to publish this one as its next generation, or build at another path."
    )


def _cut(corpus: Iterable[Document], size: int) -> Iterator[list[Document]]:
    stream = iter(corpus)
    while documents := list(islice(stream, size)):
        yield documents


@dataclass(frozen=True)
class _Complete:
    name: str
    record: parts.PartRecord


def _complete_parts(build: BuildContext) -> dict[str, _Complete]:
    """Complete parts on disk by document key; those that the newest manifest names win."""
    found = {}
    published = {part.name for part in build.published.parts} if build.published else set()
    names = [layout.part_name(number) for number in layout.part_numbers(build.index)]
    for name in sorted(names, key=lambda name: name in published):
        record = parts.read_record(build.index / name)
        if record is not None and record.fingerprint == build.fingerprint:
            found[record.document_key] = _Complete(name, record)
    return found


class _Placing:
    """Finds each part on disk, or writes its documents under the lowest free number."""

    def __init__(self, build: BuildContext) -> None:
        self._build = build
        self._complete, self._free = _complete_parts(build), _free_names(build.index)
        self._reuse = TextReuse(build)
        self._rules = asdict(build.config.corpus) | {"embeddings": build.config.store.embeddings}

    def __call__(self, documents: Sequence[Document], position: int) -> PartSlot:
        build, columns = self._build, self._build.config.corpus.text
        hashes = parts.text_hashes(joined_text(document, columns) for document in documents)
        embeddings = parts.embedding_key(build.unfitted, hashes)
        key = parts.document_key(embeddings, documents, self._rules)
        there = self._complete.get(key)
        if build.published and not build.overwrite:
            _require_published(documents, build, there, position)
        if there and _still_whole(build, there):
            record = there.record
            stamp = record.files[layout.DOCUMENTS]
            return PartSlot(there.name, record.documents, key, embeddings, record.schema, stamp, record)
        name = next(self._free)
        make_folder(build.index / name)
        stamp, schema = write_documents(build.index / name, documents)
        known = self._reuse.find(hashes)
        return PartSlot(name, len(documents), key, embeddings, describe(schema), stamp, None, known)


def _require_published(
    documents: Sequence[Document], build: BuildContext, there: _Complete | None, position: int
) -> None:
    entries = build.published.parts if build.published else ()
    if there and position < len(entries) and entries[position].name == there.name:
        return
    first = position * build.config.store.part_documents + 1
    last = first + len(documents) - 1
    raise corpus_differs(build, f'documents {first:,} to {last:,} differ (the first is "{documents[0].id}")')


def _still_whole(build: BuildContext, there: _Complete) -> bool:
    """A part left by an interrupted build is hashed before it is used. That of a finished index has been compared
    by size already, and is hashed by whoever opens it, so that `build` on a finished index stays quick."""
    if build.published and not build.overwrite:
        return True
    return parts.is_intact(build.index / there.name, there.record)


def _free_names(index: Path) -> Iterator[str]:
    """Names for new parts, lowest first. Folders that are there hold complete parts (see `sweep`): left alone."""
    taken = set(layout.part_numbers(index))
    return (layout.part_name(number) for number in count() if number not in taken)
