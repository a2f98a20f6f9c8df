"""All changes to the file system: durable, hashed, atomic writes.

A file is written under a temporary name, synced, read back and compared, then renamed; its folder is synced. So a name
is either absent or has every intended byte, also after a power cut. Only one writer works at a time (see
`writer_lock`), and readers ignore names that no manifest lists.

An index from an archive may contain links that lead elsewhere. Nothing is written, removed or read through a link:
`require_own_files` rejects them all before a writer begins, removal descends through folder descriptors that follow no
links, and a file being written or read must not be a link.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Any

from msgspec import Meta, Struct

from indexer.errors import CorruptIndexError, LockedError, StoreError, as_argument
from indexer.store.layout import LOCK, TEMPORARY, Count, Hash, names_in
from indexer.system.regular_files import open_regular

BLOCK = 1 << 20  # bytes of a block digest
_DIGEST = 8  # bytes of a digest
_PATIENCE = 5  # seconds for the workers of a killed build to end
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
Buffer = bytes | memoryview


class FileDigest(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The size of a file, its sha256 and, above one block, a digest of each MiB (hex, concatenated)."""

    bytes: Count
    sha256: Hash
    blocks: Annotated[str, Meta(pattern=r"^([0-9a-f]{16})*\Z")] = ""

    def is_block(self, data: Buffer, number: int) -> bool:
        """Whether `data` is block `number`, bytes [number, number + 1) * BLOCK; one-block files have only sha256."""
        if self.blocks:
            digest = hashlib.blake2b(data, digest_size=_DIGEST).hexdigest()
            return digest == self.blocks[number * 2 * _DIGEST : (number + 1) * 2 * _DIGEST]
        return hashlib.sha256(data).hexdigest() == self.sha256


def restore() -> str:
    """Return the fix for a damaged file."""
    again = as_argument("overwrite", True, "RunOptions")
    return f"Fix: restore the file from a copy, or build again with {again}, which encodes only lost rows."


def missing(path: Path) -> CorruptIndexError:
    """Return the error for a missing file."""
    return CorruptIndexError(f"{path}: the manifest lists this file, but it is missing. {restore()}")


def changed(path: Path) -> CorruptIndexError:
    """Return the error for a file whose bytes differ from the published ones."""
    return CorruptIndexError(f"{path}: its bytes differ from the published ones (checksum mismatch). {restore()}")


def wrong_size(path: Path, size: int, digest: FileDigest) -> CorruptIndexError:
    """Return the error for a truncated or extended file."""
    return CorruptIndexError(f"{path}: {size:,} bytes, the manifest says {digest.bytes:,}. {restore()}")


class DigestBuilder:
    """Builds a `FileDigest` from streamed bytes."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()
        self._size = 0
        self._blocks: list[str] = []
        self._block = hashlib.blake2b(digest_size=_DIGEST)

    def update(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        self._sha.update(view)
        while len(view):
            room = BLOCK - self._size % BLOCK
            piece, view = view[:room], view[room:]
            self._block.update(piece)
            self._size += len(piece)
            if self._size % BLOCK == 0:
                self._blocks.append(self._block.hexdigest())
                self._block = hashlib.blake2b(digest_size=_DIGEST)

    def digest(self) -> FileDigest:
        blocks = self._blocks + ([self._block.hexdigest()] if self._size % BLOCK else [])
        return FileDigest(self._size, self._sha.hexdigest(), "".join(blocks) if len(blocks) > 1 else "")


class DurableFile:
    """A binary file being written; it gets its name only when `atomic_write` succeeds."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._builder = DigestBuilder()
        self.digest = FileDigest(0, "")  # of the written bytes; set at the end
        self.closed = False

    def write(self, data: Any) -> int:
        if self.closed:
            # After an error, Arrow's writer may write its footer during garbage collection, when the descriptor can
            # belong to another file.
            raise ValueError("write to a closed file")
        view = rest = memoryview(data).cast("B")
        while len(rest):
            rest = rest[os.write(self._descriptor, rest) :]
        self._builder.update(view)
        return len(view)

    def flush(self) -> None:
        """Do nothing: no data is buffered. Libraries call this method."""

    def writable(self) -> bool:
        return True

    def finish(self) -> None:
        os.fsync(self._descriptor)
        self.digest = self._builder.digest()

    def release(self) -> None:
        """Close the descriptor; later writes fail. Not named `close`, which Arrow would call too early."""
        if not self.closed:
            self.closed = True
            os.close(self._descriptor)


