"""Streams of tasks in this process or in several: the same results, and no worker left running."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pytest

from indexer.errors import CorpusError, MachineError, ModelError
from indexer.executors import WorkerPool, run_tasks
from indexer.executors.scheduler import IN_FLIGHT
from tests.waiting import PATIENCE, wait_until

ROOT = Path(__file__).parents[3]

Work = Callable[[Iterator[int]], Iterator[int]]


def doubling(worker: int) -> Work:
    return lambda tasks: (2 * task for task in tasks)


def noting(folder: Path, worker: int) -> Work:
    """Write a file at each call, and double."""
    (folder / f"{worker}-{os.getpid()}-{uuid.uuid4().hex}").touch()
    return doubling(worker)


def failing(worker: int) -> Work:
    def work(tasks: Iterator[int]) -> Iterator[int]:
        for task in tasks:
            raise CorpusError(f"corpus.jsonl:{task}: not JSON")
        yield 0

    return work


class UnsendableError(Exception):
    """Unpickling calls it with one argument."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{what} in {where}")


def failing_unsendably(worker: int) -> Work:
    def work(tasks: Iterator[int]) -> Iterator[int]:
        for _ in tasks:
            raise UnsendableError("a hair", "the soup")
        yield 0

    return work


def unprepared(worker: int) -> Work:
    raise ModelError("no such model")


def dying(worker: int) -> Work:
    def work(tasks: Iterator[int]) -> Iterator[int]:
        for task in tasks:
            os.kill(os.getpid(), signal.SIGKILL)
            yield task

    return work


def hanging(folder: Path, worker: int) -> Work:
    """Record its process and never end; only task 0 returns, once another worker hangs."""

    def work(tasks: Iterator[int]) -> Iterator[int]:
        for task in tasks:
            if task == 0:
                wait_until(lambda: len(noted(folder)) == 1)
                yield 0
                continue
            (folder / str(os.getpid())).touch()
            while True:
                time.sleep(PATIENCE)

    return work


def reading_ahead(worker: int) -> Work:
    """Yield the result of a task only after receiving the next two, like a pipeline of three stages."""

    def work(tasks: Iterator[int]) -> Iterator[int]:
        held: list[int] = []
        for task in tasks:
            held.append(task)
            if len(held) == 3:
                yield 2 * held.pop(0)
        yield from (2 * task for task in held)

    return work


def counting(worker: int) -> Work:
    """Receive all tasks before the first result; the result is their number at each task."""

    def work(tasks: Iterator[int]) -> Iterator[int]:
        first = list(islice(tasks, IN_FLIGHT))
        time.sleep(0.3)
        yield from (len(first) for _ in first)
        yield from (1 for _ in tasks)

    return work


def large(worker: int) -> Callable[[Iterator[bytes]], Iterator[bytes]]:
    """Return more than a pipe can buffer before receiving the next task."""
    return lambda tasks: (2 * task for task in tasks)


def noted(folder: Path) -> list[int]:
    """Return the processes in which `hanging` runs."""
    return [int(entry.name) for entry in folder.iterdir()]


def has_ended(process: int) -> bool:
    try:
        return bool(psutil.Process(process).status() == psutil.STATUS_ZOMBIE)  # it may have no parent to reap it
    except psutil.NoSuchProcess:
        return True


def test_without_tasks_nothing_is_prepared() -> None:
    assert list(run_tasks(unprepared, [], WorkerPool(1))) == []
    assert list(run_tasks(unprepared, [], WorkerPool(4))) == []


@pytest.mark.parametrize(("tasks", "workers"), [([1, 2, 3], 1), ([1], 4)])
def test_one_worker_or_one_task_stays_in_this_process(tasks: list[int], workers: int, tmp_path: Path) -> None:
    assert list(run_tasks(partial(noting, tmp_path), tasks, WorkerPool(workers))) == [2 * task for task in tasks]
    (note,) = [entry.name.split("-") for entry in tmp_path.iterdir()]
    assert note[:2] == ["0", str(os.getpid())]


def test_each_worker_is_prepared_once_and_has_a_number_of_its_own(tmp_path: Path) -> None:
    assert sorted(run_tasks(partial(noting, tmp_path), range(30), WorkerPool(2))) == list(range(0, 60, 2))
    notes = [entry.name.split("-") for entry in tmp_path.iterdir()]
    numbers, processes = [note[0] for note in notes], [int(note[1]) for note in notes]
    assert set(numbers) <= {"0", "1"}
    assert len(set(numbers)) == len(set(processes)) == len(notes)
    assert os.getpid() not in processes
    assert all(has_ended(process) for process in processes)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_exception_of_the_work_comes_through_as_it_is(workers: int) -> None:
    with pytest.raises(CorpusError, match=r"^corpus\.jsonl:7: not JSON$"):
        list(run_tasks(failing, [7, 7, 7], WorkerPool(workers)))


@pytest.mark.check
def test_an_exception_that_cannot_be_sent_comes_through_in_words() -> None:
    with pytest.raises(RuntimeError, match="UnsendableError: a hair in the soup") as error:
        list(run_tasks(failing_unsendably, [1, 2], WorkerPool(2)))
    assert "in work" in str(error.value.__cause__)  # where it was raised


