"""--documents files on the command line: builds, additions, duplicates, tuning, and the suggestions of the option."""

import json
from pathlib import Path

import pytest

from tests.search.cli.test_cli import isotrope

RECIPE = ("--config", "recipe.toml", "--set", "chunk.tokens=16", "--set", "chunk.overlap=0", "--quiet")


@pytest.fixture
def notes(place: Path) -> Path:
    """A folder of notes in the current folder."""
    for name in ("whales.md", "bread.txt", "sub/stars.rst", "build/x.md", ".hidden.md", "photo.jpg"):
        path = Path("notes", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {path.stem}\n\nA note about {path.stem}.\n")
    Path("notes/broken.md").write_bytes(b"one\0two")
    Path("notes/.gitignore").write_text("build/\n")
    return Path("notes")


def test_each_file_of_a_folder_is_a_document_and_the_others_are_counted(notes: Path) -> None:
    done = isotrope("build", "notes", "new", *RECIPE, "--documents", "files")
    assert done.returncode == 0, done.stderr
    left_out = "left out: 2 hidden, 1 ignored by .gitignore, 1 of unknown type"
    assert f"note: 3 files are documents; {left_out}; unknown types: notes/photo.jpg\n" in done.stderr
    assert "1 file was skipped" in done.stderr
    assert "see new.rejects.jsonl" in done.stderr
    (rejected,) = map(json.loads, Path("new.rejects.jsonl").read_text().splitlines())
    assert (rejected["file"], rejected["line"]) == ("notes/broken.md", 0)
    again = isotrope("build", "notes", "new", *RECIPE, "--documents", "files")
    assert "is up to date" in again.stdout

    (notes / "sub/new.md").write_text("A fourth note.")
    added = isotrope("add", "new", "notes", "--json")  # as the index was built
    report = json.loads(added.stdout)
    assert (report["added"], report["unchanged"], report["corpus"]["files"]) == (1, 3, 5)
    assert report["corpus"]["left_out"] == {"hidden": 2, "ignored by .gitignore": 1, "of unknown type": 1}
    assert report["corpus"]["ignored_files"] == ["notes/photo.jpg"]
    assert Path("new.add.rejects.jsonl").exists()
    found = isotrope("query", "new", "note", "--where", "folder = 'sub'", "--json")
    assert {hit["id"] for hit in json.loads(found.stdout)["hits"]} == {"sub/new.md", "sub/stars.rst"}


def test_a_sync_counts_the_files_of_its_first_plan_and_moves_the_list_of_a_mended_folder(notes: Path) -> None:
    sync = ("sync", "notes", "new", *RECIPE, "--documents", "files")
    plan = isotrope(*sync, "--dry-run")
    assert "note: 4 files are documents; left out" in plan.stderr
    assert "to add      4: " in plan.stdout
    assert "see new.sync.rejects.jsonl" in isotrope(*sync).stderr
    (notes / "broken.md").unlink()
    done = isotrope(*sync)
    assert "up to date" in done.stdout
    assert "note: 3 files are documents; left out" in done.stderr
    assert "not corpora" not in done.stderr
    assert "skipped was moved to new.sync.1.rejects.jsonl" in done.stderr, done.stderr
    assert not Path("new.sync.rejects.jsonl").exists()
    (notes / "whales.md").write_text("No whales.")
    (notes / "bread.txt").unlink()
    (notes / "sub/stars.rst").unlink()
    assert isotrope(*sync).returncode == 1
    assert "note: 1 file is a document" in isotrope(*sync, "--force").stderr


def test_a_file_that_fails_ends_a_build_only_if_the_user_asks_for_it(notes: Path) -> None:
    done = isotrope("build", "notes", "new", *RECIPE, "--documents", "files", "--on-error", "fail")
    assert done.returncode == 1
    assert "notes/broken.md: " in done.stderr
    assert "or pass --on-error skip to skip and list such files" in done.stderr
    rows = isotrope("build", "bad.jsonl", "new", *RECIPE)  # rows of tables fail by default
    assert "bad.jsonl:1: " in rows.stderr


def test_duplicates_and_settings_are_found_for_files_too(notes: Path) -> None:
    (notes / "copy.md").write_text((notes / "whales.md").read_text())
    options = ("--documents", "files", "--threshold", "0.999", "--kept", "kept.jsonl")
    done = isotrope("dedup", "notes", *options, *RECIPE)
    assert done.returncode == 0, done.stderr
    kept = [json.loads(line) for line in Path("kept.jsonl").read_text().splitlines()]
    assert {"bread.txt", "sub/stars.rst"} <= {document["id"] for document in kept}
    assert all("sha256" in document for document in kept)
    for number in range(80):
        words = " ".join(f"word{number * place % 97}" for place in range(1, 40))
        (notes / f"{number}.md").write_text(f"First sentence {number} of the note. {words}. Second part {words}.\n")
    tuned = isotrope(
        "tune", "notes", "--documents", "files", "--sample", "50", "-o", "tuned.toml", "--cache", "cache", *RECIPE
    )
    assert tuned.returncode == 0, tuned.stderr
    assert 'documents = "files"' in Path("tuned.toml").read_text()
    refused = isotrope("tune", "index", "--documents", "files")
    assert "--documents is for a corpus" in refused.stderr


@pytest.mark.parametrize("source", ["only", "only/a.md", "only/*"])
def test_a_folder_of_files_without_tables_suggests_the_option(place: Path, source: str) -> None:
    Path("only").mkdir()
    Path("only/a.md").write_text("x")
    done = isotrope("build", source, "new", *RECIPE)
    assert done.returncode == 1
    assert "with --documents files, to make each file a document" in done.stderr
    Path("only/a.md").rename("only/a.jpg")
    assert "--documents" not in isotrope("build", "only", "new", *RECIPE).stderr


def test_a_folder_with_tables_is_read_as_tables_and_a_note_names_the_option(notes: Path) -> None:
    (notes / "rows.jsonl").write_text('{"_id": "a", "text": "one"}\n')
    done = isotrope("build", "notes", "new", *RECIPE)
    assert done.returncode == 0, done.stderr
    assert "With --documents files, each file would be a document" in done.stderr
    assert "documents   3 " in done.stdout  # the lines of bread.txt, and the row
