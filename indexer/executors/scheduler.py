"""Scheduling of tasks over workers that may die, with one result a task.

A worker has a few tasks at a time, since it reads one ahead and writes one behind. When it dies, each of these tasks
may be the cause: they are tried again one by one, alone on a worker, and a task that kills several workers is lost. The
workers belong to a `Fleet`.
"""

import math
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from indexer.errors import ConfigError, CorruptIndexError, MachineError, StoreError, as_argument, spelled
from indexer.typed_arguments import checked

Executor = Literal["auto", "processes", "ray"]
Task = TypeVar("Task")
Result = TypeVar("Result")
Prepare = Callable[[int], Callable[[Iterator[Task]], Iterator[Result]]]
READY = "ready"  # first message of a worker
IN_FLIGHT = 3  # tasks of a worker: one it reads, one it computes, one it writes

_STARTS = 3  # consecutive failures, for each worker, that count as a fault of the machine


def again() -> str:
    """Return how to continue after workers have died."""
    call = spelled("call the function again", "run the same command again")
    return f"Finished parts are kept: {call} to continue, with fewer {as_argument('workers')} if memory was short."


@checked
@dataclass(frozen=True)
class WorkerPool:
    """The number and kind of workers. "auto": processes, or only this process for one worker."""

    workers: int = 1
    executor: Executor = "auto"
    ray_address: str = ""  # of a running cluster, or "auto"; empty: starts Ray on this machine
    gpus_per_worker: float = 0.0  # reserved by Ray for each
    tries: int = 3  # workers that a task may kill; with 1 each task runs alone on its worker
    threads: int = 0  # CPU threads of all workers together; 0: one a core

    def __post_init__(self) -> None:
        """Raises ConfigError, also for Ray settings without Ray, which would be ignored."""
        if not 0 <= self.gpus_per_worker < math.inf:
            raise ConfigError(f"gpus_per_worker is {self.gpus_per_worker}; expected 0 or more.")
        if self.executor == "ray":
            return
        for name in ("ray_address", "gpus_per_worker"):
            if value := getattr(self, name):
                raise ConfigError(
                    f'{name} is {value!r}, but executor is "{self.executor}"; it applies to workers of Ray only. '
                    f"Fix: pass {as_argument('executor', 'ray')}, or leave it out."
                )

    def is_this_process(self, tasks: int) -> bool:
        """Return whether so many tasks need no other process."""
        return self.executor == "auto" and min(self.workers, tasks) <= 1


class WorkerDiedError(Exception):
    """A worker has died, and its tasks are not done."""


class Worker(Protocol):
    """A worker, seen from the scheduler."""

    def give(self, task: Any) -> None:
        """Add a task."""

    def flush(self) -> None:
        """Announce that no task follows for now: results must not wait for one."""

    def take(self) -> Any:
        """Return READY at first, then the next result. Raises WorkerDiedError, and the exceptions of the work."""

    def end(self) -> None:
        """Stop it at once."""

    def close(self) -> None:
        """Wait until it has ended."""


class Fleet(Protocol):
    """A set of workers; `has_machines` if they may be on several machines, one of which can fail alone."""

    has_machines: bool

    def start(self, number: int) -> Worker:
        """Start a worker, which may not be READY yet."""
        ...

    def wait(self, workers: Sequence[Worker]) -> Iterable[Worker]:
        """Return the workers that have a message; at least one."""
        ...


@dataclass
class _Post:
    """A worker and the numbers of its tasks, in order."""

    number: int
    worker: Worker
    ready: bool = False
    alone: bool = False  # with a task that may have killed another
    in_flight: deque[int] = field(default_factory=deque)


