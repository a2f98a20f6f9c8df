"""Files of an index that may lie in object storage, read under the path of its mirror folder (see `indexer.urls`).

Whoever opens a file of an index opens it here. A file that this machine's writer has made and not yet sent lies in the
mirror folder itself. Every other one is a blob of the cache, whose missing blocks are fetched by range and compared
with the digests that the manifest gives: no byte is used before it was checked, and none is fetched that nobody reads.
Of an index on a disk, all of this is what the file system does.
"""

import errno
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import IO

from indexer.blob_cache import blob_cache
from indexer.errors import LockedError, StoreError
from indexer.parallel import ordered_map
from indexer.regular_files import open_regular
from indexer.store import layout
from indexer.store.files import (
    BLOCK,
    DigestBuilder,
    FileDigest,
    atomic_write_bytes,
    changed,
    digest_block,
    digest_file,
    make_folder,
    missing,
    remove_file,
    wrong_size,
)
from indexer.store.object_store import ObjectStore, open_store
from indexer.typed_json import convert_json
from indexer.urls import mirrored

_RUN = 8  # blocks that one request asks for
_REQUESTS = 8  # at a time


class Mirror:
    """One index in object storage as this process reads it. Safe to share between threads."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self._known: dict[str, FileDigest] = {}  # of the newest manifest that was read, and of parts
        self._whole: set[Path] = set()  # blobs that this process has compared with all their digests

    @property
    def store(self) -> ObjectStore:
        """Where it really lies."""
        return open_store(self.url)

    def know(self, files: Mapping[str, FileDigest]) -> None:
        """What these files must be."""
        self._known |= files

    def forget(self, folder: str) -> None:
        """What the files of a folder were is no longer so."""
        self._known = {name: digest for name, digest in self._known.items() if not name.startswith(f"{folder}/")}

    def knows(self, name: str, digest: FileDigest) -> bool:
        """Whether the store holds this file as it must be."""
        return self._known.get(name) == digest

    def open(self, digest: FileDigest) -> int:
        """The descriptor of a file, of which not every byte need be there."""
        return blob_cache().open(digest.sha256, digest.bytes)

    def open_whole(self, name: str, digest: FileDigest) -> int:
        """The descriptor of a file of which every byte is there and was checked."""
        descriptor = self.open(digest)
        try:
            if _blob(digest) not in self._whole or not blob_cache().is_whole(descriptor):
                self.fetch(descriptor, name, digest, _absent_blocks(descriptor, digest))
                blob_cache().mark_whole(descriptor)
                self._whole.add(_blob(digest))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def open_named(self, name: str) -> IO[bytes]:
        """A whole file by its name alone. Raises FileNotFoundError where nothing says what it must be."""
        if name == layout.PENDING or (name not in self._known and name.endswith(f"/{layout.PART}")):
            return BytesIO(self.store.read(name))
        return os.fdopen(self.open_whole(name, self._digest_of(name)), "rb")

    def read_record(self, name: str) -> bytes:
        """The record of a part, as everyone sees it, else as it waits here to be sent. Raises FileNotFoundError."""
        if name in self._known:
            with self.open_named(name) as file:
                return file.read()
        try:
            return self.store.read(name)
        except FileNotFoundError:
            return (self.folder / name).read_bytes()

    def map(self, name: str, digest: FileDigest) -> tuple[Path, int]:
        """A whole file for a library that maps it by its path, and a descriptor that keeps it until it is closed."""
        return _blob(digest), self.open_whole(name, digest)

    def fetch(self, descriptor: int, name: str, digest: FileDigest, blocks: Sequence[int]) -> None:
        """Fetch some blocks (ascending) of a file, compare them and put them in their place.

        Raises CorruptIndexError where the store has not what was published.
        """

        def fetch_run(run: range) -> None:
            start, end = run[0] * BLOCK, min((run[-1] + 1) * BLOCK, digest.bytes)
            try:
                data = self.store.read_range(name, start, end) if end > start else b""
            except FileNotFoundError:
                raise missing(self.folder / name) from None
            for block in run:
                place = block * BLOCK - start
                if not is_block(data[place : place + BLOCK], digest, block):
                    raise changed(self.folder / name)
            blob_cache().write(descriptor, data, start)

        for _ in ordered_map(fetch_run, _runs(blocks), _REQUESTS):
            pass

    def check_stored(self, name: str, digest: FileDigest) -> None:
        """See that the store itself holds what was published, whatever the cache has. Raises CorruptIndexError."""
        found = self.store.head(name)
        if found is None:
            raise missing(self.folder / name)
        if found.bytes != digest.bytes:
            raise wrong_size(self.folder / name, found.bytes, digest)
        descriptor = self.open(digest)
        try:
            self.fetch(descriptor, name, digest, range(_block_count(digest)))
        finally:
            os.close(descriptor)

    def check_sizes(self, files: Mapping[str, FileDigest]) -> None:
        """Compare all sizes with one listing. Raises CorruptIndexError for the first file that differs."""
        found = self.store.list()
        for name, digest in files.items():
            if name not in found:
                raise missing(self.folder / name)
            if found[name].bytes != digest.bytes:
                raise wrong_size(self.folder / name, found[name].bytes, digest)

    def require_unpublished(self, generation: int) -> None:
        """Raises LockedError where a generation is there already."""
        if self.store.head(layout.manifest_name(generation)) is not None:
            raise self._published_first(generation)

    def create_manifest(self, generation: int, data: bytes) -> None:
        """Publish. Raises LockedError where another writer has published that generation first."""
        if not self.store.create(layout.manifest_name(generation), data):
            raise self._published_first(generation)

    def _published_first(self, generation: int) -> LockedError:
        return LockedError(
            f"{self.url}: another writer has published generation {generation} meanwhile. Nothing of it was touched, "
            "and nothing of this run was published. Run the same command again to go on from that generation; parts "
            "that were encoded are kept."
        )

    def complete_parts(self) -> set[str]:
        """The names of parts whose record was sent."""
        return {name.rpartition("/")[0] for name in self.store.list(layout.PARTS) if name.endswith(f"/{layout.PART}")}

    def copy_out(self, files: Mapping[str, FileDigest]) -> None:
        """Put whole files into the mirror folder itself, for libraries that read a folder."""
        for name, digest in files.items():
            path = self.folder / name
            if not path.is_file() or digest_file(path) != digest:
                make_folder(path.parent)
                with os.fdopen(self.open_whole(name, digest), "rb") as file:
                    atomic_write_bytes(path, file.read())

    def _digest_of(self, name: str) -> FileDigest:
        """What a file must be, by the manifest, or by the record of its part where that is not published."""
        if name not in self._known:
            folder, _, file = name.rpartition("/")
            record = self.store.read(f"{folder}/{layout.PART}")
            try:
                self._known[name] = convert_json(json.loads(record)["files"][file], FileDigest)
            except (ValueError, KeyError, TypeError):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from None
        return self._known[name]


def mirror_of(path: Path) -> tuple[Mirror, str] | None:
    """The index in object storage that a path stands for, and the name of a file in it; None for one on a disk."""
    found = mirrored(path)
    return None if found is None else (_mirror(*found[:2]), found[2])


@cache
def _mirror(folder: Path, url: str) -> Mirror:
    return Mirror(folder, url)


def is_block(data: bytes, digest: FileDigest, number: int) -> bool:
    """Whether these are the bytes of a block; of a file of one block its sha256 tells."""
    if digest.blocks:
        return digest_block(data) == digest.block_digest(number)
    return hashlib.sha256(data).hexdigest() == digest.sha256


def open_stored(path: Path) -> IO[bytes]:
    """Open a file of an index for reading, whole. Raises OSError, and StoreError from object storage."""
    try:
        return open_regular(path, follow_links=False)
    except FileNotFoundError:
        if (found := mirror_of(path)) is None:
            raise
    return found[0].open_named(found[1])


def read_stored(path: Path, most_bytes: int | None = None) -> bytes:
    """All bytes of a file of an index. Raises OSError as `open_stored`, and for a file of more than `most_bytes`."""
    with open_stored(path) as file:
        data = file.read() if most_bytes is None else file.read(most_bytes + 1)
    if most_bytes is not None and len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more bytes than expected, {most_bytes:,} at most", str(path))
    return data


def digest_stored(path: Path) -> FileDigest:
    """Hash a whole file of an index. Raises CorruptIndexError if it is not there."""
    builder = DigestBuilder()
    try:
        with open_stored(path) as file:
            while data := file.read(8 * BLOCK):
                builder.update(data)
    except FileNotFoundError:
        raise missing(path) from None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}.") from error
    return builder.digest()


def part_numbers(index: Path) -> list[int]:
    """Numbers of the parts of an index: folders on a disk, complete or not, and complete ones in object storage."""
    numbers = layout.part_numbers(index)
    if (found := mirror_of(index)) is None:
        return numbers
    places = (name.split("/")[1] for name in found[0].complete_parts())
    return sorted({*numbers, *(int(place) for place in places if layout.PART_NAME.fullmatch(place))})


def complete_parts(index: Path) -> set[str]:
    """The names of parts whose record is there for everyone: in object storage, if that is where the index lies."""
    if (found := mirror_of(index)) is not None:
        return found[0].complete_parts()
    names = map(layout.part_name, layout.part_numbers(index))
    return {name for name in names if (index / name / layout.PART).exists()}


def is_prepared(index: Path) -> bool:
    """Whether a build was prepared, and its parts wait."""
    found = mirror_of(index)
    return (index / layout.PENDING).exists() if found is None else found[0].store.head(layout.PENDING) is not None


def is_begun(index: Path) -> bool:
    """Whether there are parts, of a build that was published or of one that was not."""
    found = mirror_of(index)
    return (index / layout.PARTS).is_dir() if found is None else bool(found[0].store.list(layout.PARTS))


def know_file(path: Path, digest: FileDigest) -> None:
    """What a file of an index must be that no manifest and no record names yet; on a disk there is nothing to know."""
    if (found := mirror_of(path)) is not None:
        found[0].know({found[1]: digest})


def manifest_time(index: Path, name: str) -> float:
    """When a manifest was published, in seconds since 1970. Raises StoreError."""
    path = index / name
    try:
        if (found := mirror_of(index)) is None:
            return path.stat().st_mtime
        there = found[0].store.head(name)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}.") from error
    return there.modified.timestamp() if there else datetime.now().astimezone().timestamp()


def remove_manifest(index: Path, name: str) -> None:
    """Forget a generation."""
    if (found := mirror_of(index)) is None:
        remove_file(index, name)
    else:
        found[0].store.remove([name])


def sent_sizes(folder: Path) -> dict[str, int]:
    """Bytes of everything in object storage below an index or a part of it, by name in the index, with one listing;
    nothing of what lies on a disk."""
    found = mirror_of(folder)
    return {name: entry.bytes for name, entry in found[0].store.list(found[1]).items()} if found else {}


def stored_sizes(folder: Path, names: Iterable[str]) -> dict[str, int]:
    """Bytes of some files of a folder of an index, where it lies. Raises FileNotFoundError if one is not there."""
    if (found := mirror_of(folder)) is None:
        return {name: (folder / name).lstat().st_size for name in names}
    there = found[0].store.list(found[1])
    try:
        return {name: there[f"{found[1]}/{name}"].bytes for name in names}
    except KeyError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder / error.args[0])) from None


def stored_bytes(index: Path) -> int:
    """What an index takes where it lies."""
    if (found := mirror_of(index)) is None:
        return sum(path.stat().st_size for path in index.rglob("*") if path.is_file())
    return sum(entry.bytes for entry in found[0].store.list().values())


def _blob(digest: FileDigest) -> Path:
    return blob_cache().path(digest.sha256, digest.bytes)


def _block_count(digest: FileDigest) -> int:
    return max(1, -(-digest.bytes // BLOCK))


def _absent_blocks(descriptor: int, digest: FileDigest) -> list[int]:
    """Blocks of a file that were not fetched, or are not what they were."""
    blocks = range(_block_count(digest))
    if not os.fstat(descriptor).st_blocks:
        return list(blocks)
    return [block for block in blocks if not is_block(os.pread(descriptor, BLOCK, block * BLOCK), digest, block)]


def _runs(blocks: Sequence[int]) -> Iterator[range]:
    """The blocks as runs of neighbours, none too long for one request."""
    start = 0
    for place in range(1, len(blocks) + 1):
        ends = place == len(blocks) or blocks[place] != blocks[place - 1] + 1
        if ends or place - start == _RUN:
            yield range(blocks[start], blocks[place - 1] + 1)
            start = place
