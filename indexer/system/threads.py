"""Threads: one inside an operation, many operations beside each other, results in order.

So the bits of a result do not depend on how many cores there are, and every core is used.
"""

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import chain, islice
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

from indexer.system.control_group import cpu_limit

Item = TypeVar("Item")
Material = TypeVar("Material")
Product = TypeVar("Product")
Result = TypeVar("Result")
Check = Callable[[], None]
_MOST_PARTS = 4


def available_cores() -> int:
    """Cores that this process may run on, no more than its container has the time of.

    Threads beyond that time would all be stopped together, again and again, until more of it is given.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    limit = cpu_limit()
    return cores if limit is None else min(cores, max(1, math.ceil(limit)))


def part_threads(threads: int) -> int:
    """Threads that go through parts, of the number that a user gave (0: one a core); each holds a part in memory."""
    return min(threads or available_cores(), _MOST_PARTS)


def pipelined(
    items: Iterator[Item],
    read: Callable[[Item], Material],
    work: Callable[[Material, Check], Product],
    write: Callable[[Product], Result],
) -> Iterator[Result]:
    """Yield `write(work(read(item)))` for each item, in order: one is read ahead and one written behind.

    `work` runs in the thread that iterates, so that an interrupt reaches it at once, and items are drawn there;
    `read` and `write` have a thread each. At most three items are under way. `work` gets a function to call now and
    then, which raises what `write` has failed with. However this ends, nothing is being read or written any more
    and what was handed to `write` is written.
    """
    with ThreadPoolExecutor(1, "read") as reader, ThreadPoolExecutor(1, "write") as writer:
        writing: Future[Result] | None = None
        reading = _next(reader, read, items)
        while reading is not None:
            material = reading.result()
            reading = _next(reader, read, items)
            product = work(material, _failure_of(writing))
            del material
            if writing is None:
                writing = writer.submit(write, product)
            else:
                result = writing.result()
                writing = writer.submit(write, product)
                del product
                yield result
        if writing is not None:
            yield writing.result()


def _next(
    reader: ThreadPoolExecutor, read: Callable[[Item], Material], items: Iterator[Item]
) -> "Future[Material] | None":
    for item in items:
        return reader.submit(read, item)
    return None


def _failure_of(writing: "Future[Result] | None") -> Check:
    def check() -> None:
        if writing is not None and writing.done():
            writing.result()

    return check


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int, waiting: int = 0
) -> Iterator[Result]:
    """`map(function, items)` on several threads, results in order. One item alone, or one thread, takes no pool.

    At most `waiting` results (0: as many as threads) are under way or wait beside the one that is taken: few where each
    is large, more where a long item should hold nobody up. Ending early cancels what has not begun.
    """
    remaining = iter(items)
    first = list(islice(remaining, 2))
    if len(first) < 2 or threads == 1:
        yield from map(function, chain(first, remaining))
        return
    with ThreadPoolExecutor(threads, "map") as pool:
        ahead = deque(pool.submit(function, item) for item in first)
        try:
            ahead.extend(pool.submit(function, item) for item in islice(remaining, (waiting or threads) - len(first)))
            while ahead:
                result = ahead.popleft().result()
                ahead.extend(pool.submit(function, item) for item in islice(remaining, 1))
                yield result
        finally:
            for future in ahead:
                future.cancel()  # do not finish what nobody waits for


@contextmanager
def single_torch_thread() -> Iterator[None]:
    """Within the block, torch gives the same bits however many threads it has."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def single_blas_thread() -> Iterator[None]:
    """Within the block, matrix products give the same bits on any number of cores, in whatever thread.

    The number is the process's (a thread's own where BLAS runs on OpenMP): of several threads within such blocks the
    first sets it, and the last sets it back.
    """
    with _threads().select(threading_layer="openmp").limit(limits=1, user_api="blas"):
        _limit.enter()
        try:
            yield
        finally:
            _limit.leave()


class _BlasLimit:
    """One thread for BLAS, as long as anybody is inside."""

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._before: list[tuple[Any, int]] = []  # libraries, and how many threads each had

    def enter(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = [(library, library.num_threads) for library in _libraries()]
                for library, _ in self._before:
                    _set_threads(library, 1)
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                for library, count in self._before:
                    _set_threads(library, count)


def _set_threads(library: Any, count: int) -> None:
    """threadpoolctl since 3.7 obeys only the thread that came first, lest others interfere; here they take turns."""
    if hasattr(library, "clear_controlling_thread"):
        library.clear_controlling_thread(force=True)
    library.set_num_threads(count)


def _libraries() -> list[Any]:
    """What multiplies matrices by threads of the process."""
    found = _threads().lib_controllers
    return [one for one in found if one.user_api == "blas" and getattr(one, "threading_layer", "") != "openmp"]


@cache
def _threads() -> ThreadpoolController:
    return ThreadpoolController()  # made once: it looks through every loaded library


_limit = _BlasLimit()
