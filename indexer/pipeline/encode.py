"""The second step: embeddings for every part that has none. Each part is one task, on any worker.

A worker reads and tokenises one part ahead of the one its encoder is busy with, and writes one behind: three parts
in memory, however large the corpus.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from indexer.encoders import EncodeStats
from indexer.encoders.chunker import DocumentChunker
from indexer.executors import run_tasks
from indexer.hashing import hash_texts
from indexer.parallel import pipelined
from indexer.pipeline.gates import require_nonzero_finite
from indexer.pipeline.generation import Generation
from indexer.pipeline.index_encoder import LazyEncoder
from indexer.pipeline.ingest import CutTexts, PendingPart
from indexer.pipeline.reuse import PartRowIds, ReusedRows
from indexer.progress import Progress
from indexer.run_options import RunOptions
from indexer.store import parts
from indexer.store.documents import read_texts
from indexer.store.embeddings import open_embeddings
from indexer.store.parts import PartRecord, PartRows, write_part

if TYPE_CHECKING:
    from indexer.encoders.protocol import Tokens


@dataclass(frozen=True)
class EncodedPart:
    """What a worker hands back: the record it wrote, and what is worth a word but never stored."""

    name: str
    record: PartRecord
    reused: int  # rows whose embedding an earlier generation already had
    retries: int  # batches halved after running out of memory
    backend: str = ""  # what encoded it; empty when every embedding was known
    given: int = 0  # rows whose embedding came with the corpus


@dataclass(frozen=True)
class EncodeTask:
    """One part to encode, except the rows whose embeddings are known from another part."""

    index: Path
    part: PendingPart

    @property
    def folder(self) -> Path:
        """Where the part lies."""
        return self.index / self.part.name


@dataclass(frozen=True)
class EncodedParts:
    """The parts of a generation once all have embeddings: their records, in order, and what this run did for it."""

    records: list[PartRecord]
    encoded: list[EncodedPart]  # in this run, or given with the corpus

    @property
    def reused(self) -> int:
        """Rows whose embedding an earlier generation already had."""
        return sum(part.reused for part in self.encoded)

    @property
    def given(self) -> int:
        """Rows whose embedding came with the corpus."""
        return sum(part.given for part in self.encoded)

    @property
    def fresh(self) -> int:
        """Rows that were encoded."""
        return sum(part.record.rows for part in self.encoded) - self.reused - self.given

    @property
    def retries(self) -> int:
        """Batches halved after running out of memory."""
        return sum(part.retries for part in self.encoded)

    @property
    def backend(self) -> str:
        """What encoded them, such as "openvino, bf16"; empty when nothing was encoded."""
        return "; ".join(sorted({part.backend for part in self.encoded if part.backend}))


@dataclass(frozen=True)
class WorkerSetup:
    """Makes a worker's function from its number; picklable."""

    encoder: LazyEncoder
    alone: bool  # all in this process, which then has every thread
    on_batch: Callable[[int, int], None] | None = None

    def __call__(self, worker: int) -> Callable[[Iterator[EncodeTask]], Iterator[EncodedPart]]:
        encoder = self.encoder if self.alone else self.encoder.for_worker(worker)
        return _Stages(encoder, self.on_batch).run


def encode_parts(
    pending: Sequence[PendingPart],
    generation: Generation,
    encoder: LazyEncoder,
    options: RunOptions,
    progress: Progress,
) -> EncodedParts:
    """Encode every part without a record, and add all of them to the generation."""
    done: dict[str, EncodedPart] = {}
    for part in pending:
        if part.record:
            require_nonzero_finite(part.record.not_finite, part.record.zero)
        if part.record and part.given:
            done[part.name] = EncodedPart(part.name, part.record, 0, 0, given=part.rows)
    tasks = [EncodeTask(generation.index, part) for part in pending if part.record is None]
    for encoded in _encode(tasks, encoder, options, progress):
        generation.sender.send_part(encoded.name, encoded.record.files)
        done[encoded.name] = encoded
    generation.sender.wait()
    records = [part.record or done[part.name].record for part in pending]
    for part, record in zip(pending, records, strict=True):
        generation.add_part(part.name, part.written, record)
    return EncodedParts(records, list(done.values()))


def _encode(
    tasks: Sequence[EncodeTask], encoder: LazyEncoder, options: RunOptions, progress: Progress
) -> Iterator[EncodedPart]:
    if not tasks:
        return
    progress.phase("encoding", sum(task.part.missing for task in tasks))
    alone = min(options.workers, len(tasks)) <= 1
    if not alone:
        encoder.prepare()
    setup = WorkerSetup(encoder, alone, progress.advance if alone else None)
    for encoded in run_tasks(setup, tasks, options.pool):
        # now, and not after hours of encoding the rest
        require_nonzero_finite(encoded.record.not_finite, encoded.record.zero)
        yield encoded
        if not alone:
            progress.advance(encoded.record.rows - encoded.reused, encoded.record.tokens)


