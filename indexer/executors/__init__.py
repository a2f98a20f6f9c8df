"""Where tasks run: in this process, in others beside it, or on a Ray cluster. The results do not depend on it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from indexer.executors.pool import Executor, WorkerPool
from indexer.executors.processes import ProcessFleet
from indexer.executors.scheduler import Fleet, Prepare, Result, Scheduler, Task
from indexer.system.threads import available_cores

__all__ = ["Executor", "WorkerPool", "run_tasks", "threads_per_worker"]


def threads_per_worker(pool: WorkerPool) -> int:
    """CPU threads for each of several workers, wherever they are. Raises MachineError where Ray cannot be reached."""
    cores = pool.threads
    if pool.executor == "ray" and pool.ray_address and not cores:
        from indexer.executors.ray_actors import cluster_cores

        cores, largest = cluster_cores(pool.ray_address)
        return max(1, min(largest, cores // pool.workers))
    return max(1, (cores or available_cores()) // pool.workers)


def run_tasks(
    prepare: Prepare[Task, Result], tasks: Sequence[Task], pool: WorkerPool, lost: list[Task] | None = None
) -> Iterator[Result]:
    """Yield the results of `prepare(worker)(tasks of this worker)` as they come, of each worker in order.

    `prepare` runs once a worker (it loads what its tasks share). It, tasks and results must be picklable where there
    are worker processes; there is one result a task. The function it gives may be called again, for more tasks.

    A worker that dies is followed by another. A task that `pool.tries` workers did not survive is added to `lost`;
    without such a list it is a MachineError. One of Ray's workers whose work raises MachineError or StoreError leaves
    its tasks to the others while there are any. All other exceptions of the work come through as they are.
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
        yield ProcessFleet(prepare)
