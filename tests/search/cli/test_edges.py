"""The command line with odd paths, odd files and no queries."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from indexer import add_documents, build_index, read_corpus
from indexer.corpus.query_file import read_id_file
from indexer.errors import ConfigError, ExistsError
from indexer.recipe.config import BuildConfig, EncoderConfig
from indexer.recipe.index_config import StoreConfig
from indexer.store.manifest import load_manifest
from search import SearchEngine, verify_index
from tests.documents import DOCUMENTS
from tests.indexer.pipeline.test_vectors import GIVEN, random_documents
from tests.search.cli.test_cli import ISOTROPE, isotrope
from tests.test_format1 import DATA
from tests.waiting import PATIENCE


@pytest.fixture
def index(tiny_model: Callable[[str], Path], tmp_path: Path) -> Path:
    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=32, precision="float32")
    build_index(DOCUMENTS, tmp_path / "index", BuildConfig(encoder=encoder, store=StoreConfig(part_documents=4)))
    return tmp_path / "index"


def test_an_index_may_be_the_folder_one_is_in(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    news = index.parent / "new.jsonl"
    news.write_text(
        json.dumps({"_id": "new", "text": "one more"}) + "\n" + json.dumps({"_id": "bad", "text": 5}) + "\n"
    )
    monkeypatch.chdir(index)
    for name, documents in ((".", len(DOCUMENTS) + 1), (os.path.join("..", "index"), len(DOCUMENTS) + 1)):
        done = isotrope("add", name, str(news), "--on-error", "skip")
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
        assert load_manifest(index).documents == documents
    assert json.loads((index.parent / "index.add.rejects.jsonl").read_text())["id"] == "bad"
    done = isotrope("export", ".", "--to", "faiss", "-o", ".")
    assert done.returncode == 1
    assert "is a folder; expected a file" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["build", "docs.jsonl", ""],
        ["build", "docs.jsonl", "new", "--config", ""],
        ["build", "docs.jsonl", "new", "--on-error", "skip", "--rejects", ""],
        ["add", "", "docs.jsonl"],
        ["delete", "index", "--ids-file", ""],
        ["query", "", "whales"],
        ["evaluate", "recall", "index", "--queries", ""],
    ],
)
def test_an_empty_path_is_not_the_folder_one_is_in(
    index: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (index.parent / "docs.jsonl").write_text('{"_id": "new", "text": "one more"}\n')
    monkeypatch.chdir(index.parent)
    done = isotrope(*arguments)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "the path is empty; expected a path" in " ".join(done.stderr.split())
    assert sorted(path.name for path in index.parent.iterdir()) == ["docs.jsonl", "index"]


def test_an_empty_source_or_index_is_refused(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (index.parent / "docs.jsonl").write_text('{"_id": "new", "text": "one more"}\n')
    monkeypatch.chdir(index.parent)
    for command in (["build", "", "new"], ["build", "docs.jsonl", "", "new"], ["add", "index", ""]):
        done = isotrope(*command)
        assert (done.returncode, "a source is empty" in done.stderr) == (1, True)
    with pytest.raises(ConfigError, match="a source is empty"):
        read_corpus("docs.jsonl", "")
    for change in (build_index, add_documents):
        with pytest.raises(ConfigError, match="the path of the index is empty"):
            change(DOCUMENTS, "")
    for read in (SearchEngine, verify_index):
        with pytest.raises(ConfigError, match="the path of the index is empty"):
            read("")
    assert sorted(path.name for path in index.parent.iterdir()) == ["docs.jsonl", "index"]


def test_a_pipe_in_the_place_of_the_manifest_is_an_error_and_no_hang(index: Path) -> None:
    (manifest,) = (index / "manifests").glob("*.json")
    manifest.unlink()
    os.mkfifo(manifest)
    command = [*ISOTROPE, "query", str(index), "whales"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 1
    assert "manifests/00000001.json" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("text", ["", "  "])
def test_nothing_to_ask_an_index_of_given_vectors_is_an_error(text: str, tmp_path: Path) -> None:
    build_index(random_documents(), tmp_path / "index", GIVEN)
    done = isotrope("query", str(tmp_path / "index"), text)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "no query was answered" in done.stderr


def test_an_id_file_may_begin_with_a_byte_order_mark(index: Path, tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_bytes("d1\r\nd2\r\n".encode("utf-8-sig"))
    assert read_id_file(tmp_path / "ids.txt") == ["d1", "d2"]
    assert isotrope("delete", str(index), "--ids-file", str(tmp_path / "ids.txt")).returncode == 0
    assert load_manifest(index).documents == len(DOCUMENTS) - 2


def test_an_index_by_older_rules_of_encoding_grows_by_the_same_rules(tmp_path: Path) -> None:
    index = shutil.copytree(DATA / "index", tmp_path / "index")
    before = load_manifest(index).fingerprint
    (tmp_path / "new.jsonl").write_text(json.dumps({"_id": "new", "text": "something that was never encoded"}) + "\n")
    done = isotrope("add", str(index), str(tmp_path / "new.jsonl"), "--model", str(DATA / "model"), "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert load_manifest(index).fingerprint == before
    with SearchEngine(index, model=DATA / "model") as engine:
        expected = engine.encoder.encode(["something that was never encoded"], "document")
        last = engine.index.stored_embeddings.rows(np.array([len(engine) - 1]))
    np.testing.assert_allclose(last, expected, atol=1e-3)


def test_another_length_of_the_corpus_is_told_as_that(index: Path) -> None:
    config = BuildConfig.from_dict(load_manifest(index).config)
    with pytest.raises(ExistsError, match="this corpus ends after 6 documents, the index continues after 8"):
        build_index(DOCUMENTS[:6], index, config)
    with pytest.raises(ExistsError, match="this corpus continues after 12 documents, the index ends after 9"):
        build_index(
            [*DOCUMENTS, *(replace(document, id=f"more {document.id}") for document in DOCUMENTS)], index, config
        )


def test_a_refit_says_what_the_search_reaches_and_a_compaction_what_stays(index: Path) -> None:
    done = isotrope("refit", str(index), "--quiet")
    assert "search Flat, recall@10 1.0000, 32 bytes per vector" in " ".join(done.stdout.split())
    assert "changed" not in done.stdout
    isotrope("delete", str(index), "d1")
    done = isotrope("compact", str(index), "--quiet")
    assert "1 segment, rewritten, 1 deleted document removed" in done.stdout
    said = " ".join(done.stderr.split())
    assert "3 older generations are kept for readers, with their deleted documents; --keep 1 --grace 0" in said
    assert "older generations" not in isotrope("compact", str(index), "--keep", "1", "--grace", "0").stderr


def test_a_refit_says_which_settings_it_changed_and_inspect_shows_them(index: Path) -> None:
    settings = ("whitening.strength=0.75", "whitening.shrinkage=0.5", "hybrid.weight=0.5")
    done = isotrope("refit", str(index), "--json", *(word for setting in settings for word in ("--set", setting)))
    assert json.loads(done.stdout)["changed"] == [
        "whitening.strength 0.25 -> 0.75", "whitening.shrinkage 0.0 -> 0.5", "hybrid.weight 0.3 -> 0.5"
    ]  # fmt: skip
    done = isotrope("refit", str(index), "--set", "hybrid.weight=0.6")
    assert "changed hybrid.weight 0.5 -> 0.6" in " ".join(done.stdout.split())
    assert "strength 0.75, shrinkage 0.5, centre role" in " ".join(isotrope("inspect", str(index)).stdout.split())


def test_a_quantizer_that_does_not_divide_the_dimensions_is_told_how_to_be_padded(index: Path) -> None:
    dim = load_manifest(index).transform["dim"]
    done = isotrope("refit", str(index), "--set", "index.type=IVF1,PQ16x4fs")
    assert (done.returncode, dim % 16 > 0) == (1, True)
    assert 'Fix: put zeros in front: "Pad16,IVF1,PQ16x4fs"' in " ".join(done.stderr.split())
