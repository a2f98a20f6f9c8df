"""The first step of a build: cut the corpus into parts and write their documents; keep the parts that are there.

The whole corpus is read before anything is encoded, so a bad row shows in seconds and not after hours, and the
encoder knows how much there is to do.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from indexer.config import StoreConfig
from indexer.corpus import Corpus
from indexer.corpus.document import Document, joined_text
from indexer.corpus.schema import schema_to_json
from indexer.errors import CorpusError, ExistsError
from indexer.hashing import hash_id, hash_texts, hash_vectors
from indexer.pipeline.context import BuildContext
from indexer.pipeline.reuse import ReuseByText, ReusedRows
from indexer.pipeline.rows import Contents
from indexer.progress import Progress
from indexer.store import layout, parts
from indexer.store.documents import write_documents
from indexer.store.embeddings import EmbeddingReader
from indexer.store.files import make_folder
from indexer.store.parts import PartRows, TextHashes, write_part
from indexer.transforms import Whitening

# TODO-DOC indexer.pipeline.part_files: A part of a generation: its place, and the files that make it complete.

# TODO-DOC indexer.pipeline.given_vectors: Embeddings that came with the corpus, on their way into parts and back: nothing is encoded.


@dataclass(frozen=True)
class PendingPart:
    """A part of this build. `record` is set when its embeddings are there already."""

    name: str  # folder, relative to the index
    written: parts.PartDocuments
    rows: int
    record: parts.PartRecord | None
    known: ReusedRows | None = None  # rows whose embeddings an earlier generation has
    given: bool = False  # its embeddings came with the corpus, and were written now

    @property
    def documents(self) -> int:
        """Documents of the part."""
        return self.written.documents

    @property
    def missing(self) -> int:
        """Rows that are left to encode."""
        return 0 if self.record else self.rows - (len(self.known) if self.known else 0)


Embeddings = npt.NDArray[np.floating]
_BATCH = 1024  # documents whose vectors are read together


def given_embeddings(documents: Sequence[Document], store: StoreConfig) -> Embeddings:
    """The vectors of some documents as they are stored, (n, d). Raises CorpusError for one that does not fit."""
    vectors = np.stack([_vector(document) for document in documents])
    with np.errstate(over="ignore"):
        stored: Embeddings = vectors.astype(store.embeddings)
    unfit = np.flatnonzero(~np.isfinite(stored).all(axis=1) | ~stored.any(axis=1))
    if len(unfit):
        limits = np.finfo(store.embeddings)
        raise CorpusError(
            f'document "{documents[unfit[0]].id}": its vector cannot be stored as {store.embeddings}: a number is '
            f"beyond {limits.max:g}, or all are smaller than {limits.smallest_subnormal:.0e}. "
            'Set store.embeddings = "float32", or scale the vectors.'
        )
    return stored


def complete_given(
    folder: Path, slot: PendingPart, hashes: TextHashes, embeddings: Embeddings, fingerprint: str
) -> PendingPart:
    """The slot of a part whose documents are written, once the rest of it is."""
    rows = PartRows(hashes, np.zeros(len(embeddings), np.int32), embeddings)
    return replace(slot, record=write_part(folder, slot.written, rows, fingerprint), given=True)


def same_document(one: Document, stored: Document, store: StoreConfig) -> bool:
    """Whether a document is the stored one, its vector too if it comes with one: rounded as storing it rounds it."""
    if one != stored or one.vector is None or stored.vector is None:
        return one == stored and one.vector is stored.vector
    with np.errstate(over="ignore"):
        rounded = one.vector.astype(store.embeddings).astype(np.float32)
    return np.array_equal(rounded, stored.vector)


def with_vectors(
    documents: Iterable[Document], rows: npt.NDArray[np.int64], reader: EmbeddingReader
) -> Iterator[Document]:
    """Documents of an index, each with the embedding stored in its row, float32."""
    stream = iter(documents)
    for start in range(0, len(rows), _BATCH):
        embeddings = reader.rows(rows[start : start + _BATCH]).astype(np.float32, copy=False)
        for document, vector in zip(islice(stream, len(embeddings)), embeddings, strict=True):
            yield replace(document, vector=vector)


def _vector(document: Document) -> npt.NDArray[np.float32]:
    if document.vector is None:
        raise CorpusError(f'document "{document.id}" comes without a vector; expected one, as the recipe says.')
    return document.vector


@dataclass(frozen=True)
class Ingested:
    """The corpus as parts, and one hash an id, in row order, that sampling is done by."""

    slots: list[PendingPart]
    id_hashes: npt.NDArray[np.uint64]

    @property
    def documents(self) -> int:
        return len(self.id_hashes)

    def to_encode_anew(self) -> "Ingested":
        """The same with no embedding known: those at hand are another encoder's."""
        slots = [replace(slot, record=None, known=None) for slot in self.slots]
        return Ingested(slots, self.id_hashes)

    def contents(self, index: Path) -> Contents:
        """The same, as what follows sees it."""
        documents, rows = [slot.documents for slot in self.slots], [slot.rows for slot in self.slots]
        return Contents([index / slot.name for slot in self.slots], documents, rows, self.id_hashes)


