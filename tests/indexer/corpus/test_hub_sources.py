"""Corpora in dataset repositories on the Hugging Face hub."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants

from indexer import BuildConfig, read_corpus
from indexer.errors import CorpusError
from search import SearchEngine
from tests.hubs import FakeHub, Repository
from tests.search.cli.test_cli import isotrope

DATASET = "hf://datasets/user/texts"


@pytest.fixture
def dataset(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A dataset of two splits, with files that are no corpus, and an empty cache."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    pq.write_table(pa.table({"id": ["a", "b"], "text": ["whales sing", "bread rises"]}), tmp_path / "train.parquet")
    files = {
        "README.md": b"# Texts",
        "picture.png": b"\x89PNG",
        "data/train-00000-of-00001.parquet": (tmp_path / "train.parquet").read_bytes(),
        "data/test.jsonl": b'{"id": "c", "text": "bridges hang"}\n',
    }
    hub.repositories["user/texts"] = Repository()
    hub.repositories["user/texts"].commit(files)
    return hub.repositories["user/texts"]


@pytest.mark.parametrize(
    ("source", "ids"),
    [
        (DATASET, ["c", "a", "b"]),
        (f"{DATASET}/", ["c", "a", "b"]),
        (f"{DATASET}@main/data", ["c", "a", "b"]),
        (f"{DATASET}/data/test.jsonl", ["c"]),
        (f"{DATASET}/data/train-*.parquet", ["a", "b"]),
        (f"{DATASET}/**/train-*", ["a", "b"]),
    ],
)
def test_a_dataset_is_a_source(source: str, ids: list[str], dataset: Repository, hub: FakeHub) -> None:
    assert [document.id for document in read_corpus(source)] == ids
    assert not {"README.md", "picture.png"}.intersection(hub.downloads)
    hub.downloads.clear()
    assert [document.id for document in read_corpus(source)] == ids
    assert hub.downloads == []  # the cache has them


def test_commands_read_a_dataset(
    dataset: Repository, tiny_config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = f"encoder.model={tiny_config.encoder.model}"
    done = isotrope("build", f"{DATASET}/data/train-*.parquet", "index", "--set", model)
    assert done.returncode == 0, done.stderr
    done = isotrope("add", "index", f"{DATASET}/data/test.jsonl")
    assert done.returncode == 0, done.stderr
    assert sorted(hit.id for hit in SearchEngine("index").search("whales", k=3)) == ["a", "b", "c"]


def test_mistakes_name_the_fix(dataset: Repository) -> None:
    for source, message in (
        ("hf://user/texts", r"not a dataset on the Hugging Face hub; expected hf://datasets/user/name"),
        ("hf://datasets/user/typo", r"hf://datasets/user/typo: no such dataset repository .* Fix: check the name"),
        (f"{DATASET}@typo", r"texts@typo: no such branch, tag or commit"),
        (f"{DATASET}/data/none.jsonl", r"no such file"),
        (f"{DATASET}/data/*.csv", r"matches no file"),
    ):
        with pytest.raises(CorpusError, match=message):
            read_corpus(source)
