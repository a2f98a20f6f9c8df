"""The second step: encode every part without embeddings. Each part is one task, on any worker."""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from indexer.errors import CorpusError, MachineError, StoreError, spelled
from indexer.executors import WorkerPool, again, run_tasks, threads_per_worker
from indexer.pipeline.generation import Generation
from indexer.pipeline.steps.build_encoder import LazyEncoder, state_files
from indexer.pipeline.steps.ingest import PendingPart
from indexer.pipeline.steps.part_encoder import EncodedPart, EncodeTask, PartEncoder
from indexer.pipeline.steps.quality_gates import require_nonzero_finite
from indexer.progress import Progress
from indexer.recipe.run_options import RunOptions
from indexer.store import layout
from indexer.store.documents import read_documents_at
from indexer.store.parts import PartRecord, read_record
from indexer.store.stores import store_at

_LOOKS, _PAUSE = 20, 0.5  # attempts and seconds between them: a network file system may show a new file late


@dataclass(frozen=True)
class EncodedParts:
    """The complete parts of a generation: their records in order, and the work of this run."""

    records: list[PartRecord]
    encoded: list[EncodedPart]  # in this run, or given with the corpus
    notes: tuple[str, ...] = ()  # on quarantined documents

    def work(self) -> dict[str, Any]:
        """Return the counts of this run, and the backends of the encoder, as fields of a report."""
        reused, given = (sum(getattr(part, name) for part in self.encoded) for name in ("reused", "given"))
        return {
            "rows_encoded": sum(part.record.rows for part in self.encoded) - reused - given,
            "rows_reused": reused,
            "rows_given": given,
            "tokens": sum(record.tokens for record in self.records),
            "truncated": sum(record.truncated for record in self.records),
            "retries": sum(part.retries for part in self.encoded),
            "backend": "; ".join(sorted({part.backend for part in self.encoded if part.backend})),
        }


def encode_parts(
    pending: Sequence[PendingPart],
    generation: Generation,
    encoder: LazyEncoder,
    options: RunOptions,
    progress: Progress,
) -> EncodedParts:
    """Encode every part without a record, and add all parts to the generation.

    Raises CorpusError naming the documents that crash the encoder, unless `options.quarantine`; all other documents are
    encoded and kept.
    """
    done: dict[str, EncodedPart] = {}
    if not options.quarantine:
        pending = [_to_try_again(part, generation) for part in pending]
    for part in pending:
        if part.record:
            require_nonzero_finite(part.record.not_finite, part.record.zero)
            generation.sender.send_part(part.name, part.record)  # an interrupted run may not have sent it
        if part.record and part.given:
            done[part.name] = EncodedPart(part.name, part.record, 0, 0, given=part.rows)
    tasks = [EncodeTask(generation.index.absolute(), part) for part in pending if part.record is None]
    if options.executor == "ray":
        share_inputs(generation, [task.part for task in tasks])
    for encoded in encode_tasks(tasks, encoder, options, progress):
        generation.sender.send_part(encoded.name, encoded.record)
        done[encoded.name] = encoded
    sent = generation.sender.wait()
    records = [sent.get(part.name) or part.record or done[part.name].record for part in pending]
    notes = _crash_notes(generation, pending, records)
    if notes and not options.quarantine:
        raise CorpusError(
            f"{notes[0]}. Everything else is encoded and kept. Fix: remove these documents from the corpus, or pass "
            f"{spelled('RunOptions(quarantine=True)', '--on-error skip')} to leave such documents out of the index."
        )
    for part, record in zip(pending, records, strict=True):
        generation.add_part(part.name, record)
    return EncodedParts(records, list(done.values()), notes)


def _to_try_again(part: PendingPart, generation: Generation) -> PendingPart:
    """Return the part as not encoded if an earlier run left it with quarantined documents."""
    published = generation.published.manifest.parts if generation.published else ()
    if part.record is None or not part.record.quarantined or part.name in {entry.name for entry in published}:
        return part
    generation.sender.withdraw(part.name)
    return replace(part, record=None)


def share_inputs(generation: Generation, pending: Sequence[PendingPart]) -> None:
    """Send the inputs of encoding some parts to object storage, for other machines; a local index needs nothing."""
    if pending:
        documents = {f"{part.name}/{layout.DOCUMENTS}": part.written.digest for part in pending}
        generation.sender.share(documents, state_files(generation.index, generation.spec))


def _crash_notes(
    generation: Generation, pending: Sequence[PendingPart], records: Sequence[PartRecord]
) -> tuple[str, ...]:
    notes = []
    for part, record in zip(pending, records, strict=True):
        if record.quarantined:
            documents = read_documents_at(generation.index / part.name, list(record.quarantined))
            ids = ", ".join(f'"{document.id}"' for document in documents)
            notes.append(f"{ids} crashed the encoder (each tried alone, several times), in {part.name}")
    return tuple(notes)