class Known(Protocol):
    """Where embeddings of a part's rows may be found already."""

    def find(self, wanted: TextHashes) -> ReusedRows | None:
        """Rows of a part whose embeddings are known, given its text hashes (n, 2); asked in order of parts."""
        ...


def ingest(
    corpus: Iterable[Document],
    build: BuildContext,
    progress: Progress,
    known: Known | None = None,
    beside: bool = False,
) -> Ingested:
    """Read the whole corpus. Raises CorpusError for an empty one, ExistsError for one that is not the published one.

    `known` finds embeddings, by default by text in the published parts. With `beside` the corpus comes beside what is
    published: no published part is taken for one of its own, and vectors it comes with are as long as those there.
    """
    progress.phase("reading", None)
    place = _Placing(build, known or ReuseByText(build), beside)
    slots: list[PendingPart] = []
    hashes: list[npt.NDArray[np.uint64]] = []
    for documents in _cut(corpus, build.config.store.part_documents):
        slots.append(place(documents, len(slots)))
        hashes.append(np.array([hash_id(document.id) for document in documents], np.uint64))
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


def _complete_parts(build: BuildContext, beside: bool) -> dict[str, _Complete]:
    """Complete parts on disk by document key; those that the newest manifest names win, or are left out (`beside`)."""
    found = {}
    published = {part.name for part in build.published.parts} if build.published else set()
    names = [layout.part_name(number) for number in layout.part_numbers(build.index)]
    for name in sorted(names, key=lambda name: name in published):
        if beside and name in published:
            continue
        record = parts.read_record(build.index / name)
        if record is not None and record.fingerprint == build.fingerprint:
            found[record.document_key] = _Complete(name, record)
    return found


def _dim_of(build: BuildContext, beside: bool) -> int:
    """The size that embeddings must have; 0 for any."""
    if build.taken:
        transform = build.taken.transform
        return len(transform.mean) if isinstance(transform, Whitening) else transform.dim
    return int(build.published.encoder["dim"]) if build.published and beside else 0


class _Placing:
    """Finds each part on disk, or writes its documents under the lowest free number."""

    def __init__(self, build: BuildContext, known: Known, beside: bool) -> None:
        self._build, self._known = build, known
        self._complete, self._free = _complete_parts(build, beside), _free_names(build.index)
        self._dim = _dim_of(build, beside)
        self._rules = asdict(build.config.corpus) | {"embeddings": build.config.store.embeddings}
        del self._rules["vector_column"]  # what is read from there is hashed
        if build.config.chunk.tokens:
            self._rules["chunk"] = asdict(build.config.chunk)

    def __call__(self, documents: Sequence[Document], position: int) -> PendingPart:
        build, columns = self._build, self._build.config.corpus.text
        given = given_embeddings(documents, build.config.store) if not build.spec.traits.encodes_texts else None
        if given is not None and self._dim not in (0, given.shape[1]):
            owner = "the index whose transform is taken over" if build.taken else str(build.index)
            raise CorpusError(
                f'document "{documents[0].id}": its vector has {given.shape[1]:,} numbers, those of {owner} have '
                f"{self._dim:,}. Give embeddings of the same model."
            )
        if given is None:
            hashes = hash_texts(build.cutter([joined_text(document, columns) for document in documents]).texts)
        else:
            hashes = hash_vectors(given)
        embeddings = parts.embedding_key(build.unfitted, hashes)
        key = parts.document_key(embeddings, documents, self._rules)
        there, known = self._complete.get(key), self._known.find(hashes) if given is None else None
        if build.published and not build.overwrite:
            _require_published(documents, build, there, position)
        if there and _still_whole(build, there):
            record = there.record
            stamp = record.files[layout.DOCUMENTS]
            written = parts.PartDocuments(record.documents, key, embeddings, record.schema, stamp)
            return PendingPart(there.name, written, record.rows, record)
        name = next(self._free)
        make_folder(build.index / name)
        stamp, schema = write_documents(build.index / name, documents)
        written = parts.PartDocuments(len(documents), key, embeddings, schema_to_json(schema), stamp)
        slot = PendingPart(name, written, len(hashes), None, known)
        return slot if given is None else complete_given(build.index / name, slot, hashes, given, build.fingerprint)


def _require_published(
    documents: Sequence[Document], build: BuildContext, there: _Complete | None, position: int
) -> None:
    entries = build.published.parts if build.published else ()
    if there and position < len(entries) and entries[position].name == there.name:
        return
    size = build.config.store.part_documents
    there_too = entries[position].documents if position < len(entries) else 0
    if len(documents) != there_too:  # only the last part of a corpus is shorter than others
        ours, theirs = (
            f"ends after {position * size + count:,}" if count < size else f"goes on after {position * size + count:,}"
            for count in (len(documents), there_too)
        )
        raise corpus_differs(build, f"this corpus {ours} documents, that of the index {theirs}")
    first = position * size + 1
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
