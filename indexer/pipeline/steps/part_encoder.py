"""A worker's steps for a part: read and tokenise the texts, encode them, write the part's files.

A worker reads and tokenises the next part and writes the previous one while its encoder works, so three parts are in
memory, whatever the size of the corpus.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from indexer.encoders.document_windows import DocumentChunker
from indexer.encoders.protocol import EncodeStats
from indexer.pipeline.steps.build_encoder import LazyEncoder
from indexer.pipeline.steps.ingest import CutTexts, PendingPart
from indexer.recipe.loading import named_path
from indexer.store import layout, parts
from indexer.store.documents import read_encoded
from indexer.store.embeddings import open_embeddings
from indexer.store.files import make_folder
from indexer.store.parts import PartRecord, PartRows, write_part
from indexer.store.sending import send_written
from indexer.store.stores import store_at
from indexer.system.threads import pipelined

if TYPE_CHECKING:
    from indexer.models.encoder_spec import Tokens


@dataclass(frozen=True)
class EncodedPart:
    """A worker's result: the record of the part, and facts that are reported but not stored."""

    name: str
    record: PartRecord
    reused: int  # rows whose embedding an earlier generation had
    retries: int  # batches halved after running out of memory
    backend: str = ""  # of the encoder; empty if every embedding was known
    given: int = 0  # rows whose embedding came with the corpus


@dataclass(frozen=True)
class EncodeTask:
    """A part to encode, except the rows whose embeddings are known from another part.

    `quarantined` documents, counted from the first of the part, are not encoded: their rows get an arbitrary unit
    vector, and the documents are never live.
    """

    index: Path
    part: PendingPart
    quarantined: tuple[int, ...] = ()

    @property
    def folder(self) -> Path:
        return self.index / self.part.name


@dataclass(frozen=True)
class _ReadPart:
    """A part, read and tokenised, then also embedded."""

    task: EncodeTask
    cut: CutTexts
    missing: npt.NDArray[np.int64]  # rows to encode
    tokens: "Tokens | None"  # of the missing rows; None without any
    fresh: npt.NDArray[np.float32] | None = None  # embeddings of the missing rows
    retries: int = 0


