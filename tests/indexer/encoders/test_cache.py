"""The cache can be rebuilt: damage, deletion and a read-only disk cost time only."""

import errno
import fcntl
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from indexer.encoders.load import load_encoder, open_tokenizer
from indexer.encoders.static.tables import load_table
from indexer.errors import MachineError, ModelError
from indexer.models.model_files import file_sha256
from indexer.models.resolution import resolve_spec
from indexer.recipe.config import EncoderConfig
from indexer.recipe.run_options import RunOptions
from indexer.system import cache as cache_module
from indexer.system.cache import cache_folder, cached_folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ISOTROPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Maker:
    """Writes an entry of two files and counts the calls."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, folder: Path) -> None:
        self.made += 1
        (folder / "a").write_text("one", encoding="utf-8")
        (folder / "b").write_text("two", encoding="utf-8")


def test_an_entry_is_made_once_for_each_key(cache: Path) -> None:
    make = Maker()
    first, again, other = (cached_folder("kind", {"n": n}, make) for n in (1, 1, 2))
    assert first == again != other
    assert make.made == 2
    assert (first / "a").read_text(encoding="utf-8") == "one"
    assert first.is_relative_to(cache)


def test_of_many_entries_those_used_last_are_kept(cache: Path) -> None:
    make = Maker()
    for number in (1, 2, 1, 3):  # 1 is used again before 3
        cached_folder("kind", {"n": number}, make, most=2)
        for seal in cache.glob("kind/*/seal.json"):  # as if a second had passed
            used = seal.stat().st_mtime_ns - 10**9
            os.utime(seal, ns=(used, used))
    assert make.made == 3
    cached_folder("kind", {"n": 1}, make, most=2)
    assert make.made == 3
    cached_folder("kind", {"n": 2}, make, most=2)
    assert make.made == 4
    assert len(list((cache / "kind").iterdir())) == 2


@pytest.mark.parametrize("name", ["a", "seal.json"])
def test_a_damaged_or_half_deleted_entry_is_made_anew(cache: Path, name: str) -> None:
    make = Maker()
    folder = cached_folder("kind", {}, make)
    for damage in (lambda path: path.write_text("{", encoding="utf-8"), Path.unlink):
        damage(folder / name)
        assert cached_folder("kind", {}, make) == folder
        assert (folder / "a").read_text(encoding="utf-8") == "one"
    assert make.made == 3


@pytest.mark.parametrize("in_the_way", ["file", "link"])
def test_what_is_no_entry_gives_way_and_a_link_is_not_followed(cache: Path, tmp_path: Path, in_the_way: str) -> None:
    make, folder = Maker(), cached_folder("kind", {}, Maker())
    other = tmp_path / "other"
    folder.rename(other)
    (other / "a").write_text("of somebody else", encoding="utf-8")
    if in_the_way == "file":
        folder.write_text("a file", encoding="utf-8")
    else:
        folder.symlink_to(other)
    assert cached_folder("kind", {}, make) == folder
    assert (folder / "a").read_text(encoding="utf-8") == "one"
    assert (other / "a").read_text(encoding="utf-8") == "of somebody else"


@pytest.mark.parametrize("seal", ["[]", '{"a": 1}', "[" * 100_000, '{"../../a": "0"}', '{"a": null}'])
def test_a_seal_that_is_none_makes_the_entry_anew(cache: Path, seal: str) -> None:
    make = Maker()
    folder = cached_folder("kind", {}, make)
    (folder / "seal.json").write_text(seal, encoding="utf-8")
    assert cached_folder("kind", {}, make) == folder
    assert make.made == 2


def test_a_pipe_in_an_entry_makes_it_anew(cache: Path) -> None:
    make = Maker()
    for name in ("a", "seal.json"):
        folder = cached_folder("kind", {}, make)
        (folder / name).unlink()
        os.mkfifo(folder / name)
    cached_folder("kind", {}, make)
    assert make.made == 3


def resealed(folder: Path, name: str, text: str) -> None:
    """Change a file of an entry and update the seal."""
    (folder / name).write_text(text, encoding="utf-8")
    seal = {file.name: file_sha256(file) for file in folder.iterdir() if file.name != "seal.json"}
    (folder / "seal.json").write_text(json.dumps(seal), encoding="utf-8")


@pytest.mark.parametrize("text", ["{}", "[]", '{"facts": {}, "tokenizer": 1}', "[" * 100_000, "\x00"])
def test_a_resealed_tokenizer_that_is_none_is_an_error(
    cache: Path, tiny_model: Callable[[str], Path], text: str
) -> None:
    config = EncoderConfig(model=str(tiny_model("bert")), max_length=32, precision="float32")
    load_encoder(config, RunOptions(backend="numpy"))
    resealed(next((cache / "tokenizers").iterdir()), "tokenizer.json", text)
    with pytest.raises(ModelError, match="damaged cache entry"):
        load_encoder(config, RunOptions(backend="numpy"))


@pytest.mark.parametrize(
    "changes", [{"shape": [10**9, 300]}, {"shape": [-2, -2]}, {"shape": "x"}, {"unknown": 10**30}, {"notes": [1]}]
)
def test_resealed_facts_of_a_table_that_lie_are_an_error(cache: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    (tmp_path / "words.txt").write_text("cat 1 2\ndog 3 4\n", encoding="utf-8")
    load_table(tmp_path / "words.txt")
    folder = next((cache / "tables").iterdir())
    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    resealed(folder, "facts.json", json.dumps(facts | changes))
    with pytest.raises(ModelError, match=r"(?i)delete (that|the) folder"):
        load_table(tmp_path / "words.txt")


def test_an_interrupted_maker_leaves_nothing(cache: Path) -> None:
    def interrupted(folder: Path) -> None:
        (folder / "a").write_text("half", encoding="utf-8")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_folder("kind", {}, interrupted)
    assert list((cache / "kind").iterdir()) == []


def test_of_two_that_make_the_same_entry_the_first_stays(cache: Path) -> None:
    first = Maker()

    def slow(folder: Path) -> None:
        cached_folder("kind", {}, first)  # another process was faster
        Maker()(folder)

    folder = cached_folder("kind", {}, slow)
    assert (folder / "b").read_text(encoding="utf-8") == "two"
    assert [path.name for path in (cache / "kind").iterdir()] == [folder.name]


def test_an_entry_that_comes_while_its_place_is_cleared_is_taken(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads write the same entry: the second finishes after the first has found none and before it clears it."""
    place = cached_folder("kind", {}, Maker())
    entry = place.rename(place.with_name("elsewhere"))
    seen, is_dir = list[Path](), Path.is_dir

    def late(path: Path, **named: Any) -> bool:
        there = is_dir(path, **named)
        if path == place and not there and not seen:
            seen.append(entry.rename(place))
        return there

    monkeypatch.setattr(Path, "is_dir", late)
    assert cached_folder("kind", {}, Maker()) == place
    assert seen == [place]
    assert (place / "b").read_text(encoding="utf-8") == "two"


