"""What is kept outside the index can be made again: damage, deletion and a read-only disk cost time, nothing else."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from indexer.config import EncoderConfig, RunOptions
from indexer.encoders import load_encoder
from indexer.encoders.cache import cache_folder, kept


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ISOTROPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Maker:
    """Writes an entry of two files, and counts how often."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, folder: Path) -> None:
        self.made += 1
        (folder / "a").write_text("one", encoding="utf-8")
        (folder / "b").write_text("two", encoding="utf-8")


def test_an_entry_is_made_once_for_each_key(cache: Path) -> None:
    make = Maker()
    first, again, other = (kept("kind", {"n": n}, make) for n in (1, 1, 2))
    assert first == again != other
    assert make.made == 2
    assert (first / "a").read_text(encoding="utf-8") == "one"
    assert first.is_relative_to(cache)


def test_of_many_entries_those_used_last_are_kept(cache: Path) -> None:
    make = Maker()
    for number in (1, 2, 1, 3):  # 1 is used again before 3 comes
        kept("kind", {"n": number}, make, most=2)
        for seal in cache.glob("kind/*/seal.json"):  # as if a second had passed
            used = seal.stat().st_mtime_ns - 10**9
            os.utime(seal, ns=(used, used))
    assert make.made == 3
    kept("kind", {"n": 1}, make, most=2)
    assert make.made == 3
    kept("kind", {"n": 2}, make, most=2)
    assert make.made == 4
    assert len(list((cache / "kind").iterdir())) == 2


@pytest.mark.parametrize("name", ["a", "seal.json"])
def test_a_damaged_or_half_deleted_entry_is_made_anew(cache: Path, name: str) -> None:
    make = Maker()
    folder = kept("kind", {}, make)
    for damage in (lambda path: path.write_text("{", encoding="utf-8"), Path.unlink):
        damage(folder / name)
        assert kept("kind", {}, make) == folder
        assert (folder / "a").read_text(encoding="utf-8") == "one"
    assert make.made == 3


def test_an_interrupted_maker_leaves_nothing(cache: Path) -> None:
    def interrupted(folder: Path) -> None:
        (folder / "a").write_text("half", encoding="utf-8")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept("kind", {}, interrupted)
    assert list((cache / "kind").iterdir()) == []


def test_of_two_that_make_the_same_entry_the_first_stays(cache: Path) -> None:
    first = Maker()

    def slow(folder: Path) -> None:
        kept("kind", {}, first)  # another process was quicker
        Maker()(folder)

    folder = kept("kind", {}, slow)
    assert (folder / "b").read_text(encoding="utf-8") == "two"
    assert [path.name for path in (cache / "kind").iterdir()] == [folder.name]


def test_a_cache_that_cannot_be_written_costs_time_and_says_so(cache: Path) -> None:
    cache.write_text("a file is in the way", encoding="utf-8")
    with pytest.warns(UserWarning, match=r"cannot be written .* ISOTROPE_CACHE"):
        folder = kept("kind", {}, Maker())
    assert (folder / "a").read_text(encoding="utf-8") == "one"


def test_the_cache_lies_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ISOTROPE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "isotrope"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "isotrope"


def test_a_kept_tokenizer_is_the_one_it_was_made_from(cache: Path, tiny_model: Callable[[str], Path]) -> None:
    """Loaded by transformers, then read back without it."""
    texts = ["the [MASK] of", "", "Whale songs", "deep " * 90]
    for architecture in ("bert", "roberta", "t5", "mpnet"):
        config = EncoderConfig(model=str(tiny_model(architecture)), max_length=32, precision="float32")
        want = load_encoder(config, RunOptions(backend="torch")).tokenize(texts, "query")
        for _ in range(2):
            found = load_encoder(config, RunOptions(backend="openvino")).tokenize(texts, "query")
            assert found.ids.tolist() == want.ids.tolist()
            assert found.lengths.tolist() == want.lengths.tolist()
    assert len(os.listdir(cache / "tokenizers")) == 4
