"""What is made once and kept outside the index: a model's converted graphs and tokenizers, an index's BM25.

Everything here can be made again, so the folder may be deleted at any time. An entry is one folder, named by the hash
of all that decides its contents, with a seal: the sha256 of each of its files. One that does not match is made anew.
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
    """`$ISOTROPE_CACHE`, else `isotrope` in the user's cache folder."""
    named = os.environ.get("ISOTROPE_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "isotrope"


def cached_folder(kind: str, key: Mapping[str, Any], make: Callable[[Path], None], most: int = 0) -> Path:
    """The folder of an entry. `make` fills a new folder with it when there is none, or when it is not as it was sealed.

    With `most`, so many entries of the kind are kept: those that were used last. Where the cache cannot be written, or
    its disk is full, the entry is made in a temporary folder, with a warning, and removed with the process. Raises
    MachineError if that disk is full as well.
    """
    path = cache_folder() / kind / fingerprint(dict(key))
    if _is_whole(path):
        with suppress(OSError):
            (path / _SEAL).touch()  # used now
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name[:8]}."))
    except OSError as error:
        _tell_unwritable(cache_folder(), error.strerror)
        return _made_for_process(make, _process_folder() / kind / path.name)
    try:
        _publish(_made(make, beside), path)
    except OSError as error:
        if not _is_full(error):
            raise
        shutil.rmtree(beside, ignore_errors=True)
        _tell_unwritable(cache_folder(), error.strerror)
        return _made_for_process(make, _process_folder() / kind / path.name)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    if most:
        _drop_unused(path.parent, most)
    return path


def read_cached(path: Path, kind: type[T]) -> T:
    """A JSON file of an entry as type `kind`. Raises ModelError for one that is not what was kept."""
    try:
        return decode_json(read_regular(path), kind)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise ModelError(f"{path}: not what was kept there: {error}. Delete the folder {path.parent}.") from error


@cache
def _tell_unwritable(folder: Path, reason: str | None) -> None:
    """Once in a process, whatever is made."""
    warnings.warn(
        f"the cache {folder} cannot be written ({reason or 'the disk is full'}), so its entries are computed "
        "again in each process. Name another folder with the environment variable ISOTROPE_CACHE.",
        stacklevel=3,
    )


@cache
def _process_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="isotrope-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _made_for_process(make: Callable[[Path], None], folder: Path) -> Path:
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
            f"neither the cache {cache_folder()} nor the temporary folder {folder} has room for a new entry. Free "
            "some space, or name a folder on another disk with the environment variable ISOTROPE_CACHE."
        ) from error


def _is_full(error: OSError) -> bool:
    """Whether the disk is full. numpy gives no error number for an incomplete write."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT) or (error.errno is None and "written" in str(error))


def _made(make: Callable[[Path], None], folder: Path) -> Path:
    make(folder)
    seal = {file.name: file_sha256(file) for file in sorted(folder.iterdir())}
    (folder / _SEAL).write_text(json.dumps(seal), encoding="utf-8")
    return folder


def _publish(made: Path, path: Path) -> None:
    """Move the folder to its place, unless another process has published the same entry in the meantime."""
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
    """Keep other processes and threads from publishing in `folder`, so that none removes an entry that another has just
    published. On file systems without locks for folders nothing is locked."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    """Take what is no entry out of the way; of a link, the link. What cannot be removed stays: the caller looks."""
    if path.is_symlink() or not path.is_dir():
        with suppress(OSError):  # somebody's entry may have come there since it was looked at
            path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def _drop_unused(folder: Path, most: int) -> None:
    """Who has an entry open goes on reading it."""
    used = [(seal.stat().st_mtime_ns, seal.parent) for seal in folder.glob(f"*/{_SEAL}") if seal.exists()]
    for _, entry in sorted(used, reverse=True)[most:]:
        shutil.rmtree(entry, ignore_errors=True)


def _is_whole(path: Path) -> bool:
    try:
        seal = decode_json(read_regular(path / _SEAL, follow_links=False), dict[str, str])
        return all(Path(name).name == name and file_sha256(path / name) == digest for name, digest in seal.items())
    except (OSError, ValueError):
        return False
