"""Folders of files as corpora: every file has its outcome, memory stays flat, and `sync` survives kills."""

import json
import os
import random
import re
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from search import SearchEngine, verify_index
from tests.changing_folder import ChangingFolder
from tests.mixed_folder import SMALL, Extremes, Listing, write_mixed_folder
from tests.search.cli.test_cli import ISOTROPE, isotrope
from tests.waiting import PATIENCE, wait_until
from tests.written_files import NAVIGATION, SCRIPT, story

KILLS = int(os.environ.get("ISOTROPE_KILLS", "60")) * 5 // 6  # 50 by default
ROOT = Path(__file__).parents[1]
GROWTH = 1.3  # of memory for ten times as many files
QUERIES = ["the lantern of Bergen", "who repaired the mill", "measure depth", "costs after the flood"]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The options of a build with word vectors, which need no torch."""
    draw = random.Random(1)
    texts = [paragraph for n in range(50) for _, paragraphs in story(n, 0).sections for paragraph in paragraphs]
    words = sorted({word for text in texts for word in text.lower().replace(".", "").split()})
    table = tmp_path_factory.mktemp("words") / "words.txt"
    table.write_text("".join(f"{word} {' '.join(f'{draw.gauss(0, 1):.4f}' for _ in range(16))}\n" for word in words))
    given = ['encoder.kind="static"', f"encoder.model={table}", "store.part_documents=64", 'index.type="flat"']
    return ["--documents", "files", *(word for setting in given for word in ("--set", setting))]


def documents_of(index: Path) -> dict[str, Any]:
    """Return the documents of an index by id."""
    return {document.id: document for document in SearchEngine(index).index.documents.all_documents()}


def plain(text: str) -> str:
    """Return a text with single spaces, as line breaks of formats differ."""
    return " ".join(text.split())


def assert_outcomes(listing: Listing, folder: Path, index: Path) -> None:
    """Assert that every file of a folder is a document with its text, rejected for its reason, or left out."""
    documents = documents_of(index)
    rejects = index.with_name(f"{index.name}.rejects.jsonl").read_text(encoding="utf-8").splitlines()
    entries = [json.loads(line) for line in rejects]
    reasons = {entry["file"].removeprefix(f"{folder}/"): entry["reason"] for entry in entries}
    assert len(reasons) == len(entries)
    assert documents.keys() | reasons.keys() == listing.read.keys()
    assert not documents.keys() & reasons.keys()
    for name, outcome in listing.read.items():
        if name in reasons:
            assert reasons[name] in outcome.reasons, (name, reasons[name])
            continue
        document = documents[name]
        assert outcome.contains, name
        text = plain(f"{document.title} {document.text}")
        assert [part for part in outcome.contains if part not in text] == [], name
        assert document.metadata.get("pages") == outcome.pages, name
        assert document.metadata["path"] == name
        assert document.metadata["folder"] == (name.rpartition("/")[0] or ".")
        if name.endswith(".html"):
            assert NAVIGATION not in text
            assert SCRIPT not in text


def rejects_option(index: Path) -> list[str]:
    return ["--rejects", f"{index}.rejects.jsonl"]


@pytest.mark.parametrize("extremes", [SMALL, pytest.param(Extremes(), marks=pytest.mark.check)], ids=["small", "real"])
def test_every_file_of_a_mixed_folder_has_its_outcome(extremes: Extremes, settings: list[str], tmp_path: Path) -> None:
    folder, index = tmp_path / "notes", tmp_path / "index"
    listing = write_mixed_folder(folder, 90, extremes=extremes)
    done = isotrope("build", folder, index, *settings, *rejects_option(index))
    assert done.returncode == 0, done.stderr
    assert_outcomes(listing, folder, index)
    left_out = Counter(listing.left_out.values()).items()
    (noted,) = re.findall(r"left out: (.*?)(?:;|$)", done.stderr, re.MULTILINE)
    assert sorted(noted.split(", ")) == sorted(f"{count} {reason}" for reason, count in left_out)


@dataclass
class Peaks:
    """The largest memory of a command's process, and of all its processes together, in bytes."""

    driver: int = 0
    together: int = 0
    _end: threading.Event = field(default_factory=threading.Event)

    def watch(self, driver: psutil.Process) -> None:
        """Measure until `_end` is set."""
        while not self._end.wait(0.1):
            sizes = [memory_of(process) for process in processes_of(driver)]
            if sizes:
                self.driver, self.together = max(self.driver, sizes[0]), max(self.together, sum(sizes))


