"""Search for the documents that crash the encoder, in a part that crashed several workers.

The part is halved until single documents remain that crash every worker. A worker killed for another reason only costs
a few more steps: a document is quarantined only if it crashed three workers on its own.
"""

from collections.abc import Sequence
from dataclasses import replace

from indexer.errors import MachineError
from indexer.executors import WorkerPool, run_tasks
from indexer.pipeline.steps.part_encoder import EncodeTask, PartEncoder
from indexer.progress import Progress


def find_fatal_documents(
    task: EncodeTask, encode: PartEncoder, pool: WorkerPool, progress: Progress
) -> tuple[int, ...]:
    """Return the documents of a part that crash the encoder, counted from its first; ascending.

    Raises MachineError if loading the encoder crashes a worker.
    """
    progress.phase("searching for the document that crashes the encoder", None)
    trial = replace(encode, on_batch=None, discards=True)
    pool = replace(pool, workers=1, executor="processes" if pool.executor == "auto" else pool.executor)
    if _crashing([range(0)], task, trial, pool):
        raise MachineError(
            "worker processes crash while they load the encoder (out of memory, or killed). Finished parts are kept. "
            "Fix: run the same command again to continue, with fewer --workers if memory was short."
        )
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
