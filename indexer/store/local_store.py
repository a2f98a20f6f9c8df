"""An index in a folder on a disk. `LocalStore` and `ObjectStore` have one interface; `stores` chooses between them."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from indexer.errors import StoreError
from indexer.store import layout
from indexer.store.files import (
    FileDigest,
    changed,
    create_exclusive,
    digest_file,
    make_folder,
    missing,
    open_own,
    remove_file,
    require_own_folders,
    wrong_size,
)
from indexer.system.regular_files import read_regular


class LocalStore:
    """The files of an index in a folder. Names are relative to it. Raises StoreError, and OSError where stated."""

    is_local = True  # other machines may see the folder; its files are compared with their digests before use
    url = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    # --- files with known digests

    def open(self, name: str) -> IO[bytes]:
        """Open a file for reading. Raises OSError."""
        return open_own(self.folder / name)

    def descriptor(self, name: str, digest: FileDigest) -> int:
        """Open a file after comparing its size; its bytes are unchecked."""
        path = self.folder / name
        check_size(path, digest)
        with reading(path), open_own(path) as file:
            return os.dup(file.fileno())

    def state(self, descriptor: int) -> object:
        """Return a value that stays equal while the path names the same unchanged file."""
        status = os.fstat(descriptor)
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    def repair(self, descriptor: int, name: str, digest: FileDigest, blocks: Sequence[int]) -> None:
        """Raise CorruptIndexError: blocks that differ from their digests are damage."""
        raise changed(self.folder / name)

    def map(self, name: str, digest: FileDigest) -> tuple[Path, int | None]:
        """Return the path of a file for a library that maps it, unchecked, and no descriptor."""
        return self.folder / name, None

    def read(self, name: str, digest: FileDigest) -> bytes:
        """Return the bytes of a file after checking its size and sha256."""
        path = self.folder / name
        check_size(path, digest)
        with reading(path):
            data = read_regular(path, digest.bytes, follow_links=False)
        if hashlib.sha256(data).hexdigest() != digest.sha256:
            raise changed(path)
        return data

    def check(self, name: str, digest: FileDigest) -> None:
        """Compare size, sha256 and the digest of each MiB. Raises CorruptIndexError, StoreError as `check_size`."""
        check_size(self.folder / name, digest)
        if digest_file(self.folder / name) != digest:
            raise changed(self.folder / name)

    check_stored = check

    def check_sizes(self, files: Mapping[str, FileDigest]) -> None:
        """Raise CorruptIndexError for the first file that is missing or of another size, StoreError for links."""
        require_own_folders(self.folder, files)
        for name, digest in files.items():
            check_size(f"{self.folder}/{name}", digest)

    def _nothing(self, *_: object) -> None:
        """Do nothing, as every file is in the folder."""

    know = copy_out = fetch_states = ahead = _nothing

    # --- the index

    def names(self, folder: str) -> list[str]:
        """Return the names of files in a folder. Raises OSError."""
        with os.scandir(self.folder / folder) as entries:  # there may be thousands
            return [entry.name for entry in entries]

    def top(self) -> set[str]:
        """Return the names of files and folders directly in the index. Raises OSError."""
        return {entry.name for entry in self.folder.iterdir()} if self.folder.is_dir() else set()

    def has(self, name: str = "") -> bool:
        """Whether a file or folder is directly in the index; without a name, whether its folder exists."""
        return (self.folder / name).exists()

    def read_manifest(self, name: str, most_bytes: int) -> bytes:
        """Return the bytes of a manifest. Raises OSError."""
        require_own_folders(self.folder, [name])
        return read_regular(self.folder / name, most_bytes, follow_links=False)

    def publish(self, generation: int, manifest: bytes) -> None:
        """Create a manifest in one step. Raises StoreError if that generation exists."""
        make_folder(self.folder / layout.MANIFESTS)
        create_exclusive(self.folder / layout.manifest_name(generation), manifest)

    def create(self, name: str, data: bytes) -> None:
        """Create a file in one step. Raises StoreError if it exists."""
        create_exclusive(self.folder / name, data)

    def published_time(self, generation: int) -> float:
        """Return the time when a generation was published, in seconds since 1970."""
        path = self.folder / layout.manifest_name(generation)
        with reading(path):
            return path.stat().st_mtime

    def remove(self, name: str) -> None:
        """Remove a file that no reader needs."""
        remove_file(self.folder, name)

    def files(self) -> list[str]:
        """Return the names of all files, also of those that no manifest names."""
        return sorted(path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file())

    @contextmanager
    def fetched(self, name: str) -> Iterator[Path]:
        """Within the block, a file has this path on this machine, with the bytes that the store has now."""
        yield self.folder / name

    def size(self) -> int:
        """Return the bytes of all files."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    # --- parts

    def part_numbers(self) -> list[int]:
        """Return the numbers of the parts, complete or not, ascending."""
        return layout.part_numbers(self.folder)

    def leftover_parts(self, is_settled: Callable[[int], bool]) -> list[int]:
        """Return the numbers of parts in the folder that a sweep must examine."""
        return [number for number in layout.part_numbers(self.folder) if not is_settled(number)]

    def complete_parts(self) -> set[str]:
        """Return the names of the parts with a record that every machine sees."""
        names = map(layout.part_name, layout.part_numbers(self.folder))
        return {name for name in names if (self.folder / name / layout.PART).exists()}

    def read_record(self, part: str, most_bytes: int) -> bytes:
        """Return the record of a part. Raises OSError."""
        return read_regular(self.folder / part / layout.PART, most_bytes, follow_links=False)

    def sent_sizes(self, folder: str = "") -> dict[str, int]:
        """Return the sizes of the files below a folder that are only in object storage; here none."""
        return {}


def check_size(name: str | Path, digest: FileDigest) -> None:
    """Compare presence and size. Raises CorruptIndexError, StoreError for links, special files and hard links.

    An index has five files a part, and a `Path` costs more than `lstat`.
    """
    try:
        status = os.lstat(name)
    except FileNotFoundError:
        raise missing(Path(name)) from None
    except OSError as error:
        raise unreadable(Path(name), error) from error
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        what = "a file with other names (hard links)" if stat.S_ISREG(status.st_mode) else "not a regular file"
        raise StoreError(
            f"{name}: {what}; expected a file that only this index uses. Fix: if you trust it, copy the index with cp "
            "-rL."
        )
    if status.st_size != digest.bytes:
        raise wrong_size(Path(name), status.st_size, digest)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Within the block, convert OSError to StoreError."""
    try:
        yield
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> StoreError:
    """Return the error for a file that cannot be read."""
    return StoreError(f"{path}: cannot be read: {error.strerror or error}.")
