"""One process a worker, each with its own encoder; or everything in this process when one worker is enough.

A worker's function takes the stream of its tasks and gives the stream of its results, so that it can read a task
ahead while it works on another. Each worker has a pipe of its own, which a thread of it empties at once: whoever
sends, parent or worker, never waits for the other to finish something first.
"""

import multiprocessing
import multiprocessing.connection
import os
import pickle
import queue
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from indexer.errors import MachineError

Task = TypeVar("Task")
Result = TypeVar("Result")
Prepare = Callable[[int], Callable[[Iterator[Task]], Iterator[Result]]]
IN_FLIGHT = 3  # tasks a worker holds: one it reads, one it computes, one it writes
_PATIENCE = 10  # seconds a worker has to end once it is told to


def run_tasks(prepare: Prepare[Task, Result], tasks: Sequence[Task], workers: int) -> Iterator[Result]:
    """Yield the results of `prepare(worker)(tasks of this worker)`, of each worker in order, as they come.

    `prepare` runs once a worker (it loads the model) and must be picklable when `workers` > 1; so must tasks and
    results, of which there is one a task. A worker is given at most `IN_FLIGHT` tasks beyond the results it has
    given back. With one worker, or one task, everything runs in this process. Raises MachineError when a worker
    process dies; exceptions of the work itself come through as they are. Workers end when this process does,
    however it ends.
    """
    if not tasks:
        return
    if min(workers, len(tasks)) == 1:
        yield from prepare(0)(iter(tasks))
        return
    running: list[_Worker] = []
    try:
        for number in range(min(workers, len(tasks))):
            running.append(_Worker(prepare, number))
        yield from _results(running, iter(tasks))
    except (EOFError, OSError) as error:
        if not any(worker.has_died for worker in running):
            raise
        raise MachineError(
            "a worker process died (out of memory, or killed). Finished parts are kept: run the same command "
            "again to continue, with fewer --workers if memory was short."
        ) from error
    finally:
        _stop(running)


def _results(workers: list["_Worker"], tasks: Iterator[Any]) -> Iterator[Any]:
    for _ in range(IN_FLIGHT):
        for worker in workers:  # in turns, so that a few tasks are spread over all
            worker.give_next(tasks)
    busy = {worker.connection: worker for worker in workers if worker.in_flight}
    while busy:
        for ready in multiprocessing.connection.wait(list(busy)):
            worker = busy[ready]  # type: ignore[index]
            result = worker.take()
            worker.give_next(tasks)
            if not worker.in_flight:
                del busy[worker.connection]
            yield result


class RaisedInWorkerError(Exception):
    """Where in a worker process an exception was raised: its cause, in words, since a traceback cannot be sent."""


class _Worker:
    """A worker process as its parent sees it."""

    def __init__(self, prepare: Prepare[Any, Any], number: int) -> None:
        context = multiprocessing.get_context("spawn")  # forking a process that has loaded torch or faiss can hang
        self.connection, theirs = context.Pipe()
        self.in_flight = 0
        self.has_died = self._all_given = False
        self._process = context.Process(target=_serve, args=(prepare, number, theirs), daemon=True)
        try:
            with _interrupts_blocked():
                self._process.start()
        finally:
            theirs.close()  # the worker's copy is then the only one, and its end is the end of the stream

    def give_next(self, tasks: Iterator[Any]) -> None:
        """Send a task, or word that there are no more."""
        if self._all_given:
            return
        try:
            message: tuple[Any] | None = (next(tasks),)
            self.in_flight += 1
        except StopIteration:
            message, self._all_given = None, True
        # If it is gone, `take` finds out, after all that it left in the pipe: an exception, perhaps.
        with suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(message)

    def take(self) -> Any:
        """The next result. Raises what the work raised; EOFError or OSError when the process is gone."""
        try:
            result, failure = self.connection.recv()
        except (EOFError, OSError):
            self.has_died = True
            raise
        if failure is not None:
            error, where = failure
            raise error from RaisedInWorkerError(f"\n{where}")
        self.in_flight -= 1
        return result

    def end(self) -> None:
        """Tell it to stop, whatever it is doing."""
        self._process.terminate()

    def close(self) -> None:
        """Wait for its end."""
        self._process.join(_PATIENCE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self.connection.close()


def _stop(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.end()
    for worker in workers:
        worker.close()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """A process started inside is born deaf to Ctrl-C, which is for the parent, who stops its workers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(prepare: Prepare[Any, Any], number: int, connection: Connection) -> None:
    """The whole life of a worker process."""
    warnings.formatwarning = _note  # type: ignore[assignment]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    received: queue.SimpleQueue[tuple[Any] | None] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, received), daemon=True).start()
    try:
        for result in prepare(number)(_tasks(received)):
            connection.send((result, None))
    except BaseException as error:  # noqa: BLE001 - the parent raises it
        connection.send((None, (_portable(error), "".join(traceback.format_exception(error)))))


def _note(message: Warning | str, *_: object) -> str:
    """A warning as the command line shows those of its own process."""
    return f"note: {' '.join(str(message).split())}\n"


def _tasks(received: "queue.SimpleQueue[tuple[Any] | None]") -> Iterator[Any]:
    while (message := received.get()) is not None:
        yield message[0]


def _receive(connection: Connection, received: "queue.SimpleQueue[tuple[Any] | None]") -> None:
    try:
        while True:
            message = connection.recv()
            received.put(message)
            if message is None:
                return
    except (EOFError, OSError):
        os._exit(1)  # the parent is gone


def _end_with(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


def _portable(error: BaseException) -> BaseException:
    """The exception itself; in words if it cannot be sent."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - what was just pickled here
    except Exception:  # noqa: BLE001 - pickling runs code of the exception's class, which may raise anything
        return RuntimeError(traceback.format_exception_only(error)[-1].strip())
    return error
