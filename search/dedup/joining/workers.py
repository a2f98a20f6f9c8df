"""Threads that work ahead of who takes their results, but only so far: what waits is bounded, however much there is."""

import queue
import threading
from collections.abc import Callable, Iterator
from types import TracebackType

import torch

from search.dedup.pairs import Pairs

Job = tuple[int, Callable[[], Iterator[Pairs]]]  # rows it deals with, and its pairs in batches
Result = tuple[int, Pairs | None]  # rows that are done, or a batch
_PATIENCE = 0.1  # seconds between two looks at whether to stop


class Workers:
    """A context manager; when it ends, also before all is done, its threads have ended too.

    At most two batches a thread wait to be taken. Each thread computes with one thread of torch.
    """

    def __init__(self, threads: int) -> None:
        self._results: queue.Queue[Result | BaseException | None] = queue.Queue(2 * threads)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._count = threads
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> "Workers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def run(self, jobs: Iterator[Job]) -> Iterator[Result]:
        """Results of all jobs, in any order. An exception of a job is raised here."""
        self._threads = [threading.Thread(target=self._work, args=(jobs,), daemon=True) for _ in range(self._count)]
        for thread in self._threads:
            thread.start()
        working = len(self._threads)
        while working:
            result = self._results.get()
            if isinstance(result, BaseException):
                raise result
            if result is None:
                working -= 1
            else:
                yield result

    def _work(self, jobs: Iterator[Job]) -> None:
        torch.set_num_threads(1)
        try:
            while not self._stop.is_set() and (job := self._next(jobs)) is not None:
                rows, batches = job
                for pairs in batches():
                    if not self._hand_over((0, pairs)):
                        return
                self._hand_over((rows, None))
        except BaseException as error:  # noqa: BLE001 - raised again in `run`
            self._hand_over(error)
        else:
            self._hand_over(None)

    def _next(self, jobs: Iterator[Job]) -> Job | None:
        with self._lock:
            return next(jobs, None)

    def _hand_over(self, result: Result | BaseException | None) -> bool:
        """Wait until there is room; False when nobody takes results any more."""
        while not self._stop.is_set():
            try:
                self._results.put(result, timeout=_PATIENCE)
            except queue.Full:
                continue
            return True
        return False