@contextmanager
def atomic_write(path: Path) -> Iterator[DurableFile]:
    """Write `path` durably and atomically, replacing an existing file. After the block, `.digest` has its hashes.
    Raises StoreError naming the path if the disk is full or fails; the name then stays as it was."""
    temporary = _temporary(path)
    try:
        file = DurableFile(_create(temporary))
        try:
            yield file
            file.finish()
        finally:
            file.release()
        _read_back(temporary, file.digest)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except BaseException as error:
        _discard(temporary)
        if isinstance(error, OSError):
            raise _store_error(path, error) from error
        raise


def _temporary(path: Path) -> Path:
    """Return a name next to `path` that is unique among all processes and machines."""
    return path.with_name(f"{path.name}.{os.urandom(6).hex()}{TEMPORARY}")


def atomic_write_bytes(path: Path, data: bytes) -> FileDigest:
    """`atomic_write` for data already in memory."""
    with atomic_write(path) as file:
        file.write(data)
    return file.digest


def create_exclusive(path: Path, data: bytes) -> None:
    """Create `path` with `data` atomically: it is absent or complete. Raises StoreError if it exists."""
    temporary = _temporary(path)
    atomic_write_bytes(temporary, data)
    try:
        try:
            os.link(temporary, path)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                raise
            # On file systems without hard links, the writer's lock keeps others from creating the file meanwhile.
            if path.exists():
                raise FileExistsError(errno.EEXIST, "File exists", str(path)) from error
            os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise _store_error(path, error) from error
    finally:
        _discard(temporary)


def make_folder(path: Path) -> None:
    """Create `path` and its missing parents, durably. Raises StoreError if a file is in the way."""
    if path.is_dir():
        return
    make_folder(path.parent)
    try:
        try:
            os.mkdir(path)
        except FileExistsError:  # another process of the same mirror folder was faster
            if not path.is_dir():
                raise
        sync_folder(path.parent)
    except OSError as error:
        raise _store_error(path, error) from error


def remove_file(index: Path, name: str, missing_ok: bool = False) -> None:
    """Remove a file of an index that no manifest names. Raises StoreError, also for links on the path."""
    folder, _, last = name.rpartition("/")
    with _removing(index / name), _folder(index, folder) as descriptor:
        try:
            os.unlink(last, dir_fd=descriptor)
        except FileNotFoundError:
            if not missing_ok:
                raise


def remove_folder(index: Path, name: str) -> None:
    """Remove a folder of files that no manifest names, its record (.json) first. Raises StoreError, also for links on
    the path, or anything but regular files in the folder."""
    outer, _, last = name.rpartition("/")
    end = time.monotonic() + _PATIENCE
    with _removing(index / name), _folder(index, outer) as above:
        while True:
            _empty_folder(index, name)
            try:
                return os.rmdir(last, dir_fd=above)
            except OSError as error:  # a worker of a killed build may finish or rename a file until it ends
                if error.errno != errno.ENOTEMPTY or time.monotonic() > end:
                    raise


def _empty_folder(index: Path, name: str) -> None:
    """Remove the files of a folder; one that vanishes meanwhile is no error."""
    with _folder(index, name) as inside:
        files = sorted(os.listdir(inside), key=lambda file: (not file.endswith(".json"), file))
        for file in files:
            with suppress(FileNotFoundError):
                if not stat.S_ISREG(os.lstat(file, dir_fd=inside).st_mode):
                    raise _foreign(index / name / file)
        for file in files:
            with suppress(FileNotFoundError):
                os.unlink(file, dir_fd=inside)


def move_in(source: Path, path: Path) -> None:
    """Give a file of the same file system its name in an index, durably, replacing an existing file. Raises
    StoreError."""
    make_folder(path.parent)
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(source, path)
        sync_folder(path.parent)
    except OSError as error:
        raise _store_error(path, error) from error


def remove_tree(index: Path, name: str) -> None:
    """Remove a folder directly in an index with everything in it, if it exists. Raises StoreError, also for a link."""
    with _removing(index / name), suppress(FileNotFoundError):
        shutil.rmtree(index / name)


def remove_temporary(index: Path, folder: str) -> None:
    """Remove the temporary files of a folder."""
    for name in names_in(index / folder):
        if name.endswith(TEMPORARY):
            remove_file(index, f"{folder}/{name}")


