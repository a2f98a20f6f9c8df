"""Workers as Ray actors, on one or many machines; only Ray's tasks and actors, not its data sets.

A call passes one task and returns its result. The output of a task is in files with names fixed by the task, on a file
system that every machine sees or in object storage, so a repeated call changes nothing.
"""

import os
import socket
import sys
import threading
import warnings
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_for_futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic

from indexer.errors import MachineError, Reader, as_argument, reader, written_for
from indexer.executors.processes import Failure, failure_of, raise_failure
from indexer.executors.scheduler import IN_FLIGHT, READY, Prepare, Result, Task, WorkerDiedError, WorkerPool, again
from indexer.lazy_imports import require_extra

_LOCAL = "local"  # Ray's address of a new cluster on this machine
_AUTH_MODE = "RAY_AUTH_MODE"
_CONNECT_SECONDS = 10
_LOOK_SECONDS = 1.0  # between two checks of the processes of a cluster that was started here
_NODE_PROCESSES = ("raylet", "gcs_server")  # Ray's names
_Answer = tuple[Any, Failure | None]  # a result, or the exception of the work


@contextmanager
def cluster(address: str) -> Iterator[Any]:
    """`connect` for a block; an existing connection of the program stays open."""
    loaded = sys.modules.get("ray")
    was_connected = loaded is not None and loaded.is_initialized()
    ray = connect(address)
    try:
        yield ray
    finally:
        if not was_connected and not has_lost_node(ray):  # else Ray waits for the node, then ends this process
            ray.shutdown()


def has_lost_node(ray: Any) -> bool:
    """Return whether an essential process of a cluster started here has died."""
    worker = getattr(ray, "_private", None) and getattr(ray._private, "worker", None)
    node = getattr(worker, "_global_node", None)
    if node is None or not hasattr(node, "dead_processes"):
        return False
    return any(kind in _NODE_PROCESSES for kind, _ in node.dead_processes())


def _restore_excepthook(ray: Any) -> None:
    """Uninstall Ray's `sys.excepthook`, which reports to the cluster and waits a minute if it is gone."""
    worker = ray._private.worker
    if sys.excepthook is worker.custom_excepthook:
        sys.excepthook = worker.normal_excepthook


def connect(address: str) -> Any:
    """Return the module `ray`, connected: as the program is already, else to `address`, else to a new local cluster.

    A new local cluster requires a token, so that no other user can send it work. A cluster at an address is assumed to
    require one if this machine has a token, like `ray start`, unless RAY_AUTH_MODE is set. A token that the cluster
    does not require fails like a missing one.

    Raises MachineError if Ray is not installed, or if there is no cluster.
    """
    if "ray" not in sys.modules and (not address or _has_token()):  # the mode is read when Ray is imported
        os.environ.setdefault(_AUTH_MODE, "token")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # only the first of several is raised
    ray = require_extra("ray", "ray")
    if ray.is_initialized():
        return ray
    alone = {} if address else {"include_dashboard": False}
    try:
        _require_listener(address)
    except OSError as error:
        raise MachineError(_unreachable(address, error)) from error
    with _reaching(address):
        ray.init(address=address or _LOCAL, log_to_driver=False, configure_logging=False, **alone)
    return ray


