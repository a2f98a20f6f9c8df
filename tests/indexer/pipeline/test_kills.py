"""Real SIGKILLs at random instants of builds and changes: a few in `make test`, many in `make check`."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from indexer import RunOptions, build_index
from indexer.errors import NotAnIndexError
from indexer.store.integrity import damaged_files
from indexer.store.manifest import load_manifest
from tests.directories import snapshot
from tests.zygote import DOCUMENTS, config

ROOT = Path(__file__).resolve().parents[3]
KILLS = int(os.environ.get("ISOTROPE_KILLS", "60"))


class Builds:
    """Starts builds in forked children and can kill them."""

    def __init__(self, model: Path, reference: Path) -> None:
        self.reference = reference  # files of an uninterrupted build
        command = [sys.executable, "-m", "tests.zygote", str(model), str(reference)]
        self._zygote = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, bufsize=1
        )

    def run(self, index: Path, kill_after: float | None = None, verb: str = "build") -> tuple[int, float]:
        """Build or change; kill after `seconds`. Return the exit status (0: done) and the elapsed seconds."""
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        self._zygote.stdin.write(f"{verb} {index}\n")
        child, started = int(self._zygote.stdout.readline()), time.monotonic()
        if kill_after is not None:
            time.sleep(kill_after)
            os.kill(child, signal.SIGKILL)
        self._zygote.stdin.write("reap\n")
        return int(self._zygote.stdout.readline()), time.monotonic() - started

    def close(self) -> None:
        self._zygote.communicate("")


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builds]:
    """Builds with a table of words, which start in a second."""
    words = sorted({word for document in DOCUMENTS for word in document.text.lower().replace(".", "").split()})
    folder = tmp_path_factory.mktemp("builds")
    table = folder / "words.txt"
    table.write_text("".join(f"{word} {n % 7} {n % 5} {n % 3} {n}\n" for n, word in enumerate(words)))
    running = Builds(table, folder / "reference")
    yield running
    running.close()


@pytest.fixture
def transformer_builds(tiny_model: Callable[[str], Path], tmp_path: Path) -> Iterator[Builds]:
    running = Builds(tiny_model("bert"), tmp_path / "reference")
    yield running
    running.close()


def kill_many(builds: Builds, kills: int, tmp_path: Path, seed: int) -> None:
    """Kill builds at random instants, each index once to three times, and finish each."""
    _, duration = builds.run(tmp_path / "timed")
    reference, chance = snapshot(builds.reference), random.Random(seed)
    done, number = 0, 0
    while done < kills:
        index = tmp_path / f"index-{number}"
        for _ in range(min(chance.randint(1, 3), kills - done)):
            complete = complete_parts(index)
            status, _ = builds.run(index, kill_after=chance.uniform(0, duration))
            assert status in (0, signal.SIGKILL)
            assert complete_parts(index) >= complete  # nothing finished is lost
            assert_whole_or_nothing(index)
            done += 1
        assert builds.run(index)[0] == 0
        assert snapshot(index) == reference
        number += 1


def complete_parts(index: Path) -> set[str]:
    return {path.parent.name for path in index.glob("parts/*/part.json")}


def assert_whole_or_nothing(index: Path) -> None:
    try:
        manifest = load_manifest(index)
    except NotAnIndexError:
        return
    assert not damaged_files(index, manifest)


def test_three_kills_leave_an_index_equal_to_an_uninterrupted_one(builds: Builds, tmp_path: Path) -> None:
    kill_many(builds, 3, tmp_path, seed=1)


@pytest.mark.check
def test_many_kills_leave_indexes_equal_to_an_uninterrupted_one(transformer_builds: Builds, tmp_path: Path) -> None:
    kill_many(transformer_builds, KILLS, tmp_path, seed=2)


def kill_changes(builds: Builds, kills: int, tmp_path: Path, seed: int) -> None:
    """Kill each verb at random instants, and run it again."""
    chance = random.Random(seed)
    before = tmp_path / "before"
    shutil.copytree(builds.reference, before)
    for verb in ("add", "delete"):
        assert builds.run(before, verb=verb)[0] == 0
    for number in range(kills):
        verb = ("add", "delete", "refit", "compact")[number % 4]
        start = builds.reference if verb in ("add", "delete") else before
        done, index = tmp_path / f"done-{verb}", tmp_path / f"changed-{number}"
        if not done.exists():
            shutil.copytree(start, done)
            assert builds.run(done, verb=verb)[0] == 0
        shutil.copytree(start, index)
        generation = load_manifest(index).generation
        status, _ = builds.run(index, chance.uniform(0, 0.5), verb)
        assert status in (0, signal.SIGKILL)
        assert_whole_or_nothing(index)
        if load_manifest(index).generation == generation or verb == "compact":
            assert builds.run(index, verb=verb)[0] == 0
        assert_whole_or_nothing(index)
        assert newest(index) == newest(done)
        shutil.rmtree(index)


def newest(index: Path) -> dict[str, str]:
    """Return the bytes of the newest generation."""
    manifest = load_manifest(index)
    hashes = snapshot(index)
    return {name: hashes[name] for name in [*manifest.files, f"manifests/{manifest.generation:08d}.json"]}


@pytest.mark.check
def test_four_kills_of_changes_leave_what_an_uninterrupted_one_leaves(builds: Builds, tmp_path: Path) -> None:
    builds.run(tmp_path / "ready")  # by then the zygote has built the reference
    kill_changes(builds, 4, tmp_path, seed=3)


@pytest.mark.check
def test_many_kills_of_changes_leave_what_an_uninterrupted_one_leaves(
    transformer_builds: Builds, tmp_path: Path
) -> None:
    transformer_builds.run(tmp_path / "ready")
    kill_changes(transformer_builds, KILLS, tmp_path, seed=4)


@pytest.mark.check
def test_killing_a_build_with_workers_ends_the_workers_and_loses_nothing(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    model = str(tiny_model("bert"))
    script = (
        "import sys; from tests.zygote import DOCUMENTS, config; from indexer import RunOptions, build_index\n"
        "if __name__ == '__main__': build_index(DOCUMENTS, sys.argv[1], config(sys.argv[2]), RunOptions(workers=2))"
    )
    (tmp_path / "build.py").write_text(f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{script}\n")
    build_index(DOCUMENTS, tmp_path / "reference", config(model), RunOptions(workers=1))
    for number in range(3):
        index = tmp_path / f"index-{number}"
        running = subprocess.Popen([sys.executable, str(tmp_path / "build.py"), str(index), model])
        while running.poll() is None and len(complete_parts(index)) <= number:
            time.sleep(0.01)
        running.kill()
        running.wait()
        assert_whole_or_nothing(index)
        build_index(DOCUMENTS, index, config(model))
        assert snapshot(index) == snapshot(tmp_path / "reference")
