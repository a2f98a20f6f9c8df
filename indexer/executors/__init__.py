"""Where tasks run: in this process, in others beside it, or on a Ray cluster. The results do not depend on it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from indexer.executors.processes import Prepare, Result, Task
from indexer.executors.processes import run_tasks as run_in_processes

Executor = Literal["auto", "processes", "ray"]


@dataclass(frozen=True)
class WorkerPool:
    """How many workers there are, and where. "auto": processes, or none but this one where one worker is enough."""

    workers: int = 1
    executor: Executor = "auto"
    ray_address: str = ""  # of a running cluster, or "auto"; empty: Ray is started on this machine
    gpus_per_worker: float = 0.0  # that Ray reserves for each


def run_tasks(prepare: Prepare[Task, Result], tasks: Sequence[Task], pool: WorkerPool) -> Iterator[Result]:
    """Yield the results of `prepare(worker)(tasks of this worker)`, in no fixed order, as they come.

    `prepare` runs once a worker (it loads what its tasks share); it, tasks and results must be picklable, and there is
    one result a task. Exceptions of the work itself come through as they are.
    """
    yield from run_in_processes(prepare, tasks, pool.workers)
