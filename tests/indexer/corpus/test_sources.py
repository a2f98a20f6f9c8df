"""From the user's sources to the files that are read, in order; other paths are errors."""

import gzip
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from indexer.corpus.corpus import read_corpus
from indexer.errors import ConfigError, CorpusError
from indexer.recipe.corpus_config import CorpusConfig
from tests.indexer.corpus.corpus_files import write
from tests.indexer.corpus.test_readers import FRUIT, WRITERS, csv_bytes, ids


@pytest.mark.parametrize("name", ["docs.jsonl", "docs.csv.gz", "docs.parquet", "docs.arrow.zst", "docs.npy"])
@pytest.mark.parametrize("way", ["named", "folder", "glob"])
def test_a_pipe_is_no_source_and_nothing_waits_for_its_writer(tmp_path: Path, name: str, way: str) -> None:
    os.mkfifo(tmp_path / name)
    write(tmp_path, "docs.ids.txt", "a\n")
    source = {"named": f"{tmp_path}/{name}", "folder": f"{tmp_path}", "glob": f"{tmp_path}/docs*"}[way]
    config = CorpusConfig(vector_column="v" if name.endswith("npy") else "")
    with pytest.raises(CorpusError, match=rf"{name}: (cannot be read: it )?is a pipe, socket or device"):
        list(read_corpus(source, config=config))


def test_a_device_is_no_source() -> None:
    with pytest.raises(CorpusError, match=r"/dev/zero: is a pipe, socket or device.*Fix: pipe its content in"):
        read_corpus("/dev/zero", format="text")


def test_an_index_is_no_source(tmp_path: Path) -> None:
    (tmp_path / "my-index/manifests").mkdir(parents=True)
    with pytest.raises(CorpusError, match=r"my-index: is an index, not a corpus. Fix: pass the files that it was"):
        read_corpus(tmp_path / "my-index")


def test_a_folder_that_cannot_be_listed_is_named_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "docs/locked/a.txt", "x")
    original = os.scandir

    def scandir(path: Any) -> Any:  # tests may run as root, which can list everything
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return original(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(CorpusError, match=r"docs/locked: cannot be listed: Permission denied"):
        read_corpus(tmp_path / "docs")


def test_sources_are_read_in_the_order_given_and_globs_sorted(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        write(tmp_path, f"{name}.jsonl", json.dumps({"id": name, "text": "x"}))
    assert ids(tmp_path / "c.jsonl", f"{tmp_path}/[ab].jsonl") == ["c", "a", "b"]


def test_a_folder_is_all_its_files_of_known_format_and_the_others_are_listed(tmp_path: Path) -> None:
    write(tmp_path, "2.txt", "two\n")
    write(tmp_path, "1/deep.txt.gz", gzip.compress(b"\ndeep\n"))
    notes = write(tmp_path, "notes.pdf", "x")
    write(tmp_path, "_SUCCESS", "")
    write(tmp_path, ".hidden.txt", "hidden")
    corpus = read_corpus(tmp_path)
    assert [document.text for document in corpus] == ["deep", "two"]
    assert corpus.report.ignored_files == [str(notes)]
    assert corpus.report.made_ids == 2


@pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.jsonl.gz"])
def test_a_beir_folder_is_its_corpus_file(tmp_path: Path, name: str) -> None:
    write(tmp_path, name, WRITERS["fruit" + name.removeprefix("corpus")](FRUIT))
    write(tmp_path, "queries.jsonl", '{"_id": "q", "text": "x"}')
    write(tmp_path, "qrels/test.tsv", "query-id\tcorpus-id\tscore\n")
    assert list(read_corpus(tmp_path)) == FRUIT


def test_format_replaces_what_the_extension_says(tmp_path: Path) -> None:
    assert list(read_corpus(write(tmp_path, "fruit.dat.gz", gzip.compress(csv_bytes(FRUIT))), format="csv")) == FRUIT


class Stdin:
    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "arrow"])
def test_stdin_is_read_like_a_file_but_once(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(WRITERS[f"fruit.{kind}"](FRUIT)))
    corpus = read_corpus("-", format=kind)
    assert list(corpus) == FRUIT
    with pytest.raises(CorpusError, match="only once"):
        iter(corpus)


def test_stdin_without_a_format_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs format"):
        read_corpus("-")


def test_a_missing_path_names_its_nearest_sibling(tmp_path: Path) -> None:
    write(tmp_path, "documents.jsonl", "")
    with pytest.raises(
        CorpusError, match=r'document\.jsonl: no such file or folder; did you mean ".*documents\.jsonl"'
    ):
        read_corpus(tmp_path / "document.jsonl")


def test_sources_that_hold_nothing_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "a.pdf", "")
    with pytest.raises(CorpusError, match="matches no file"):
        read_corpus(f"{tmp_path}/*.jsonl")
    with pytest.raises(CorpusError, match="only files of unknown type"):
        read_corpus(f"{tmp_path}/*")
    with pytest.raises(CorpusError, match="no files to read in this folder"):
        read_corpus(tmp_path)
    with pytest.raises(CorpusError, match=r"unknown file type.*pass format"):
        read_corpus(tmp_path / "a.pdf")
    with pytest.raises(ConfigError, match="no source"):
        read_corpus()
    with pytest.raises(ConfigError, match='unknown format "xml"'):
        read_corpus(tmp_path, format="xml")


def test_files_of_one_name_in_several_folders_have_different_labels(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text("one\n")
    assert [file.label for file in read_corpus(f"{tmp_path}/**/*.txt").files] == ["x/a.txt", "y/a.txt"]
    assert len({file.label for file in read_corpus(tmp_path / "x/a.txt", tmp_path / "y/a.txt").files}) == 2
