"""Workers as Ray actors: an actor with calls in any order, and the same laws as for processes."""

import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from indexer.errors import CorpusError, MachineError, ModelError
from indexer.executors import WorkerPool, ray_actors, run_tasks
from indexer.executors.scheduler import READY
from tests.indexer.executors.test_processes import (
    ROOT,
    Work,
    doubling,
    failing,
    failing_unsendably,
    reading_ahead,
    unprepared,
)
from tests.waiting import PATIENCE, wait_until

TWO = WorkerPool(2, "ray")


def answers(actor: Any, calls: list[tuple[int, int]], flushes: list[int]) -> dict[int, Any]:
    """Return an actor's answers to calls (number, task) in this order, and to flushes among them."""
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
    actor = ray_actors._Actor(work, 0, "library")
    assert actor.ready() == (READY, None)
    numbers = list(range(1, 8))
    draw.shuffle(numbers)
    found = answers(actor, [(number, 10 * number) for number in numbers], draw.sample(numbers, 2))
    assert found == {number: (20 * number, None) for number in numbers}


def test_a_flush_gives_what_waits_for_more() -> None:
    """The next task then begins another stream."""
    actor = ray_actors._Actor(reading_ahead, 0, "library")
    for number in (1, 2, 3):
        assert answers_one(actor, number) == (2 * number, None)


def answers_one(actor: Any, number: int) -> Any:
    with ThreadPoolExecutor(1) as caller:
        begun = caller.submit(actor.run, number, number)
        actor.flush(number)
        return begun.result(PATIENCE)


def test_what_the_work_raises_is_every_waiting_calls_answer() -> None:
    actor = ray_actors._Actor(failing, 0, "library")
    found = answers(actor, [(1, 7), (2, 8), (3, 9)], [])
    assert {type(failure[0]) for _, failure in found.values()} == {CorpusError}
    _, failure = ray_actors._Actor(unprepared, 0, "library").ready()
    assert failure
    assert failure[0].args == ("no such model",)


def test_without_the_package_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MachineError, match=r"package ray.*pip install '.*isotrope\[ray\]"):
        list(run_tasks(doubling, [1, 2], TWO))


def test_who_may_have_the_wrong_token_is_told_about_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's only message about a cluster that rejects the token."""

    def init(**_: object) -> None:
        raise ConnectionError("Failed to connect to Ray cluster at 10.0.0.5:6379")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init))
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(MachineError, match=r"RAY_AUTH_MODE is not set here.*RAY_AUTH_MODE=token.*ray get-auth-token"):
        ray_actors.connect("auto")
    assert "RAY_AUTH_MODE" not in os.environ
    with pytest.raises(MachineError, match=r"can be started on this machine \(Failed to connect") as alone:
        ray_actors.connect("")
    assert "token" not in str(alone.value)


def test_nobody_listening_is_no_matter_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    with pytest.raises(MachineError, match=r"refused\)\. Fix: start one with ray start --head") as error:
        ray_actors.connect(f"127.0.0.1:{free_port()}")
    assert "token" not in str(error.value)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


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


UNWANTED = "If the cluster requires no token, set RAY_AUTH_MODE to disabled|otherwise set RAY_AUTH_MODE=disabled"
CLIENT = """
import sys
from indexer.errors import MachineError
from indexer.executors import WorkerPool, run_tasks
from tests.indexer.executors.test_processes import doubling
try:
    print(sorted(run_tasks(doubling, range(4), WorkerPool(1, "ray", sys.argv[1]))))
except MachineError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def head() -> Iterator[tuple[str, dict[str, str]]]:
    """A cluster of `ray start --head` by a user without a token: its address, and that user's environment."""
    folder = Path(tempfile.mkdtemp(prefix="ray-"))  # paths of sockets are short
    home = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    home |= {"HOME": str(folder), "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    port = free_port()
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={port}"]
    command += ["--num-cpus=1", "--include-dashboard=false", "--object-store-memory=80000000", f"--temp-dir={folder}"]
    with (folder / "log").open("w") as log:
        begun = subprocess.Popen(command, env=home, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_until(lambda: begun.poll() is not None or "Ray runtime started" in (folder / "log").read_text())
        assert begun.poll() is None, (folder / "log").read_text()
        yield f"127.0.0.1:{port}", home
    finally:
        processes = psutil.Process(begun.pid).children(recursive=True) if begun.poll() is None else []
        begun.terminate()
        for process in psutil.wait_procs(processes, timeout=10)[1]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        begun.kill()
        begun.wait()
        shutil.rmtree(folder, ignore_errors=True)


def said_by_client(address: str, environment: dict[str, str]) -> str:
    command = [sys.executable, "-c", CLIENT, address]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120)
    return done.stdout or f"{done.returncode}: {done.stderr[-3000:]}"


@pytest.mark.check  # starting Ray
class TestAddress:
    """A cluster that was started by another user."""

    def test_a_cluster_without_tokens_is_reached_by_its_address(self, head: tuple[str, dict[str, str]]) -> None:
        address, home = head
        assert said_by_client(address, home) == "[0, 2, 4, 6]\n"

    def test_a_token_that_is_here_is_brought_along(self, head: tuple[str, dict[str, str]]) -> None:
        """`ray start` decides in the same way."""
        address, home = head
        said = said_by_client(address, home | {"RAY_AUTH_TOKEN": "0" * 32})
        assert re.search(UNWANTED, said), said  # the cluster requires none; Ray notices at the connection or later

    def test_a_mode_that_is_not_the_clusters_is_named(self, head: tuple[str, dict[str, str]]) -> None:
        address, home = head
        said = said_by_client(address, home | {"RAY_AUTH_MODE": "token"})
        assert "no authentication token was found" in said
        assert "RAY_AUTH_MODE is token here" in said
        said = said_by_client(address, home | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 32})
        assert re.search(UNWANTED, said), said


def running_until_killed(worker: int) -> Work:
    """Only the first result arrives."""

    def work(tasks: Iterator[int]) -> Iterator[int]:
        yield next(tasks)
        threading.Event().wait()

    return work


TOO_BUSY = "try again when the machine is less busy"  # Ray takes 30 seconds to start, or gives up
LOSES_ITS_NODE = """
import sys
import psutil
from indexer.executors import WorkerPool, run_tasks
from tests.indexer.executors.test_ray_actors import running_until_killed

if __name__ == "__main__":
    for _ in run_tasks(running_until_killed, [1, 2, 3], WorkerPool(1, "ray")):
        (process,) = [one for one in psutil.Process().children(recursive=True) if one.name() == sys.argv[1]]
        process.kill()
"""


@pytest.mark.check  # starting Ray
@pytest.mark.parametrize("process", ["raylet", "gcs_server"])
def test_a_lost_node_of_this_machine_is_an_error_that_says_how_to_continue(tmp_path: Path, process: str) -> None:
    pytest.importorskip("ray")
    (tmp_path / "program.py").write_text(LOSES_ITS_NODE, encoding="utf-8")
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, tmp_path / "program.py", process],
            cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == 1, done.stderr
        errors = re.findall(r"MachineError: (.*)", done.stderr)
        assert len(errors) == 1
        if TOO_BUSY not in errors[0]:
            break
    assert "Ray's processes on this machine were killed" in errors[0]
    assert "call the function again to continue" in errors[0]