class Scheduler(Generic[Task, Result]):
    """Distributes `tasks`; tasks that kill too many workers go to `lost`, and are an error without such a list."""

    def __init__(self, fleet: Fleet, tasks: Sequence[Task], pool: WorkerPool, lost: list[Task] | None = None) -> None:
        self._fleet, self._tasks, self._lost = fleet, tasks, lost
        self._waiting, self._suspects = deque(range(len(tasks))), deque[int]()
        if pool.tries == 1:
            self._waiting, self._suspects = self._suspects, self._waiting
        self._deaths: Counter[int] = Counter()  # of workers, by task
        self._failed_starts = self._done = 0
        self._workers, self._tries = min(pool.workers, len(tasks)), pool.tries
        self._posts: list[_Post] = []

    def results(self) -> Iterator[Result]:
        """Yield results as they arrive. Raises MachineError if workers keep dying, and the exceptions of the work."""
        try:
            for number in range(self._workers):
                self._posts.append(_Post(number, self._fleet.start(number)))
            while self._waiting or self._suspects or any(post.in_flight for post in self._posts):
                expected = {id(post.worker): post for post in self._posts if post.in_flight or not post.ready}
                for worker in self._fleet.wait([post.worker for post in expected.values()]):
                    yield from self._take(expected[id(worker)])
        finally:
            for post in self._posts:
                post.worker.end()
            for post in self._posts:
                post.worker.close()

    def _take(self, post: _Post) -> Iterator[Result]:
        try:
            result = post.worker.take()
        except WorkerDiedError as death:
            self._bury(post, death)
        except (MachineError, StoreError) as error:
            if isinstance(error, CorruptIndexError):
                raise
            self._retire(post, error)
        else:
            was_ready, post.ready = post.ready, True
            if was_ready:
                post.in_flight.popleft()
                post.alone, self._failed_starts, self._done = False, 0, self._done + 1
            self._fill(post)
            if was_ready:
                yield result

    def _fill(self, post: _Post) -> None:
        if not post.ready or post.alone:
            return
        if self._suspects and not post.in_flight:
            post.alone = True
            self._give(post, self._suspects.popleft())
        left = len(self._waiting) + sum(len(each.in_flight) for each in self._posts)
        share = -(-left // len(self._posts))  # spreads a few tasks over all workers
        while not post.alone and self._waiting and len(post.in_flight) < min(IN_FLIGHT, share):
            self._give(post, self._waiting.popleft())
        if post.in_flight and (post.alone or len(post.in_flight) < IN_FLIGHT):
            post.worker.flush()

    def _give(self, post: _Post, task: int) -> None:
        post.in_flight.append(task)
        post.worker.give(self._tasks[task])

    def _bury(self, post: _Post, death: WorkerDiedError) -> None:
        self._failed_starts += not post.ready
        if self._failed_starts >= _STARTS * self._workers:
            reason = str(death).strip().partition("\n")[0] or "out of memory, or killed"
            raise MachineError(f"workers die before they start work ({reason}). {again()}")
        self._suspect(post)
        post.worker.close()
        self._posts[self._posts.index(post)] = _Post(post.number, self._fleet.start(post.number))
        self._fill_idle()

    def _retire(self, post: _Post, error: Exception) -> None:
        """Remove a worker whose machine fails, for example with a full disk; the others continue."""
        if len(self._posts) == 1 or not self._fleet.has_machines:
            raise error
        warnings.warn(f"worker {post.number} has stopped, and the others take over its tasks: {error}", stacklevel=2)
        self._posts.remove(post)
        post.worker.end()
        post.worker.close()
        (self._suspects if post.alone else self._waiting).extendleft(reversed(post.in_flight))
        self._fill_idle()

    def _suspect(self, post: _Post) -> None:
        for task in post.in_flight:
            self._deaths[task] += 1
            if self._deaths[task] < self._tries:
                self._suspects.append(task)
            elif self._lost is None or (not self._done and len(self._lost) >= self._tries > 1):
                deaths = f"{self._tries} worker processes died on the same task (out of memory, or killed)"
                raise MachineError(f"{deaths}. {again()}")
            else:
                self._lost.append(self._tasks[task])

    def _fill_idle(self) -> None:
        for post in self._posts:
            if not post.in_flight:
                self._fill(post)
