"""Comparing every file of an index with its manifest."""

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from indexer.errors import CorruptIndexError
from indexer.parallel import available_cores
from indexer.store.checked import changed, check_file, check_size
from indexer.store.files import hash_file, require_own_files, require_own_folders
from indexer.store.manifest import Manifest

OPEN_HASH_BYTES = 256 << 20  # what opening an index hashes at once; larger ones are checked as they are read


def check_sizes(index: Path, manifest: Manifest) -> None:
    """Raises CorruptIndexError for the first file that is missing or of another size, StoreError for links."""
    require_own_folders(index, manifest.files)
    for name, stamp in manifest.files.items():
        check_size(index / name, stamp)


def are_hashed_at_once(manifest: Manifest, names: list[str]) -> bool:
    """Whether the named files are small enough together to be hashed when an index is opened."""
    return sum(manifest.files[name].bytes for name in names) <= OPEN_HASH_BYTES


def check_files(index: Path, manifest: Manifest, names: list[str]) -> None:
    """Hash the named files if they are small enough together. Raises CorruptIndexError for the first changed one."""
    if not are_hashed_at_once(manifest, names):
        return
    with ThreadPoolExecutor(available_cores(), thread_name_prefix="hash") as hashers:  # hashing lets go of the GIL
        for name, sha256 in zip(names, hashers.map(lambda name: hash_file(index / name), names), strict=True):
            if sha256 != manifest.files[name].sha256:
                raise changed(index / name)


def require_parts(index: Path, manifest: Manifest, parts: Collection[str]) -> None:
    """Hash every file of the named parts. Raises CorruptIndexError for the first that is not what was published."""
    require_own_folders(index, [name for name in manifest.files if name.rpartition("/")[0] in parts])
    for name, stamp in manifest.files.items():
        if name.rpartition("/")[0] in parts:
            check_file(index / name, stamp)


def damaged_files(
    index: Path, manifest: Manifest, on_file: Callable[[str], None] = lambda name: None
) -> list[CorruptIndexError]:
    """Hash every file the manifest names; one error for each that is not what it should be.

    Raises StoreError for a link or a special file anywhere in the index.
    """
    require_own_files(index)
    errors = []
    for name, stamp in sorted(manifest.files.items()):
        try:
            check_file(index / name, stamp)
        except CorruptIndexError as error:
            errors.append(error)
        on_file(name)
    return errors
