"""One process a worker, each with its own encoder.

A worker's function takes a stream of tasks and gives the stream of their results, so that it can read a task ahead
while it works on another. Each worker has a pipe of its own, which a thread of it empties at once: whoever sends,
parent or worker, never waits for the other to finish something first.
"""

import multiprocessing
import multiprocessing.connection
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Generic

from indexer.errors import IsotropeError, MachineError
from indexer.executors.scheduler import READY, Prepare, Result, Task, WorkerDiedError

_PATIENCE = 10  # seconds a worker has to end once it is told to
_UNGUARDED_EXIT = 98  # a worker's exit code; Python's own are 0 to 2, and 120
_UNGUARDED = (
    "each worker process imports the script that was started, and this one then began the same work anew. "
    'Put what the script does under: if __name__ == "__main__":'
)
Failure = tuple[BaseException, str]  # an exception, and where it was raised
_Message = tuple[Any] | Exception | None  # a task, the error of unpickling it, or None: no further task for now


class ProcessFleet(Generic[Task, Result]):
    """Worker processes of this machine. They end when this process does, however it ends."""

    has_machines = False

    def __init__(self, prepare: Prepare[Task, Result]) -> None:
        self._prepare = prepare

    def start(self, number: int) -> "_Worker":
        """Raises MachineError in a worker that is about to start workers of its own."""
        if _is_importing_script():
            raise MachineError(_UNGUARDED)
        return _Worker(self._prepare, number)

    def wait(self, workers: Sequence[Any]) -> Iterator["_Worker"]:
        by_connection = {worker.connection: worker for worker in workers}
        for ready in multiprocessing.connection.wait(list(by_connection)):
            yield by_connection[ready]


class RaisedInWorkerError(Exception):
    """Where in a worker process an exception was raised: its cause, in words, since a traceback cannot be sent."""


class _Worker:
    """A worker process as its parent sees it."""

    def __init__(self, prepare: Prepare[Any, Any], number: int) -> None:
        context = multiprocessing.get_context("spawn")  # forking a process that has loaded torch or faiss can hang
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(prepare, number, theirs), daemon=True)
        try:
            with _interrupts_blocked():
                self._process.start()
        finally:
            theirs.close()  # the worker's copy is then the only one, and its end is the end of the stream

    def give(self, task: Any) -> None:
        self._send((task,))

    def flush(self) -> None:
        self._send(None)

    def _send(self, message: tuple[Any] | None) -> None:
        # If it is gone, `take` finds out, after all that it left in the pipe: an exception, perhaps.
        with suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(message)

    def take(self) -> Any:
        try:
            result, failure = self.connection.recv()
        except (EOFError, OSError) as error:
            self._process.join(_PATIENCE)
            if self._process.exitcode == _UNGUARDED_EXIT:
                raise MachineError(_UNGUARDED) from None
            raise WorkerDiedError from error
        raise_failure(failure)
        return result

    def end(self) -> None:
        self._process.terminate()

    def close(self) -> None:
        self._process.join(_PATIENCE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self.connection.close()


def raise_failure(failure: Failure | None) -> None:
    """Raise what a worker raised, if it did."""
    if failure is not None:
        error, where = failure
        raise error from RaisedInWorkerError(f"\n{where}")


def _is_importing_script() -> bool:
    """Whether this is a worker to be, which imports its parent's script before it can serve."""
    return getattr(multiprocessing.current_process(), "_inheriting", False)


def _end_unguarded(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """The hook for exceptions of a worker to be: one of ours shows that its script does what its parent does.

    It may be any: the parent has the lock of the index, for one. The parent says it, once.
    """
    if issubclass(kind, IsotropeError):
        os._exit(_UNGUARDED_EXIT)
    sys.__excepthook__(kind, error, where)


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
    received: queue.SimpleQueue[_Message] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, received), daemon=True).start()
    try:
        work = prepare(number)
        connection.send((READY, None))
        while True:
            for result in work(_tasks(received)):
                connection.send((result, None))
    except BaseException as error:  # noqa: BLE001 - the parent raises it
        connection.send((None, failure_of(error)))


def failure_of(error: BaseException) -> Failure:
    """An exception as it is sent to another process."""
    return _portable(error), "".join(traceback.format_exception(error))


def _note(message: Warning | str, *_: object) -> str:
    """A warning as the command line shows those of its own process."""
    return f"note: {' '.join(str(message).split())}\n"


def _tasks(received: "queue.SimpleQueue[_Message]") -> Iterator[Any]:
    """Yield tasks until the sender asks for all results. Raises the error of a task that could not be unpickled."""
    while (message := received.get()) is not None:
        if isinstance(message, Exception):
            raise message
        yield message[0]


def _receive(connection: Connection, received: "queue.SimpleQueue[_Message]") -> None:
    """Pass messages to the worker's main thread. End the process once the parent is gone or memory runs out."""
    try:
        while True:
            data = connection.recv_bytes()
            try:
                received.put(pickle.loads(data))  # noqa: S301 - from the parent
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - unpickling runs code of the task, which may raise anything
                received.put(error)
    except (EOFError, OSError, MemoryError):  # the parent treats a lack of memory as a worker that was killed
        os._exit(1)


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


if _is_importing_script():
    sys.excepthook = _end_unguarded
