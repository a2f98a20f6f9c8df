"""The only module that changes the file system: durable, hashed, all-or-nothing writes.

A file is written beside its place, synced, read back and compared, then renamed; its folder is synced. So a
name either is not there or holds every byte that was meant, also after a power cut. Only one writer is at work
at a time (see `writer_lock`), and readers never look at names that no manifest gives.

An index may come from an archive that somebody else packed, with links in it that lead elsewhere. Nothing is written,
removed or read through one: `require_own_files` refuses them all before a writer begins, removal goes from folder to
folder by descriptors that follow none, and neither a file being written nor one being read may be a link.
"""

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Any

from msgspec import Meta, Struct

from indexer.errors import CorruptIndexError, LockedError, StoreError
from indexer.store.layout import LOCK, TEMPORARY, Count, Hash
from indexer.system.regular_files import open_regular

BLOCK = 1 << 20  # bytes a block digest covers
_DIGEST = 8  # bytes of each block digest
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


Buffer = bytes | memoryview


class FileDigest(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The size of a file, its sha256 and, above one block, a digest for each MiB (hex, concatenated)."""

    bytes: Count
    sha256: Hash
    blocks: Annotated[str, Meta(pattern=r"^([0-9a-f]{16})*\Z")] = ""

    def is_block(self, data: Buffer, number: int) -> bool:
        """Whether `data` is block `number`, bytes [number, number + 1) * BLOCK; a file of one block has only sha256."""
        if self.blocks:
            return digest_block(data) == self.blocks[number * 2 * _DIGEST : (number + 1) * 2 * _DIGEST]
        return hashlib.sha256(data).hexdigest() == self.sha256


WAY_OUT = "Restore the file from a copy, or build again with --overwrite, which encodes only what is lost."


def missing(path: Path) -> CorruptIndexError:
    """The error for a file that is not there."""
    return CorruptIndexError(f"{path}: the index names this file, but it is not there. {WAY_OUT}")


def changed(path: Path) -> CorruptIndexError:
    """The error for a file whose bytes are not those that were published."""
    return CorruptIndexError(f"{path}: its bytes are not those that were published (checksum mismatch). {WAY_OUT}")


def wrong_size(path: Path, found: int, digest: FileDigest) -> CorruptIndexError:
    """The error for a file that was cut short, or has grown."""
    return CorruptIndexError(f"{path}: {found:,} bytes, the index says {digest.bytes:,}. {WAY_OUT}")


def digest_block(data: Buffer) -> str:
    """Return the digest of one block, as `FileDigest.blocks` holds it."""
    return hashlib.blake2b(data, digest_size=_DIGEST).hexdigest()


class DigestBuilder:
    """Makes a `FileDigest` of bytes that stream by."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()
        self._size = 0
        self._blocks: list[str] = []
        self._block = hashlib.blake2b(digest_size=_DIGEST)

    def update(self, data: bytes | memoryview) -> None:
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
        tail = [self._block.hexdigest()] if self._size % BLOCK else []
        blocks = self._blocks + tail
        return FileDigest(self._size, self._sha.hexdigest(), "".join(blocks) if len(blocks) > 1 else "")


def write_all(descriptor: int, data: Any) -> memoryview:
    """Write every byte of some data to an open file; returns them."""
    view = rest = memoryview(data).cast("B")
    while len(rest):
        rest = rest[os.write(descriptor, rest) :]
    return view


class DurableFile:
    """A binary file being written; readable under its name only once `atomic_write` has ended well."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._builder = DigestBuilder()
        self.digest = FileDigest(0, "")  # what was written; set at the end
        self.closed = False

    def write(self, data: Any) -> int:
        if self.closed:
            # Arrow's writer, after an error, may write its footer as late as when it is collected as garbage; by then
            # the descriptor can be that of another file.
            raise ValueError("write to a closed file")
        view = write_all(self._descriptor, data)
        self._builder.update(view)
        return len(view)

    def flush(self) -> None:
        """Nothing is buffered here; libraries call it."""

    def writable(self) -> bool:
        return True

    def finish(self) -> None:
        os.fsync(self._descriptor)
        self.digest = self._builder.digest()

    def release(self) -> None:
        """Let go of the descriptor; later writes fail. Not called `close`, which Arrow would call too early."""
        if not self.closed:
            self.closed = True
            os.close(self._descriptor)


@contextmanager
def atomic_write(path: Path) -> Iterator[DurableFile]:
    """Write `path` durably and all at once, replacing what was there. After the block, `.digest` holds its hashes.

    Raises StoreError naming the path when the disk is full or fails; nothing is then left under the name.
    """
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
    except OSError as error:
        _discard(temporary)
        raise _store_error(path, error) from error
    except BaseException:
        _discard(temporary)
        raise


def _temporary(path: Path) -> Path:
    """A name beside `path` that no other process has, of this machine or another."""
    return path.with_name(f"{path.name}.{os.urandom(6).hex()}{TEMPORARY}")


def atomic_write_bytes(path: Path, data: bytes) -> FileDigest:
    """`atomic_write` for data already in memory."""
    with atomic_write(path) as file:
        file.write(data)
    return file.digest


def create_exclusive(path: Path, data: bytes) -> None:
    """Create `path` with `data` in one step: it is not there, or it is whole. Raises StoreError if it exists."""
    temporary = _temporary(path)
    atomic_write_bytes(temporary, data)
    try:
        try:
            os.link(temporary, path)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                raise
            # A file system without hard links: the writer's lock keeps others from creating it in between.
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
        except FileExistsError:  # several processes encode parts of one mirror folder: another was a moment earlier
            if not path.is_dir():
                raise
        sync_folder(path.parent)
    except OSError as error:
        raise _store_error(path, error) from error


def remove_file(index: Path, name: str, missing_ok: bool = False) -> None:
    """Remove a file of an index that no manifest names. Raises StoreError, also where a link is on the way."""
    folder, _, last = name.rpartition("/")
    with _removing(index / name), _folder(index, folder) as descriptor:
        try:
            os.unlink(last, dir_fd=descriptor)
        except FileNotFoundError:
            if not missing_ok:
                raise


def remove_folder(index: Path, name: str) -> None:
    """Remove a folder of files that no manifest names, the mark of its completeness (.json) first.

    Raises StoreError, also where a link is on the way, or anything in the folder is no regular file.
    """
    outer, _, last = name.rpartition("/")
    with _removing(index / name), _folder(index, outer) as above:
        with _folder(index, name) as inside:
            files = sorted(os.listdir(inside), key=lambda file: (not file.endswith(".json"), file))
            for file in files:
                if not stat.S_ISREG(os.lstat(file, dir_fd=inside).st_mode):
                    raise _foreign(index / name / file)
            for file in files:
                os.unlink(file, dir_fd=inside)
        os.rmdir(last, dir_fd=above)


def require_own_files(index: Path) -> None:
    """Raises StoreError naming the first link, pipe, socket or device in an index, at any depth."""
    folders = [str(index)]
    try:
        for folder in folders:  # grows in the loop
            with os.scandir(folder) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
            for entry in found:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif not entry.is_file(follow_symlinks=False):
                    raise _foreign(Path(entry.path))
    except OSError as error:
        raise StoreError(f"{error.filename or index}: cannot be looked at: {error.strerror or error}.") from error


def require_own_folders(index: Path, names: Iterable[str]) -> None:
    """Raises StoreError for the first folder on the way to some files of an index that is a link; absent ones pass."""
    within = {name.rpartition("/")[0] for name in names} - {""}
    folders = within | {str(parent) for name in within for parent in PurePosixPath(name).parents[:-1]}
    for folder in sorted(folders):
        try:
            if stat.S_ISLNK(os.lstat(index / folder).st_mode):
                raise _foreign(index / folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StoreError(f"{index / folder}: cannot be looked at: {error.strerror}.") from error


def _foreign(path: Path) -> StoreError:
    mode = os.lstat(path).st_mode
    what = "a link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "a pipe, socket or device"
    return StoreError(
        f"{path}: is {what}; an index holds only files of its own there. Nothing was changed. Remove it if you know "
        "what it is, or get the index anew from where it came from."
    )


@contextmanager
def _removing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path}: cannot be removed: {error.strerror}.") from error


@contextmanager
def _folder(index: Path, name: str) -> Iterator[int]:
    """The descriptor of a folder in an index, which is reached without following a link."""
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
    """Read a whole file and hash it. Raises CorruptIndexError if it is missing, StoreError if it cannot be read."""
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
        os.unlink(path)  # what is there may be a link, or have other names: it is never written into
        return os.open(path, _NEW_FILE, 0o666)


def _discard(path: Path) -> None:
    try:
        os.unlink(path)
    except OSError:
        return  # the next build sweeps temporary files


def _store_error(path: Path, error: OSError) -> StoreError:
    if error.errno == errno.ENOSPC:
        return StoreError(f"{path}: the disk is full. Free some space and run the same command again to continue.")
    return StoreError(f"{path}: cannot be written: {error.strerror or error}.")


@contextmanager
def writer_lock(index: Path, shared: bool = False) -> Iterator[None]:
    """Hold the index directory for writing, by an advisory lock that the kernel frees when the writer dies, however.

    `shared`: beside others who write nothing but the files of parts that are to be encoded.

    Raises LockedError at once if another process does, and StoreError if anything in it is a link or a special file.
    """
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.fdopen(os.open(index / LOCK, flags, 0o666), "r+b")
    except OSError as error:
        what = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise StoreError(f"{index / LOCK}: cannot be opened for writing: {what}.") from error
    with file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise StoreError(f"{index / LOCK}: is no regular file. Remove it, and run the command again.")
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(f"{index}: another process is writing to this index. Wait for it to end.") from None
        except OSError as error:
            raise StoreError(
                f"{index / LOCK}: this file system cannot lock files ({error.strerror}), so two writers could not be "
                "kept apart. Build on a local disk."
            ) from error
        require_own_files(index)
        yield
