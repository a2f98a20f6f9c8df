"""Checked reading: no byte of a published file is used before the hash of its block is checked."""

import os
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.errors import CorruptIndexError, StoreError
from indexer.store import files, integrity
from indexer.store.files import BLOCK, FileDigest, atomic_write_bytes
from indexer.store.integrity import CheckedFile, read_checked
from indexer.store.local_store import check_size
from tests.indexer.store.test_files import SMALL_BLOCK, small_blocks

STEPS = st.lists(
    st.tuples(st.just("read"), st.integers(-1, 80), st.just(0))
    | st.tuples(st.just("seek"), st.integers(0, 120), st.just(0))
    | st.tuples(st.just("seek"), st.integers(0, 20), st.just(1))
    | st.tuples(st.just("seek"), st.integers(-100, 5), st.just(2)),
    max_size=12,
)


@given(st.binary(max_size=100), STEPS)
def test_seeks_and_reads_are_those_of_a_plain_file(data: bytes, steps: list[tuple[str, int, int]]) -> None:
    with small_blocks(), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        digest = atomic_write_bytes(path, data)
        with CheckedFile(path, digest) as file, path.open("rb") as plain:
            assert file.size() == len(data)
            for what, number, whence in steps:
                if what == "read":
                    assert file.read(number) == plain.read(number)
                else:
                    start = (0, plain.tell(), len(data))[whence]
                    assert file.seek(number, whence) == plain.seek(max(0, start + number))
                assert file.tell() == plain.tell()


def test_a_checked_file_says_what_it_can_do(tmp_path: Path) -> None:
    with CheckedFile(tmp_path / "a", atomic_write_bytes(tmp_path / "a", b"x")) as file:
        assert (file.readable(), file.seekable(), file.writable(), file.closed) == (True, True, False, False)
        file.flush()
    assert file.closed


@settings(max_examples=50)
@given(st.binary(min_size=SMALL_BLOCK + 1, max_size=5 * SMALL_BLOCK), st.data())
def test_a_flipped_bit_is_noticed_when_its_block_is_read_and_not_before(data: bytes, draw: st.DataObject) -> None:
    bit = draw.draw(st.integers(0, 8 * len(data) - 1))
    bad = bit // 8 // SMALL_BLOCK
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    with small_blocks(), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        digest = atomic_write_bytes(path, data)
        path.write_bytes(flipped)
        with CheckedFile(path, digest) as file:
            for block in range(-(-len(data) // SMALL_BLOCK)):
                file.seek(block * SMALL_BLOCK)
                if block == bad:
                    for _ in range(2):  # also rejected the second time
                        with pytest.raises(CorruptIndexError, match="checksum mismatch"):
                            file.read(1)
                else:
                    assert file.read(SMALL_BLOCK) == data[block * SMALL_BLOCK : (block + 1) * SMALL_BLOCK]
        with pytest.raises(CorruptIndexError, match="checksum mismatch"):
            read_checked(path, digest)


@pytest.mark.parametrize("flipped", [0, 1, 2, 3])
def test_ranges_of_a_mapped_file_are_checked_in_every_block_that_they_touch(flipped: int, tmp_path: Path) -> None:
    data = bytearray(os.urandom(3 * BLOCK + 100))
    digest = atomic_write_bytes(tmp_path / "a", bytes(data))
    data[min(flipped * BLOCK + 77, len(data) - 1)] ^= 1
    (tmp_path / "a").write_bytes(data)
    cases: list[tuple[list[tuple[int, int]], set[int]]] = [
        ([(0, BLOCK)], {0}),
        ([(BLOCK - 1, BLOCK + 1)], {0, 1}),
        ([(5, 2 * BLOCK + 1)], {0, 1, 2}),
        ([(2 * BLOCK, 3 * BLOCK), (7, 9)], {0, 2}),
        ([(BLOCK, 2 * BLOCK), (3 * BLOCK, 3 * BLOCK + 100)], {1, 3}),
        ([], set()),
    ]
    for ranges, touched in cases:
        starts, ends = np.array(ranges, np.int64).reshape(-1, 2).T
        with CheckedFile(tmp_path / "a", digest) as file:
            if flipped in touched:
                with pytest.raises(CorruptIndexError, match="checksum mismatch"):
                    file.check((starts, ends))
            else:
                file.check((starts, ends))


def test_a_check_behind_ones_back_is_waited_for_only_where_one_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest, go_on = atomic_write_bytes(tmp_path / "a", b"some"), threading.Event()
    (tmp_path / "a").write_bytes(b"same")

    def slow(path: Path) -> str:
        assert go_on.wait(60)
        return files.hash_file(path)

    monkeypatch.setattr(integrity, "hash_file", slow)
    check = integrity.BackgroundCheck(tmp_path / "a", digest)
    check.require_sound()  # nothing is checked yet
    go_on.set()
    for wait in (True, False):
        with pytest.raises(CorruptIndexError, match="checksum mismatch"):
            check.require_sound(wait=wait)
    (tmp_path / "a").write_bytes(b"some")
    integrity.BackgroundCheck(tmp_path / "a", digest).require_sound(wait=True)
    (tmp_path / "a").unlink()
    with pytest.raises(StoreError, match="a: "):
        integrity.BackgroundCheck(tmp_path / "a", digest).require_sound(wait=True)


def test_every_flipped_bit_of_a_file_of_one_block_is_noticed_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a"
    digest = atomic_write_bytes(path, b"hello")
    for bit in range(8 * 5):
        flipped = bytearray(b"hello")
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(CorruptIndexError, match=f"{path}: its bytes differ from the published ones"):
            CheckedFile(path, digest)


@pytest.mark.parametrize("data", [b"hell", b"hello!", b""])
def test_another_size_is_refused_before_anything_is_read(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a"
    digest = atomic_write_bytes(path, b"hello")
    path.write_bytes(data)
    for opening in (CheckedFile, read_checked, check_size):
        with pytest.raises(CorruptIndexError, match=f"{path}: {len(data)} bytes, the manifest says 5"):
            opening(path, digest)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    for opening in (CheckedFile, read_checked, check_size):
        with pytest.raises(CorruptIndexError, match="absent: the manifest lists this file, but it is missing"):
            opening(tmp_path / "absent", FileDigest(5, ""))


def test_a_file_where_a_folder_should_be_is_refused_by_name(tmp_path: Path) -> None:
    atomic_write_bytes(tmp_path / "parts", b"")
    with pytest.raises(StoreError, match="parts/a"):
        check_size(tmp_path / "parts" / "a", FileDigest(5, ""))
