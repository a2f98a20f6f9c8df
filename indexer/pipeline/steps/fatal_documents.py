"""Documents that the encoder does not survive, found in a part that cost several workers their lives.

The part is halved, and halved again, until single documents are left whose every worker dies. A worker that was killed
for another reason costs a few steps more, and no document its place: what is set aside killed three workers alone.
"""

from collections.abc import Sequence
from dataclasses import replace

from indexer.errors import MachineError
from indexer.executors import WorkerPool, run_tasks
from indexer.pipeline.steps.part_encoder import EncodeTask, WorkerSetup
from indexer.progress import Progress


def find_fatal_documents(task: EncodeTask, setup: WorkerSetup, pool: WorkerPool, progress: Progress) -> tuple[int, ...]:
    """The documents of a part, counted from its first, of which the encoder dies; ascending.

    Raises MachineError where a worker does not survive loading the encoder.
    """
    progress.phase("looking for the document that kills the encoder", None)
    trial = replace(setup, on_batch=None, discards=True)
    pool = replace(pool, workers=1, executor="processes" if pool.executor == "auto" else pool.executor)
    if _deadly([range(0)], task, trial, pool):
        raise MachineError(
            "worker processes die as they load the encoder (out of memory, or killed). Finished parts are kept: run "
            "the same command again to continue, with fewer --workers if memory was short."
        )
    fatal: list[int] = []
    suspects = [range(task.part.documents)]
    while suspects:
        halves = [half for suspect in suspects for half in _halves(suspect)]
        died = _deadly(halves, task, trial, replace(pool, tries=1))
        suspects = [suspect for suspect in died if len(suspect) > 1]
        fatal += [one.start for one in died if len(one) == 1 and _deadly([one], task, trial, pool)]
    return tuple(sorted(fatal))


def _halves(documents: range) -> list[range]:
    middle = len(documents) // 2
    return [half for half in (documents[:middle], documents[middle:]) if half]


def _deadly(candidates: Sequence[range], task: EncodeTask, trial: WorkerSetup, pool: WorkerPool) -> list[range]:
    """Those of some runs of documents that no worker survives."""
    trials = [
        replace(task, set_aside=tuple(each for each in range(task.part.documents) if each not in documents))
        for documents in candidates
    ]
    lost: list[EncodeTask] = []
    for _ in run_tasks(trial, trials, pool, lost):
        pass
    return [documents for documents, one in zip(candidates, trials, strict=True) if any(one is each for each in lost)]
