"""Threads: one for each operation, several operations in parallel, results in order.

The bits of a result then do not depend on the number of cores, and all cores are used.
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
    """Return the cores that this process may use, limited by the CPU time of its container.

    More threads would repeatedly be stopped together until the container gets more time.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    limit = cpu_limit()
    return cores if limit is None else min(cores, max(1, math.ceil(limit)))


def part_threads(threads: int) -> int:
    """Return the threads that process parts, each with a part in memory, for the user's setting (0: one a core)."""
    return min(threads or available_cores(), _MOST_PARTS)


def pipelined(
    items: Iterator[Item],
    read: Callable[[Item], Material],
    work: Callable[[Material, Check], Product],
    write: Callable[[Product], Result],
) -> Iterator[Result]:
    """Yield `write(work(read(item)))` for each item, in order: one is read ahead and one written behind.

    `work` runs in the iterating thread, so that an interrupt reaches it at once, and items are drawn there; `read` and
    `write` have a thread each. At most three items are in progress. `work` gets a function to call now and then, which
    raises the error of `write`. When the generator ends, for any reason, all reading and writing has finished.
    """
    with ThreadPoolExecutor(1, "read") as reader, ThreadPoolExecutor(1, "write") as writer:
        writing: Future[Result] | None = None
        reading = _next(reader, read, items)
        while reading is not None:
            material = reading.result()
            reading = _next(reader, read, items)
            product = work(material, _failure_of(writing))
            del material
            written = [writing.result()] if writing else []
            writing = writer.submit(write, product)
            del product
            yield from written
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
    """Yield `map(function, items)` from several threads, results in order. One item, or one thread, needs no pool.

    At most `waiting` results (0: as many as threads) are in progress or wait: few for large results, more if a long
    item should not block the others. Ending early cancels items that have not begun.
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
                future.cancel()


@contextmanager
def single_torch_thread() -> Iterator[None]:
    """Give torch one thread within the block, so that its bits do not depend on the number."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def single_blas_thread() -> Iterator[None]:
    """Give BLAS one thread within the block, so that matrix products have the same bits on any number of cores.

    The number belongs to the process (or the thread, if BLAS uses OpenMP): of several threads in such blocks the first
    sets it, and the last restores it.
    """
    with _threads().select(threading_layer="openmp").limit(limits=1, user_api="blas"):
        _limit.enter()
        try:
            yield
        finally:
            _limit.leave()


class _BlasLimit:
    """One thread for BLAS while any thread is inside."""

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._before: list[tuple[Any, int]] = []  # libraries, and their former threads

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
    """Set the threads of a library. Of OpenBLAS, threadpoolctl obeys only the first thread; here threads take turns."""
    if hasattr(library, "clear_controlling_thread"):  # not of MKL, BLIS and FlexiBLAS
        library.clear_controlling_thread(force=True)
    library.set_num_threads(count)


def _libraries() -> list[Any]:
    libraries = _threads().lib_controllers
    return [each for each in libraries if each.user_api == "blas" and getattr(each, "threading_layer", "") != "openmp"]


@cache
def _threads() -> ThreadpoolController:
    return ThreadpoolController()  # once, because it searches every loaded library


_limit = _BlasLimit()
