"""Worker processes, each with its own encoder.

A worker's function maps a stream of tasks to a stream of results, so that it can read a task ahead while it works on
another. Each worker has a pipe, which a thread empties at once, so that neither parent nor worker blocks on sending.
"""

import multiprocessing.connection
import os
import pickle
import queue
import signal
import subprocess
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, Generic

from indexer.executors.scheduler import READY, Prepare, Result, Task, WorkerDiedError
from indexer.system.child_process import start_python

_PATIENCE = 10  # seconds until a signalled worker is killed
Failure = tuple[BaseException, str]  # an exception and its traceback
_Message = tuple[Any, ...] | Exception | None  # a task, the error of unpickling it, or None: no further task for now


class ProcessFleet(Generic[Task, Result]):
    """Worker processes of this machine, which end with this process."""

    has_machines = False

    def __init__(self, prepare: Prepare[Task, Result]) -> None:
        self._prepare = prepare

    def start(self, number: int) -> "_Worker":
        return _Worker(self._prepare, number)

    def wait(self, workers: Sequence[Any]) -> Iterator["_Worker"]:
        by_connection = {worker.connection: worker for worker in workers}
        for ready in multiprocessing.connection.wait(list(by_connection)):
            yield by_connection[ready]


class RaisedInWorkerError(Exception):
    """The traceback of an exception in a worker process: its cause, as text, because tracebacks cannot be sent."""


class _Worker:
    """A worker process, seen from its parent."""

    def __init__(self, prepare: Prepare[Any, Any], number: int) -> None:
        self.connection, theirs = multiprocessing.connection.Pipe()
        with theirs, _interrupts_blocked():  # only the worker keeps its end of the pipe, so its death closes the pipe
            handle = theirs.fileno()
            streams = {"stdin": subprocess.DEVNULL, "pass_fds": [handle]}
            self._process = start_python(f"{__name__}:serve", handle, **streams)
        self._send((prepare, number))

    def give(self, task: Any) -> None:
        self._send((task,))

    def flush(self) -> None:
        self._send(None)

    def _send(self, message: tuple[Any, ...] | None) -> None:
        # if the worker has died, `take` reports it, after any results or exception left in the pipe
        with suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(message)

    def take(self) -> Any:
        try:
            result, failure = self.connection.recv()
        except (EOFError, OSError) as error:
            raise WorkerDiedError from error
        raise_failure(failure)
        return result

    def end(self) -> None:
        self._process.terminate()

    def close(self) -> None:
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.connection.close()


def raise_failure(failure: Failure | None) -> None:
    """Raise a worker's exception, if any."""
    if failure is not None:
        error, where = failure
        raise error from RaisedInWorkerError(f"\n{where}")


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C for processes started in the block; the parent stops its workers itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve(handle: int) -> None:
    """Run a worker process; `handle` is its end of the pipe."""
    warnings.formatwarning = _note  # type: ignore[assignment]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection: Connection[Any, Any] = Connection(handle)
    received: queue.SimpleQueue[_Message] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, received), daemon=True).start()
    try:
        prepare, number = next(_messages(received))
        work = prepare(number)
        connection.send((READY, None))
        while True:
            for result in work(task for (task,) in _messages(received)):
                connection.send((result, None))
    except BaseException as error:  # noqa: BLE001 - the parent raises it
        connection.send((None, failure_of(error)))


def failure_of(error: BaseException) -> Failure:
    """Return an exception in a form that can be sent to another process."""
    return _portable(error), "".join(traceback.format_exception(error))


def _note(message: Warning | str, *_: object) -> str:
    return f"note: {' '.join(str(message).split())}\n"


def _messages(received: "queue.SimpleQueue[_Message]") -> Iterator[tuple[Any, ...]]:
    """Yield messages until the sender requests all results. Raises the error of a message that cannot be unpickled."""
    while (message := received.get()) is not None:
        if isinstance(message, Exception):
            raise message
        yield message


def _receive(connection: Connection, received: "queue.SimpleQueue[_Message]") -> None:
    """Pass messages to the worker's main thread. End the process if the parent has died or memory runs out."""
    try:
        while True:
            data = connection.recv_bytes()
            try:
                received.put(pickle.loads(data))  # noqa: S301 - from the parent
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - unpickling runs code of the task, which may raise anything
                received.put(error)
    except (EOFError, OSError, MemoryError):  # for the parent, out of memory is the same as a killed worker
        os._exit(1)


def _portable(error: BaseException) -> BaseException:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - pickled here
    except Exception:  # noqa: BLE001 - pickling runs code of the exception's class, which may raise anything
        return RuntimeError(traceback.format_exception_only(error)[-1].strip())
    return error
