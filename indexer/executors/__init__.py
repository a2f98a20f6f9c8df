"""Execution of tasks in this process, in child processes or on a Ray cluster, with the same results."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from indexer.executors.scheduler import Executor, Fleet, Prepare, Result, Scheduler, Task, WorkerPool, again
from indexer.system.threads import available_cores

__all__ = ["Executor", "WorkerPool", "again", "run_tasks", "threads_per_worker"]


def threads_per_worker(pool: WorkerPool) -> int:
    """Return the CPU threads of each of several workers. Raises MachineError if Ray cannot be reached."""
    cores = pool.threads
    if pool.executor == "ray" and pool.ray_address and not cores:
        from indexer.executors.ray_actors import cluster_cores

        cores, largest = cluster_cores(pool.ray_address)
        return max(1, min(largest, cores // pool.workers))
    return max(1, (cores or available_cores()) // pool.workers)


def run_tasks(
    prepare: Prepare[Task, Result], tasks: Sequence[Task], pool: WorkerPool, lost: list[Task] | None = None
) -> Iterator[Result]:
    """Yield the results of `prepare(worker)(tasks of this worker)` as they arrive, in order for each worker.

    `prepare` runs once a worker and loads the data that its tasks share. It, tasks and results must be picklable if
    there are worker processes; there is one result a task. The prepared function may be called again for more tasks.

    A dead worker is replaced. A task that killed `pool.tries` workers is added to `lost`; without such a list it is a
    MachineError. If a Ray worker raises MachineError or StoreError, the remaining workers do its tasks. All other
    exceptions of the work are raised unchanged.
    """
    if not tasks:
        return
    if pool.is_this_process(len(tasks)):
        yield from prepare(0)(iter(tasks))
        return
    with _fleet(prepare, pool) as fleet:
        yield from Scheduler[Task, Result](fleet, tasks, pool, lost).results()


@contextmanager
def _fleet(prepare: Prepare[Task, Result], pool: WorkerPool) -> Iterator[Fleet]:
    if pool.executor == "ray":
        from indexer.executors.ray_actors import RayFleet, cluster

        with cluster(pool.ray_address) as ray:
            yield RayFleet(ray, prepare, pool, threads_per_worker(pool))
    else:
        from indexer.executors.processes import ProcessFleet  # imports multiprocessing, which a search does not need

        yield ProcessFleet(prepare)
