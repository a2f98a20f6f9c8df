"""One process a worker, each with its own encoder; or everything in this process when one worker is enough."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any, TypeVar

from indexer.errors import MachineError

Task = TypeVar("Task")
Result = TypeVar("Result")

_prepare: Callable[[], Callable[[Any], Any]] | None = None  # how this worker process gets ready
_work: Callable[[Any], Any] | None = None  # what it does with a task, once ready


def run_parts(
    prepare: Callable[[int], Callable[[Task], Result]], tasks: Sequence[Task], workers: int
) -> Iterator[Result]:
    """Yield `prepare(worker)(task)` for each task, in the order they finish.

    `prepare` runs once a worker (it loads the model) and must be picklable when `workers` > 1. With one
    worker, or one task, everything runs in this process. Raises MachineError when a worker process dies;
    exceptions of the work itself come through as they are. Workers end when this process does, however it ends.
    """
    if min(workers, len(tasks)) <= 1:
        work = prepare(0) if tasks else None
        yield from (work(task) for task in tasks if work is not None)
        return
    context = multiprocessing.get_context("spawn")  # forking a process that has loaded torch or faiss can hang
    numbers = context.SimpleQueue()
    for number in range(workers):
        numbers.put(number)
    pool = ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(prepare, numbers))
    try:
        yield from _results(pool, tasks, workers)
    except BrokenProcessPool as error:
        raise MachineError(
            "a worker process died (out of memory, or killed). Finished parts are kept: run the same command "
            "again to continue, with fewer --workers if memory was short."
        ) from error
    finally:
        _stop(pool)


def _results(pool: ProcessPoolExecutor, tasks: Sequence[Any], workers: int) -> Iterator[Any]:
    """Keep a few tasks in flight, so that an interrupted run leaves little undone."""
    waiting = iter(tasks)
    running: set[Future[Any]] = set()
    while True:
        while len(running) < 2 * workers:
            task = next(waiting, None)
            if task is None:
                break
            running.add(pool.submit(_run, task))
        if not running:
            return
        done, running = wait(running, return_when=FIRST_COMPLETED)
        yield from (future.result() for future in done)


def _start_worker(prepare: Callable[[int], Callable[[Any], Any]], numbers: Any) -> None:
    global _prepare  # a worker process has one job for its whole life
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which stops its workers
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    _prepare = partial(prepare, numbers.get())


def _end_with(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


def _run(task: Any) -> Any:
    global _work
    if _work is None:  # here and not in the initializer, where an error would only read "broken pool"
        if _prepare is None:
            raise MachineError("a worker was given a part before it was started.")
        _work = _prepare()
    return _work(task)


def _stop(pool: ProcessPoolExecutor) -> None:
    processes = list((getattr(pool, "_processes", None) or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()
    for process in processes:
        process.join()
