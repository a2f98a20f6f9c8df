"""Workers as Ray actors, on one machine or many; Ray's task and actor layer only, none of its data sets.

A call carries one task and comes back with its result. What a task makes lies in files that its name determines, on a
file system that every machine sees or in object storage, so a call that is made again changes nothing.
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

from indexer.errors import MachineError
from indexer.executors.pool import WorkerPool
from indexer.executors.processes import Failure, failure_of, raise_failure
from indexer.executors.scheduler import AGAIN, IN_FLIGHT, READY, Prepare, Result, Task, WorkerDiedError
from indexer.lazy import require_extra

_LOCAL = "local"  # Ray's word for a cluster of its own on this machine
_AUTH_MODE = "RAY_AUTH_MODE"
_CONNECT_SECONDS = 10
_LOOK_SECONDS = 1.0  # between two looks at the processes of a cluster that was started here
_NODE_PROCESSES = ("raylet", "gcs_server")  # as Ray calls them
_Answer = tuple[Any, Failure | None]  # a result, or what the work raised


@contextmanager
def cluster(address: str) -> Iterator[Any]:
    """`connect` for the time of a block; a connection that the program had before stays as it is."""
    loaded = sys.modules.get("ray")
    had_one = loaded is not None and loaded.is_initialized()
    ray = connect(address)
    try:
        yield ray
    finally:
        if not had_one and not has_lost_node(ray):  # else Ray would wait for the node, and then end this process
            ray.shutdown()


def has_lost_node(ray: Any) -> bool:
    """Whether a process died that the cluster started here cannot work without."""
    worker = getattr(ray, "_private", None) and getattr(ray._private, "worker", None)
    node = getattr(worker, "_global_node", None)
    if node is None or not hasattr(node, "dead_processes"):
        return False
    return any(kind in _NODE_PROCESSES for kind, _ in node.dead_processes())


def _restore_excepthook(ray: Any) -> None:
    """Uninstall Ray's `sys.excepthook`, which reports to the cluster and waits a minute for one that is gone."""
    worker = ray._private.worker
    if sys.excepthook is worker.custom_excepthook:
        sys.excepthook = worker.normal_excepthook


def connect(address: str) -> Any:
    """The module `ray`, connected: as the program already is, else to `address`, else to a cluster started here.

    A cluster that is started here asks for a token: nobody else may send it work. One at an address is taken to ask for
    one if this machine has a token, as `ray start` decides it, unless RAY_AUTH_MODE says. Who brings a token where none
    is asked for fares no better than who has none where one is.

    Raises MachineError if Ray is not installed, or if there is no cluster.
    """
    if "ray" not in sys.modules and (not address or _has_token()):  # the mode is read when Ray is imported
        os.environ.setdefault(_AUTH_MODE, "token")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # the first one of several is raised, and that is enough
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
    """Raises MachineError for whatever Ray raises, which may be anything."""
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
            f"no Ray cluster can be started on this machine ({reason}). Try again when the machine is less busy, "
            "name a cluster that runs, or do without Ray."
        )
    return (
        f'no Ray cluster can be reached at "{address}" ({reason}). Start one with: ray start --head, '
        "and give its address; or leave the address out and one is started here."
    )


def _about_tokens() -> str:
    """What to say where somebody listens: Ray seldom tells who has the wrong token from who is no cluster at all."""
    return (
        f" If one runs there, it and this program disagree about tokens: {_AUTH_MODE} is "
        f"{os.environ.get(_AUTH_MODE) or 'not set'} here. Where the cluster asks for a token (ray start does if "
        f"~/.ray/auth_token is there), set {_AUTH_MODE}=token and have the same token here (ray get-auth-token "
        f"--generate makes one); where it asks for none, set {_AUTH_MODE}=disabled."
    )


