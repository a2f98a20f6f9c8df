"""The first step of a build: cut the corpus into parts and write their documents; reuse complete parts on disk.

The whole corpus is read before anything is encoded, so that a bad row fails in seconds and not after hours, and the
amount of work is known. Texts are cut into windows and hashed here, once: the encoding step gets the result, in memory
up to a limit and then in scratch files. A part whose embeddings came with the corpus is completed at once.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import count, filterfalse
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer.arrays import Embeddings, Mask, TextHashes
from indexer.corpus.corpus import Corpus
from indexer.corpus.document import Document, text_bytes
from indexer.corpus.row import described
from indexer.corpus.schema import schema_to_json
from indexer.encoders.document_windows import ChunkTexts, DocumentChunker
from indexer.encoders.windows import Windows
from indexer.errors import CorpusError, ExistsError, spelled
from indexer.hashing import hash_id, hash_texts, hash_vectors
from indexer.pipeline.generation import Generation
from indexer.pipeline.rows import RowView
from indexer.pipeline.steps.reuse import ReuseByText, ReusedRows, ReuseInOrder
from indexer.progress import Progress
from indexer.recipe.index_config import PART_BYTES, StoreConfig
from indexer.store import layout, parts
from indexer.store.documents import write_documents
from indexer.store.files import make_folder
from indexer.store.parts import PartDocuments, PartRecord, PartRows, write_part
from indexer.system.threads import ordered_map

_READERS = 8  # threads; in object storage each record is a request
_HELD_BYTES = 64 << 20  # of cut texts in memory, for some two million rows
_SPAN = ("document", "start", "end")


@dataclass(frozen=True)
class CutTexts:
    """The rows that the documents of a part are cut into: the hashes (n, 2) of their texts, and their windows."""

    hashes: TextHashes
    windows: Windows | None  # which document each row is of; None: row i is document i

    @classmethod
    def of(cls, rows: ChunkTexts) -> "CutTexts":
        return cls(hash_texts(rows.texts), rows.windows)

    @property
    def bytes(self) -> int:
        return self.hashes.nbytes + (3 * self.windows.start.nbytes if self.windows is not None else 0)

    def save(self, path: Path) -> None:
        """Save to a scratch file. Raises OSError."""
        spans = self.windows
        np.savez(path, hashes=self.hashes, **({} if spans is None else {name: getattr(spans, name) for name in _SPAN}))

    @classmethod
    def load(cls, path: Path) -> "CutTexts":
        """Load the file of `save`. Raises OSError."""
        with np.load(path, allow_pickle=False) as arrays:
            windows = Windows(*(arrays[name] for name in _SPAN)) if _SPAN[0] in arrays else None
            return cls(arrays["hashes"], windows)


@dataclass(frozen=True)
class PendingPart:
    """A part of the generation being written. `record` is set if the part is already complete."""

    name: str  # folder, relative to the index
    written: PartDocuments
    rows: int
    record: PartRecord | None
    known: ReusedRows | None = None  # rows whose embeddings an earlier generation has
    given: bool = False  # its embeddings came with the corpus in this run
    cut: "CutTexts | Path | None" = None  # a path is a scratch file; None: the encoding worker cuts the texts

    @property
    def documents(self) -> int:
        return self.written.documents

    @property
    def missing(self) -> int:
        """Rows to encode."""
        return 0 if self.record else self.rows - (len(self.known) if self.known else 0)


@dataclass(frozen=True)
class Ingested:
    """The corpus as parts, and the id hash of each document, in order, which determines samples."""

    parts: list[PendingPart]
    id_hashes: npt.NDArray[np.uint64]

    @property
    def documents(self) -> int:
        return len(self.id_hashes)

    def rows(self, index: Path, live: Mask | None = None) -> RowView:
        """Return a view of all rows; `live` (documents,) marks live documents, None means all."""
        documents, rows = [part.documents for part in self.parts], [part.rows for part in self.parts]
        return RowView([index / part.name for part in self.parts], documents, rows, self.id_hashes, live)


def ingest(
    corpus: Iterable[Document],
    generation: Generation,
    progress: Progress,
    known: ReuseInOrder | None = None,
    adding: bool = False,
) -> Ingested:
    """Read the whole corpus. Raises CorpusError for sources without documents, ExistsError if it must equal the
    published one.

    `known` finds embeddings, by default by text in the published parts. With `adding` the corpus is added to the
    published documents: published parts are not reused as its parts, and its vectors must have the index's dimension.
    """
    progress.phase("reading", None)
    place = _Placing(generation, known or ReuseByText.of(generation), adding)
    pending: list[PendingPart] = []
    hashes: list[npt.NDArray[np.uint64]] = []
    entries = generation.previous.manifest.parts if generation.continues else ()
    most = generation.config.store.part_documents
    # earlier versions ended parts by document count only
    by_count = {number for number, entry in enumerate(entries) if entry.documents == most or entry is entries[-1]}
    for documents, part in place_while_reading(place, cut_into_parts(corpus, most, by_count)):
        pending.append(part)
        hashes.append(np.array([hash_id(document.id) for document in documents], np.uint64))
        progress.advance(len(documents))
    if not pending:
        require_no_sources(corpus)
    if len(pending) < len(entries):
        published = generation.previous.manifest.documents
        raise corpus_differs(generation, f"{sum(map(len, hashes)):,} documents instead of {published:,}")
    return Ingested(pending, np.concatenate([np.zeros(0, np.uint64), *hashes]))


def require_no_sources(corpus: object) -> None:
    """Raise CorpusError, with the counts of rejected rows, if an empty corpus was read from files or standard input.

    An empty file is usually a mistake. Documents from a program can be none.
    """
    if not isinstance(corpus, Corpus):
        return
    rejected = ""
    if corpus.report.rejected:
        rows = "files" if corpus.report.files else "rows"
        listed = f", see {corpus.report.rejects_file}" if corpus.report.rejects_file else ""
        rejected = f", because all {rows} were left out ({described(corpus.report.rejected)}){listed}"
    raise CorpusError(
        f"the corpus contains no documents{rejected}; there is nothing to index. Fix: check the source. In Python, "
        "build_index([], INDEX) builds an index without documents."
    )


def replacing() -> str:
    """Return the argument, or the options of commands, that replace a complete index."""
    return spelled("RunOptions(overwrite=True)", "--overwrite (--force in isotrope dedup)")


def corpus_differs(generation: Generation, how: str) -> ExistsError:
    """Return the error for a complete index of other documents."""
    return ExistsError(
        f"{generation.index}: already contains a complete index of other documents: {how}. "
        f"Fix: run {spelled('sync_index', 'isotrope sync')} to add, replace and delete only what differs, pass "
        f"{replacing()} to publish this corpus as the next generation, or build at another path."
    )


def cut_into_parts(
    documents: Iterable[Document], most: int, by_count: Collection[int] = ()
) -> Iterator[list[Document]]:
    """Yield parts of at most `most` documents and at most `PART_BYTES` of text, unless one document alone has more.

    Parts whose numbers are in `by_count` end by their document count only.
    """
    part, held, number = list[Document](), 0, 0
    for document in documents:
        size = text_bytes(document)
        if part and held + size > PART_BYTES and number not in by_count:
            yield part
            part, held, number = [], 0, number + 1
        part.append(document)
        held += size
        del document  # so that the part is freed before the next document is read
        if len(part) == most or (held >= PART_BYTES and number not in by_count):
            yield part
            part, held, number = [], 0, number + 1
    if part:
        yield part


def place_while_reading(
    place: Callable[[list[Document], int], PendingPart], parts: Iterator[list[Document]]
) -> Iterator[tuple[list[Document], PendingPart]]:
    """Place each part, in order, in a thread while the next is read.

    If reading the next part fails, the part before is still placed, and an error from placing it is raised first.
    """
    with ThreadPoolExecutor(1, "place") as placer:
        before: list[Document] = []
        placing: Future[PendingPart] | None = None
        try:
            for number, documents in enumerate(parts):
                if placing is not None:
                    yield before, placing.result()
                before, placing = documents, placer.submit(place, documents, number)
        except Exception:
            if placing is not None:
                placing.result()
            raise
        if placing is not None:
            yield before, placing.result()


class _Placing:
    """Finds each part on disk, or writes its documents under the lowest free number."""

    def __init__(self, generation: Generation, known: ReuseByText | ReuseInOrder | None, adding: bool) -> None:
        self._generation, self._known = generation, known
        self._chunker = DocumentChunker(generation.spec, generation.config.chunk, generation.config.corpus.text)
        self._index, self._config = generation.index, generation.config
        self._entries = generation.previous.manifest.parts if generation.continues else None  # that must be reproduced
        numbers = generation.store.part_numbers()
        self._complete = _complete_parts(generation, numbers, adding)
        self._sent = generation.store.sent_sizes(layout.PARTS)
        # Existing folders hold complete parts (see `sweep_before`).
        self._free = map(layout.part_name, filterfalse(set(numbers).__contains__, count(generation.first_part)))
        self._size = int(generation.previous.manifest.encoder["dim"]) if adding else 0  # 0: any
        if generation.transform_source is not None:
            self._size = generation.transform_source.transform.input_dim
        self._held = 0
        self._rules = asdict(self._config.corpus) | {"embeddings": self._config.store.embeddings}
        del self._rules["vector_column"]  # the vectors themselves are hashed
        if self._config.chunk.tokens:
            self._rules["chunk"] = asdict(self._config.chunk)
        if self._config.chunk.by == "tokens":  # the settings that only files and structure have do not affect the part
            for name in ("by", "headings"):
                self._rules.get("chunk", {}).pop(name, None)
        if self._config.corpus.documents == "rows":
            del self._rules["documents"]

    def __call__(self, documents: Sequence[Document], position: int) -> PendingPart:
        encodes = self._generation.spec.traits.encodes_texts
        self._require_size(documents)
        given = None if encodes else given_embeddings(documents, self._config.store)
        texts = CutTexts.of(self._chunker(documents)) if given is None else CutTexts(hash_vectors(given), None)
        embeddings = parts.embedding_key(self._generation.spec.base_fingerprint, texts.hashes)
        key = parts.document_key(embeddings, documents, self._rules)
        complete = self._complete.get(key)
        known = self._known.find(texts.hashes) if self._known and given is None else None
        if self._entries is not None:
            self._require_published(documents, complete, position)
        if complete and self._is_intact(*complete):
            name, record = complete
            written = PartDocuments(record.documents, key, embeddings, record.schema, record.files[layout.DOCUMENTS])
            return PendingPart(name, written, record.rows, record)
        name = next(self._free)
        make_folder(self._index / name)
        digest, schema = write_documents(self._index / name, documents)
        written = PartDocuments(len(documents), key, embeddings, schema_to_json(schema), digest)
        if given is not None:
            return self._complete_given(name, written, texts.hashes, given)
        return PendingPart(name, written, len(texts.hashes), None, known, cut=self._kept(texts, name))

    def _kept(self, texts: CutTexts, name: str) -> CutTexts | Path | None:
        """Return the cut texts or their scratch file; None if the disk is full, so that they are cut again."""
        self._held += texts.bytes
        if self._held <= _HELD_BYTES:
            return texts
        scratch = self._generation.scratch / f"{name.rpartition('/')[2]}.npz"
        try:
            texts.save(scratch)
        except OSError:
            return None
        return scratch

    def _require_size(self, documents: Sequence[Document]) -> None:
        for document in documents:
            size = self._size if document.vector is None else len(document.vector)
            if self._size not in (0, size):
                reuses = self._generation.transform_source is not None
                owner = "the index whose transform is reused" if reuses else str(self._index)
                raise CorpusError(
                    f'document "{document.id}": its vector has {size:,} numbers, those of {owner} have '
                    f"{self._size:,}. Fix: use embeddings of the same model."
                )

    def _complete_given(
        self, name: str, written: PartDocuments, hashes: TextHashes, embeddings: Embeddings
    ) -> PendingPart:
        rows = PartRows(hashes, np.zeros(len(embeddings), np.int32), embeddings)
        record = write_part(self._index / name, written, rows, self._generation.spec.fingerprint)
        self._generation.sender.send_part(name, record)
        return PendingPart(name, written, len(embeddings), record, given=True)

    def _is_intact(self, name: str, record: PartRecord) -> bool:
        """Return whether a part of an interrupted build is intact, by hash; with `overwrite` also in object storage.

        Parts of a continued index count as intact: their sizes were compared, and readers hash them.
        """
        if self._entries is not None:
            return True
        is_intact = parts.is_stored_intact if self._generation.overwrite else parts.is_intact
        return is_intact(self._index / name, record, self._sent)

    def _require_published(
        self, documents: Sequence[Document], complete: tuple[str, PartRecord] | None, position: int
    ) -> None:
        entries, size = self._entries or (), self._config.store.part_documents
        if complete and position < len(entries) and entries[position].name == complete[0]:
            return
        published = entries[position].documents if position < len(entries) else 0
        before = sum(entry.documents for entry in entries[:position])
        by_count = all(entry.documents == size for entry in entries[:-1])
        if by_count and len(documents) != published:  # only the last part of a corpus is shorter than others
            ours, theirs = (
                f"{'ends' if count < size else 'continues'} after {before + count:,}"
                for count in (len(documents), published)
            )
            raise corpus_differs(self._generation, f"this corpus {ours} documents, the index {theirs}")
        span = f"documents {before + 1:,} to {before + len(documents):,}"
        raise corpus_differs(self._generation, f'{span} differ (the first is "{documents[0].id}")')


def _complete_parts(generation: Generation, numbers: Sequence[int], adding: bool) -> dict[str, tuple[str, PartRecord]]:
    """Return complete parts by document key; parts of the newest manifest take precedence, then parts visible to all.

    With `adding`, parts of published generations are excluded.
    """
    complete, index = {}, generation.index
    published = {part.name for part in generation.published.manifest.parts} if generation.published else set()
    names = [layout.part_name(number) for number in numbers if not (adding and generation.is_settled(number))]
    visible = generation.store.complete_parts() if names else set()
    names.sort(key=lambda name: (name in published, name in visible))
    records = ordered_map(lambda name: parts.read_record(index / name), names, _READERS)
    for name, record in zip(names, records, strict=True):
        if record is not None and record.fingerprint == generation.spec.fingerprint:
            complete[record.document_key] = (name, record)
    return complete


def given_embeddings(documents: Sequence[Document], store: StoreConfig) -> Embeddings:
    """Return the vectors of some documents in their stored type, (n, d). Raises CorpusError for one out of range."""
    vectors = []
    for document in documents:
        if document.vector is None:
            raise CorpusError(f'document "{document.id}" has no vector, but the recipe expects one.')
        vectors.append(document.vector)
    with np.errstate(over="ignore"):
        stored: Embeddings = np.stack(vectors).astype(store.embeddings)
    unfit = np.flatnonzero(~np.isfinite(stored).all(axis=1) | ~stored.any(axis=1))
    if len(unfit):
        limits = np.finfo(store.embeddings)
        raise CorpusError(
            f'document "{documents[unfit[0]].id}": its vector cannot be stored as {store.embeddings}: a number is '
            f"beyond {limits.max:g}, or all are smaller than {limits.smallest_subnormal:.0e}. "
            'Fix: set store.embeddings = "float32", or scale the vectors.'
        )
    return stored
