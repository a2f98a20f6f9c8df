"""A fleet of workers in this process, whose crashes a test controls."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from indexer.executors.scheduler import READY, Prepare, WorkerDiedError


class Death(BaseException):
    """Raised by work that crashes its process."""


class LocalFleet:
    """Workers that work when their result is taken; `chooses` picks the next to answer, `kills` the ones that crash."""

    has_machines = True

    def __init__(
        self,
        prepare: Prepare[Any, Any],
        chooses: Callable[[int], int] = lambda count: 0,
        kills: Callable[["LocalWorker"], bool] = lambda worker: False,
    ) -> None:
        self.prepare, self.chooses, self.kills = prepare, chooses, kills
        self.started: list[LocalWorker] = []

    def start(self, number: int) -> "LocalWorker":
        self.started.append(LocalWorker(self, number))
        return self.started[-1]

    def wait(self, workers: Sequence[Any]) -> Iterator["LocalWorker"]:
        ready: list[LocalWorker] = [worker for worker in workers if worker.has_something]
        assert ready, "every worker waits for a task or for more of them: nothing would ever come"
        yield ready[self.chooses(len(ready))]


class LocalWorker:
    """Answers once it has the tasks that a pipeline of three stages reads ahead, or no more tasks come."""

    def __init__(self, fleet: LocalFleet, number: int) -> None:
        self.fleet, self.number = fleet, number
        self.is_ready = self.is_flushed = self.is_closed = False
        self.held: deque[Any] = deque()
        self._work: Any = None

    @property
    def has_something(self) -> bool:
        return not self.is_ready or len(self.held) >= 3 or (self.is_flushed and bool(self.held))

    def give(self, task: Any) -> None:
        assert not self.is_closed
        self.held.append(task)
        self.is_flushed = False

    def flush(self) -> None:
        self.is_flushed = True

    def take(self) -> Any:
        if self.fleet.kills(self):
            raise WorkerDiedError
        if not self.is_ready:
            self.is_ready, self._work = True, self.fleet.prepare(self.number)
            return READY
        try:
            results = list(self._work(iter([self.held[0]])))
        except Death as death:
            raise WorkerDiedError from death
        self.held.popleft()
        assert len(results) == 1
        return results[0]

    def end(self) -> None:
        """Nothing runs between calls."""

    def close(self) -> None:
        self.is_closed = True