def _require_listener(address: str) -> None:
    """Raises OSError where nobody listens at "host:port": Ray would try for many minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()


def cluster_cores(address: str) -> tuple[int, int]:
    """CPU cores of all machines of the cluster, and of the largest. Raises MachineError."""
    with cluster(address) as ray, _reaching(address):
        machines = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
        return int(sum(machines)) or 1, int(max(machines, default=1)) or 1


class RayFleet(Generic[Task, Result]):
    """Actors, each with some CPU threads and GPUs of its own, wherever Ray finds room.

    Raises MachineError where this machine alone has too little for all of them; a cluster may grow, and a warning says
    what it has not got yet.
    """

    has_machines = True

    def __init__(self, ray: Any, prepare: Prepare[Task, Result], pool: WorkerPool, threads: int) -> None:
        self._ray = ray
        with _reaching(pool.ray_address):
            there = self._ray.cluster_resources()
        cores, gpus = there.get("CPU", 1), there.get("GPU", 0)
        self._cpus = min(threads, cores / pool.workers, cluster_cores(pool.ray_address)[1])
        self._gpus = pool.gpus_per_worker
        if self._gpus * pool.workers > gpus:
            missing = f"{pool.workers} workers need {self._gpus * pool.workers:g} GPUs, and Ray has {gpus:g}"
            if not pool.ray_address:
                raise MachineError(f"{missing}. Pass fewer --workers or --gpus-per-worker 0, or name a cluster.")
            warnings.warn(f"{missing}; workers without one wait until the cluster grows", stacklevel=2)
        self._prepare = self._ray.put(prepare)
        self._is_elsewhere = bool(pool.ray_address)

    def start(self, number: int) -> "_Worker":
        # Another actor stands in for one that died, on any machine: the same as Ray's restarting it, but for tasks that
        # were given to the one and must not be run by the other as well.
        actor = self._ray.remote(_Actor).options(
            num_cpus=self._cpus, num_gpus=self._gpus, max_restarts=0, max_concurrency=IN_FLIGHT + 2
        )
        return _Worker(self._ray, actor.remote(self._prepare, number), self._is_elsewhere)

    def wait(self, workers: Sequence[Any]) -> Iterator["_Worker"]:
        by_call = {worker.next_call: worker for worker in workers}
        done = set[Future[Any]]()
        while not done:
            # Some time after it lost the node, Ray ends this process without an exception, and `ray.wait` may not
            # return before that, whatever its timeout.
            if has_lost_node(self._ray):
                _restore_excepthook(self._ray)
                raise MachineError(f"Ray's processes on this machine were killed, perhaps out of memory. {AGAIN}")
            done, _ = wait_for_futures(by_call, _LOOK_SECONDS, FIRST_COMPLETED)
        for call in done:
            yield by_call[call]


class _Worker:
    """An actor as its driver sees it."""

    def __init__(self, ray: Any, actor: Any, is_elsewhere: bool) -> None:
        self._ray, self._actor, self._is_elsewhere = ray, actor, is_elsewhere
        self._calls = deque[Future[Any]]([actor.ready.remote().future()])
        self._given = 0

    @property
    def next_call(self) -> "Future[Any]":
        """The call whose answer is taken next."""
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
            reason += f" If the cluster asks for no token, set {_AUTH_MODE} to disabled"
        return reason

    def end(self) -> None:
        if not has_lost_node(self._ray):  # the actor died with it
            self._ray.kill(self._actor, no_restart=True)

    def close(self) -> None:
        self.end()


class _Actor:
    """Runs a stream of tasks on a thread of its own; every call brings one and waits for its result."""

    def __init__(self, prepare: Prepare[Any, Any], number: int) -> None:
        self._changed = threading.Condition()
        self._tasks: dict[int, Any] = {}  # by number, from 1: calls may overtake each other
        self._answers: defaultdict[int, Future[_Answer]] = defaultdict(Future)
        self._taken = self._flushed = 0
        threading.Thread(target=self._serve, args=(prepare, number), daemon=True).start()

    def ready(self) -> "_Answer":
        """READY, once the worker's function is there."""
        return self._answer(0)

    def run(self, number: int, task: Any) -> "_Answer":
        """The result of the task, which is the `number`-th that this worker is given."""
        with self._changed:
            self._tasks[number] = task
            self._changed.notify()
        return self._answer(number)

    def flush(self, number: int) -> None:
        """No task after the `number`-th comes for now."""
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

    def _serve(self, prepare: Prepare[Any, Any], number: int) -> None:
        given = 0
        try:
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
        """Tasks up to where the driver wants to see all results; the first is waited for."""
        first = self._taken
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._taken + 1 in self._tasks or first < self._taken <= self._flushed)
                if self._taken + 1 not in self._tasks:
                    return
                self._taken += 1
                task = self._tasks.pop(self._taken)
            yield task
