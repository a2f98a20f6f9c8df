"""Files of object storage on this machine, kept by the sha256 of what they are: bounded, and shared by processes.

A blob has its full size from the beginning; blocks that were not fetched are holes. The cache stores no list of its
contents: a reader compares each block with its digest. So a process that dies, two processes that fetch the same block
and a disk that loses blocks leave nothing that a reader would accept.

A process holds a shared lock on each blob that it has open. Room is made by removing blobs without a lock, the least
recently used first.
"""

import errno
import fcntl
import os
import stat
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path

from indexer.errors import ConfigError, StoreError
from indexer.system.regular_files import open_regular
from indexer.system.urls import remote_folder

LIMIT = "ISOTROPE_REMOTE_CACHE_BYTES"
_DEFAULT_LIMIT = 20 << 30
_LOOKED_AFTER = 64  # how many times room is made while as much as the limit arrives
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class BlobCache:
    """The blobs of a folder. Safe to share between threads and processes. Raises StoreError."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self._arrived, self._lock = 0, threading.Lock()  # bytes since room was made

    def path(self, sha256: str, size: int) -> Path:
        """Return the path of a blob. The name has the size: a manifest with a wrong size cuts no other blob."""
        return self.folder / f"{sha256}-{size}"

    def open(self, sha256: str, size: int) -> int:
        """Open a blob for reading and writing; it is kept as long as the descriptor is open."""
        path = self.path(sha256, size)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            while True:
                descriptor = os.open(path, _FLAGS, 0o666)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                if _is(path, descriptor):  # else it was removed in between
                    break
                os.close(descriptor)
            if os.fstat(descriptor).st_size != size:
                os.ftruncate(descriptor, size)
            os.utime(descriptor)  # used now
        except OSError as error:
            raise _unusable(self.folder, error) from error
        return descriptor

    def is_whole(self, descriptor: int) -> bool:
        """Whether a process has found every byte of a blob present. The owner's execute bit records it; a blob that was
        removed and created again has no such bit."""
        return bool(os.fstat(descriptor).st_mode & stat.S_IXUSR)

    def mark_whole(self, descriptor: int) -> None:
        """Record that every byte of a blob is present."""
        with suppress(OSError):
            os.fchmod(descriptor, stat.S_IMODE(os.fstat(descriptor).st_mode) | stat.S_IXUSR)

    def write(self, descriptor: int, data: bytes, position: int) -> None:
        """Put fetched bytes in their place."""
        view = memoryview(data)
        try:
            while len(view):
                written = os.pwrite(descriptor, view, position)
                view, position = view[written:], position + written
        except OSError as error:
            raise _unusable(self.folder, error) from error
        self._make_room_after(len(data))

    def take(self, file: Path, sha256: str) -> None:
        """Move a whole file here, as a blob; one that is gone was moved by another process."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            size = file.stat().st_size
            file.replace(self.path(sha256, size))
        except FileNotFoundError:
            return
        except OSError as error:
            raise _unusable(self.folder, error) from error
        self._make_room_after(size)

    def make_room(self) -> None:
        """Remove blobs that no process holds, the least recently used first, until the rest is within the limit."""
        found = []
        with suppress(FileNotFoundError), os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    state = entry.stat(follow_symlinks=False)
                    found.append((state.st_mtime_ns, 512 * state.st_blocks, entry.path))
        held = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if held <= self.limit:
                return
            if _removed(path):
                held -= size

    def _make_room_after(self, arrived: int) -> None:
        with self._lock:
            self._arrived += arrived
            if self._arrived < self.limit // _LOOKED_AFTER:
                return
            self._arrived = 0
        self.make_room()


def blob_cache() -> BlobCache:
    """The cache of this user; its limit is `$ISOTROPE_REMOTE_CACHE_BYTES`, else 20 GiB. Raises ConfigError."""
    given = os.environ.get(LIMIT, "")
    if given and not (given.isascii() and given.isdigit()):
        raise ConfigError(f"{LIMIT} is {given!a}; expected a whole number of bytes.")
    return _cache(remote_folder() / "blobs", int(given) if given else _DEFAULT_LIMIT)


@cache
def _cache(folder: Path, limit: int) -> BlobCache:
    return BlobCache(folder, limit)


def _removed(path: str) -> bool:
    """Remove a blob unless somebody has it open."""
    try:
        with open_regular(path, follow_links=False) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)  # noqa: PTH108 - under the lock, which `open` waits for
        return True
    except OSError:
        return False


def _is(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _unusable(folder: Path, error: OSError) -> StoreError:
    if error.errno == errno.ENOSPC:
        return StoreError(
            f"{folder}: the disk is full. Free some space, let the cache keep less (the environment variable {LIMIT}), "
            "or name another folder with ISOTROPE_CACHE."
        )
    return StoreError(
        f"{folder}: the cache of object storage cannot be used ({error.strerror}). Name another folder with the "
        "environment variable ISOTROPE_CACHE."
    )
