"""A limited number of index files stays open; closed files are opened and checked again."""

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer import BuildConfig, Document, build_index
from indexer.errors import CorruptIndexError, StoreError
from indexer.recipe.config import EncoderConfig, WhiteningConfig
from indexer.store import open_files
from indexer.store.embeddings import EmbeddingReader
from indexer.store.files import BLOCK, FileDigest, atomic_write_bytes
from indexer.store.integrity import CheckedFile
from indexer.store.manifest import load_manifest
from indexer.store.open_files import OpenFile, map_file


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one file stays open."""
    monkeypatch.setattr(open_files, "_MOST", 1)
    monkeypatch.setattr(open_files, "_FEWEST", 1)


def write(path: Path, seed: int) -> tuple[bytes, FileDigest]:
    data = np.random.default_rng(seed).bytes(2 * BLOCK + 5)
    return data, atomic_write_bytes(path, data)


@pytest.mark.usefixtures("few")
def test_files_that_take_turns_are_read_as_if_all_stayed_open(tmp_path: Path) -> None:
    written = [write(tmp_path / str(number), number) for number in range(3)]
    opened = [CheckedFile(tmp_path / str(number), digest) for number, (_, digest) in enumerate(written)]
    pieces: list[list[bytes]] = [[], [], []]
    for _ in range(3):
        for file, found in zip(opened, pieces, strict=True):
            found.append(file.read(BLOCK))
            assert len([one for one in opened if one._file._descriptor >= 0]) == 1
    assert [b"".join(found) for found in pieces] == [data for data, _ in written]
    assert [file.versions for file in opened] == [1, 1, 1]  # nothing was hashed twice
    for file in opened:
        file.close()


@pytest.mark.usefixtures("few")
def test_a_file_that_was_replaced_while_it_was_closed_is_compared_again(tmp_path: Path) -> None:
    data, digest = write(tmp_path / "a", 0)
    with CheckedFile(tmp_path / "a", digest) as file, CheckedFile(tmp_path / "a", digest) as other:
        assert file.read() == data
        other.read(1)  # closes the first
        shutil.copy(tmp_path / "a", tmp_path / "copy")
        (tmp_path / "copy").replace(tmp_path / "a")
        file.seek(5)
        assert (file.read(), file.versions) == (data[5:], 2)
        other.read(1)
        (tmp_path / "copy").write_bytes(bytes(len(data)))
        (tmp_path / "copy").replace(tmp_path / "a")
        file.seek(5)
        with pytest.raises(CorruptIndexError, match="checksum mismatch"):
            file.read()
        (tmp_path / "a").unlink()
        other.seek(0)
        with pytest.raises(CorruptIndexError, match="is missing"):
            other.read()


def test_a_file_that_cannot_be_looked_for_leaves_nothing_to_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example in a mirror folder of an unknown URL."""
    _, digest = write(tmp_path / "a", 0)
    unraisable = list[object]()
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)

    def refuse(_: Path) -> None:
        raise StoreError("unknown")

    monkeypatch.setattr("indexer.store.integrity.holder_of", refuse)
    with pytest.raises(StoreError, match="unknown"):
        CheckedFile(tmp_path / "a", digest)
    assert gc.collect() >= 0
    assert unraisable == []


