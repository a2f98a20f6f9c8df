"""An index in object storage, read under the path of its mirror folder on this machine (see `indexer.system.urls`).

A file that this machine's writer has not yet sent is in the mirror folder. Every other file is a blob of the cache;
missing blocks are fetched by range when they are read and compared with the digests of the manifest before use.
"""

import errno
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TypeVar

from indexer.errors import LockedError
from indexer.store import layout
from indexer.store.bucket import Bucket, open_bucket
from indexer.store.files import (
    BLOCK,
    FileDigest,
    atomic_write_bytes,
    changed,
    digest_file,
    make_folder,
    missing,
    wrong_size,
)
from indexer.system.blob_cache import blob_cache
from indexer.system.threads import ordered_map
from indexer.typed_json import convert_json

Item = TypeVar("Item")
_RUN = 8  # blocks in one request
_REQUESTS = 8  # at a time


class ObjectStore:
    """The files of an index in object storage: the interface of `LocalStore`. Safe to share between threads."""

    is_local = False  # files are compared with their digests as they arrive

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self._known: dict[str, FileDigest] = {}  # from the newest manifest read, and from records of parts
        self._whole: set[Path] = set()  # blobs that this process has checked completely

    @property
    def bucket(self) -> Bucket:
        """The objects of the index."""
        return open_bucket(self.url)

    # --- files with known digests

    def know(self, files: Mapping[str, FileDigest]) -> None:
        """Remember digests of files in the store."""
        self._known |= files

    def forget(self, folder: str) -> None:
        """Forget the digests of the files of a folder."""
        self._known = {name: digest for name, digest in self._known.items() if not name.startswith(f"{folder}/")}

    def knows(self, name: str, digest: FileDigest) -> bool:
        """Whether the store has this file with this digest."""
        return self._known.get(name) == digest

    def descriptor(self, name: str, digest: FileDigest) -> int:
        """Open the blob of a file; blocks may be missing."""
        return blob_cache().open(digest.sha256, digest.bytes)

    def state(self, descriptor: int) -> object:
        """Return a new value each time: a blob that is opened again may have been replaced."""
        return object()

    def open_whole(self, name: str, digest: FileDigest) -> int:
        """Open the blob of a file after every byte was fetched and checked."""
        descriptor = self.descriptor(name, digest)
        try:
            if _blob(digest) not in self._whole or not blob_cache().is_whole(descriptor):
                self.repair(descriptor, name, digest, _absent_blocks(descriptor, digest))
                blob_cache().mark_whole(descriptor)
                self._whole.add(_blob(digest))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def read(self, name: str, digest: FileDigest) -> bytes:
        with os.fdopen(self.open_whole(name, digest), "rb") as file:
            return file.read()

    def check(self, name: str, digest: FileDigest) -> None:
        os.close(self.open_whole(name, digest))

    def open(self, name: str) -> IO[bytes]:
        """Open a whole file by its name. Raises FileNotFoundError if no manifest or record has its digest."""
        if name in (layout.PENDING, layout.ERASE) or (name not in self._known and name.endswith(f"/{layout.PART}")):
            return BytesIO(self.bucket.read(name))
        return os.fdopen(self.open_whole(name, self._digest_of(name)), "rb")

    def map(self, name: str, digest: FileDigest) -> tuple[Path, int | None]:
        """Return the path of a whole, checked file for a library that maps it, and a descriptor. Keep it open while the
        map is used: otherwise the cache may remove the file to make room."""
        return _blob(digest), self.open_whole(name, digest)

    def repair(self, descriptor: int, name: str, digest: FileDigest, blocks: Sequence[int]) -> None:
        """Fetch some blocks (ascending) of a file, check and store them. Raises CorruptIndexError if the store lacks
        the published bytes."""

        def fetch_run(run: range) -> None:
            start, end = run[0] * BLOCK, min((run[-1] + 1) * BLOCK, digest.bytes)
            try:
                data = self.bucket.read_range(name, start, end) if end > start else b""
            except FileNotFoundError:
                raise missing(self.folder / name) from None
            for block in run:
                place = block * BLOCK - start
                if not digest.is_block(data[place : place + BLOCK], block):
                    raise changed(self.folder / name)
            blob_cache().write(descriptor, data, start)

        for _ in ordered_map(fetch_run, _runs(blocks), _REQUESTS):
            pass

    def check_stored(self, name: str, digest: FileDigest) -> None:
        """Fetch and check every block, even if it is cached. Raises CorruptIndexError."""
        entry = self.bucket.head(name)
        if entry is None:
            raise missing(self.folder / name)
        if entry.bytes != digest.bytes:
            raise wrong_size(self.folder / name, entry.bytes, digest)
        descriptor = self.descriptor(name, digest)
        try:
            self.repair(descriptor, name, digest, range(_block_count(digest)))
        finally:
            os.close(descriptor)

    def check_sizes(self, files: Mapping[str, FileDigest]) -> None:
        """Compare all sizes with one listing. Raises CorruptIndexError for the first file that differs."""
        sizes = self.sent_sizes(os.path.commonpath([name.rpartition("/")[0] for name in files]))
        for name, digest in files.items():
            if name not in sizes:
                raise missing(self.folder / name)
            if sizes[name] != digest.bytes:
                raise wrong_size(self.folder / name, sizes[name], digest)

    def copy_out(self, files: Mapping[str, FileDigest]) -> None:
        """Put files into the folder for libraries that read it."""
        for name, digest in files.items():
            path = self.folder / name
            if not path.is_file() or digest_file(path) != digest:
                make_folder(path.parent)
                atomic_write_bytes(path, self.read(name, digest))

    def fetch_states(self) -> None:
        """Put fitted states of encoders into the folder."""
        for name in self.bucket.list(layout.ENCODER):
            path = self.folder / name
            if re.match(layout.FILE_PATTERN, name) and not (path.is_file() and self.bucket.holds(name, path)):
                make_folder(path.parent)
                atomic_write_bytes(path, self.bucket.read(name))

    def ahead(self, read: Callable[[Item], None], items: Collection[Item]) -> None:
        """Read items in parallel before their use; a single item can wait for its use."""
        for _ in ordered_map(read, items if len(items) > 1 else (), _REQUESTS):
            pass

    # --- the index

    def names(self, folder: str) -> list[str]:
        return [name.rpartition("/")[2] for name in self.bucket.list(folder)]

    def top(self) -> set[str]:
        return self.bucket.top()

    def has(self, name: str = "") -> bool:
        return name in self.top()

    def read_manifest(self, name: str, most_bytes: int) -> bytes:
        return self.bucket.read(name)

    def require_unpublished(self, generation: int) -> None:
        """Raise LockedError if a generation exists."""
        if self.bucket.head(layout.manifest_name(generation)) is not None:
            raise self._published_first(generation)

    def publish(self, generation: int, manifest: bytes) -> None:
        """Create a manifest atomically. Raises LockedError if another writer has published that generation."""
        if not self.bucket.create(layout.manifest_name(generation), manifest):
            raise self._published_first(generation)

    def create(self, name: str, data: bytes) -> None:
        """Create an object in one step. Raises LockedError if it exists."""
        if not self.bucket.create(name, data):
            raise LockedError(f"{self.url}/{name}: another machine has created it. Fix: run the same command again.")

    def _published_first(self, generation: int) -> LockedError:
        return LockedError(
            f"{self.url}: another writer published generation {generation} during this run, which published "
            "nothing. Fix: run the same command again to continue from that generation; encoded parts are kept."
        )

    def published_time(self, generation: int) -> float:
        """Return the time when a generation was published, in seconds since 1970; now if it is gone."""
        entry = self.bucket.head(layout.manifest_name(generation))
        return entry.modified.timestamp() if entry else datetime.now().astimezone().timestamp()

    def remove(self, name: str) -> None:
        self.bucket.remove([name])

    def files(self) -> list[str]:
        return sorted(self.bucket.list())

    @contextmanager
    def fetched(self, name: str) -> Iterator[Path]:
        """Fetch an object as it is now, without the cache. Raises FileNotFoundError."""
        entry = self.bucket.head(name)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{self.url}/{name}")
        with TemporaryDirectory(prefix="isotrope-", ignore_cleanup_errors=True) as folder:
            path, step = Path(folder) / name.rpartition("/")[2], _RUN * BLOCK
            with path.open("xb") as file:
                for start in range(0, entry.bytes, step):
                    end = min(start + step, entry.bytes)
                    file.write(self.bucket.read_range(name, start, end, entry.version))
            yield path

    def size(self) -> int:
        return sum(self.sent_sizes().values())

    # --- parts

    def part_numbers(self) -> list[int]:
        """Return the numbers of the parts in the folder, complete or not, and of sent parts, ascending."""
        places = (name.split("/")[1] for name in self.complete_parts())
        sent = {int(place) for place in places if layout.PART_NAME.fullmatch(place)}
        return sorted(sent.union(layout.part_numbers(self.folder)))

    def leftover_parts(self, is_settled: Callable[[int], bool]) -> list[int]:
        """Return the numbers of all parts in the folder, since none is read from there."""
        return layout.part_numbers(self.folder)

    def complete_parts(self) -> set[str]:
        """Return the names of the parts with a sent record."""
        return {name.rpartition("/")[0] for name in self.bucket.list(layout.PARTS) if name.endswith(f"/{layout.PART}")}

    def read_record(self, part: str, most_bytes: int) -> bytes:
        """Return the record of a part from the store, else from the folder. Raises FileNotFoundError."""
        name = f"{part}/{layout.PART}"
        try:
            with self.open(name) as file:
                return file.read()
        except FileNotFoundError:
            return (self.folder / name).read_bytes()

    def sent_sizes(self, folder: str = "") -> dict[str, int]:
        return {name: entry.bytes for name, entry in self.bucket.list(folder).items()}

    def _digest_of(self, name: str) -> FileDigest:
        """Return the digest of a file from the manifest, or from the record of an unpublished part."""
        if name not in self._known:
            folder, _, file = name.rpartition("/")
            record = self.bucket.read(f"{folder}/{layout.PART}")
            try:
                self._known[name] = convert_json(json.loads(record)["files"][file], FileDigest)
            except (ValueError, KeyError, TypeError):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from None
        return self._known[name]


def _blob(digest: FileDigest) -> Path:
    return blob_cache().path(digest.sha256, digest.bytes)


def _block_count(digest: FileDigest) -> int:
    return max(1, -(-digest.bytes // BLOCK))


def _absent_blocks(descriptor: int, digest: FileDigest) -> list[int]:
    """Return the blocks of a file that are missing or differ from their digests."""
    blocks = range(_block_count(digest))
    if not os.fstat(descriptor).st_blocks:
        return list(blocks)
    return [block for block in blocks if not digest.is_block(os.pread(descriptor, BLOCK, block * BLOCK), block)]


def _runs(blocks: Sequence[int]) -> Iterator[range]:
    """Split blocks into runs of neighbours of at most `_RUN`."""
    start = 0
    for place in range(1, len(blocks) + 1):
        ends = place == len(blocks) or blocks[place] != blocks[place - 1] + 1
        if ends or place - start == _RUN:
            yield range(blocks[start], blocks[place - 1] + 1)
            start = place
