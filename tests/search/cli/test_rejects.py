"""The list of rejected rows: of the last run, at the requested path, and never over another file."""

import json
import shutil
from pathlib import Path

from tests.search.cli.test_cli import isotrope


def build(*sources: str, skip: bool = True, to: str = "new") -> str:
    done = isotrope(
        "build", *sources, to, "--config", "recipe.toml", "--overwrite", "--quiet",
        *(["--on-error", "skip"] if skip else []),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr


def listed(path: str) -> list[str]:
    return [json.loads(line)["id"] for line in Path(path).read_text().splitlines()]


def test_a_list_of_rejected_rows_is_of_the_last_run_and_older_ones_stay(place: Path) -> None:
    Path("worse.jsonl").write_text('{"_id": "worse", "text": 5}\n')
    assert "see new.rejects.jsonl" in build("docs.jsonl", "bad.jsonl")
    build("docs.jsonl", "bad.jsonl")  # the same list is no other one
    build("docs.jsonl", "bad.jsonl", "worse.jsonl")  # nor is one that holds it all
    assert listed("new.rejects.jsonl") == ["new", "worse"]
    assert "of rows that an earlier run skipped was moved to new.1.rejects.jsonl" in build("docs.jsonl", "worse.jsonl")
    assert (listed("new.rejects.jsonl"), listed("new.1.rejects.jsonl")) == (["worse"], ["new", "worse"])
    assert "was moved to new.2.rejects.jsonl" in build("docs.jsonl")
    assert sorted(path.name for path in place.glob("*rejects*")) == ["new.1.rejects.jsonl", "new.2.rejects.jsonl"]


def test_adding_has_a_list_of_its_own(place: Path) -> None:
    build("docs.jsonl", "bad.jsonl")
    Path("worse.jsonl").write_text('{"_id": "worse", "text": 5}\n')
    for source in ("bad.jsonl", "worse.jsonl"):
        assert isotrope("add", "new", "docs.jsonl", source, "--on-error", "skip").returncode == 0
    assert listed("new.rejects.jsonl") == ["new"]
    assert (listed("new.add.rejects.jsonl"), listed("new.add.1.rejects.jsonl")) == (["worse"], ["new"])
    nothing = isotrope("add", "new", "worse.jsonl", "--on-error", "skip")
    assert nothing.returncode == 1
    assert "because all rows were left out (1 text), see new.add.rejects.jsonl" in nothing.stderr


def test_a_build_without_bad_rows_says_whose_list_lies_there(place: Path) -> None:
    build("docs.jsonl", "bad.jsonl")
    assert "new.rejects.jsonl lists rows that an earlier run skipped; this run skipped none" in build(
        "docs.jsonl", skip=False
    )


def test_a_list_elsewhere_replaces_no_file_but_by_force(place: Path) -> None:
    words = ["build", "docs.jsonl", "bad.jsonl", "new", "--config", "recipe.toml", "--on-error", "skip", "--rejects"]
    done = isotrope(*words, "mine.txt")
    assert (done.returncode, Path("mine.txt").read_text()) == (1, "mine")
    assert isotrope(*words, "mine.txt", "--force").returncode == 0
    assert listed("mine.txt") == ["new"]
    assert isotrope(*words, "mine.txt").returncode == 0  # a list of ours: the same command again continues a build


def test_a_place_for_rejected_rows_without_rejecting_any_is_a_mistake(place: Path) -> None:
    for words in (["build", "docs.jsonl", "new", "--config", "recipe.toml"], ["add", "index", "docs.jsonl"]):
        done = isotrope(*words, "--rejects", "left-out.jsonl")
        assert (done.returncode, "--on-error skip" in done.stderr) == (2, True)


def test_a_source_folder_may_hold_the_list_of_its_own_rejected_rows(place: Path) -> None:
    Path("in").mkdir()
    shutil.copy("docs.jsonl", "in")
    shutil.copy("bad.jsonl", "in")
    for _ in range(2):
        build("in", to="in/new")
    assert listed("in/new.rejects.jsonl") == ["new"]
