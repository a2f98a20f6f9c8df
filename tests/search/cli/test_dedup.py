"""`isotrope dedup` for users: its output and files, its exit codes, and its messages for mistakes."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.directories import snapshot
from tests.playground import documents, write_rows
from tests.search.cli.test_cli import isotrope

COPIES = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Write docs.jsonl (60 documents and copies of the first twelve, one reworded) and an index of it."""
    place = tmp_path_factory.mktemp("cli-dedup")
    rows = documents(60)
    copies = [row | {"id": f"copy-{row['id']}", "year": 2000} for row in rows[:COPIES]]
    copies[3]["text"] = str(copies[3]["text"]).replace("The", "That", 1)
    write_rows(place / "docs.jsonl", rows + copies)
    model = request.getfixturevalue("tiny_model")("bert")
    recipe = place / "recipe.toml"
    recipe.write_text(f'[encoder]\nmodel = "{model}"\nmax_length = 32\n[store]\npart_documents = 16\n')
    done = isotrope("build", place / "docs.jsonl", place / "index", "--config", recipe)
    assert done.returncode == 0, done.stderr
    return place


@pytest.fixture
def index(folder: Path) -> Path:
    return folder / "index"


def test_a_summary_is_printed_and_files_are_written(index: Path, tmp_path: Path) -> None:
    done = isotrope(
        "dedup", index, "--threshold", "0.999", "-o", tmp_path / "d.parquet", "--kept", tmp_path / "k.jsonl"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "72" in done.stdout
    assert "with equal text" in done.stdout
    assert "all found (exact)" in done.stdout
    rows = pq.read_table(tmp_path / "d.parquet").to_pylist()
    assert {row["id"] for row in rows} >= {f"copy-doc{number}" for number in (1, 2, 3)}
    kept = [json.loads(line)["id"] for line in (tmp_path / "k.jsonl").read_text().splitlines()]
    assert len(kept) + len(rows) == 72
    assert not {row["id"] for row in rows} & set(kept)


def test_json_is_one_object_with_the_facts_and_what_was_written(index: Path, tmp_path: Path) -> None:
    done = isotrope("dedup", index, "--threshold", "0.999", "-o", tmp_path / "d.parquet", "--json")
    found = json.loads(done.stdout)
    assert found["documents"] == found["kept"] + found["dropped"] == 72
    assert found["written"] == {str(tmp_path / "d.parquet"): (tmp_path / "d.parquet").stat().st_size}


def test_nothing_written_is_said(index: Path) -> None:
    done = isotrope("dedup", index, "--threshold", "0.9")
    assert done.returncode == 0
    assert "note: nothing was written" in done.stderr


def test_a_proof_passes_and_a_changed_file_fails_with_1(index: Path, tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    isotrope("dedup", index, "--threshold", "0.95", "-o", path)
    done = isotrope("dedup", index, "--verify", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "proved" in done.stdout
    table = pq.read_table(path)
    pq.write_table(table.slice(1), path)
    done = isotrope("dedup", index, "--verify", path)
    assert done.returncode == 1
    assert "NOT proved" in done.stdout
    report = json.loads(isotrope("dedup", index, "--verify", path, "--json").stdout)
    assert report["passed"] is False
    assert report["problems"]


def test_suggest_shows_numbers_and_pairs_to_read(index: Path) -> None:
    done = isotrope("dedup", index, "--suggest")
    assert done.returncode == 0, done.stderr
    assert "dropped" in done.stdout
    assert "above" in done.stdout
    found = json.loads(isotrope("dedup", index, "--suggest", "--json").stdout)
    assert found["documents"] == 72
    assert [candidate["threshold"] for candidate in found["candidates"]]


def test_pairs_are_kept_for_other_thresholds(index: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.parquet"
    assert isotrope("dedup", index, "--threshold", "0.95", "--save-pairs", pairs, "--floor", "0.8").returncode == 0
    stored, joined = (
        json.loads(isotrope("dedup", index, "--threshold", "0.85", "--json", *more).stdout)
        for more in (("--from-pairs", str(pairs)), ())
    )
    assert stored == joined
    done = isotrope("dedup", index, "--threshold", "0.7", "--from-pairs", pairs)
    assert (done.returncode, done.stdout) == (1, "")
    assert "0.8 or more, but the threshold is 0.7" in done.stderr


def test_a_corpus_is_built_first_and_comes_back_line_by_line(folder: Path, tmp_path: Path) -> None:
    done = isotrope(
        "dedup", folder / "docs.jsonl", "--config", folder / "recipe.toml", "--threshold", "0.999",
        "--kept", tmp_path / "kept.jsonl", "--prefer", "column:year:desc",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = (folder / "docs.jsonl").read_bytes().splitlines()
    kept = (tmp_path / "kept.jsonl").read_bytes().splitlines()
    assert kept == [line for line in lines if line in set(kept)]
    assert sum(b'"copy-' in line for line in kept) == COPIES
    assert list(folder.iterdir()) == sorted(folder.iterdir()) or {p.name for p in folder.iterdir()} == {
        "docs.jsonl", "index", "recipe.toml",
    }  # fmt: skip


def test_the_index_of_a_corpus_can_be_kept(folder: Path, tmp_path: Path) -> None:
    arguments: list[str | Path] = [
        folder / "docs.jsonl",
        "--config",
        folder / "recipe.toml",
        "--keep-index",
        tmp_path / "index",
    ]
    first = isotrope("dedup", *arguments, "--threshold", "0.95", "--json")
    before = snapshot(tmp_path / "index")
    assert isotrope("dedup", *arguments, "--threshold", "0.95", "--json").stdout == first.stdout
    assert snapshot(tmp_path / "index") == before
    assert json.loads(isotrope("dedup", tmp_path / "index", "--threshold", "0.95", "--json").stdout)["documents"] == 72
    changed = ["dedup", *arguments, "--set", "whitening.strength=1", "--suggest", "--json"]
    done = isotrope(*changed)
    assert (done.returncode, "(--force in isotrope dedup)" in done.stderr) == (1, True)
    assert snapshot(tmp_path / "index") == before
    assert isotrope(*changed, "--force").returncode == 0
    facts = json.loads(isotrope("inspect", tmp_path / "index", "--json").stdout)
    assert (facts["config"]["whitening"]["strength"], facts["generation"]) == (1, 2)


def test_skipped_rows_are_listed_beside_the_kept_index(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "docs.jsonl").write_text((folder / "docs.jsonl").read_text() + '{"id": "blank", "text": ""}\n')
    call: list[str | Path] = [
        "dedup",
        tmp_path / "docs.jsonl",
        "--config",
        folder / "recipe.toml",
        "--on-error",
        "skip",
        "--suggest",
    ]
    assert isotrope(*call).stderr.endswith("skipped (1 blank)\n")
    done = isotrope(*call, "--keep-index", tmp_path / "index")
    listed = tmp_path / "index.rejects.jsonl"
    assert done.stderr.endswith(f"(1 blank); see {listed}\n")
    assert json.loads(listed.read_text())["line"] == 73


def test_against_an_index_of_the_same_documents_nothing_is_left(index: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(index, tmp_path / "copy")
    done = isotrope("dedup", index, "--threshold", "0.95", "--against", copy, "--only-against", "--json")
    assert json.loads(done.stdout)["kept"] == 0


def test_an_index_is_not_compared_with_itself(index: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(index)
    cases: list[list[str | Path]] = [
        [index, "--against", tmp_path / "link"],
        ["docs.jsonl", "--keep-index", index, "--against", index],
    ]
    for words in cases:
        done = isotrope("dedup", *words, "--threshold", "0.95", "--kept", tmp_path / "kept.jsonl")
        assert (done.returncode, done.stdout) == (1, "")
        assert f"is {index} itself, so no document would be kept" in done.stderr
    assert not (tmp_path / "kept.jsonl").exists()


def test_identical_up_to_rounding_is_said(index: Path) -> None:
    assert "identical up to rounding" in isotrope("dedup", index, "--threshold", "1").stdout


def test_ann_prints_the_recall_it_measured(index: Path) -> None:
    done = isotrope("dedup", index, "--threshold", "0.95", "--method", "ann")
    assert "approximate: found 100.00% of" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--threshold", "1.5"], "above -1 and at most 1"),
        (["--threshold", "nan"], "above -1 and at most 1"),
        (["--threshold", "0.9", "--prefer", "colum:year"], "prefer"),
        (["--threshold", "0.9", "--prefer", "column:yeer"], "year"),
        (["--threshold", "0.9", "--floor", "0.8"], "--save-pairs"),
        (["--threshold", "0.9", "--only-against"], "--against"),
        (["--threshold", "0.9", "--memory", "lots"], "such as 512M or 8G"),
        (["--threshold", "0.9", "--keep-index", "elsewhere"], "--keep-index is for a corpus"),
        (["--suggest", "--config", "recipe.toml"], "--config is for a corpus"),
        (["--threshold", "0.9", "--backend", "torch"], "--backend is for a corpus"),
        (["--threshold", "0.9", "--device", "mps"], "near-duplicates need cpu or cuda"),
        (["--threshold", "0.9", "--against", "missing"], "missing"),
        (["--threshold", "0.9", "-o", "."], "expected a file"),
        (["--threshold", "0.9", "--kept", "kept.xyz"], "kept.xyz"),
        (["--threshold", "0.9", "--against", "missing", "-o", "d.txt"], "expected .parquet"),  # before any work
        (["--threshold", "0.9", "--from-pairs", "missing.parquet"], "missing.parquet"),
        (["--threshold", "0.9", "-o", "same.jsonl", "--kept", "same.jsonl"], "same"),
        (["--verify", "missing.parquet"], "missing.parquet"),
    ],
)
def test_mistakes_exit_with_1_and_one_line(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = isotrope("dedup", index, *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "none was given"),
        (["--threshold", "0.9", "--suggest"], "--threshold and --suggest were given"),
        (["--suggest", "--prefer", "last"], "--prefer does not apply to --suggest"),
        (["--suggest", "-o", "x.parquet"], "-o does not apply to --suggest"),
        (["--verify", "x.parquet", "--kept", "x.jsonl"], "--kept does not apply to --verify"),
        (["--threshold", "high"], "not a valid float"),
    ],
)
def test_a_wrong_command_line_exits_with_2(index: Path, arguments: list[str], message: str) -> None:
    done = isotrope("dedup", index, *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_what_is_no_index_and_no_corpus_is_said(tmp_path: Path) -> None:
    for more in (["--threshold", "0.9"], ["--suggest"], ["--verify", "x.parquet"]):
        done = isotrope("dedup", tmp_path / "none", *more)
        assert (done.returncode, done.stdout) == (1, "")
        assert "none" in done.stderr or "x.parquet" in done.stderr


def test_mistakes_are_said_before_a_corpus_is_encoded(folder: Path, tmp_path: Path) -> None:
    mistakes: list[tuple[list[str | Path], str]] = [
        (["--threshold", "2"], "above -1"),
        (["--threshold", "0.9", "--kept", tmp_path], "folder"),
        (["--threshold", "0.9", "--kept", folder / "docs.jsonl"], "docs.jsonl"),
        (["--threshold", "0.9", "--against", tmp_path], str(tmp_path)),
    ]
    for more, message in mistakes:
        done = isotrope("dedup", folder / "docs.jsonl", "--keep-index", tmp_path / "index", *more)
        assert (done.returncode, done.stdout) == (1, "")
        assert message in done.stderr
        assert not (tmp_path / "index").exists()


def test_two_indexes_at_once_are_refused(index: Path) -> None:
    done = isotrope("dedup", index, index, "--threshold", "0.9")
    assert done.returncode == 1
    assert "alone" in done.stderr
