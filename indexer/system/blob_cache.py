"""A bounded local cache of files in object storage, named by their sha256 and shared by processes.

A blob has its full size from the start; missing blocks are holes. The cache keeps no list of its contents: readers
compare each block with its digest. So neither a process that dies, nor two processes that fetch the same block, nor a
disk that loses blocks leaves data that a reader would accept.

A process has a shared lock on each blob that it has open. The cache removes blobs without a lock, the least recently
used first.
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
_CLEANUPS = 64  # cleanups while as many bytes arrive as the limit
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class BlobCache:
    """The blobs of a folder; safe for threads and processes. Raises StoreError."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self._arrived, self._lock = 0, threading.Lock()  # bytes since the last cleanup

    def path(self, sha256: str, size: int) -> Path:
        """Return the path of a blob. The name has the size, so a manifest with a wrong size truncates no other blob."""
        return self.folder / f"{sha256}-{size}"

    def open(self, sha256: str, size: int) -> int:
        """Return a descriptor for reading and writing a blob, which is kept as long as the descriptor is open."""
        path = self.path(sha256, size)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            while True:
                descriptor = os.open(path, _FLAGS, 0o666)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                if _is(path, descriptor):  # else it was removed meanwhile
                    break
                os.close(descriptor)
            if os.fstat(descriptor).st_size != size:
                os.ftruncate(descriptor, size)
            os.utime(descriptor)  # the time of last use
        except OSError as error:
            raise _unusable(self.folder, error) from error
        return descriptor

    def is_whole(self, descriptor: int) -> bool:
        """Return whether all bytes of a blob are known to be present: the owner's execute bit, which a removed and
        created blob lacks."""
        return bool(os.fstat(descriptor).st_mode & stat.S_IXUSR)

    def mark_whole(self, descriptor: int) -> None:
        """Record that every byte of a blob is present."""
        with suppress(OSError):
            os.fchmod(descriptor, stat.S_IMODE(os.fstat(descriptor).st_mode) | stat.S_IXUSR)

    def write(self, descriptor: int, data: bytes, position: int) -> None:
        """Write fetched bytes at a position."""
        view = memoryview(data)
        try:
            while len(view):
                written = os.pwrite(descriptor, view, position)
                view, position = view[written:], position + written
        except OSError as error:
            raise _unusable(self.folder, error) from error
        self._make_room_after(len(data))

    def take(self, file: Path, sha256: str) -> None:
        """Move a complete file into the cache, unless another process has already moved it."""
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
        """Remove unlocked blobs, the least recently used first, until the rest is within the limit."""
        blobs = []
        with suppress(FileNotFoundError), os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    state = entry.stat(follow_symlinks=False)
                    blobs.append((state.st_mtime_ns, 512 * state.st_blocks, entry.path))
        total = sum(size for _, size, _ in blobs)
        for _, size, path in sorted(blobs):
            if total <= self.limit:
                return
            if _removed(path):
                total -= size

    def clear(self) -> None:
        """Remove all blobs that no process has open."""
        with suppress(FileNotFoundError):
            for path in self.folder.iterdir():
                _removed(str(path))

    def _make_room_after(self, arrived: int) -> None:
        with self._lock:
            self._arrived += arrived
            if self._arrived < self.limit // _CLEANUPS:
                return
            self._arrived = 0
        self.make_room()


def blob_cache() -> BlobCache:
    """Return the user's cache; its limit is `$ISOTROPE_REMOTE_CACHE_BYTES`, else 20 GiB. Raises ConfigError."""
    given = os.environ.get(LIMIT, "")
    if given and not (given.isascii() and given.isdigit()):
        raise ConfigError(f"{LIMIT} is {given!a}; expected a whole number of bytes.")
    return _cache(remote_folder() / "blobs", int(given) if given else _DEFAULT_LIMIT)


@cache
def _cache(folder: Path, limit: int) -> BlobCache:
    return BlobCache(folder, limit)


def _removed(path: str) -> bool:
    try:
        with open_regular(path, follow_links=False) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)  # noqa: PTH108 - under the lock that `open` waits for
        return True
    except OSError:
        return False


def _is(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _unusable(folder: Path, error: OSError) -> StoreError:
    problem, fix = f"the cache of object storage cannot be used ({error.strerror})", ""
    if error.errno == errno.ENOSPC:
        problem, fix = "the disk is full", f"free some space, lower the limit of the cache with {LIMIT}, or "
    return StoreError(f"{folder}: {problem}. Fix: {fix}choose another folder with ISOTROPE_CACHE.")
