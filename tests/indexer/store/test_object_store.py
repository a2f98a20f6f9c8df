"""Files of an index in object storage: fetched in blocks, cached by hash, shared, limited and always checked."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from indexer.errors import ConfigError, CorruptIndexError
from indexer.recipe.loading import named_path
from indexer.store.bucket import open_bucket
from indexer.store.files import BLOCK, DigestBuilder, FileDigest
from indexer.store.integrity import CheckedFile, check_file, read_checked
from indexer.store.object_store import ObjectStore
from indexer.store.stores import open_stored, store_of
from indexer.system.blob_cache import LIMIT, blob_cache
from tests.object_storage import Storage, forget, use_cache

DATA = np.random.default_rng(0).bytes(20 * BLOCK + 12345)
_READ = """
import sys
from pathlib import Path
from indexer.recipe.loading import named_path
from indexer.store.files import FileDigest
from indexer.store.integrity import CheckedFile
path = named_path(sys.argv[1], "the index") / "file"
with CheckedFile(path, FileDigest(int(sys.argv[2]), sys.argv[3], sys.argv[4])) as file:
    print(len(file.read()))
"""


def digest_of(data: bytes) -> FileDigest:
    builder = DigestBuilder()
    builder.update(data)
    return builder.digest()


@pytest.fixture
def url(storage: Storage) -> str:
    url = f"{storage.bucket()}/index"
    open_bucket(url).put("file", DATA)
    open_bucket(url).put("small", b"a few bytes")
    return url


@pytest.fixture
def path(url: str) -> Path:
    """The path of the file on this machine."""
    return named_path(url, "the index") / "file"


def object_store(path: Path) -> ObjectStore:
    store, _ = store_of(path)
    assert isinstance(store, ObjectStore)
    return store


def test_only_the_blocks_that_are_read_are_fetched_and_only_once(path: Path, storage: Storage) -> None:
    digest = digest_of(DATA)
    for _ in range(2):
        with CheckedFile(path, digest) as file:
            file.seek(5 * BLOCK - 10)
            assert file.read(20) == DATA[5 * BLOCK - 10 : 5 * BLOCK + 10]
            file.seek(-5, 2)
            assert file.read() == DATA[-5:]
        assert storage.bytes_of("/file") == 2 * BLOCK + 12345
        forget()  # the next process finds them in the cache


def test_a_file_is_fetched_in_few_requests_and_takes_no_more_room_than_was_fetched(
    path: Path, storage: Storage
) -> None:
    digest = digest_of(DATA)
    with CheckedFile(path, digest) as file:
        file.check((np.array([0]), np.array([1])))
    blob = blob_cache().path(digest.sha256, digest.bytes)
    assert blob.stat().st_size == len(DATA)
    assert 512 * blob.stat().st_blocks < 3 * BLOCK
    storage.requests.clear()
    os.close(object_store(path).open_whole("file", digest))
    assert len(storage.requests) == 3  # twenty blocks, eight at a time
    assert storage.bytes_of("/file") == len(DATA)
    assert blob.read_bytes() == DATA


def test_damage_of_the_cache_heals(path: Path) -> None:
    digest = digest_of(DATA)
    check_file(path, digest)
    blob = blob_cache().path(digest.sha256, digest.bytes)
    with blob.open("r+b") as file:
        file.seek(3 * BLOCK + 7)
        file.write(b"damage")
    forget()
    with CheckedFile(path, digest) as checked:
        assert checked.read() == DATA
    assert blob.read_bytes() == DATA


def test_damage_of_the_store_is_named_by_its_url(path: Path, url: str, storage: Storage) -> None:
    digest = digest_of(DATA)
    store = open_bucket(url)
    store.put("file", DATA[:100] + b"x" + DATA[101:])
    with CheckedFile(path, digest) as file:
        file.seek(BLOCK)
        assert file.read(3) == DATA[BLOCK : BLOCK + 3]  # what is not damaged is read
        file.seek(0)
        with pytest.raises(CorruptIndexError, match=f"^{url}/file: its bytes differ"):
            file.read(10)
    store.put("file", DATA[:-5])
    with pytest.raises(CorruptIndexError, match=f"^{url}/file: its bytes"):
        check_file(path, digest)
    store.remove(["file"])
    with pytest.raises(CorruptIndexError, match=f"^{url}/file: the manifest lists this file, but it is missing"):
        check_file(path, digest)


def test_sizes_are_compared_by_one_listing(path: Path, url: str, storage: Storage) -> None:
    store = object_store(path)
    right = {"file": digest_of(DATA), "small": digest_of(b"a few bytes")}
    storage.requests.clear()
    store.check_sizes(right)
    assert len(storage.requests) == 1
    with pytest.raises(CorruptIndexError, match=f"^{url}/small: 11 bytes, the manifest says 10"):
        store.check_sizes({"small": digest_of(b"ten bytes.")})
    with pytest.raises(CorruptIndexError, match=f"^{url}/gone: the manifest lists this file"):
        store.check_sizes({"gone": digest_of(b"")})


def test_a_file_of_one_block_is_checked_by_its_sha256(path: Path, url: str) -> None:
    small, digest = path.with_name("small"), digest_of(b"a few bytes")
    assert read_checked(small, digest) == b"a few bytes"
    object_store(small).know({"small": digest})
    with open_stored(small) as file:
        assert file.read() == b"a few bytes"
    with pytest.raises(CorruptIndexError, match=f"^{url}/small: its bytes"):
        read_checked(small, digest_of(b"other bytes"))


def test_what_nothing_describes_is_not_opened(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_stored(path.parent / "parts" / "00000" / "embeddings.npy")


def test_the_cache_is_bounded_and_keeps_what_is_open(
    path: Path, url: str, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LIMIT, str(10 * BLOCK))
    contents = [bytes([number + 1]) * (4 * BLOCK) for number in range(5)]
    digests = [digest_of(content) for content in contents]
    for number, content in enumerate(contents):
        open_bucket(url).put(f"f{number}", content)
    with CheckedFile(path.with_name("f0"), digests[0]) as held:
        held.read()
        for number in range(1, 5):
            check_file(path.with_name(f"f{number}"), digests[number])
        blob_cache().make_room()
        kept = [blob_cache().path(digest.sha256, digest.bytes).exists() for digest in digests]
        assert kept == [True, False, False, False, True]
        storage.served.clear()
        held.seek(0)
        assert held.read() == contents[0]
        assert not storage.served


def test_a_blob_that_was_removed_is_not_taken_for_whole(path: Path) -> None:
    digest = digest_of(DATA)
    check_file(path, digest)
    blob_cache().path(digest.sha256, digest.bytes).unlink()
    check_file(path, digest)
    assert blob_cache().path(digest.sha256, digest.bytes).read_bytes() == DATA


def test_a_limit_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT, "20G")
    with pytest.raises(ConfigError, match=f"{LIMIT} is '20G'; expected a whole number of bytes"):
        blob_cache()


@pytest.mark.check
def test_processes_share_what_they_fetch(path: Path, url: str, storage: Storage, tmp_path: Path) -> None:
    digest = digest_of(DATA)
    command = [sys.executable, "-c", _READ, url, str(digest.bytes), digest.sha256, digest.blocks]
    environment = os.environ | storage.environment(tmp_path / "cache")
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) for _ in range(4)]
    assert [process.communicate()[0].split() for process in running] == [[str(len(DATA)).encode()]] * 4
    assert blob_cache().path(digest.sha256, digest.bytes).read_bytes() == DATA
    storage.served.clear()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert not storage.served
    crowded = environment | {LIMIT: str(4 * BLOCK)}
    running = [subprocess.Popen(command, env=crowded, stdout=subprocess.PIPE) for _ in range(4)]
    assert [process.communicate()[0].split() for process in running] == [[str(len(DATA)).encode()]] * 4
    use_cache(tmp_path / "other")
    check_file(named_path(url, "the index") / "file", digest)
    assert storage.bytes_of("/file") == len(DATA)
