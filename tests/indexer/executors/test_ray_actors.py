"""Workers as Ray actors: what an actor does with calls in any order, and the same laws as processes have."""

import os
import random
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from indexer.errors import CorpusError, MachineError, ModelError
from indexer.executors import WorkerPool, ray_actors, run_tasks
from indexer.executors.scheduler import READY
from tests.indexer.executors.test_processes import (
    Work,
    doubling,
    failing,
    failing_unsendably,
    reading_ahead,
    unprepared,
)

TWO = WorkerPool(2, "ray")
PATIENCE = 60  # seconds; only a hang takes as long


def answers(actor: Any, calls: list[tuple[int, int]], flushes: list[int]) -> dict[int, Any]:
    """What an actor answers to calls (number, task) that come in this order, and to flushes amid them."""
    with ThreadPoolExecutor(len(calls) + 1) as callers:
        begun: dict[int, Future[Any]] = {}
        for number, task in calls:
            begun[number] = callers.submit(actor.run, number, task)
            if number in flushes:
                actor.flush(number)
        actor.flush(len(calls))
        return {number: call.result(PATIENCE) for number, call in begun.items()}


@pytest.mark.parametrize("work", [doubling, reading_ahead])
@pytest.mark.parametrize("seed", range(10))
def test_calls_may_overtake_each_other(work: Any, seed: int) -> None:
    draw = random.Random(seed)
    actor = ray_actors._Actor(work, 0)
    assert actor.ready() == (READY, None)
    numbers = list(range(1, 8))
    draw.shuffle(numbers)
    found = answers(actor, [(number, 10 * number) for number in numbers], draw.sample(numbers, 2))
    assert found == {number: (20 * number, None) for number in numbers}


def test_a_flush_gives_what_waits_for_more() -> None:
    """And the next task begins another stream."""
    actor = ray_actors._Actor(reading_ahead, 0)
    for number in (1, 2, 3):
        assert answers_one(actor, number) == (2 * number, None)


def answers_one(actor: Any, number: int) -> Any:
    with ThreadPoolExecutor(1) as caller:
        begun = caller.submit(actor.run, number, number)
        actor.flush(number)
        return begun.result(PATIENCE)


def test_what_the_work_raises_is_every_waiting_calls_answer() -> None:
    actor = ray_actors._Actor(failing, 0)
    found = answers(actor, [(1, 7), (2, 8), (3, 9)], [])
    assert {type(failure[0]) for _, failure in found.values()} == {CorpusError}
    _, failure = ray_actors._Actor(unprepared, 0).ready()
    assert failure
    assert failure[0].args == ("no such model",)


def test_without_the_package_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MachineError, match=r"package ray.*pip install 'isotrope\[ray\]'"):
        list(run_tasks(doubling, [1, 2], TWO))


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """Ray on this machine, started once."""
    with ray_actors.cluster("") as started:
        yield started


def dying_of_five(worker: int) -> Work:
    def work(tasks: Iterator[int]) -> Iterator[int]:
        for task in tasks:
            if task == 5:
                os._exit(1)
            yield 2 * task

    return work


@pytest.mark.check  # starting Ray
@pytest.mark.usefixtures("ray")
class TestCluster:
    """Real actors."""

    @pytest.mark.parametrize("work", [doubling, reading_ahead])
    def test_results_are_those_of_processes(self, work: Any) -> None:
        assert sorted(run_tasks(work, range(30), TWO)) == list(range(0, 60, 2))

    @pytest.mark.parametrize(("work", "error"), [(failing, CorpusError), (unprepared, ModelError)])
    def test_errors_come_through(self, work: Any, error: type[Exception]) -> None:
        with pytest.raises(error):
            list(run_tasks(work, [7, 7, 7], TWO))

    def test_an_error_that_cannot_be_sent_comes_in_words(self) -> None:
        with pytest.raises(RuntimeError, match="a hair in the soup"):
            list(run_tasks(failing_unsendably, [1, 2], TWO))

    def test_what_kills_every_worker_is_lost_alone(self) -> None:
        lost: list[int] = []
        assert sorted(run_tasks(dying_of_five, range(12), TWO, lost)) == [2 * task for task in range(12) if task != 5]
        assert lost == [5]

    def test_more_gpus_than_this_machine_has_are_refused(self) -> None:
        with pytest.raises(MachineError, match=r"2 workers need 200 GPUs, and Ray has"):
            list(run_tasks(doubling, [1, 2], WorkerPool(2, "ray", gpus_per_worker=100)))
