"""Threads that process all waiting items as one batch. There is no timer, so a single item starts at once.

Items accumulate while a batch is processed, so a busier server has larger batches.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Work = Callable[[Hashable, Sequence[Item]], Sequence[Result | Exception]]
"""Returns a result for each item of one key, or an exception for this item; without items, only checks the key."""


@dataclass(eq=False)
class _Job(Generic[Item, Result]):
    key: Hashable
    item: Item
    size: int
    future: "asyncio.Future[Result]"


class GreedyBatches(Generic[Item, Result]):
    """Runs `work` in `threads` threads: each takes the oldest item and all waiting items with the same key.

    A batch has items of total size `most`, or one larger item. An item whose `submit` is cancelled leaves the queue; if
    it is being processed, its result is dropped. After a failed batch, `work` runs once without items: if that fails,
    the fault is the key's, and all items get its error. Otherwise each item whose caller still waits is tried alone.
    With `light`, the first thread takes the keys for which it returns True, and the others the rest: light work never
    waits for heavy work, and has larger batches than if two threads shared it.
    """

    def __init__(
        self,
        name: str,
        work: "Work[Item, Result]",
        most: int,
        threads: int = 1,
        light: Callable[[Hashable], bool] | None = None,
    ) -> None:
        self._work, self._most, self._light = work, most, light
        self._waiting: deque[_Job[Item, Result]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, args=(number == 0,), name=f"{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        """Number of waiting items, without those in progress."""
        return len(self._waiting)

    async def submit(self, key: Hashable, item: Item, size: int = 1) -> Result:
        """Return the result of an item. Raises the error of its work."""
        loop = asyncio.get_running_loop()
        job = _Job[Item, Result](key, item, size, loop.create_future())
        with self._changed:
            if self._closed:
                raise RuntimeError("the queue is closed")
            self._waiting.append(job)
            self._changed.notify_all()
        try:
            return await job.future
        finally:
            if job.future.cancelled():
                with self._changed:
                    if job in self._waiting:
                        self._waiting.remove(job)

    def close(self) -> None:
        """End the threads. The queue must be empty."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self, first: bool) -> None:
        light = self._light
        while batch := self._take(None if light is None else lambda key: light(key) is first):
            self._deliver(batch)
            del batch  # else an idle thread keeps the last query and its generation in memory

    def _take(self, wanted: Callable[[Hashable], bool] | None) -> list[_Job[Item, Result]]:
        """Return the next batch of `wanted` keys; empty once the queue is closed."""
        with self._changed:
            while not (oldest := next((job for job in self._waiting if wanted is None or wanted(job.key)), None)):
                if self._closed:
                    return []
                self._changed.wait()
            key, room = oldest.key, self._most
            taken, left = list[_Job[Item, Result]](), deque[_Job[Item, Result]]()
            for job in self._waiting:
                if job.key == key and (job.size <= room or not taken):
                    taken.append(job)
                    room -= job.size
                else:
                    left.append(job)
            self._waiting = left
            return taken

    def _deliver(self, batch: list[_Job[Item, Result]]) -> None:
        try:
            results = self._work(batch[0].key, [job.item for job in batch])
        except BaseException as error:  # noqa: BLE001  # the caller that waits raises it
            if len(batch) > 1:
                self._deliver_alone(batch)
            else:
                _hand_over(batch, [error])
        else:
            _hand_over(batch, results)

    def _deliver_alone(self, batch: list[_Job[Item, Result]]) -> None:
        """Process the items of a failed batch one by one, unless the key itself fails."""
        try:
            self._work(batch[0].key, ())
        except BaseException as error:  # noqa: BLE001
            _hand_over(batch, [error] * len(batch))
            return
        for job in batch:
            if not job.future.done():  # else its caller has left
                self._deliver([job])


def _hand_over(batch: Sequence[_Job[Item, Result]], results: Sequence[Result | BaseException]) -> None:
    """Pass the results to their futures by one call in the thread of the event loop."""

    def give() -> None:
        for job, result in zip(batch, results, strict=True):
            if job.future.done():
                continue
            if isinstance(result, StopIteration):  # which futures reject
                job.future.set_exception(RuntimeError("the work stopped"))
            elif isinstance(result, BaseException):
                job.future.set_exception(result)
            else:
                job.future.set_result(result)

    loop = batch[0].future.get_loop()
    try:
        loop.call_soon_threadsafe(give)
    except RuntimeError:
        if not loop.is_closed():
            raise
