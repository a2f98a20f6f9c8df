"""Scheduling of tasks: one result a task even if workers die, and deadly tasks are found."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.errors import CorpusError, CorruptIndexError, MachineError, StoreError
from indexer.executors import WorkerPool
from indexer.executors.scheduler import IN_FLIGHT, Scheduler
from tests.fleets import Death, LocalFleet, LocalWorker

Work = Callable[[Iterator[int]], Iterator[int]]


def squaring(deadly: set[int], worker: int) -> Work:
    """Square the tasks; some are deadly."""

    def work(tasks: Iterator[int]) -> Iterator[int]:
        for task in tasks:
            if task in deadly:
                raise Death
            yield task * task

    return work


def run(fleet: LocalFleet, tasks: range, workers: int, lost: list[int] | None = None, tries: int = 3) -> list[int]:
    return list(Scheduler[int, int](fleet, tasks, WorkerPool(workers, tries=tries), lost).results())


SEEDS = st.integers(0, 2**32)


@given(st.integers(1, 20), st.integers(1, 5), st.sets(st.integers(0, 19)), SEEDS, st.sampled_from([1, 3]))
def test_each_task_has_one_result_unless_it_kills_all_its_workers(
    count: int, workers: int, deadly: set[int], seed: int, tries: int
) -> None:
    choice = random.Random(seed)
    deadly &= set(range(count))
    fleet = LocalFleet(partial(squaring, deadly), choice.randrange)
    lost: list[int] = []
    expected = sorted(task * task for task in set(range(count)) - deadly)
    try:
        assert sorted(run(fleet, range(count), workers, lost, tries)) == expected
        assert sorted(lost) == sorted(deadly)
    except MachineError:  # several lost tasks and no result: a fault of the machine
        assert len(deadly) > tries > 1
    assert all(worker.is_closed for worker in fleet.started)


@given(st.integers(1, 30), st.integers(1, 5), SEEDS)
def test_random_deaths_cost_no_task_its_result(count: int, workers: int, seed: int) -> None:
    """A worker can die at any task; a task that kills three workers alone is deadly."""
    choice = random.Random(seed)
    deaths = Counter[int]()

    def kills(worker: LocalWorker) -> bool:
        dies = worker.is_ready and choice.random() < 0.2 and all(deaths[task] < 2 for task in worker.held)
        deaths.update(worker.held if dies else ())
        return dies

    fleet = LocalFleet(partial(squaring, set()), choice.randrange, kills)
    assert sorted(run(fleet, range(count), workers)) == [task * task for task in range(count)]


def test_what_may_have_killed_a_worker_is_tried_alone() -> None:
    beside: list[list[int]] = []

    def kills(worker: LocalWorker) -> bool:
        if 4 in worker.held:
            beside.append(list(worker.held))
        return False

    fleet = LocalFleet(partial(squaring, {4}), kills=kills)
    lost: list[int] = []
    assert sorted(run(fleet, range(9), 1, lost)) == [0, 1, 4, 9, 25, 36, 49, 64]
    assert lost == [4]
    deaths = [held for held in beside if held[0] == 4]
    assert [len(held) for held in deaths] == [IN_FLIGHT, 1, 1]


def test_without_a_list_for_it_a_lost_task_is_an_error() -> None:
    with pytest.raises(MachineError, match=r"3 worker processes died on the same task.*call the function again"):
        run(LocalFleet(partial(squaring, {1})), range(3), 2)


def test_workers_that_never_begin_are_an_error() -> None:
    fleet = LocalFleet(partial(squaring, set()), kills=lambda worker: True)
    with pytest.raises(MachineError, match="workers die before they start work"):
        run(fleet, range(10), 2)
    assert len(fleet.started) <= 8


def full_disk(full: set[int], error: Exception, worker: int) -> Work:
    def work(tasks: Iterator[int]) -> Iterator[int]:
        for task in tasks:
            if worker in full:
                raise error
            yield task

    return work


def test_a_worker_whose_disk_is_full_leaves_its_tasks_to_the_others() -> None:
    fleet = LocalFleet(partial(full_disk, {1}, StoreError("/scratch: the disk is full.")), random.Random(1).randrange)
    with pytest.warns(UserWarning, match="worker 1 has stopped, and the others take over its tasks: /scratch"):
        assert sorted(run(fleet, range(12), 3)) == list(range(12))


def test_when_every_disk_is_full_it_is_said() -> None:
    fleet = LocalFleet(partial(full_disk, {0, 1, 2}, StoreError("/scratch: the disk is full.")))
    with pytest.warns(UserWarning, match="has stopped"), pytest.raises(StoreError, match="the disk is full"):
        run(fleet, range(12), 3)


@pytest.mark.parametrize("error", [CorpusError("row 3"), CorruptIndexError("part 3"), ValueError("a bug")])
def test_what_another_worker_would_raise_too_is_raised_at_once(error: Exception) -> None:
    fleet = LocalFleet(partial(full_disk, {0, 1, 2}, error))
    with pytest.raises(type(error), match=str(error)):
        run(fleet, range(12), 3)
    assert len(fleet.started) == 3


@pytest.mark.parametrize(("tasks", "workers"), [(4, 2), (6, 2), (7, 3), (3, 3)])
def test_a_few_tasks_are_spread_over_all(tasks: int, workers: int) -> None:
    """The first ready worker does not get all tasks."""
    done = Counter[int]()

    def prepare(worker: int) -> Work:
        def work(given: Iterator[int]) -> Iterator[int]:
            for task in given:
                done[worker] += 1
                yield task

        return work

    turn = iter(range(1000))
    run(LocalFleet(prepare, lambda count: next(turn) % count), range(tasks), workers)
    assert max(done.values()) == -(-tasks // workers)
