"""Output files of a user: where they may be, and how they are written.

A file appears completely or not at all, also through links, and replaces another only on request. Pipes, terminals,
/dev/null and standard output are written byte by byte and never replaced. Nothing is ever written inside an index.
"""

import errno
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from indexer.errors import ConfigError, ExistsError, StoreError, as_argument, spelled
from indexer.store.files import DurableFile, atomic_write, make_folder
from indexer.store.layout import is_index_folder

STDOUT = Path("-")
"""Standard output by its usual name; /dev/stdout works, too."""
READER_SECONDS = 30.0  # how long a pipe waits for its reader
_MOST_LINKS = 40  # in a chain, as in Linux


class StreamFile(DurableFile):
    """A pipe, a terminal or a device that is being written."""

    def __init__(self, descriptor: int, path: Path) -> None:
        super().__init__(descriptor)
        self._path = path

    def write(self, data: Any) -> int:
        """Write all data. Raises BrokenPipeError if the reader has gone, StoreError for any other failure."""
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise StoreError(f"{self._path}: cannot be written: {error.strerror or error}.") from error

    def finish(self) -> None:
        """Record the digest; a stream cannot be synced."""
        self.digest = self._builder.digest()


OutputFile = DurableFile


@contextmanager
def open_output(path: Path, option: str = "", force: bool = False, stream: bool = True) -> Iterator[OutputFile]:
    """Write a user's file atomically, in its folder, created if needed; or a stream, byte by byte.

    After the block, `.digest` contains the hashes. Raises as `check_output`, StoreError (also for a pipe without a
    reader), and BrokenPipeError if the reader of a stream has gone.
    """
    check_output(path, option, force, stream)
    if is_stream(path):
        with _open_stream(path, option) as file:
            yield file
        return
    target = behind_links(path, option)
    make_folder(target.parent)
    with atomic_write(target) as file:
        yield file
        if not force:
            _require_free(path, option)  # it may have been created meanwhile


def check_output(path: Path, option: str = "", force: bool = False, stream: bool = True) -> None:
    """Raise for an output that cannot be written: now, not after minutes of encoding.

    `force` allows an existing regular file, `stream` a pipe or device. Raises ExistsError, and ConfigError for a path
    that cannot be written, is no file, or is inside an index.
    """
    refuse_inside_index(path, option)
    if is_stream(path):
        _check_stream(path, option, stream)
        return
    target, mode = behind_links(path, option), mode_of(path)
    if mode and stat.S_ISDIR(mode):
        raise ConfigError(f"{_named(option, path)} is a folder; expected a file.")
    if mode and not stat.S_ISREG(mode):
        raise ConfigError(f"{_named(option, path)} is a socket or a block device; expected a file.")
    if not force:
        _require_free(path, option)
    check_writable(path, target.parent, option)


def check_output_folder(path: Path, option: str = "", or_empty: bool = False) -> None:
    """Raises ExistsError for an existing path, ConfigError for a folder that cannot be created.

    `or_empty` allows an empty folder. Folders are never replaced.
    """
    if path == STDOUT:
        raise ConfigError(f"{_named(option, path)} is standard output; expected a folder.")
    refuse_inside_index(path, option)
    if os.path.lexists(path) and not (or_empty and is_folder(path) and not any(path.iterdir())):
        expected = "a new or an empty folder" if or_empty else "the name of a new folder"
        raise ExistsError(f"{_named(option, path)} already exists; expected {expected}.")
    check_writable(path, path.parent, option)


def is_stream(path: Path) -> bool:
    """Return whether a path is a stream (a pipe, a device, an open file) and not a place for a file."""
    if descriptor_of(path) is not None:
        return True
    mode = mode_of(path)
    return mode is not None and (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode))


def is_stdout(path: Path) -> bool:
    """Return whether data written to a path goes to this process's standard output."""
    if (descriptor := descriptor_of(path)) == 1:
        return True
    try:
        ours, theirs = os.fstat(1), path.stat() if descriptor is None else os.fstat(descriptor)
        sink = os.path.samestat(ours, Path(os.devnull).stat())
        return is_stream(path) and not sink and os.path.samestat(ours, theirs)
    except OSError:
        return False


