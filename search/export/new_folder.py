"""A folder that a user named, put in place whole or not at all."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from indexer.errors import ModelError, StoreError
from indexer.regular_files import open_regular
from indexer.store.files import FileStamp, make_folder, sync_folder, write_file
from search.provenance import check_new_folder

Content = bytes | Path
"""What a file is to hold: these bytes, or those of the file at this path."""
_BLOCK = 8 << 20


@contextmanager
def new_folder(path: Path, option: str = "-o") -> Iterator[Path]:
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
        with open_regular(content, follow_links=False) as source:
            while data := source.read(_BLOCK):
                yield data
    except OSError as error:
        raise ModelError(f"{content}: cannot be read: {error.strerror or error}.") from error