def test_an_entry_that_another_has_just_published_is_not_removed_as_damaged(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = cached_folder("kind", {}, Maker())
    (place / "a").write_text("damaged", encoding="utf-8")
    waits, published, clear = threading.Event(), threading.Event(), cache_module._remove

    def lock(*given: int) -> None:
        if threading.current_thread() is other:
            waits.set()
        fcntl.flock(*given)

    def publish() -> None:
        cached_folder("kind", {}, Maker())
        published.set()
        waits.set()

    def remove(path: Path) -> None:
        if threading.current_thread() is not other:  # the first has found damage; the other publishes now
            other.start()
            assert waits.wait(60)
            assert not published.is_set()
        clear(path)

    other = threading.Thread(target=publish, daemon=True)
    monkeypatch.setattr(cache_module, "fcntl", SimpleNamespace(flock=lock, LOCK_EX=fcntl.LOCK_EX), raising=False)
    monkeypatch.setattr(cache_module, "_remove", remove)
    assert cached_folder("kind", {}, Maker()) == place
    other.join(60)
    assert published.is_set()
    assert (place / "a").read_text(encoding="utf-8") == "one"


def test_a_cache_that_cannot_be_written_costs_time_and_says_so(cache: Path) -> None:
    cache.write_text("a file is in the way", encoding="utf-8")
    with pytest.warns(UserWarning, match=r"cannot be written .* ISOTROPE_CACHE"):
        folder = cached_folder("kind", {}, Maker())
    assert (folder / "a").read_text(encoding="utf-8") == "one"
    assert cached_folder("kind", {}, Maker()) == folder, "one temporary folder a process, however often it is asked for"


@pytest.mark.filterwarnings("ignore:the cache .* cannot be written \\(No space left")
def test_a_cache_whose_disk_is_full_is_done_without(cache: Path) -> None:
    all_disks_are_full = True

    def make(folder: Path) -> None:
        if folder.is_relative_to(cache) or all_disks_are_full:
            (folder / "a").write_text("half of it", encoding="utf-8")
            raise OSError(errno.ENOSPC, "No space left on device")
        Maker()(folder)

    with pytest.raises(MachineError, match="has room for a new entry"):
        cached_folder("kind", {"full": 1}, make)
    all_disks_are_full = False
    assert (cached_folder("kind", {"full": 1}, make) / "a").read_text(encoding="utf-8") == "one"
    assert list((cache / "kind").iterdir()) == []  # an unfinished entry leaves no files


def test_the_cache_lies_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ISOTROPE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "isotrope"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "isotrope"


def test_a_kept_tokenizer_is_the_one_it_was_made_from(cache: Path, tiny_model: Callable[[str], Path]) -> None:
    """A tokenizer loaded by transformers is read back without transformers."""
    texts = ["the [MASK] of", "", "Whale songs", "deep " * 90]
    for architecture in ("bert", "roberta", "t5", "mpnet"):
        config = EncoderConfig(model=str(tiny_model(architecture)), max_length=32, precision="float32")
        want = load_encoder(config, RunOptions(backend="torch")).tokenize(texts, "query")
        for _ in range(2):
            found = open_tokenizer(resolve_spec(config))(texts)
            assert found.ids.tolist() == want.ids.tolist()
            assert found.lengths.tolist() == want.lengths.tolist()
    assert len(os.listdir(cache / "tokenizers")) == 4
