"""Whole batches on several threads, results in order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 4  # items a lane that wait, so that a long one holds nobody up


def in_lanes(function: Callable[[Item], Result], items: Iterable[Item], lanes: int) -> Iterator[Result]:
    """`function` of each item, in order, `lanes` at a time. One item alone takes no thread."""
    waiting = iter(items)
    first = list(islice(waiting, 2))
    if len(first) < 2 or lanes == 1:
        yield from map(function, first)
        yield from map(function, waiting)
        return
    with ThreadPoolExecutor(lanes, thread_name_prefix="encode") as pool:
        try:
            running: deque[Future[Result]] = deque(pool.submit(function, item) for item in first)
            running.extend(pool.submit(function, item) for item in islice(waiting, _AHEAD * lanes))
            while running:
                yield running.popleft().result()
                running.extend(pool.submit(function, item) for item in islice(waiting, 1))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # do not finish what nobody waits for
            raise