@dataclass(frozen=True)
class PartEncoder:
    """Reads, encodes and writes a stream of parts. Called with a worker's number, it returns the worker's function."""

    encoder: LazyEncoder
    threads: int | None  # CPU threads of each worker; None: one worker, in this process, with all threads
    on_batch: Callable[[int, int], None] | None = None
    discards: bool = False  # write nothing and return None: a trial whether a worker survives
    url: str = ""  # of an index in object storage, which workers on other machines access directly
    index: Path | None = None  # the mirror folder of `url` on the worker's machine, which sends the parts

    def __call__(self, worker: int) -> Callable[[Iterator[EncodeTask]], Iterator[EncodedPart | None]]:
        encoder = self.encoder if self.threads is None else self.encoder.for_worker(worker, self.threads)
        index = named_path(self.url, "the index") if self.url else None
        if index is not None:
            store_at(index).fetch_states()
            encoder = encoder.with_state_in(index)
        return replace(self, encoder=encoder, index=index)._run

    def _run(self, tasks: Iterator[EncodeTask]) -> Iterator[EncodedPart | None]:
        write: Callable[[_ReadPart], EncodedPart | None] = (lambda _: None) if self.discards else self.write
        return pipelined(self._ready(tasks), self.read, self.embed, write)

    def _ready(self, tasks: Iterator[EncodeTask]) -> Iterator[EncodeTask]:
        """Yield the tasks; load the encoder before the first that needs it, here where an interrupt acts at once."""
        for task in tasks:
            if task.part.missing:
                self.encoder.get()
            yield task if self.index is None else replace(task, index=self.index)

    @cached_property
    def _chunker(self) -> DocumentChunker:
        config = self.encoder.config
        return DocumentChunker(self.encoder.spec, config.chunk, config.corpus.text)

    def read(self, task: EncodeTask) -> _ReadPart:
        part = task.part
        store_at(task.index).know({f"{part.name}/{layout.DOCUMENTS}": part.written.digest})
        documents = read_encoded(task.folder, self.encoder.config.corpus.text)
        cut, texts = _handed_over(part), list[str]()
        if cut is None:
            rows = self._chunker(documents)
            cut, texts = CutTexts.of(rows), rows.texts
        else:
            texts = self._chunker.texts(documents, cut.windows)
        missing = np.setdiff1d(np.arange(len(texts)), _rows_of(task.quarantined, cut))
        if part.known:
            missing = np.setdiff1d(missing, part.known.rows)
        if len(missing) < len(texts):
            texts = [texts[row] for row in missing]
        tokens = self.encoder.get().tokenize(texts, "document") if len(missing) else None
        return _ReadPart(task, cut, missing, tokens)

    def embed(self, part: _ReadPart, check: Callable[[], None]) -> _ReadPart:
        if part.tokens is None:
            return part

        def on_batch(texts: int, tokens: int) -> None:
            check()
            if self.on_batch is not None:
                self.on_batch(texts, tokens)

        stats = EncodeStats(on_batch=on_batch)
        fresh = self.encoder.get().embed(part.tokens, stats)
        return replace(part, fresh=fresh, retries=stats.retries)

    def write(self, embedded: _ReadPart) -> EncodedPart:
        task, cut, spec = embedded.task, embedded.cut, self.encoder.spec
        part = task.part
        embeddings, lengths = _all_rows(embedded, self.encoder)
        stored = embeddings.astype(self.encoder.config.store.embeddings, copy=False)
        truncated = int(np.count_nonzero(lengths > spec.identity.max_length))
        empty = int(np.count_nonzero(lengths == 0)) if spec.traits.has_table else 0
        rows = PartRows(cut.hashes, lengths, stored, cut.windows, truncated, empty, task.quarantined)
        make_folder(task.folder)  # a mirror folder may lack it
        record = write_part(task.folder, part.written, rows, spec.fingerprint)
        if self.index is not None:
            record = send_written(self.index, part.name, record)
        backend = self.encoder.get().backend if embedded.fresh is not None else ""
        reused = len(part.known) if part.known else 0
        return EncodedPart(part.name, record, reused, embedded.retries, backend)


def _handed_over(part: PendingPart) -> CutTexts | None:
    """Return how the texts of a part were cut when they were read; None if the scratch file is missing."""
    if not isinstance(part.cut, Path):
        return part.cut
    try:
        return CutTexts.load(part.cut)
    except OSError:
        return None


def _rows_of(documents: tuple[int, ...], cut: CutTexts) -> npt.NDArray[np.int64]:
    wanted = np.array(documents, np.int64)
    return wanted if cut.windows is None else np.flatnonzero(np.isin(cut.windows.document, wanted))


def _all_rows(part: _ReadPart, encoder: LazyEncoder) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.int32]]:
    """Return embeddings (n, d) and token counts (n,) of all rows: fresh, or copied from known rows."""
    fresh, known = part.fresh, part.task.part.known
    if fresh is not None and part.tokens is not None and len(fresh) == len(part.cut.hashes):
        return fresh, part.tokens.lengths
    index = part.task.index
    if fresh is not None:
        dim, kind = fresh.shape[1], fresh.dtype
    elif known:
        like = open_embeddings(index / known.by_part[0][0])
        dim, kind = like.shape[1], like.dtype
    else:
        dim, kind = encoder.get().dim, np.dtype(np.float32)
    embeddings, lengths = np.zeros((len(part.cut.hashes), dim), kind), np.zeros(len(part.cut.hashes), np.int32)
    embeddings[_rows_of(part.task.quarantined, part.cut), 0] = 1
    if fresh is not None and part.tokens is not None:
        embeddings[part.missing], lengths[part.missing] = fresh, part.tokens.lengths
    for folder, here, there in known.by_part if known else ():
        embeddings[here] = open_embeddings(index / folder)[there]
        lengths[here] = parts.read_token_counts(index / folder)[there]
    return embeddings, lengths