def descriptor_of(path: Path) -> int | None:
    """Return the descriptor of this process that a path means: 1 for - and /dev/stdout, 3 for /dev/fd/3; else None.

    Such a file is written at its position, as in shells: > and >> have opened it already.
    """
    if path == STDOUT:
        return 1
    for _ in range(_MOST_LINKS):
        if path.name.isascii() and path.name.isdigit() and _same_place(path.parent, Path("/dev/fd")):
            return int(path.name)
        if not path.is_symlink():
            return None
        path = path.parent / path.readlink()
    return None


def output_name() -> str:
    """Return the name of the argument that most functions and commands write to."""
    return spelled("path", "-o")


def _named(option: str, path: Path) -> str:
    return f"{option or output_name()} {path}"


def mode_of(path: Path) -> int | None:
    """Return the mode of a path's target; None if it does not exist or may not be read."""
    try:
        return path.stat().st_mode
    except (OSError, RuntimeError):  # RuntimeError: circular links
        return None


def is_folder(path: Path) -> bool:
    """Return whether a path's target is a folder; False if it may not be read."""
    mode = mode_of(path)
    return mode is not None and stat.S_ISDIR(mode)


def behind_links(path: Path, option: str) -> Path:
    """Return a path's target, so that links stay when their target is written. Raises ConfigError for a circle."""
    try:
        return (Path("/dev/stdout") if path == STDOUT else path).resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: circular links
        raise ConfigError(f"{_named(option, path)} has circular links; expected a file.") from error


def refuse_inside_index(path: Path, option: str) -> None:
    """Raises ConfigError for a path inside an index, complete or not, which only the index itself may write."""
    for folder in behind_links(path, option).parents:
        if is_index_folder(folder):
            raise ConfigError(f"{_named(option, path)} is inside the index {folder}; expected a path outside it.")


def check_writable(path: Path, folder: Path, option: str) -> None:
    """Raises ConfigError if no file can be created in `folder`, nor the folder itself; `path` is the user's."""
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    if not is_folder(folder):
        problem = "is a file" if folder == path else f"cannot be created: {folder} is a file"
        raise ConfigError(
            f"{_named(option, path)} {problem}; expected a path in a folder that exists or can be created."
        )
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ConfigError(f"{_named(option, path)} cannot be written: {folder}: {error.strerror or error}.") from error


def _require_free(path: Path, option: str) -> None:
    if mode_of(path) is not None:
        raise ExistsError(
            f"{_named(option, path)} already exists. "
            f"Fix: choose another file, or pass {as_argument('force', True)} to overwrite it."
        )


def _check_stream(path: Path, option: str, stream: bool) -> None:
    if not stream:
        raise ConfigError(f"{_named(option, path)} is a stream (a pipe, a device); expected a file.")
    descriptor = descriptor_of(path)
    try:
        if descriptor is None:
            writable = os.access(path, os.W_OK)
        else:
            writable = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    except (OSError, OverflowError):  # closed, or no such descriptor
        writable = False
    if not writable:
        raise ConfigError(f"{_named(option, path)} is not open for writing; expected a file.")


@contextmanager
def _open_stream(path: Path, option: str) -> Iterator[StreamFile]:
    open_file = descriptor_of(path)
    try:
        descriptor = _opened(path) if open_file is None else os.dup(open_file)
    except OSError as error:
        reason = "the pipe has no reader; start the reader first" if error.errno == errno.ENXIO else error.strerror
        raise StoreError(f"{path}: cannot be written: {reason}.") from error
    file = StreamFile(descriptor, path)
    try:
        if open_file is None and stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ConfigError(f"{_named(option, path)} changed from a pipe or a device to a file. Fix: try again.")
        yield file
        file.finish()
    finally:
        file.release()


def _opened(path: Path) -> int:
    """Open a pipe or a device for writing. Waits a while for the reader of a pipe, then raises OSError (ENXIO)."""
    until = time.monotonic() + READER_SECONDS
    while True:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            os.set_blocking(descriptor, True)
            return descriptor


def _same_place(first: Path, second: Path) -> bool:
    try:
        return first.resolve() == second.resolve()
    except (OSError, RuntimeError):  # circular links
        return False
