"""Files of a published index: checked before use, and compared with the manifest."""

import io
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import numpy as np
import numpy.typing as npt

from indexer.arrays import Int64Array
from indexer.errors import CorruptIndexError, StoreError
from indexer.recipe.config import Role
from indexer.store.files import BLOCK, FileDigest, changed, hash_file, require_own_files, restore
from indexer.store.local_store import reading, unreadable
from indexer.store.manifest import Manifest
from indexer.store.open_files import OpenFile, map_file
from indexer.store.stores import holder_of, store_at
from indexer.system.threads import available_cores, ordered_map
from indexer.transforms import Transform, transform_from_bytes

_NICENESS = 10  # of a check in the background; not more, because a thread that waits can hold the interpreter lock
_AHEAD = 7  # blocks fetched beyond the requested one
OPEN_HASH_BYTES = 256 << 20  # hashed when an index is opened; larger files are checked as they are read


class CheckedFile(io.RawIOBase):
    """A seekable read-only binary file; every MiB is compared with its digest at the first access.

    A file of at most one block is compared with its sha256 at once. Missing blocks are fetched from object storage. The
    descriptor may be closed between uses (see `open_files`). If the path then names another file, all blocks are
    compared again. Raises CorruptIndexError naming the file.
    """

    def __init__(self, path: Path, digest: FileDigest) -> None:
        super().__init__()
        self._path, self._digest = path, digest
        self._position = 0
        self._checked: set[int] = set()
        self._times = 0
        self._state: object = None  # of the file whose blocks were checked
        self.versions = 0  # how many different files the path has named
        # First, because `__del__` closes it after any failure; without `self`, because open files stay referenced.
        self._file = OpenFile(lambda: store.descriptor(name, digest))
        self._store, self._name = store, name = holder_of(path)
        with self._descriptor():  # reports a missing file here, not at the first read
            pass
        if not digest.blocks:
            self._check([0])

    def read(self, size: int = -1) -> bytes:
        end = self._digest.bytes if size is None or size < 0 else min(self._position + size, self._digest.bytes)
        if end <= self._position:
            return b""
        with self._descriptor():  # one descriptor for both steps
            self._check(range(self._position // BLOCK, (end - 1) // BLOCK + 1))
            data = self._pread(end - self._position, self._position)
        self._position = end
        return data

    def check(self, ranges: tuple[Int64Array, Int64Array]) -> None:
        """Compare byte ranges (starts and ends, (n,) each) for a reader that maps the file itself."""
        self._check(sorted(_blocks_of(ranges)))

    def is_checked(self, ranges: tuple[Int64Array, Int64Array]) -> bool:
        """Whether all ranges have been compared."""
        return _blocks_of(ranges) <= self._checked

    def map(self) -> npt.NDArray[np.uint8]:
        """Map the whole file. Read its bytes only after `check`, and map it again when `versions` changes."""
        with self._descriptor() as descriptor, reading(self._path):
            return map_file(descriptor, self._digest.bytes)

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self._position, self._digest.bytes)[whence]
        self._position = max(0, base + offset)
        return self._position

    def size(self) -> int:
        return self._digest.bytes

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        """Close the descriptor. An engine that is dropped without being closed also releases its files."""
        self._file.close()
        super().close()

    @contextmanager
    def _descriptor(self) -> Iterator[int]:
        with self._file.descriptor() as descriptor:
            if self._times != self._file.times:
                self._times, state = self._file.times, self._store.state(descriptor)
                if self._state != state:
                    self._checked, self._state = set(), state
                    self.versions += 1
            yield descriptor

    def _check(self, blocks: Iterable[int]) -> None:
        """Compare some blocks, in ascending order."""
        blocks = list(blocks)
        if self._checked.issuperset(blocks):
            return
        with self._descriptor() as descriptor:
            new = [block for block in blocks if block not in self._checked]
            wrong = [block for block in new if not self._digest.is_block(self._pread(BLOCK, block * BLOCK), block)]
            if wrong:
                self._store.repair(descriptor, self._name, self._digest, [*wrong, *self._ahead_of(wrong)])
            self._checked.update(new)

    def _ahead_of(self, blocks: Sequence[int]) -> range:
        """Return blocks to fetch in addition: some for a sequential reader, else none."""
        sequential, end = blocks[0] - 1 in self._checked, -(-self._digest.bytes // BLOCK)
        return range(blocks[-1] + 1, min(blocks[-1] + 1 + _AHEAD, end) if sequential else 0)

    def _pread(self, size: int, position: int) -> bytes:
        """Return up to `size` bytes at `position`, fewer only at the end of the file."""
        pieces = []
        with self._descriptor() as descriptor, reading(self._path):
            while size and (piece := os.pread(descriptor, size, position)):
                pieces.append(piece)
                size, position = size - len(piece), position + len(piece)
        return b"".join(pieces)


def _blocks_of(ranges: tuple[Int64Array, Int64Array]) -> set[int]:
    firsts, lasts = ranges[0] // BLOCK, (ranges[1] - 1) // BLOCK
    steps = range(int((lasts - firsts).max(initial=-1)) + 1)
    return {block for step in steps for block in np.minimum(firsts + step, lasts).tolist()}


class BackgroundCheck:
    """Hashes a large file that is already in use, in a thread that ends with the process."""

    def __init__(self, path: Path, digest: FileDigest) -> None:
        self._path, self._digest = path, digest
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._compare, name="hash-file", daemon=True)
        self._thread.start()

    def require_sound(self, wait: bool = False) -> None:
        """Raise CorruptIndexError or StoreError if the file differs; `wait` for the whole file."""
        if wait:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _compare(self) -> None:
        if sys.platform == "linux":  # where a thread has a priority of its own: searches come first
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        try:
            if hash_file(self._path) != self._digest.sha256:
                self._error = changed(self._path)
        except (CorruptIndexError, StoreError) as error:
            self._error = error


def read_checked(path: Path, digest: FileDigest) -> bytes:
    """Return the bytes of a file after checking its size and sha256."""
    store, name = holder_of(path)
    return store.read(name, digest)


def check_file(path: Path, digest: FileDigest) -> None:
    """Compare size, sha256 and the digest of each MiB. Raises CorruptIndexError, and StoreError as `check_size`."""
    store, name = holder_of(path)
    store.check(name, digest)


@contextmanager
def as_damage(path: Path) -> Iterator[None]:
    """Within the block, convert errors of numpy and Arrow over invalid contents to CorruptIndexError. A file can match
    its hash in the manifest and still have invalid contents."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        if error.errno is not None:
            raise unreadable(path, error) from error
        raise _invalid(path, error) from error
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, EOFError, RuntimeError) as error:
        raise _invalid(path, error) from error


def _invalid(path: Path, error: Exception) -> CorruptIndexError:
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    return CorruptIndexError(f"{path}: invalid contents ({reason}). {restore()}")


def load_transform(index: Path, manifest: Manifest) -> Transform:
    """Return the transform of a generation. Raises CorruptIndexError, also for wrong dimensions."""
    name, input_dim, dim = manifest.transform["file"], manifest.encoder["dim"], manifest.transform["dim"]
    transform = transform_from_bytes(read_checked(index / name, manifest.files[name]), str(index / name))
    with as_damage(index / name):
        for role in get_args(Role):
            vectors = transform.transform(np.ones((1, input_dim), np.float32), role)
            if vectors.shape != (1, dim) or transform.dim != dim or not np.isfinite(vectors).all():
                raise ValueError(f"it does not map {input_dim} dimensions to {dim}")
    return transform


def check_sizes(index: Path, manifest: Manifest) -> None:
    """Raise CorruptIndexError for the first file that is missing or of another size, StoreError for links."""
    store_at(index).check_sizes(manifest.files)


def hashed_on_open(index: Path, manifest: Manifest, names: list[str]) -> bool:
    """Whether the named files are hashed when an index is opened: local files that are small together. Files of object
    storage are hashed as they are read; other files are not fetched."""
    return store_at(index).is_local and sum(manifest.files[name].bytes for name in names) <= OPEN_HASH_BYTES


def check_files(index: Path, manifest: Manifest, names: list[str]) -> None:
    """Hash the named files if they are small together. Raises CorruptIndexError for the first changed one."""
    if not hashed_on_open(index, manifest, names):
        return
    hashes = ordered_map(lambda name: hash_file(index / name), names, available_cores())  # hashing releases the GIL
    for name, sha256 in zip(names, hashes, strict=True):
        if sha256 != manifest.files[name].sha256:
            raise changed(index / name)


def verify_parts(index: Path, manifest: Manifest, parts: Collection[str]) -> None:
    """Hash every file of the named parts. Raises CorruptIndexError for the first changed or missing one."""
    files = {name: digest for name, digest in manifest.files.items() if name.rpartition("/")[0] in parts}
    store = store_at(index)
    store.check_sizes(files)
    for name, digest in files.items():
        store.check(name, digest)


def damaged_files(
    index: Path, manifest: Manifest, on_file: Callable[[str], None] = lambda name: None
) -> list[CorruptIndexError]:
    """Hash every file of the manifest; return an error for each damaged one. In object storage, every byte is fetched
    even if it is cached.

    Raises StoreError for a link or a special file anywhere in the index.
    """
    require_own_files(index)
    errors, store = [], store_at(index)
    for name, digest in sorted(manifest.files.items()):
        try:
            store.check_stored(name, digest)
        except CorruptIndexError as error:
            errors.append(error)
        on_file(name)
    return errors