def encode_tasks(
    tasks: Sequence[EncodeTask], encoder: LazyEncoder, options: RunOptions, progress: Progress
) -> Iterator[EncodedPart]:
    """Encode parts, in no fixed order, on the workers of `options`; quarantine documents that crash the workers."""
    if not tasks:
        return
    alone, missing = options.pool.is_this_process(len(tasks)), sum(task.part.missing for task in tasks)
    if missing:  # a compaction encodes nothing and may lack the model
        if size := encoder.size:
            progress.phase(f"loading {size}", None)
        if alone:
            encoder.get()
        else:
            encoder.prepare()
    progress.phase("encoding", missing)
    threads = None if alone else threads_per_worker(options.pool)
    url = store_at(tasks[0].index).url if options.executor == "ray" else ""
    encode = PartEncoder(encoder, threads, progress.advance if alone else None, url=url)
    lost: list[EncodeTask] = []
    yield from _run(encode, tasks, options, progress, lost)
    if not lost:
        return
    remaining = [replace(task, quarantined=_fatal_documents(task, encode, options.pool, progress)) for task in lost]
    apart = options if options.executor == "ray" else replace(options, executor="processes")
    yield from _run(encode, remaining, apart, progress)


def _run(
    encode: PartEncoder,
    tasks: Sequence[EncodeTask],
    options: RunOptions,
    progress: Progress,
    lost: list[EncodeTask] | None = None,
) -> Iterator[EncodedPart]:
    for encoded in run_tasks(encode, tasks, options.pool, lost):
        if encoded is None:
            raise RuntimeError("a worker returned no result")
        if options.executor == "ray":
            _require_visible(tasks[0].index, encoded)
        # fail now, not after hours of encoding the rest
        require_nonzero_finite(encoded.record.not_finite, encoded.record.zero)
        yield encoded
        if encode.on_batch is None:
            progress.advance(encoded.record.rows - encoded.reused, encoded.record.tokens)


def _fatal_documents(task: EncodeTask, encode: PartEncoder, pool: WorkerPool, progress: Progress) -> tuple[int, ...]:
    """Return the documents of a part that crash the encoder, counted from its first; ascending.

    The part is halved until single documents remain that crash every worker. A worker killed for another reason only
    costs a few more steps: a document is quarantined only if it crashed three workers on its own. Raises MachineError
    if loading the encoder crashes a worker.
    """
    progress.phase("searching for the document that crashes the encoder", None)
    pool = replace(pool, workers=1, executor="processes" if pool.executor == "auto" else pool.executor)
    trial = replace(encode, threads=threads_per_worker(pool), on_batch=None, discards=True)
    if _crashing([range(0)], task, trial, pool):
        raise MachineError(f"worker processes crash while they load the encoder (out of memory, or killed). {again()}")
    fatal: list[int] = []
    suspects = [range(task.part.documents)]
    while suspects:
        middles = [(suspect, len(suspect) // 2) for suspect in suspects]
        halves = [half for whole, middle in middles for half in (whole[:middle], whole[middle:]) if half]
        crashing = _crashing(halves, task, trial, replace(pool, tries=1))
        suspects = [half for half in crashing if len(half) > 1]
        fatal += [half.start for half in crashing if len(half) == 1 and _crashing([half], task, trial, pool)]
    return tuple(sorted(fatal))


def _crashing(candidates: Sequence[range], task: EncodeTask, trial: PartEncoder, pool: WorkerPool) -> list[range]:
    """Return the runs of documents that crash every worker."""
    everything = range(task.part.documents)
    trials = [
        replace(task, quarantined=tuple(number for number in everything if number not in documents))
        for documents in candidates
    ]
    lost: list[EncodeTask] = []
    for _ in run_tasks(trial, trials, pool, lost):
        pass
    return [
        documents for documents, tried in zip(candidates, trials, strict=True) if any(tried is each for each in lost)
    ]


def _require_visible(index: Path, encoded: EncodedPart) -> None:
    """Raise StoreError if a part that another machine wrote is not visible here."""
    folder = index / encoded.name
    files = {f"{encoded.name}/{name}": digest for name, digest in encoded.record.files.items()}
    for _ in range(_LOOKS):
        with suppress(StoreError):
            store_at(index).check_sizes(files)
            if read_record(folder):
                return
        time.sleep(_PAUSE)
    raise StoreError(
        f"{folder}: a worker wrote this part, but it is not visible here. Every machine of the Ray cluster must see "
        "the index folder under the same path, or reach the same object storage. Fix: build on a shared file system or "
        "at a URL."
    )
