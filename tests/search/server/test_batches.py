"""A queue that processes all waiting items as one batch, without a timer, and never mixes results."""

import asyncio
import threading
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.server.batches import GreedyBatches
from tests.waiting import PATIENCE


class Press:
    """Work that records its batches, and blocks in each until released."""

    def __init__(self) -> None:
        self.batches: list[tuple[Hashable, list[int]]] = []
        self.begun, self.go = threading.Semaphore(0), threading.Event()
        self.go.set()

    def __call__(self, key: Hashable, items: Sequence[int]) -> list[int]:
        self.batches.append((key, list(items)))
        self.begun.release()
        assert self.go.wait(PATIENCE)
        if -1 in items or key == "bad":
            raise ValueError("a fault of the key" if key == "bad" else "an item that cannot be worked on")
        return [10 * item for item in items]


@contextmanager
def queue(press: Press, most: int = 100, threads: int = 1) -> Iterator[GreedyBatches[int, int]]:
    batches: GreedyBatches[int, int] = GreedyBatches("test", press, most, threads)
    try:
        yield batches
    finally:
        press.go.set()
        batches.close()


async def held(press: Press, batches: GreedyBatches[int, int]) -> "asyncio.Task[int]":
    """The only thread is busy with item 0 until `press.go` is set."""
    press.go.clear()
    task = asyncio.create_task(batches.submit("first", 0))
    await asyncio.to_thread(press.begun.acquire)
    return task


def test_waiting_items_are_one_batch_and_a_single_item_starts_at_once() -> None:
    press = Press()

    async def ask() -> list[int]:
        first = await held(press, batches)
        others = [asyncio.create_task(batches.submit("a", item)) for item in (1, 2, 3)]
        await asyncio.sleep(0)
        assert len(batches) == 3
        press.go.set()
        return [await first, *await asyncio.gather(*others)]

    with queue(press) as batches:
        assert asyncio.run(ask()) == [0, 10, 20, 30]
        assert press.batches == [("first", [0]), ("a", [1, 2, 3])]


def test_keys_are_not_mixed_and_the_oldest_comes_first() -> None:
    press = Press()

    async def ask() -> None:
        first = await held(press, batches)
        others = [asyncio.create_task(batches.submit(key, item)) for key, item in [("a", 1), ("b", 2), ("a", 3)]]
        await asyncio.sleep(0)
        press.go.set()
        await asyncio.gather(first, *others)

    with queue(press) as batches:
        asyncio.run(ask())
    assert press.batches[1:] == [("a", [1, 3]), ("b", [2])]


def test_a_batch_has_a_largest_size_and_an_item_that_is_larger_goes_alone() -> None:
    press = Press()

    async def ask() -> None:
        first = await held(press, batches)
        sizes = [(1, 3), (2, 9), (3, 2), (4, 1)]
        others = [asyncio.create_task(batches.submit("a", item, size)) for item, size in sizes]
        await asyncio.sleep(0)
        press.go.set()
        await asyncio.gather(first, *others)

    with queue(press, most=5) as batches:
        asyncio.run(ask())
    assert [items for _, items in press.batches[1:]] == [[1, 3], [2], [4]]


def test_a_cancelled_item_leaves_the_queue_and_is_not_processed() -> None:
    press = Press()

    async def ask() -> None:
        first = await held(press, batches)
        leaver, stayer = (asyncio.create_task(batches.submit("a", item)) for item in (1, 2))
        await asyncio.sleep(0)
        leaver.cancel()
        first.cancel()  # in progress: its result is dropped
        await asyncio.sleep(0)
        assert len(batches) == 1
        press.go.set()
        assert await stayer == 20
        for task in (leaver, first):
            with pytest.raises(asyncio.CancelledError):
                await task

    with queue(press) as batches:
        asyncio.run(ask())
    assert press.batches == [("first", [0]), ("a", [2])]


def test_the_fault_of_one_item_is_not_that_of_the_others() -> None:
    press = Press()

    async def ask() -> list[int | BaseException]:
        first = await held(press, batches)
        others = [asyncio.create_task(batches.submit("a", item)) for item in (1, -1, 3)]
        await asyncio.sleep(0)
        press.go.set()
        await first
        return await asyncio.gather(*others, return_exceptions=True)

    with queue(press) as batches:
        one, fault, other = asyncio.run(ask())
    assert (one, other) == (10, 30)
    assert isinstance(fault, ValueError)


def test_a_fault_of_the_key_is_worked_out_once_for_all() -> None:
    """Once, not per item: 250 filters that time out after a second would take minutes."""
    press = Press()

    async def ask() -> list[int | BaseException]:
        first = await held(press, batches)
        others = [asyncio.create_task(batches.submit("bad", item)) for item in range(1, 251)]
        await asyncio.sleep(0)
        press.go.set()
        await first
        return await asyncio.gather(*others, return_exceptions=True)

    with queue(press, most=250) as batches:
        answers = asyncio.run(ask())
    assert [str(answer) for answer in answers] == ["a fault of the key"] * 250
    assert [len(items) for _, items in press.batches] == [1, 250, 0]


def test_a_batch_that_failed_is_not_repeated_for_callers_who_left() -> None:
    left = threading.Event()

    class Leaving(Press):
        def __call__(self, key: Hashable, items: Sequence[int]) -> list[int]:
            if len(items) == 4:
                tasks[0].get_loop().call_soon_threadsafe(leave)
                assert left.wait(PATIENCE)
            return super().__call__(key, items)

    def leave() -> None:
        for task in tasks[2:]:
            task.cancel()
        tasks[0].get_loop().call_soon(left.set)  # after the tasks have been cancelled

    async def ask() -> None:
        first = await held(press, batches)
        tasks.extend(asyncio.create_task(batches.submit("a", item)) for item in (1, -1, 3, 4))
        await asyncio.sleep(0)
        press.go.set()
        await first
        assert await tasks[0] == 10
        await asyncio.gather(*tasks, return_exceptions=True)

    press, tasks = Leaving(), list["asyncio.Task[int]"]()
    with queue(press) as batches:
        asyncio.run(ask())
    assert press.batches[2:] == [("a", []), ("a", [1]), ("a", [-1])]


def test_a_loop_that_has_ended_does_not_stop_the_threads() -> None:
    press = Press()

    async def leave() -> None:
        await held(press, batches)

    with queue(press) as batches:
        asyncio.run(leave())
        press.go.set()
        assert asyncio.run(batches.submit("a", 4)) == 40


def test_after_close_nothing_is_taken() -> None:
    press = Press()
    with queue(press) as batches:
        pass
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(batches.submit("a", 1))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("test-")]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1000), st.integers(1, 4)), max_size=30),
    st.integers(1, 6),
    st.integers(1, 3),
)
def test_each_gets_its_own_result(items: list[tuple[int, int, int]], most: int, threads: int) -> None:
    press = Press()

    async def ask() -> list[int]:
        return await asyncio.gather(*(batches.submit(key, item, size) for key, item, size in items))

    with queue(press, most, threads) as batches:
        assert asyncio.run(ask()) == [10 * item for _, item, _ in items]
    assert sorted(item for _, batch in press.batches for item in batch) == sorted(item for _, item, _ in items)
