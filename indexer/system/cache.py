"""The cache: results that are computed once and stored outside the index, such as converted models and BM25.

All of it can be computed again, so the folder can be deleted at any time. An entry is one folder, named by the hash of
everything that its contents depend on, with a seal: the sha256 of each file. A mismatch makes a new entry.
"""

import atexit
import errno
import fcntl
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from indexer.errors import MachineError, ModelError
from indexer.hashing import file_sha256, fingerprint
from indexer.system.regular_files import read_regular
from indexer.typed_json import decode_json

T = TypeVar("T")
_SEAL = "seal.json"


def cache_folder() -> Path:
    """Return `$ISOTROPE_CACHE`, else `isotrope` in the user's cache folder."""
    named = os.environ.get("ISOTROPE_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "isotrope"


def cached_folder(kind: str, key: Mapping[str, Any], make: Callable[[Path], None], most: int = 0) -> Path:
    """Return the folder of an entry. `make` fills a new folder if there is no entry that matches its seal.

    With `most`, only that many entries of the kind are kept, the most recently used. If the cache cannot be written, or
    its disk is full, the entry is made in a temporary folder, with a warning, and removed with the process. Raises
    MachineError if that disk is full as well.
    """
    path = cache_folder() / kind / fingerprint(dict(key))
    if _is_whole(path):
        with suppress(OSError):
            (path / _SEAL).touch()  # the time of last use
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name[:8]}."))
    except OSError as error:
        return _made_for_process(make, kind, path.name, error.strerror)
    try:
        _publish(_made(make, temporary), path)
    except OSError as error:
        if not _is_full(error):
            raise
        shutil.rmtree(temporary, ignore_errors=True)
        return _made_for_process(make, kind, path.name, error.strerror)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if most:
        _drop_unused(path.parent, most)
    return path


def read_cached(path: Path, kind: type[T]) -> T:
    """Return a JSON file of an entry as type `kind`. Raises ModelError for any other content."""
    try:
        return decode_json(read_regular(path), kind)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise ModelError(f"{path}: damaged cache entry: {error}. Fix: delete the folder {path.parent}.") from error


@cache
def _warn_unwritable(folder: Path, reason: str | None) -> None:
    warnings.warn(
        f"the cache {folder} cannot be written ({reason or 'the disk is full'}), so its entries are computed "
        "again in each process. Fix: choose another folder with ISOTROPE_CACHE.",
        stacklevel=4,
    )


@cache
def _process_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="isotrope-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _made_for_process(make: Callable[[Path], None], kind: str, name: str, reason: str | None) -> Path:
    _warn_unwritable(cache_folder(), reason)
    folder = _process_folder() / kind / name
    if _is_whole(folder):
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(parents=True)
        return _made(make, folder)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        if not _is_full(error):
            raise
        raise MachineError(
            f"neither the cache {cache_folder()} nor the temporary folder {folder} has room for a new entry. Fix: free "
            "some space, or choose a folder on another disk with ISOTROPE_CACHE."
        ) from error


def _is_full(error: OSError) -> bool:
    """Return whether the disk is full. numpy gives no error number for an incomplete write."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT) or (error.errno is None and "written" in str(error))


def _made(make: Callable[[Path], None], folder: Path) -> Path:
    make(folder)
    seal = {file.name: file_sha256(file) for file in sorted(folder.iterdir())}
    (folder / _SEAL).write_text(json.dumps(seal), encoding="utf-8")
    return folder


def _publish(made: Path, path: Path) -> None:
    """Move the folder to its place, unless another process has published the entry meanwhile."""
    with _locked(path.parent):
        if not _is_whole(path):
            _remove(path)
        try:
            made.rename(path)
        except OSError:
            if not _is_whole(path):
                raise


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock `folder` against other processes and threads, so that none removes an entry that was just published. Without
    effect on file systems that cannot lock folders."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    """Remove anything that is no entry, for a link the link only. Failures are ignored: the caller checks."""
    if path.is_symlink() or not path.is_dir():
        with suppress(OSError):  # another process may have published an entry there
            path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def _drop_unused(folder: Path, most: int) -> None:
    """Remove the least recently used entries. Processes keep the files that they have open."""
    used = [(seal.stat().st_mtime_ns, seal.parent) for seal in folder.glob(f"*/{_SEAL}") if seal.exists()]
    for _, entry in sorted(used, reverse=True)[most:]:
        shutil.rmtree(entry, ignore_errors=True)


def _is_whole(path: Path) -> bool:
    try:
        seal = decode_json(read_regular(path / _SEAL, follow_links=False), dict[str, str])
        return all(Path(name).name == name and file_sha256(path / name) == digest for name, digest in seal.items())
    except (OSError, ValueError):
        return False
