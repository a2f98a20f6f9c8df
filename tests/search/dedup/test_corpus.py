"""`deduplicate_corpus` equals building an index, deduplicating it and writing kept rows, and checks files first."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from indexer import BuildConfig, build_index, read_corpus
from indexer.errors import ConfigError, ExistsError
from indexer.recipe.config import EncoderConfig
from indexer.recipe.run_options import RunOptions
from search import Index
from search.dedup import CorpusBuild, DedupFiles, Deduplication, PairFiles, deduplicate_corpus, deduplicate_index
from tests.playground import documents, write_rows


@pytest.fixture
def config(tiny_model: Callable[[str], Path]) -> BuildConfig:
    return BuildConfig(encoder=EncoderConfig(model=str(tiny_model("bert")), max_length=32))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rows = documents(20)
    write_rows(tmp_path / "docs.jsonl", rows + [row | {"id": f"copy-{row['id']}"} for row in rows[:5]])
    return tmp_path / "docs.jsonl"


def test_a_corpus_gives_what_its_index_gives(source: Path, config: BuildConfig, tmp_path: Path) -> None:
    files = DedupFiles(tmp_path / "d.parquet", tmp_path / "kept.jsonl", PairFiles(write=tmp_path / "pairs.parquet"))
    build = CorpusBuild(config, keep_index=tmp_path / "index")
    found = deduplicate_corpus(read_corpus(source), 0.999, build, files)
    again = deduplicate_index(tmp_path / "index", 0.999)
    assert found.table.equals(again.table)
    assert found.facts == again.facts
    assert pq.read_table(tmp_path / "d.parquet").equals(again.table)
    lines = source.read_bytes().splitlines()
    kept = (tmp_path / "kept.jsonl").read_bytes().splitlines()
    assert kept == [lines[number] for number in again.kept]  # byte for byte
    named = (files.dropped, files.kept, files.pairs.write)
    assert found.written == {str(path): path.stat().st_size for path in named
                             if path}  # fmt: skip


def test_an_index_that_is_not_kept_goes(
    source: Path, config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    found = deduplicate_corpus(read_corpus(source), 0.999, CorpusBuild(config))
    assert found.facts["documents"] == 25
    assert list((tmp_path / "scratch").iterdir()) == []


def wrong(tmp_path: Path, source: Path) -> dict[str, tuple[DedupFiles, str]]:
    (tmp_path / "folder.csv").mkdir()
    return {
        "over the corpus": (DedupFiles(kept=source, force=True), "docs.jsonl"),
        "no format": (DedupFiles(kept=tmp_path / "kept.xyz"), "unknown type of file"),
        "two to one": (DedupFiles(tmp_path / "same.jsonl", tmp_path / "same.jsonl"), "same"),
        "a floor alone": (DedupFiles(pairs=PairFiles(floor=0.5)), "pass write too"),
        "a folder": (DedupFiles(dropped=tmp_path / "folder.csv"), "expected a file"),
    }


@pytest.mark.parametrize("mistake", ["over the corpus", "no format", "two to one", "a floor alone", "a folder"])
def test_mistakes_are_said_before_anything_is_encoded(
    source: Path, config: BuildConfig, tmp_path: Path, mistake: str
) -> None:
    files, message = wrong(tmp_path, source)[mistake]
    with pytest.raises(ConfigError, match=message):
        deduplicate_corpus(read_corpus(source), 0.9, CorpusBuild(config, keep_index=tmp_path / "index"), files)
    assert not (tmp_path / "index").exists()


def test_a_file_that_is_there_stays_as_it_is(source: Path, config: BuildConfig, tmp_path: Path) -> None:
    (tmp_path / "kept.jsonl").write_text("mine")
    with pytest.raises(ExistsError):
        deduplicate_corpus(read_corpus(source), 0.9, CorpusBuild(config), DedupFiles(kept=tmp_path / "kept.jsonl"))
    assert (tmp_path / "kept.jsonl").read_text() == "mine"


def test_a_corpus_may_be_encoded_on_mps_and_is_compared_on_the_cpu() -> None:
    assert CorpusBuild(run=RunOptions(device="mps", threads=3)).join.device == "cpu"
    assert CorpusBuild(run=RunOptions(device="cuda:1", threads=3)).join.device == "cuda:1"


def test_an_index_that_is_open_is_not_opened_again(
    source: Path, config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(read_corpus(source), tmp_path / "index", config)
    rows = [json.loads(line) for line in source.read_text().splitlines()]
    write_rows(tmp_path / "other.jsonl", rows[:3])
    build_index(read_corpus(tmp_path / "other.jsonl"), tmp_path / "other", config)
    index, other = Index.open(tmp_path / "index"), Index.open(tmp_path / "other")

    def fail(*_: object) -> Index:
        raise AssertionError("opened again")

    monkeypatch.setattr(Index, "open", fail)
    found: Deduplication = deduplicate_index(index, 0.999, other)
    assert found.index is index
    assert found.facts["reasons"].keys() & {"against", "against-text"}