@pytest.mark.check
def test_a_worker_may_hold_three_tasks_at_once() -> None:
    for workers in (1, 2):
        assert sorted(run_tasks(reading_ahead, range(20), WorkerPool(workers))) == list(range(0, 40, 2))


def test_results_of_one_worker_come_in_order() -> None:
    assert list(run_tasks(doubling, range(50), WorkerPool(1))) == list(range(0, 100, 2))


@pytest.mark.check
def test_tasks_are_spread_over_the_workers_and_never_more_than_three_are_given_ahead() -> None:
    assert sorted(run_tasks(counting, range(4), WorkerPool(2))) == [2, 2, 2, 2]
    assert max(run_tasks(counting, range(40), WorkerPool(2))) == IN_FLIGHT


@pytest.mark.check
def test_tasks_and_results_larger_than_a_pipe_hold_nobody_up() -> None:
    tasks = [bytes(4 << 20)] * 8
    assert [len(result) for result in run_tasks(large, tasks, WorkerPool(2))] == [8 << 20] * 8


@pytest.mark.parametrize("workers", [1, 2])
def test_an_exception_while_getting_ready_comes_through_as_it_is(workers: int) -> None:
    with pytest.raises(ModelError, match=r"^no such model$"):
        list(run_tasks(unprepared, [1, 2, 3], WorkerPool(workers)))


@dataclass(frozen=True)
class Unpicklable:
    """A task whose unpickling raises an exception in the worker."""

    error: Exception

    def __reduce__(self) -> tuple[Callable[..., object], tuple[Exception]]:
        return raise_error, (self.error,)


def raise_error(error: Exception) -> None:
    raise error


def test_a_task_that_cannot_be_unpickled_is_an_error() -> None:
    double: Any = doubling
    with pytest.raises(ModuleNotFoundError, match="no such module"):
        list(run_tasks(double, [Unpicklable(ModuleNotFoundError("no such module"))] * 3, WorkerPool(2)))


def test_a_worker_without_memory_for_its_task_counts_as_killed() -> None:
    double: Any = doubling
    task, lost = Unpicklable(MemoryError()), list[object]()
    assert sorted(run_tasks(double, [1, task, 2], WorkerPool(2), lost)) == [2, 4]
    assert lost == [task]


def test_a_killed_worker_is_an_error_that_names_the_way_out() -> None:
    with pytest.raises(MachineError, match=r"processes died on the same task.*the function again.*fewer workers"):
        list(run_tasks(dying, [1, 2, 3], WorkerPool(2)))


@pytest.mark.check
def test_workers_end_when_the_results_are_no_longer_wanted(tmp_path: Path) -> None:
    results = run_tasks(partial(hanging, tmp_path), [0, 1, 2], WorkerPool(2))
    assert next(results) == 0
    wait_until(lambda: len(noted(tmp_path)) == 2)
    results.close()  # type: ignore[attr-defined]
    assert all(has_ended(process) for process in noted(tmp_path))


INTERRUPTED = """
import sys
from functools import partial
from pathlib import Path
from indexer.executors import WorkerPool, run_tasks
from tests.indexer.executors.test_processes import hanging
try:
    list(run_tasks(partial(hanging, Path(sys.argv[1])), [1, 2], WorkerPool(2)))
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.check
def test_an_interrupt_of_the_whole_group_is_the_parents_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE) as parent:
        wait_until(lambda: len(noted(tmp_path)) == 2)
        os.killpg(parent.pid, signal.SIGINT)
        assert parent.stderr is not None
        assert parent.stderr.read() == b""  # no worker prints anything
        assert parent.wait() == 130
    assert all(has_ended(process) for process in noted(tmp_path))


PARENT = """
import sys
from functools import partial
from pathlib import Path
from indexer.executors import WorkerPool, run_tasks
from tests.indexer.executors.test_processes import hanging
list(run_tasks(partial(hanging, Path(sys.argv[1])), [1, 2], WorkerPool(2)))
"""


@pytest.mark.check
def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], cwd=ROOT) as parent:
        try:
            wait_until(lambda: len(noted(tmp_path)) == 2)
        finally:
            parent.kill()
    wait_until(lambda: all(has_ended(process) for process in noted(tmp_path)))


UNGUARDED = """
from indexer import BuildConfig, Document, RunOptions, build_index
documents = [Document(str(number), "Text number " + str(number)) for number in range(20)]
settings = ["encoder.model={model}", "encoder.max_length=32", "encoder.pooling=mean", "store.part_documents=4"]
build_index(documents, "{folder}/index", BuildConfig().with_overrides(settings), RunOptions(workers=2))
"""
UNGUARDED_TASKS = """
from indexer.executors import WorkerPool, run_tasks
from tests.indexer.executors.test_processes import doubling
print(sorted(run_tasks(doubling, [1, 2, 3], WorkerPool(2))))
"""


@pytest.mark.check
@pytest.mark.parametrize("script", [UNGUARDED, UNGUARDED_TASKS])
def test_a_script_needs_no_guard(script: str, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """Workers do not import this script."""
    path = tmp_path / "script.py"
    path.write_text(script.format(model=tiny_model("bert"), folder=tmp_path))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(path)], env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
