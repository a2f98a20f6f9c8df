"""`isotrope sync`: one command for the first run and every later one."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from indexer.store.files import writer_lock
from indexer.store.manifest import list_generations
from tests.search.cli.test_cli import isotrope
from tests.servers import ROOT, server_process
from tests.waiting import PATIENCE, wait_until

RECIPE = ["--config", "static", "--set", "encoder.model=words.txt"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("words.txt").write_text("whale 1 0 2\nbridge 0 1 1\nsteel 1 1 0\nsea 2 1 0\n")
    write("whale sea", "steel bridge", "sea bridge", "whale steel")
    return tmp_path


def write(*texts: str) -> None:
    rows = [f"{number},{text},{1990 + number}" for number, text in enumerate(texts) if text]
    Path("table.csv").write_text("\n".join(["id,text,year", *rows]) + "\n")


def sync(*arguments: str, code: int = 0) -> str:
    done = isotrope("sync", "table.csv", "index", "--quiet", *arguments)
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def test_a_table_is_kept_in_step_by_one_command() -> None:
    assert "not built yet" in sync("--dry-run", *RECIPE)
    assert not Path("index").exists()
    assert "4 added, 0 replaced, 0 deleted, 0 unchanged" in sync(*RECIPE)
    assert "index is up to date: 4 documents, generation 1." in sync(*RECIPE)
    write("whale sea", "", "steel sea", "whale steel", "steel bridge")
    plan = json.loads(sync("--dry-run", "--json"))
    assert [plan[name] for name in ("added", "replaced", "deleted", "unchanged")] == [["4"], ["2"], ["1"], 2]
    assert "to replace  1: 2" in sync("--dry-run")
    report = json.loads(sync("--json"))
    assert [report[name] for name in ("added", "replaced", "deleted", "unchanged", "generation")] == [1, 1, 1, 2, 2]
    assert (report["rows_encoded"], report["rows_reused"]) == (1, 1)
    assert "has another recipe" in sync("--set", "hybrid.weight=0.9", code=1)
    assert "--model" not in sync("--model", "words.txt")


def test_most_of_an_index_is_deleted_only_by_force() -> None:
    sync(*RECIPE)
    write("whale sea")
    assert "Fix: check the source, or pass --force to delete them." in sync(code=1)
    done = isotrope("sync", "table.csv", "index", "--dry-run")
    assert (done.returncode, "refuses to delete more than half" in done.stderr) == (0, True)
    assert "3 deleted, 1 unchanged" in sync("--force")


def test_a_usage_error_says_so() -> None:
    assert "Missing argument SOURCE" in isotrope("sync", "index").stderr
    assert "cannot be combined" in sync("--dry-run", "--watch", code=2)
    pytest.importorskip("watchfiles")
    done = isotrope("sync", "-", "index", "--format", "csv", "--watch")
    assert "only local files and folders can be watched" in done.stderr
    assert "other: does not exist" in isotrope("sync", "other", "index", "--watch").stderr


@contextmanager
def watching() -> Iterator[subprocess.Popen[str]]:
    begun = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    call = [sys.executable, "-c", f"{begun}; from search.cli import main; main()"]
    arguments = ["sync", "table.csv", "index", "--watch", "--quiet", *RECIPE]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen([*call, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.check
def test_watching_publishes_each_change_and_a_server_answers_with_it() -> None:
    pytest.importorskip("watchfiles")
    with watching() as process:
        wait_until(lambda: list_generations(Path("index")) == [1])
        with server_process(Path("index").absolute()) as server:
            write("whale sea", "steel bridge", "sea bridge", "whale steel", "steel")
            wait_until(lambda: server.ask("/v1/info")["documents"] == 5)
            assert server.ask("/v1/search", {"query": "steel", "k": 1})["results"][0]["hits"][0]["id"] == "4"
            Path("table.csv").write_text("id,text\n1,\n")  # a bad row
            assert "table.csv:2: no text" in wait_for(process, "error")
            with writer_lock(Path("index")):
                write("whale sea", "steel bridge", "sea bridge", "whale steel")
                wait_for(process, "waiting for it to end")
            wait_until(lambda: server.ask("/v1/info")["documents"] == 4)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "Interrupted" in err


def wait_for(process: subprocess.Popen[str], text: str) -> str:
    """Return the first line of stderr with a text."""
    assert process.stderr is not None
    return next(line for line in process.stderr if text in line)