@contextmanager
def _reaching(address: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise MachineError(f"{_unreachable(address, error)}{_about_tokens() if address else ''}") from error


def _has_token() -> bool:
    named = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    return bool(named) or Path("~/.ray/auth_token").expanduser().exists()


def _unreachable(address: str, error: Exception) -> str:
    reason = str(error).strip().partition("\n")[0].partition(". ")[0]
    if not address:
        return (
            f"no Ray cluster can be started on this machine ({reason}). Fix: try again when the machine is less busy, "
            "give the address of a running cluster, or do without Ray."
        )
    return (
        f'no Ray cluster can be reached at "{address}" ({reason}). Fix: start one with ray start --head and give its '
        "address, or leave the address out to start one here."
    )


def _about_tokens() -> str:
    """Return a hint for an unclear answer: Ray seldom distinguishes a wrong token from an address without a cluster."""
    return (
        f" If a cluster runs there, its token mode may differ from this program's: {_AUTH_MODE} is "
        f"{os.environ.get(_AUTH_MODE) or 'not set'} here. If the cluster requires a token (ray start does if "
        f"~/.ray/auth_token exists), set {_AUTH_MODE}=token and use the same token here (ray get-auth-token "
        f"--generate makes one); otherwise set {_AUTH_MODE}=disabled."
    )


def _require_listener(address: str) -> None:
    """Raises OSError if nothing listens at "host:port": Ray would retry for many minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()


def cluster_cores(address: str) -> tuple[int, int]:
    """Return the CPU cores of all machines of the cluster, and of the largest. Raises MachineError."""
    with cluster(address) as ray, _reaching(address):
        machines = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
        return int(sum(machines)) or 1, int(max(machines, default=1)) or 1


class RayFleet(Generic[Task, Result]):
    """Actors, each with its CPU threads and GPUs, on any machine of the cluster.

    Raises MachineError if this machine alone is too small for all of them. A cluster may grow: a warning reports the
    missing GPUs.
    """

    has_machines = True

    def __init__(self, ray: Any, prepare: Prepare[Task, Result], pool: WorkerPool, threads: int) -> None:
        self._ray = ray
        with _reaching(pool.ray_address):
            resources = self._ray.cluster_resources()
        cores, gpus = resources.get("CPU", 1), resources.get("GPU", 0)
        self._cpus = min(threads, cores / pool.workers, cluster_cores(pool.ray_address)[1])
        self._gpus = pool.gpus_per_worker
        if self._gpus * pool.workers > gpus:
            missing = f"{pool.workers} workers need {self._gpus * pool.workers:g} GPUs, and Ray has {gpus:g}"
            if not pool.ray_address:
                fewer = f"fewer {as_argument('workers')}, {as_argument('gpus_per_worker', 0)}"
                raise MachineError(f"{missing}. Fix: pass {fewer}, or a cluster.")
            warnings.warn(f"{missing}; workers without a GPU wait until the cluster grows", stacklevel=2)
        self._prepare = self._ray.put(prepare)
        self._is_elsewhere = bool(pool.ray_address)

    def start(self, number: int) -> "_Worker":
        # A new actor replaces a dead one, on any machine. Ray's own restart would also run the dead actor's tasks
        # again.
        actor = self._ray.remote(_Actor).options(
            num_cpus=self._cpus, num_gpus=self._gpus, max_restarts=0, max_concurrency=IN_FLIGHT + 2
        )
        return _Worker(self._ray, actor.remote(self._prepare, number, reader()), self._is_elsewhere)

    def wait(self, workers: Sequence[Any]) -> Iterator["_Worker"]:
        by_call = {worker.next_call: worker for worker in workers}
        done = set[Future[Any]]()
        while not done:
            # Some time after it has lost the node, Ray ends this process without an exception, and `ray.wait` may not
            # return before that, whatever its timeout.
            if has_lost_node(self._ray):
                _restore_excepthook(self._ray)
                raise MachineError(f"Ray's processes on this machine were killed, perhaps out of memory. {again()}")
            done, _ = wait_for_futures(by_call, _LOOK_SECONDS, FIRST_COMPLETED)
        for call in done:
            yield by_call[call]


class _Worker:
    """An actor, seen from its driver."""

    def __init__(self, ray: Any, actor: Any, is_elsewhere: bool) -> None:
        self._ray, self._actor, self._is_elsewhere = ray, actor, is_elsewhere
        self._calls = deque[Future[Any]]([actor.ready.remote().future()])
        self._given = 0

    @property
    def next_call(self) -> "Future[Any]":
        """The call whose answer comes next."""
        return self._calls[0]

    def give(self, task: Any) -> None:
        self._given += 1
        self._calls.append(self._actor.run.remote(self._given, task).future())

    def flush(self) -> None:
        self._actor.flush.remote(self._given)

    def take(self) -> Any:
        try:
            result, failure = self._calls.popleft().result()
        except self._ray.exceptions.RayError as error:
            raise WorkerDiedError(self._reason(error)) from error
        raise_failure(failure)
        return result

    def _reason(self, error: Exception) -> str:
        reason = str(error).strip().partition("\n")[0]
        if not self._given and self._is_elsewhere and os.environ.get(_AUTH_MODE, "").lower() == "token":
            reason += f" If the cluster requires no token, set {_AUTH_MODE} to disabled"
        return reason

    def end(self) -> None:
        if not has_lost_node(self._ray):  # the actor died with it
            self._ray.kill(self._actor, no_restart=True)

    close = end


class _Actor:
    """Runs a stream of tasks on its thread; every call adds one and waits for its result."""

    def __init__(self, prepare: Prepare[Any, Any], number: int, reader: Reader) -> None:
        self._changed = threading.Condition()
        self._tasks: dict[int, Any] = {}  # by number, from 1: calls may overtake each other
        self._answers: defaultdict[int, Future[_Answer]] = defaultdict(Future)
        self._taken = self._flushed = 0
        threading.Thread(target=self._serve, args=(prepare, number, reader), daemon=True).start()

    def ready(self) -> "_Answer":
        """Return READY once the worker's function is prepared."""
        return self._answer(0)

    def run(self, number: int, task: Any) -> "_Answer":
        """Return the result of the task, which is the worker's `number`-th."""
        with self._changed:
            self._tasks[number] = task
            self._changed.notify()
        return self._answer(number)

    def flush(self, number: int) -> None:
        """Announce that no task follows the `number`-th for now."""
        with self._changed:
            self._flushed = max(self._flushed, number)
            self._changed.notify()

    def _answer(self, number: int) -> "_Answer":
        with self._changed:
            future = self._answers[number]
        answer = future.result()
        with self._changed:
            del self._answers[number]
        return answer

    def _serve(self, prepare: Prepare[Any, Any], number: int, reader: Reader) -> None:
        given = 0
        try:
            with written_for(reader):
                work = prepare(number)
                self._give_back(given, (READY, None))
                while True:
                    for result in work(self._stream()):
                        given += 1
                        self._give_back(given, (result, None))
        except BaseException as error:  # noqa: BLE001 - the driver raises it
            for left in range(given, given + IN_FLIGHT + 1):
                self._give_back(left, (None, failure_of(error)))

    def _give_back(self, number: int, answer: "_Answer") -> None:
        with self._changed:
            future = self._answers[number]
        if not future.done():
            future.set_result(answer)

    def _stream(self) -> Iterator[Any]:
        """Yield tasks until the driver requests all results; waits for the first."""
        first = self._taken
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._taken + 1 in self._tasks or first < self._taken <= self._flushed)
                if self._taken + 1 not in self._tasks:
                    return
                self._taken += 1
                task = self._tasks.pop(self._taken)
            yield task
