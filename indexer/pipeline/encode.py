"""The second step: embeddings for every part that has none. Each part is one task, on any worker."""

import dataclasses
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.config import BuildConfig, RunOptions
from indexer.encoders import EncodeLog, Encoder, EncoderSpec, load_encoder, mismatch
from indexer.errors import MismatchError
from indexer.executors import run_parts
from indexer.moments import Moments
from indexer.pipeline.ingest import BuildContext, PartSlot
from indexer.pipeline.progress import Progress
from indexer.pipeline.reuse import KnownRows, TextReuse, part_texts
from indexer.quality import require_usable
from indexer.store import layout, parts


@dataclass(frozen=True)
class EncodedPart:
    """What a worker hands back: the record it wrote, and what is worth a word but never stored."""

    name: str
    record: parts.PartRecord
    reused: int  # rows whose embedding an earlier generation already had
    retries: int  # batches halved after running out of memory


@dataclass(frozen=True)
class EncodeTask:
    """One part to encode, except the rows whose embeddings are `known` from another part."""

    index: Path
    slot: PartSlot
    known: KnownRows | None = None

    @property
    def known_rows(self) -> int:
        return len(self.known) if self.known else 0


class EncoderSource:
    """Loads the encoder when it is first needed, and only once; a copy sent to a worker loads its own."""

    def __init__(self, config: BuildConfig, options: RunOptions, spec: EncoderSpec) -> None:
        self.config, self.spec, self._options = config, spec, options
        self._encoder: Encoder | None = None

    def get(self) -> Encoder:
        """The encoder. Raises MismatchError if its files have changed since the build began."""
        if self._encoder is None:
            encoder = load_encoder(self.config.encoder, self._options, folder=self.spec.folder)
            if encoder.spec.fingerprint != self.spec.fingerprint:
                raise MismatchError(
                    f"{self.spec.folder}: the model changed while the build was running: "
                    f"{mismatch(self.spec.identity, encoder.spec)}. Put it back, or start again with the new one."
                )
            self._encoder = encoder
        return self._encoder

    def for_worker(self, worker: int) -> "EncoderSource":
        """The source for one of several processes: its share of the threads, and its own GPU."""
        cores = self._options.threads or os.cpu_count() or 1
        options = dataclasses.replace(
            self._options,
            device=_device_of(worker, self._options.device),
            threads=max(1, cores // self._options.workers),
        )
        return EncoderSource(self.config, options, self.spec)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_encoder": None}


@dataclass(frozen=True)
class PreparePart:
    """Makes a worker's function from its number; picklable."""

    source: EncoderSource
    alone: bool  # all in this process, which then has every thread
    on_batch: Callable[[int, int], None] | None = None

    def __call__(self, worker: int) -> Callable[[EncodeTask], EncodedPart]:
        source = self.source if self.alone else self.source.for_worker(worker)
        return lambda task: _encode_part(task, source, self.on_batch)


def encode_parts(
    slots: list[PartSlot], build: BuildContext, source: EncoderSource, options: RunOptions, progress: Progress
) -> dict[str, EncodedPart]:
    """Encode every part without a record. Returns what was encoded, by part name."""
    for slot in slots:
        if slot.record:
            require_usable(slot.record.not_finite, slot.record.zero)
    reuse = TextReuse.of(build) if any(slot.record is None for slot in slots) else None
    tasks = [
        EncodeTask(build.index, slot, reuse.find(build.index / slot.name) if reuse else None)
        for slot in slots
        if slot.record is None
    ]
    if not tasks:
        return {}
    progress.phase("encoding", sum(task.slot.documents - task.known_rows for task in tasks))
    alone = min(options.workers, len(tasks)) <= 1
    prepare = PreparePart(source, alone, progress.advance if alone else None)
    encoded = {}
    for part in run_parts(prepare, tasks, options.workers):
        require_usable(part.record.not_finite, part.record.zero)  # now, and not after hours of encoding the rest
        encoded[part.name] = part
        if not alone:
            progress.advance(part.record.rows - part.reused, part.record.tokens)
    return encoded


def _encode_part(task: EncodeTask, source: EncoderSource, on_batch: Callable[[int, int], None] | None) -> EncodedPart:
    folder, slot, config = task.index / task.slot.name, task.slot, source.config
    texts = part_texts(folder, config)
    log = EncodeLog(on_batch=on_batch)
    embeddings, lengths = _embed(texts, task, source, log)
    stored = embeddings.astype(config.store.embeddings)
    files = {
        layout.DOCUMENTS: slot.stamp,
        layout.WINDOWS: parts.write_windows(folder, parts.text_hashes(texts), lengths),
        layout.EMBEDDINGS: parts.write_embeddings(folder, stored),
        layout.MOMENTS: parts.write_moments(folder, Moments.of(stored)),
    }
    record = parts.PartRecord(
        documents=slot.documents,
        rows=len(texts),
        dim=stored.shape[1],
        document_key=slot.document_key,
        embedding_key=slot.embedding_key,
        fingerprint=source.spec.fingerprint,
        tokens=int(lengths.sum()),
        truncated=int(np.count_nonzero(lengths > source.spec.identity["max_length"])),
        not_finite=int(np.count_nonzero(~np.isfinite(stored).all(axis=1))),
        zero=int(np.count_nonzero(~stored.any(axis=1))),
        schema=slot.schema,
        files=files,
    )
    parts.write_record(folder, record)
    return EncodedPart(slot.name, record, task.known_rows, log.retries)


def _embed(
    texts: list[str], task: EncodeTask, source: EncoderSource, log: EncodeLog
) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.int32]]:
    """Embeddings (n, d) and token counts (n,) of all rows: the known ones copied, the others encoded."""
    known = task.known if task.known_rows else None
    missing = np.setdiff1d(np.arange(len(texts)), known.rows) if known else np.arange(len(texts))
    fresh = source.get().encode([texts[row] for row in missing], "document", log) if len(missing) else None
    like = fresh if fresh is not None else parts.open_embeddings(task.index / next(_taken_from(known))[0])
    embeddings = np.empty((len(texts), like.shape[1]), like.dtype)
    lengths = np.empty(len(texts), np.int32)
    if fresh is not None:
        embeddings[missing], lengths[missing] = fresh, log.lengths
    for folder, here, there in _taken_from(known):
        embeddings[here] = parts.open_embeddings(task.index / folder)[there]
        lengths[here] = parts.read_lengths(task.index / folder)[there]
    return embeddings, lengths


def _taken_from(known: KnownRows | None) -> Iterator[tuple[str, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    return known.by_part() if known else iter(())


def _device_of(worker: int, device: str) -> str:
    if device not in ("auto", "cuda"):
        return device
    import torch  # only to count the GPUs

    count = torch.cuda.device_count()
    return f"cuda:{worker % count}" if count else device
