"""Files a user names: hashed as read, checked early, written whole or not at all, never over what they come from."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from indexer.errors import ConfigError, EvaluationError, ExistsError, ModelError, StoreError
from indexer.store.files import DurableFile, FileStamp, make_folder, sync_folder, write_file
from search.opened import is_index

Content = bytes | Path
"""What a file is to hold: these bytes, or those of the file at this path."""
_BLOCK = 8 << 20


def check_outputs(written: Mapping[str, Path], indexes: Iterable[Path] = (), read: Iterable[Path] = ()) -> None:
    """Raises ConfigError for a file that cannot be written, or is to be written twice or over something it needs.

    `written` maps options to files; `indexes` are indexes, folders or files of a corpus, `read` other files.
    """
    sources = [path for path in (*indexes, *read) if path.exists()]
    taken: dict[Path, str] = {}
    for option, path in written.items():
        if path.name == "-":
            raise ConfigError(f"{option} - would be a file of that name; results go to files, so name one.")
        check_output(path, option)
        place = path.resolve()
        if place in taken:
            raise ConfigError(f"{taken[place]} and {option} name the same file, {path}; name two.")
        taken[place] = option
        for source in sources:
            if place == source.resolve() or (path.exists() and path.samefile(source)):
                raise ConfigError(f"{option} {path} is what the result is made from; name another file.")
            if is_index(source) and source.resolve() in place.parents:
                raise ConfigError(f"{option} {path} lies inside the index {source}; name a file elsewhere.")


def check_output(path: Path, option: str = "-o") -> None:
    """Raises ConfigError for a file that could not be written: now, not after minutes of encoding.

    Files are put in place by renaming, which would replace a pipe or a device: only regular files are written.
    """
    target = _behind_links(path, option)
    if path.is_dir():
        raise ConfigError(f"{option} {path} is a folder; name a file.")
    if path.exists() and not path.is_file():
        raise ConfigError(f"{option} {path} is no regular file but a pipe, socket or device; name a file.")
    _check_writable(path, target.parent, option)


def check_new_folder(path: Path, option: str = "-o") -> None:
    """Raises ExistsError where something is already, ConfigError for a folder that could not be made."""
    if os.path.lexists(path):
        raise ExistsError(f"{option} {path} is already there; expected the name of a new folder.")
    _check_writable(path, path.parent, option)


def check_cache(path: Path) -> None:
    """Raises ConfigError for a folder of --cache that could not be made or written."""
    _check_writable(path, path, "--cache")


def _behind_links(path: Path, option: str) -> Path:
    """Where a path leads, so that a link's target is written and the link stays."""
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise ConfigError(f"{option} {path} cannot be followed: its links lead in a circle. Name a file.") from error


def _check_writable(path: Path, folder: Path, option: str) -> None:
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        wrong = "is a file" if folder == path else f"cannot be made, for {folder} is a file"
        raise ConfigError(f"{option} {path} {wrong}; expected a place where a folder is or can be.")
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ConfigError(f"{option} {path} cannot be written: {folder}: {error.strerror or error}.") from error


def file_hash(path: Path) -> str:
    """sha256 of a file's bytes. Raises EvaluationError when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise EvaluationError(f"{path}: cannot be read: {error.strerror or error}.") from error


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """A result as JSON, written whole or not at all."""
    text = json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False)
    write_output(path, text.encode() + b"\n")


def write_output(path: Path, data: bytes, option: str = "-o") -> FileStamp:
    """`open_output` for data already in memory."""
    with open_output(path, option) as file:
        file.write(data)
    return file.stamp


@contextmanager
def open_output(path: Path, option: str = "-o") -> Iterator[DurableFile]:
    """Write a file that a user named, whole or not at all, in its folder, made if need be; through links.

    After the block, `.stamp` holds its hashes. Raises ConfigError as `check_output`, and StoreError.
    """
    check_output(path, option)
    target = _behind_links(path, option)
    make_folder(target.parent)
    with write_file(target) as file:
        yield file


@contextmanager
def open_output_folder(path: Path, option: str = "-o") -> Iterator[Path]:
    """A folder to write into, renamed to `path` after the block.

    Raises ConfigError as `check_new_folder`, ExistsError when `path` is there by then, and StoreError.
    """
    check_new_folder(path, option)
    make_folder(path.parent)
    try:
        beside = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror or error}.") from error
    try:
        folder = beside / path.name
        make_folder(folder)
        yield folder
        check_new_folder(path, option)
        folder.rename(path)
        sync_folder(path.parent)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def write_files(folder: Path, files: Mapping[str, Content]) -> dict[str, FileStamp]:
    """Write files, by name relative to the folder ("1_Pooling/config.json"), durably; returns their stamps.

    Raises StoreError, and ModelError for a file to be copied that cannot be read.
    """
    return {name: _write(folder / name, content) for name, content in sorted(files.items())}


def _write(path: Path, content: Content) -> FileStamp:
    make_folder(path.parent)
    with write_file(path) as file:
        for piece in _pieces(content):
            file.write(piece)
    return file.stamp


def _pieces(content: Content) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    try:
        with open(content, "rb") as source:
            while data := source.read(_BLOCK):
                yield data
    except OSError as error:
        raise ModelError(f"{content}: cannot be read: {error.strerror or error}.") from error