def test_rows_are_read_from_a_map_of_the_file_that_was_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path may name another file at each opening; unchecked bytes are never returned."""
    corpus = [Document(f"d{number}", "text", vector=row) for number, row in enumerate(np.eye(4, dtype=np.float32))]
    config = BuildConfig(encoder=EncoderConfig(kind="vectors"), whitening=WhiteningConfig(strength="none"))
    build_index(corpus, tmp_path / "index", config)
    reader, rows = EmbeddingReader(tmp_path / "index", load_manifest(tmp_path / "index")), np.arange(4)
    expected = reader.rows(rows).copy()
    reader.close()

    def replaced_at_second(real: Callable[..., Any]) -> Callable[..., Any]:
        calls = count(1)

        def after_a_change(file: CheckedFile, *given: Any) -> Any:
            if next(calls) == 2:
                shutil.copy(file._path, tmp_path / "copy")
                (tmp_path / "copy").replace(file._path)
                file._file._release()
                file._checked.clear()
            return real(file, *given)

        return after_a_change

    for name in ("check", "map"):
        monkeypatch.setattr(CheckedFile, name, replaced_at_second(getattr(CheckedFile, name)))
    assert (reader.rows(rows) == expected).all()
    (part,) = reader._parts.values()
    assert (part.version, part.file.versions) == (3, 3)
    assert part.file.is_checked((np.array([part.start]), np.array([part.start + expected.nbytes])))
    reader.close()


@pytest.mark.usefixtures("few")
def test_a_file_in_use_is_not_closed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    files = [OpenFile(lambda: os.open(tmp_path / "a", os.O_RDONLY)) for _ in range(2)]
    with files[0].descriptor() as first, files[1].descriptor() as second:
        files[0].close()
        assert os.pread(first, 1, 0) == os.pread(second, 1, 0) == b"a"
    with pytest.raises(ValueError, match="after it was closed"), files[0].descriptor():
        pass
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(first)
    files[1].close()


def test_a_checked_file_that_is_dropped_is_closed(tmp_path: Path) -> None:
    file = CheckedFile(tmp_path / "a", atomic_write_bytes(tmp_path / "a", b"a"))
    assert file.read() == b"a"
    kept = file._file
    del file
    gc.collect()
    assert kept.closed


def test_a_map_needs_no_descriptor_and_goes_with_its_last_view(tmp_path: Path) -> None:
    (tmp_path / "mapped").write_bytes(b"abcd" * 5000)
    descriptor = os.open(tmp_path / "mapped", os.O_RDONLY)
    before = len(os.listdir("/dev/fd"))
    data = map_file(descriptor, 20_000)
    assert len(os.listdir("/dev/fd")) == before
    os.close(descriptor)
    view = data[4:].view("S4")
    del data
    assert set(view) == {b"abcd"}
    assert not view.flags.writeable
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert str(tmp_path / "mapped") in maps.read_text()
        del view
        assert str(tmp_path / "mapped") not in maps.read_text()


_PROGRAM = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
os.fsync = lambda descriptor: None
import numpy as np
from indexer import BuildConfig, Document, RunOptions, add_documents, build_index, refit_index
from indexer.recipe.config import EncoderConfig, WhiteningConfig
from indexer.recipe.index_config import IndexConfig, StoreConfig
from search import SearchEngine, verify_index

index, options = sys.argv[1], RunOptions(allow_low_recall=True)
rows = np.random.default_rng(0).normal(size=(501, 8)).astype(np.float32)
corpus = [Document(f"d{number}", f"text {number}", vector=row) for number, row in enumerate(rows)]
config = BuildConfig(
    encoder=EncoderConfig(kind="vectors"),
    whitening=WhiteningConfig(centre="common"),
    store=StoreConfig(part_documents=1),
    index=IndexConfig(type="IVF4,SQ8"),  # candidates are scored by the embeddings of their parts
)
build_index(corpus[:500], index, config, options)
add_documents(corpus[500:], index)
refit_index(index, ["whitening.strength=0.5"], options)
engines = [SearchEngine(index) for _ in range(4)]  # as of several generations, or indexes
for engine in engines:
    found = engine.search_vectors(rows, 1)
    assert [answer[0].text for answer in found] == [document.text for document in corpus]
assert len(os.listdir("/dev/fd")) < 100
assert verify_index(index).passed
"""


@pytest.mark.check
def test_an_index_of_more_parts_than_descriptors_lives_its_whole_life(tmp_path: Path) -> None:
    program = [sys.executable, "-c", _PROGRAM, str(tmp_path / "index")]
    found = subprocess.run(program, env=os.environ | {"PYTHONPATH": ":".join(sys.path)}, stderr=subprocess.PIPE)
    assert found.returncode == 0, found.stderr.decode()
