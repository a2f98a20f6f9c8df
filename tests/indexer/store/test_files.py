"""Atomic writes, digests and the writer's lock."""

import errno
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.errors import CorruptIndexError, LockedError, StoreError
from indexer.store import files, integrity, layout
from indexer.store.files import (
    DigestBuilder,
    FileDigest,
    atomic_write,
    atomic_write_bytes,
    create_exclusive,
    digest_file,
    make_folder,
    remove_file,
    remove_folder,
    writer_lock,
)
from indexer.store.integrity import CheckedFile, read_checked
from tests.faults import FaultyOs

ROOT = Path(__file__).parents[3]
SMALL_BLOCK = 16


@contextmanager
def small_blocks() -> Iterator[None]:
    """Blocks of 16 bytes in place of a MiB."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "BLOCK", SMALL_BLOCK)
        patch.setattr(integrity, "BLOCK", SMALL_BLOCK)
        yield


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


class Lying:
    """An `os` whose writes report success and store other bytes, like a failing disk."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, descriptor: int, data: memoryview) -> int:
        return os.write(descriptor, bytes([data[0] ^ 1, *data[1:]]))


class OneByteAtATime:
    """An `os` whose writes write one byte each, as the system call may."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, descriptor: int, data: memoryview) -> int:
        return os.write(descriptor, data[:1])


class WithoutLinks:
    """An `os` on a file system without hard links."""

    def __init__(self, error: int) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def link(self, *_: object) -> None:
        raise OSError(self._error, os.strerror(self._error))


# --- writing


def test_a_file_is_there_only_after_the_block_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with atomic_write(path) as file:
        assert file.write(b"hello ") == 6
        assert file.write(memoryview(b"world")) == 5
        assert not path.exists()
    assert path.read_bytes() == b"hello world"
    assert file.digest == digest_file(path) == FileDigest(11, hashlib.sha256(b"hello world").hexdigest())
    assert names(tmp_path) == ["a"]


def fail_within(path: Path, error: BaseException) -> None:
    with atomic_write(path) as file:
        file.write(b"new")
        raise error


def test_an_error_within_the_block_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a"
    atomic_write_bytes(path, b"old")
    for error in (ValueError("mine"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            fail_within(path, error)
        assert path.read_bytes() == b"old"
        assert names(tmp_path) == ["a"]


def test_a_file_is_replaced_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a"
    atomic_write_bytes(path, b"old and longer")
    assert atomic_write_bytes(path, b"new").bytes == 3
    assert path.read_bytes() == b"new"


def test_an_empty_file_is_written_and_read(tmp_path: Path) -> None:
    digest = atomic_write_bytes(tmp_path / "a", b"")
    assert digest == FileDigest(0, hashlib.sha256().hexdigest()) == digest_file(tmp_path / "a")
    with CheckedFile(tmp_path / "a", digest) as file:
        assert file.read() == b""
        assert file.read(5) == b""


def test_writes_that_take_only_some_bytes_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "os", OneByteAtATime())
    atomic_write_bytes(tmp_path / "a", b"hello world")
    assert (tmp_path / "a").read_bytes() == b"hello world"


def test_a_file_that_reads_back_differently_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "os", Lying())
    with pytest.raises(StoreError, match=r"a: cannot be written: what was read back differs"):
        atomic_write_bytes(tmp_path / "a", b"hello")
    assert names(tmp_path) == []


def test_a_full_disk_is_named_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"a: the disk is full\. Fix: free some space"), atomic_write(tmp_path / "a"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert names(tmp_path) == []


def test_an_error_without_a_number_keeps_its_words(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="the words of a library"), atomic_write(tmp_path / "a"):
        raise OSError("the words of a library")


def test_a_folder_that_is_not_there_is_an_error_naming_the_file(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="absent/a: cannot be written"):
        atomic_write_bytes(tmp_path / "absent" / "a", b"x")
    with pytest.raises(StoreError, match="absent: cannot be removed"):
        remove_file(tmp_path, "absent")


def test_folders_are_made_with_their_parents(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b" / "c")
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b" / "c").is_dir()
    atomic_write_bytes(tmp_path / "file", b"")
    with pytest.raises(StoreError, match="file: cannot be written: File exists"):
        make_folder(tmp_path / "file" / "folder")


def test_a_folder_that_another_process_makes_a_moment_earlier_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(FaultyOs):
        def mkdir(self, path: Path) -> None:
            os.mkdir(path)
            os.mkdir(path)

    monkeypatch.setattr(files, "os", Late())
    make_folder(tmp_path / "parts" / "00000")
    atomic_write_bytes(tmp_path / "parts" / "00000" / "a", b"x")
    assert names(tmp_path / "parts") == ["00000"]


def test_a_folder_loses_its_mark_of_completeness_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Watching(FaultyOs):
        def unlink(self, name: str, **named: Any) -> None:
            removed.append(name)
            os.unlink(name, **named)

    removed: list[str] = []
    monkeypatch.setattr(files, "os", Watching())
    folder = tmp_path / "parts" / "00000"
    make_folder(folder)
    for name in (layout.DOCUMENTS, layout.PART, layout.EMBEDDINGS):
        atomic_write_bytes(folder / name, b"x")
    remove_folder(tmp_path, "parts/00000")
    assert removed == [layout.PART, layout.DOCUMENTS, layout.EMBEDDINGS]
    assert names(tmp_path / "parts") == []


def test_a_folder_is_removed_although_a_worker_that_ends_finishes_a_file_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Racing(FaultyOs):
        def rmdir(self, name: str, **named: Any) -> None:
            if late:
                (tmp_path / "parts" / "00000" / late.pop()).write_bytes(b"x")
            os.rmdir(name, **named)

        def lstat(self, name: str, **named: Any) -> os.stat_result:
            if name.endswith(layout.TEMPORARY):  # renamed after it was listed
                (tmp_path / "parts" / "00000" / name).rename(tmp_path / "parts" / "00000" / layout.DOCUMENTS)
            return os.lstat(name, **named)

    late = [layout.PART, f"{layout.DOCUMENTS}{layout.TEMPORARY}"]
    make_folder(tmp_path / "parts" / "00000")
    monkeypatch.setattr(files, "os", Racing())
    remove_folder(tmp_path, "parts/00000")
    assert names(tmp_path / "parts") == late == []


def test_what_lies_under_the_temporary_name_is_never_written_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link, or another name of the user's file, in an index packed elsewhere."""
    theirs = tmp_path / "theirs"
    theirs.write_text("keep")
    temporary = tmp_path / f"a.0{layout.TEMPORARY}"
    monkeypatch.setattr(files, "_temporary", lambda path: temporary)
    for plant in (temporary.symlink_to, temporary.hardlink_to):
        plant(theirs)
        atomic_write_bytes(tmp_path / "a", b"ours")
        assert (theirs.read_text(), (tmp_path / "a").read_bytes()) == ("keep", b"ours")
    assert names(tmp_path) == ["a", "theirs"]


