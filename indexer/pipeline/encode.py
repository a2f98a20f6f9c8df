"""The second step: embeddings for every part that has none. Each part is one task, on any worker.

A worker reads and tokenises one part ahead of the one its encoder is busy with, and writes one behind: three parts
in memory, however large the corpus.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from indexer.chunking import Windows
from indexer.config import RunOptions
from indexer.encoders import EncodeStats
from indexer.hashing import hash_texts
from indexer.parallel import pipelined
from indexer.pipeline.context import BuildContext
from indexer.pipeline.encoder_state import EncoderSource
from indexer.pipeline.gates import require_nonzero_finite
from indexer.pipeline.ingest import PendingPart
from indexer.pipeline.reuse import Numbers, ReusedRows
from indexer.pipeline.workers import run_tasks
from indexer.progress import Progress
from indexer.store import parts
from indexer.store.documents import read_texts
from indexer.store.embeddings import open_embeddings
from indexer.store.parts import PartRows, TextHashes, write_part

if TYPE_CHECKING:
    from indexer.encoders.protocol import Tokens


@dataclass(frozen=True)
class EncodedPart:
    """What a worker hands back: the record it wrote, and what is worth a word but never stored."""

    name: str
    record: parts.PartRecord
    reused: int  # rows whose embedding an earlier generation already had
    retries: int  # batches halved after running out of memory
    backend: str = ""  # what encoded it; empty when every embedding was known
    given: int = 0  # rows whose embedding came with the corpus


@dataclass(frozen=True)
class EncodeTask:
    """One part to encode, except the rows whose embeddings are known from another part."""

    index: Path
    slot: PendingPart

    @property
    def folder(self) -> Path:
        return self.index / self.slot.name


@dataclass(frozen=True)
class PrepareParts:
    """Makes a worker's function from its number; picklable."""

    source: EncoderSource
    alone: bool  # all in this process, which then has every thread
    on_batch: Callable[[int, int], None] | None = None

    def __call__(self, worker: int) -> Callable[[Iterator[EncodeTask]], Iterator[EncodedPart]]:
        source = self.source if self.alone else self.source.for_worker(worker)
        return _Stages(source, self.on_batch).run


def encode_parts(
    slots: list[PendingPart], build: BuildContext, source: EncoderSource, options: RunOptions, progress: Progress
) -> dict[str, EncodedPart]:
    """Encode every part without a record. Returns what was encoded, or given with the corpus, by part name."""
    encoded = {}
    for slot in slots:
        if slot.record:
            require_nonzero_finite(slot.record.not_finite, slot.record.zero)
        if slot.record and slot.given:
            encoded[slot.name] = EncodedPart(slot.name, slot.record, 0, 0, given=slot.rows)
    tasks = [EncodeTask(build.index, slot) for slot in slots if slot.record is None]
    if not tasks:
        return encoded
    progress.phase("encoding", sum(task.slot.missing for task in tasks))
    alone = min(options.workers, len(tasks)) <= 1
    if not alone:
        source.prepare()
    prepare = PrepareParts(source, alone, progress.advance if alone else None)
    for part in run_tasks(prepare, tasks, options.workers):
        require_nonzero_finite(
            part.record.not_finite, part.record.zero
        )  # now, and not after hours of encoding the rest
        encoded[part.name] = part
        if not alone:
            progress.advance(part.record.rows - part.reused, part.record.tokens)
    return encoded


@dataclass(frozen=True)
class _ReadPart:
    """A part as the encoder needs it."""

    task: EncodeTask
    windows: Windows | None  # which document each row is of; None: row i is document i
    hashes: TextHashes  # (n, 2)
    missing: npt.NDArray[np.int64]  # rows to encode
    tokens: "Tokens | None"  # of those; None when there are none


@dataclass(frozen=True)
class _EmbeddedPart:
    """A part as it is written."""

    part: _ReadPart
    fresh: npt.NDArray[np.float32] | None  # embeddings of the missing rows
    retries: int


@dataclass(frozen=True)
class _Stages:
    """Reads, encodes and writes a stream of parts."""

    source: EncoderSource
    on_batch: Callable[[int, int], None] | None

    def run(self, tasks: Iterator[EncodeTask]) -> Iterator[EncodedPart]:
        return pipelined(self._ready(tasks), self.read, self.embed, self.write)

    def _ready(self, tasks: Iterator[EncodeTask]) -> Iterator[EncodeTask]:
        """The tasks, the encoder loaded before the first that needs it: here, where an interrupt is heard at once."""
        for task in tasks:
            if task.slot.missing:
                self.source.get()
            yield task

    def read(self, task: EncodeTask) -> _ReadPart:
        cut = self.source.cutter(read_texts(task.folder, self.source.config.corpus.text))
        hashes, known = hash_texts(cut.texts), task.slot.known
        missing = np.arange(len(cut))
        if known:
            missing = np.setdiff1d(missing, known.rows)
        texts = [cut.texts[row] for row in missing] if known else cut.texts
        tokens = self.source.get().tokenize(texts, "document") if len(missing) else None
        return _ReadPart(task, cut.windows, hashes, missing, tokens)

    def embed(self, part: _ReadPart, check: Callable[[], None]) -> _EmbeddedPart:
        if part.tokens is None:
            return _EmbeddedPart(part, None, 0)

        def on_batch(texts: int, tokens: int) -> None:
            check()
            if self.on_batch is not None:
                self.on_batch(texts, tokens)

        log = EncodeStats(on_batch=on_batch)
        return _EmbeddedPart(part, self.source.get().embed(part.tokens, log), log.retries)

    def write(self, embedded: _EmbeddedPart) -> EncodedPart:
        part, task, slot = embedded.part, embedded.part.task, embedded.part.task.slot
        embeddings, lengths = _all_rows(embedded)
        stored = embeddings.astype(self.source.config.store.embeddings, copy=False)
        truncated = int(np.count_nonzero(lengths > self.source.spec.identity.max_length))
        empty = int(np.count_nonzero(lengths == 0)) if self.source.spec.traits.has_table else 0
        rows = PartRows(part.hashes, lengths, stored, part.windows, truncated, empty)
        record = write_part(task.folder, slot.written, rows, self.source.spec.fingerprint)
        backend = self.source.get().backend if embedded.fresh is not None else ""
        return EncodedPart(slot.name, record, slot.rows - slot.missing, embedded.retries, backend)


def _all_rows(embedded: _EmbeddedPart) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.int32]]:
    """Embeddings (n, d) and token counts (n,) of all rows: the fresh ones, and the known ones copied."""
    part, fresh, known = embedded.part, embedded.fresh, embedded.part.task.slot.known
    if fresh is not None and part.tokens is not None and not known:
        return fresh, part.tokens.lengths
    index = part.task.index
    like = fresh if fresh is not None else open_embeddings(index / next(_taken_from(known))[0])
    embeddings = np.empty((len(part.hashes), like.shape[1]), like.dtype)
    lengths = np.empty(len(part.hashes), np.int32)
    if fresh is not None and part.tokens is not None:
        embeddings[part.missing], lengths[part.missing] = fresh, part.tokens.lengths
    for folder, here, there in _taken_from(known):
        embeddings[here] = open_embeddings(index / folder)[there]
        lengths[here] = parts.read_token_counts(index / folder)[there]
    return embeddings, lengths


def _taken_from(known: ReusedRows | None) -> Iterator[tuple[str, Numbers, Numbers]]:
    return known.by_part() if known else iter(())