def require_own_files(index: Path) -> None:
    """Raise StoreError for the first link, pipe, socket or device in an index, at any depth."""
    folders = [str(index)]
    try:
        for folder in folders:  # grows in the loop
            with os.scandir(folder) as entries:
                sorted_entries = sorted(entries, key=lambda entry: entry.name)
            for entry in sorted_entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif not entry.is_file(follow_symlinks=False):
                    raise _foreign(Path(entry.path))
    except OSError as error:
        raise StoreError(f"{error.filename or index}: cannot be read: {error.strerror or error}.") from error


def require_own_folders(index: Path, names: Iterable[str]) -> None:
    """Raise StoreError for the first folder on the paths of some files of an index that is a link."""
    within = {name.rpartition("/")[0] for name in names} - {""}
    folders = within | {str(parent) for name in within for parent in PurePosixPath(name).parents[:-1]}
    for folder in sorted(folders):
        try:
            if stat.S_ISLNK(os.lstat(index / folder).st_mode):
                raise _foreign(index / folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StoreError(f"{index / folder}: cannot be read: {error.strerror}.") from error


def _foreign(path: Path) -> StoreError:
    mode = os.lstat(path).st_mode
    what = "a link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "a pipe, socket or device"
    return StoreError(
        f"{path}: is {what}; an index has only regular files here. Nothing was changed. Fix: remove it if you know "
        "what it is, or copy the index again from its source."
    )


@contextmanager
def _removing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path}: cannot be removed: {error.strerror}.") from error


@contextmanager
def _folder(index: Path, name: str) -> Iterator[int]:
    """Open a folder of an index without following a link."""
    descriptor = os.open(index, _FOLDER)
    try:
        for part in PurePosixPath(name).parts:
            try:
                inside = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise _foreign(index / name) from None
                raise
            os.close(descriptor)
            descriptor = inside
        yield descriptor
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Make renames in `path` survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_own(path: Path) -> IO[bytes]:
    """Open a file of an index on a disk. Raises OSError, also for a link."""
    return open_regular(path, follow_links=False)


def digest_file(path: Path, opening: Callable[[Path], IO[bytes]] = open_own) -> FileDigest:
    """Hash a whole file. Raises CorruptIndexError if it is missing, StoreError if it cannot be read."""
    builder = DigestBuilder()
    with _reading(path, opening) as file:
        while data := file.read(8 * BLOCK):
            builder.update(data)
    return builder.digest()


def hash_file(path: Path) -> str:
    """Return the sha256 (hex) of a whole file, in a third of the time of `digest_file`. Raises the same errors."""
    with _reading(path, open_own) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


@contextmanager
def _reading(path: Path, opening: Callable[[Path], IO[bytes]]) -> Iterator[IO[bytes]]:
    try:
        with opening(path) as file:
            yield file
    except FileNotFoundError:
        raise missing(path) from None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}.") from error


def _read_back(path: Path, expected: FileDigest) -> None:
    if path.stat().st_size != expected.bytes or hash_file(path) != expected.sha256:
        raise OSError(errno.EIO, "what was read back differs from what was written")


def _create(path: Path) -> int:
    try:
        return os.open(path, _NEW_FILE, 0o666)
    except FileExistsError:
        os.unlink(path)  # the existing file may be a link, or have other names: never write into it
        return os.open(path, _NEW_FILE, 0o666)


def _discard(path: Path) -> None:
    with suppress(OSError):  # the next build sweeps temporary files
        os.unlink(path)


def _store_error(path: Path, error: OSError) -> StoreError:
    if error.errno == errno.ENOSPC:
        return StoreError(f"{path}: the disk is full. Fix: free some space and run the same command again to continue.")
    return StoreError(f"{path}: cannot be written: {error.strerror or error}.")


@contextmanager
def writer_lock(index: Path, shared: bool = False) -> Iterator[None]:
    """Lock the index for writing, with an advisory lock that the kernel releases when the writer exits or crashes.

    With `shared`, other processes may also hold the lock, if they write only files of parts to be encoded.

    Raises LockedError at once if another process has the lock, StoreError for a link or special file in the index.
    """
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.fdopen(os.open(index / LOCK, flags, 0o666), "r+b")
    except OSError as error:
        what = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise StoreError(f"{index / LOCK}: cannot be opened for writing: {what}.") from error
    with file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise StoreError(f"{index / LOCK}: not a regular file. Fix: remove it, and run the command again.")
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(f"{index}: another process is writing to this index. Fix: wait for it to end.") from None
        except OSError as error:
            raise StoreError(
                f"{index / LOCK}: this file system cannot lock files ({error.strerror}), so two writers could "
                "overwrite each other. Fix: build on a local disk."
            ) from error
        require_own_files(index)
        yield