@dataclass(frozen=True)
class _ReadPart:
    """A part as the encoder needs it."""

    task: EncodeTask
    cut: CutTexts
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

    encoder: LazyEncoder
    on_batch: Callable[[int, int], None] | None

    def run(self, tasks: Iterator[EncodeTask]) -> Iterator[EncodedPart]:
        return pipelined(self._ready(tasks), self.read, self.embed, self.write)

    def _ready(self, tasks: Iterator[EncodeTask]) -> Iterator[EncodeTask]:
        """The tasks, the encoder loaded before the first that needs it: here, where an interrupt is heard at once."""
        for task in tasks:
            if task.part.missing:
                self.encoder.get()
            yield task

    @cached_property
    def _chunker(self) -> DocumentChunker:
        return DocumentChunker(self.encoder.spec, self.encoder.config.chunk)

    def read(self, task: EncodeTask) -> _ReadPart:
        part, joined = task.part, read_texts(task.folder, self.encoder.config.corpus.text)
        cut = _handed_over(part)
        if cut is not None:
            texts = joined if cut.windows is None else cut.windows.texts(joined)
        else:
            chunks = self._chunker(joined)
            cut, texts = CutTexts(hash_texts(chunks.texts), chunks.windows), chunks.texts
        missing = np.arange(len(texts))
        if part.known:
            missing = np.setdiff1d(missing, part.known.rows)
            texts = [texts[row] for row in missing]
        tokens = self.encoder.get().tokenize(texts, "document") if len(missing) else None
        return _ReadPart(task, cut, missing, tokens)

    def embed(self, part: _ReadPart, check: Callable[[], None]) -> _EmbeddedPart:
        if part.tokens is None:
            return _EmbeddedPart(part, None, 0)

        def on_batch(texts: int, tokens: int) -> None:
            check()
            if self.on_batch is not None:
                self.on_batch(texts, tokens)

        stats = EncodeStats(on_batch=on_batch)
        return _EmbeddedPart(part, self.encoder.get().embed(part.tokens, stats), stats.retries)

    def write(self, embedded: _EmbeddedPart) -> EncodedPart:
        task, cut, spec = embedded.part.task, embedded.part.cut, self.encoder.spec
        part = task.part
        embeddings, lengths = _all_rows(embedded)
        stored = embeddings.astype(self.encoder.config.store.embeddings, copy=False)
        truncated = int(np.count_nonzero(lengths > spec.identity.max_length))
        empty = int(np.count_nonzero(lengths == 0)) if spec.traits.has_table else 0
        rows = PartRows(cut.hashes, lengths, stored, cut.windows, truncated, empty)
        record = write_part(task.folder, part.written, rows, spec.fingerprint)
        backend = self.encoder.get().backend if embedded.fresh is not None else ""
        return EncodedPart(part.name, record, part.rows - part.missing, embedded.retries, backend)


def _handed_over(part: PendingPart) -> CutTexts | None:
    """What the texts of a part were cut into when they were read, unless its scratch file is gone."""
    if not isinstance(part.cut, Path):
        return part.cut
    try:
        return CutTexts.load(part.cut)
    except OSError:
        return None


def _all_rows(embedded: _EmbeddedPart) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.int32]]:
    """Embeddings (n, d) and token counts (n,) of all rows: the fresh ones, and the known ones copied."""
    part, fresh, known = embedded.part, embedded.fresh, embedded.part.task.part.known
    if fresh is not None and part.tokens is not None and not known:
        return fresh, part.tokens.lengths
    index = part.task.index
    like = fresh if fresh is not None else open_embeddings(index / next(_taken_from(known))[0])
    embeddings = np.empty((len(part.cut.hashes), like.shape[1]), like.dtype)
    lengths = np.empty(len(part.cut.hashes), np.int32)
    if fresh is not None and part.tokens is not None:
        embeddings[part.missing], lengths[part.missing] = fresh, part.tokens.lengths
    for folder, here, there in _taken_from(known):
        embeddings[here] = open_embeddings(index / folder)[there]
        lengths[here] = parts.read_token_counts(index / folder)[there]
    return embeddings, lengths


def _taken_from(known: ReusedRows | None) -> Iterator[tuple[str, PartRowIds, PartRowIds]]:
    return known.by_part() if known else iter(())
