"""Work in stages that overlap, and loops over parts on several threads: results in order, errors as they are."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Material = TypeVar("Material")
Product = TypeVar("Product")
Result = TypeVar("Result")
Check = Callable[[], None]


def in_stages(
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


def in_order(function: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """`map(function, items)` on several threads, at most that many results ahead of the one that is taken."""
    remaining = iter(items)
    with ThreadPoolExecutor(threads, "part") as pool:
        ahead = deque(pool.submit(function, item) for item in islice(remaining, threads))
        try:
            while ahead:
                result = ahead.popleft().result()
                ahead.extend(pool.submit(function, item) for item in islice(remaining, 1))
                yield result
        finally:
            for future in ahead:
                future.cancel()


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
