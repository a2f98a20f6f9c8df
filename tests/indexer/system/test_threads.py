"""Overlapping stages: order, items in memory, and unchanged errors of any stage."""

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from indexer.system.threads import ordered_map, pipelined

Check = Callable[[], None]


def nothing(item: int) -> int:
    return item


def work(item: int, check: Check) -> int:
    check()
    return 10 * item


def failing_at(bad: int, item: int) -> int:
    if item == bad:
        raise OSError(f"item {item}")
    return item


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10])
def test_results_come_ordered_map(count: int) -> None:
    assert list(pipelined(iter(range(count)), nothing, work, lambda item: item + 1)) == [
        10 * item + 1 for item in range(count)
    ]


def test_one_is_read_ahead_and_one_written_behind() -> None:
    """While 1 is processed, 2 is read and 0 is written: each waits for the others, so sequential work would hang."""
    together = threading.Barrier(3, timeout=60)

    def read(item: int) -> int:
        if item == 2:
            together.wait()
        return item

    def meet(item: int, check: Check) -> int:
        if item == 1:
            together.wait()
        return item

    def write(item: int) -> int:
        if item == 0:
            together.wait()
        return item

    assert list(pipelined(iter(range(4)), read, meet, write)) == [0, 1, 2, 3]


def test_at_most_three_items_are_under_way() -> None:
    drawn: list[int] = []

    def items() -> Iterator[int]:
        for item in range(10):
            drawn.append(item)
            yield item

    for done in pipelined(items(), nothing, work, nothing):
        assert len(drawn) - done // 10 <= 4  # the finished item, and three


def test_work_runs_in_the_thread_that_iterates_and_items_are_drawn_there() -> None:
    threads: set[str] = set()

    def items() -> Iterator[int]:
        threads.add(threading.current_thread().name)
        yield from range(3)

    def note(item: int, check: Check) -> int:
        threads.add(threading.current_thread().name)
        return item

    assert list(pipelined(items(), nothing, note, nothing)) == [0, 1, 2]
    assert threads == {threading.current_thread().name}


def test_what_precedes_an_item_that_cannot_be_read_is_written() -> None:
    written: list[int] = []
    with pytest.raises(OSError, match="item 2"):
        list(pipelined(iter(range(5)), partial(failing_at, 2), work, written.append))
    assert written == [0, 10]


def test_work_that_waits_hears_of_a_failed_write() -> None:
    failed = threading.Event()

    def write(item: int) -> int:
        failed.set()
        raise OSError("disk full")

    def waiting(item: int, check: Check) -> int:
        if item == 1:
            assert failed.wait(60)
            for _ in range(10_000_000):  # until the failure arrives, after a few rounds
                check()
        return item

    with pytest.raises(OSError, match="disk full"):
        list(pipelined(iter(range(5)), nothing, waiting, write))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_was_handed_on_is_written_when_the_work_fails(error: type[BaseException]) -> None:
    written: list[int] = []

    def breaking(item: int, check: Check) -> int:
        if item == 2:
            raise error
        return item

    with pytest.raises(error):
        list(pipelined(iter(range(5)), nothing, breaking, written.append))
    assert written == [0, 1]


def test_nothing_runs_any_more_once_the_results_are_no_longer_wanted() -> None:
    written: list[int] = []
    results = pipelined(iter(range(10)), nothing, work, written.append)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert written == [0, 10]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("read", "write"))]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_map_on_threads_is_a_map(threads: int) -> None:
    assert list(ordered_map(lambda item: item * item, range(20), threads)) == [item * item for item in range(20)]
    with pytest.raises(OSError, match="item 5"):
        list(ordered_map(partial(failing_at, 5), range(20), threads))