def test_removal_follows_no_link_and_takes_no_folder_of_others(tmp_path: Path) -> None:
    index, theirs = tmp_path / "index", tmp_path / "theirs"
    for folder in (theirs / "inside", index / "parts" / "00002" / "folder"):
        folder.mkdir(parents=True)
    (theirs / "kept.npy").write_text("keep")
    (index / "parts" / "00001").symlink_to(theirs)
    (index / "deleted").symlink_to(theirs)
    with pytest.raises(StoreError, match=r"parts/00001: is a link"):
        remove_folder(index, "parts/00001")
    with pytest.raises(StoreError, match=r"deleted: is a link"):
        remove_file(index, "deleted/kept.npy")
    with pytest.raises(StoreError, match=r"parts/00002/folder: is a folder"):
        remove_folder(index, "parts/00002")
    assert names(theirs) == ["inside", "kept.npy"]
    remove_file(index, "deleted")  # removes the link, not its target
    assert names(theirs) == ["inside", "kept.npy"]


# --- creating exclusively


def test_a_name_that_exists_is_not_created_again(tmp_path: Path) -> None:
    path = tmp_path / "a"
    create_exclusive(path, b"first")
    with pytest.raises(StoreError, match="a: cannot be written: File exists"):
        create_exclusive(path, b"second")
    assert path.read_bytes() == b"first"
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("error", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK])
def test_a_file_system_without_hard_links_will_do(error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "os", WithoutLinks(error))
    test_a_name_that_exists_is_not_created_again(tmp_path)


