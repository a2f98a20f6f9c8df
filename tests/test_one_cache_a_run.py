"""The cache of a test run: shared by its processes, by no other run, and deleted at the end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEST = """
import os
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range(4))
def test_it(number):
    cache = Path(os.environ["ISOTROPE_CACHE"])
    cache.mkdir(parents=True, exist_ok=True)
    Path(f"said-{number}").write_text(str(cache))
"""


def caches(folder: Path, *options: str) -> set[str]:
    """Return the caches that the tests of one run have seen."""
    folder.mkdir()
    (folder / "test_it.py").write_text(TEST)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "ISOTROPE_CACHE": "/the/users/own"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", *options]
    done = subprocess.run([*command, "test_it.py"], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.read_text() for path in folder.glob("said-*")}


@pytest.mark.check
def test_a_run_has_one_cache_for_its_processes_and_none_afterwards(tmp_path: Path) -> None:
    (first,), (second,) = caches(tmp_path / "first", "-n", "2"), caches(tmp_path / "second", "-n", "0")
    assert len({first, second, "/the/users/own"}) == 3
    assert not Path(first).exists()
    assert not Path(second).exists()