def processes_of(driver: psutil.Process) -> list[psutil.Process]:
    """Return a process and those below it; none after its end."""
    try:
        return [driver, *driver.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def memory_of(process: psutil.Process) -> int:
    """Return the memory that is the process's own, in bytes; 0 after its end."""
    try:
        return int(process.memory_full_info().uss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0


@contextmanager
def measured(driver: psutil.Process) -> Iterator[Peaks]:
    """Measure a process and those below it in a thread."""
    peaks = Peaks()
    thread = threading.Thread(target=peaks.watch, args=(driver,))
    thread.start()
    try:
        yield peaks
    finally:
        peaks._end.set()
        thread.join()


def build_measured(folder: Path, index: Path, settings: list[str]) -> Peaks:
    command = [*ISOTROPE, "build", folder, index, *settings, *rejects_option(index)]
    with (
        subprocess.Popen(list(map(str, command)), cwd=ROOT, stderr=subprocess.PIPE, text=True) as running,
        measured(psutil.Process(running.pid)) as peaks,
    ):
        _, said = running.communicate()
    assert running.returncode == 0, (running.returncode, said)
    return peaks


@pytest.mark.check
def test_five_thousand_files_are_built_in_the_memory_of_five_hundred(settings: list[str], tmp_path: Path) -> None:
    """With a text of 500 MB, a bomb of 3 GB and 2,000 pages in both folders. The longest document has 1 MB."""
    peaks = []
    for files in (500, 5_000):
        folder, index = tmp_path / f"notes-{files}", tmp_path / f"index-{files}"
        listing = write_mixed_folder(folder, files, extremes=Extremes(line_bytes=1 << 20))
        peaks.append(build_measured(folder, index, settings))
        assert_outcomes(listing, folder, index)
        (folder / "hostile/large.txt").unlink()
    few, many = peaks
    assert many.driver < GROWTH * few.driver
    assert many.together < GROWTH * few.together


def test_the_generator_writes_the_same_bytes_again(tmp_path: Path) -> None:
    listings = [write_mixed_folder(tmp_path / name, 60, seed=5) for name in ("one", "two")]
    assert listings[0] == listings[1]
    for path in (tmp_path / "one").rglob("*"):
        twin = tmp_path / "two" / path.relative_to(tmp_path / "one")
        if path.is_file() and not path.is_symlink():
            assert path.read_bytes() == twin.read_bytes(), path
    outcomes = listings[0]
    assert len(outcomes.read) + len(outcomes.left_out) == 60
    assert not outcomes.documents.keys() & outcomes.rejected.keys()
    assert SMALL.text_bytes < (tmp_path / "one/hostile/large.txt").stat().st_size


def sync(folder: Path, index: Path, settings: list[str]) -> "subprocess.Popen[str]":
    command = [*ISOTROPE, "sync", str(folder), str(index), "--force", *settings]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def finish(running: "subprocess.Popen[str]") -> None:
    _, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, (running.returncode, said)


def kill_with_changes(changing: ChangingFolder, index: Path, settings: list[str], kills: int) -> None:
    """Kill `sync` at random moments while the folder changes. Workers of a killed command end by themselves."""
    draw, killed = random.Random(kills), 0
    started = time.monotonic()
    finish(sync(changing.folder, index, settings))
    duration = time.monotonic() - started
    while killed < kills:
        for _ in range(draw.randint(0, 4)):
            changing.change()
        with sync(changing.folder, index, settings) as running:
            end = time.monotonic() + duration * draw.uniform(0.2, 1.5)
            while (left := end - time.monotonic()) > 0 and running.poll() is None:
                time.sleep(min(left, draw.uniform(0, duration / 4)))
                changing.change()
            below = processes_of(psutil.Process(running.pid))[1:] if running.poll() is None else []
            if running.poll() is None:
                running.kill()
                killed += 1
            _, said = running.communicate(timeout=PATIENCE)
        assert running.returncode in (0, -9), said
        wait_until(partial(have_ended, below))


def have_ended(processes: list[psutil.Process]) -> bool:
    return all(map(has_ended, processes))


def has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def assert_equals_a_fresh_build(changing: ChangingFolder, index: Path, settings: list[str]) -> None:
    """Assert the documents of a build of the folder as it is, and the same scores with the transform of the index."""
    fresh = index.with_name("fresh")
    done = isotrope("build", changing.folder, fresh, *settings, "--transform-from", index)
    assert done.returncode == 0, done.stderr
    ours, theirs = documents_of(index), documents_of(fresh)
    assert ours.keys() == theirs.keys()
    for name, document in theirs.items():
        assert (ours[name].title, ours[name].text) == (document.title, document.text)
        # a file that was touched keeps the time of its content
        assert ours[name].metadata | {"modified": None} == document.metadata | {"modified": None}
    for query in QUERIES:
        scores = [
            {hit.id: hit.score for hit in SearchEngine(path).search(query, k=len(theirs))} for path in (index, fresh)
        ]
        assert scores[0] == pytest.approx(scores[1], abs=1e-5)
    assert verify_index(index).problems == []


@pytest.mark.parametrize("kills", [2, pytest.param(KILLS, marks=pytest.mark.check)])
def test_a_folder_that_changes_while_sync_is_killed_is_indexed_as_by_a_fresh_build(
    kills: int, settings: list[str], tmp_path: Path
) -> None:
    changing, index = ChangingFolder(tmp_path / "notes", 60, seed=kills), tmp_path / "index"
    kill_with_changes(changing, index, settings, kills)
    changing.mend()
    finish(sync(changing.folder, index, settings))
    assert_equals_a_fresh_build(changing, index, settings)
