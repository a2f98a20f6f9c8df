"""Workers and drivers are killed at random during a build: the index equals that of an undisturbed build."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from indexer import BuildConfig, Document, build_index
from indexer.recipe.config import EncoderConfig
from indexer.recipe.index_config import StoreConfig
from search.verify import verify_index
from tests.directories import snapshot
from tests.waiting import PATIENCE

ROUNDS = int(os.environ.get("ISOTROPE_CHAOS", "2"))
WORDS = ["whale", "bridge", "bread", "star", "river", "clock", "bee", "glass", "map", "salt"]
AGAIN = ("call the function again to continue", "Try again when the machine is less busy")
DRIVER_KILLS, WORKER_KILLS = 2, 12  # at most, in a round, so that it ends
ROOT = Path(__file__).parents[1]


def documents(count: int) -> list[Document]:
    draw = random.Random(0)
    return [Document(f"d{number}", " ".join(draw.choices(WORDS, k=2000))) for number in range(count)]


def config(table: str) -> BuildConfig:
    return BuildConfig(encoder=EncoderConfig(kind="static", model=table), store=StoreConfig(part_documents=20))


def build(index: str, table: str, executor: str) -> None:
    """Code of the driver."""
    from indexer import RunOptions

    build_index(documents(1200), index, config(table), RunOptions(workers=2, executor=executor))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Word vectors, which need no torch."""
    draw = random.Random(1)
    path = tmp_path_factory.mktemp("words") / "words.txt"
    path.write_text("".join(f"{word} {' '.join(f'{draw.gauss(0, 1):.4f}' for _ in range(16))}\n" for word in WORDS))
    return path


@pytest.fixture(scope="module")
def expected(table: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    index = tmp_path_factory.mktemp("alone") / "index"
    build_index(documents(1200), index, config(str(table)))
    return snapshot(index)


def workers_of(driver: psutil.Process, executor: str) -> list[psutil.Process]:
    """Return the processes that encode."""
    try:
        inside = driver.children(recursive=True)
        named = "ray::_Actor" if executor == "ray" else "executors.processes:serve"
        return [process for process in inside if any(named in word for word in process.cmdline())]
    except psutil.NoSuchProcess:
        return []


@pytest.mark.check
@pytest.mark.parametrize("round_", range(ROUNDS))
@pytest.mark.parametrize("executor", ["processes", "ray"])
def test_whoever_is_killed_the_index_is_the_same(
    executor: str, round_: int, table: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    draw, index = random.Random(round_), tmp_path / "index"
    program = f"from tests.test_chaos import build; build({str(index)!r}, {str(table)!r}, {executor!r})"
    killed, drivers, seen, end = 0, 0, (0, 0, 0), time.monotonic() + PATIENCE
    while True:
        with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.PIPE, text=True) as driver:
            watched = psutil.Process(driver.pid)
            while driver.poll() is None:
                if (now := (killed, drivers, len(list(index.glob("parts/*/part.json"))))) != seen:
                    seen, end = now, time.monotonic() + PATIENCE
                assert time.monotonic() < end, "the build hangs"
                time.sleep(draw.uniform(0.2, 3.0))  # a worker needs a second or two to begin
                workers = workers_of(watched, executor)
                if workers and drivers < DRIVER_KILLS and draw.random() < 0.15:
                    driver.kill()
                    drivers += 1
                elif workers and killed < WORKER_KILLS:
                    draw.choice(workers).kill()
                    killed += 1
            said = driver.stderr.read() if driver.stderr else ""
        if driver.returncode == 0:
            break
        # Killed, or every try of one part was: then it is the same command again, which goes on where it was.
        assert driver.returncode == -9 or any(text in said for text in AGAIN), said
    assert killed or drivers
    assert snapshot(index) == expected
    assert verify_index(index).problems == []