def test_any_other_failure_of_the_link_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "os", WithoutLinks(errno.EIO))
    with pytest.raises(StoreError, match=f"a: cannot be written: {os.strerror(errno.EIO)}"):
        create_exclusive(tmp_path / "a", b"x")
    assert names(tmp_path) == []


# --- digests


@given(st.lists(st.binary(max_size=3 * SMALL_BLOCK), max_size=8))
def test_any_chunking_of_the_bytes_gives_the_same_digest(chunks: list[bytes]) -> None:
    data = b"".join(chunks)
    with small_blocks(), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        path.write_bytes(data)
        builder = DigestBuilder()
        for chunk in chunks:
            builder.update(chunk)
        blocks = [data[start : start + SMALL_BLOCK] for start in range(0, len(data), SMALL_BLOCK)]
        digests = [hashlib.blake2b(block, digest_size=8).hexdigest() for block in blocks]
        expected = FileDigest(len(data), hashlib.sha256(data).hexdigest(), "".join(digests) if len(data) > 16 else "")
        assert builder.digest() == digest_file(path) == expected
        for number, block in enumerate(blocks):
            assert expected.is_block(block, number)
            assert not expected.is_block(block + b"x", number)


@pytest.mark.parametrize("size", [files.BLOCK - 1, files.BLOCK, files.BLOCK + 1, 2 * files.BLOCK, 9 * files.BLOCK + 7])
def test_blocks_are_a_mib_and_one_alone_has_no_digest(size: int, tmp_path: Path) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    digest = atomic_write_bytes(tmp_path / "a", bytes(data))
    count = -(-size // (1 << 20))
    assert len(digest.blocks) == (16 * count if count > 1 else 0)
    assert digest == digest_file(tmp_path / "a")
    assert read_checked(tmp_path / "a", digest) == data


def test_a_digest_comes_back_from_json() -> None:
    for digest in (FileDigest(1, "a"), FileDigest(1 << 21, "a", "bc")):
        assert FileDigest(**msgspec.to_builtins(digest)) == digest
    assert "blocks" not in msgspec.to_builtins(FileDigest(1, "a"))


def test_a_file_to_be_hashed_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(CorruptIndexError, match="absent: the manifest lists this file, but it is missing"):
        digest_file(tmp_path / "absent")
    with pytest.raises(StoreError, match="cannot be read"):
        digest_file(tmp_path)


# --- the lock

HOLDER = """
import sys
from pathlib import Path
from indexer.store.files import writer_lock
with writer_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(index: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until its input ends."""
    command = [sys.executable, "-c", HOLDER, str(index)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_second_process_is_refused_at_once(tmp_path: Path) -> None:
    refused = pytest.raises(LockedError, match=f"{tmp_path}: another process is writing")
    with holder(tmp_path), refused, writer_lock(tmp_path):
        pass


def test_the_lock_is_free_again_when_its_holder_is_killed(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        process.kill()
        process.wait()
        with writer_lock(tmp_path):
            pass


def test_the_lock_is_freed_at_the_end_and_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mine"), writer_lock(tmp_path):
        raise ValueError("mine")
    for _ in range(2):
        with writer_lock(tmp_path), pytest.raises(LockedError), writer_lock(tmp_path):
            pass


def test_a_folder_that_is_not_there_cannot_be_locked(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="absent/lock: cannot be opened for writing"), writer_lock(tmp_path / "absent"):
        pass


def test_a_write_after_the_end_is_refused_and_reaches_no_other_file(tmp_path: Path) -> None:
    """A failed library may write during garbage collection, when the descriptor may belong to another file."""
    with atomic_write(tmp_path / "one") as late:
        late.write(b"one")
    with atomic_write(tmp_path / "two") as file:
        with pytest.raises(ValueError, match="closed"):
            late.write(b"stray")
        file.write(b"two")
    assert (tmp_path / "two").read_bytes() == b"two"
