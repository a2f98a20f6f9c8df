"""Files that a user names for results: where they may lie, and how they are written.

A file appears whole or not at all, through links, and over another one only where that is asked for. What is no file (a
pipe, a terminal, /dev/null, standard output) is written to as it is, one byte after the other, and never replaced.
Nothing is ever written inside an index.
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

from indexer.errors import ConfigError, ExistsError, StoreError
from indexer.store.files import DurableFile, atomic_write, make_folder
from indexer.store.layout import is_index_folder

STDOUT = Path("-")
"""Standard output by its usual name; /dev/stdout is another."""
READER_SECONDS = 30.0  # how long a pipe waits for its reader
_MOST_LINKS = 40  # from one to the next, as Linux follows them


class StreamFile(DurableFile):
    """A pipe, a terminal or a device being written."""

    def __init__(self, descriptor: int, path: Path) -> None:
        super().__init__(descriptor)
        self._path = path

    def write(self, data: Any) -> int:
        """Write all of it. Raises BrokenPipeError when the reader went away, StoreError for any other fault."""
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise StoreError(f"{self._path}: cannot be written: {error.strerror or error}.") from error

    def finish(self) -> None:
        """Note the digest; a stream cannot be synced."""
        self.digest = self._builder.digest()


OutputFile = DurableFile


@contextmanager
def open_output(path: Path, option: str = "-o", force: bool = False, stream: bool = True) -> Iterator[OutputFile]:
    """Write a file that a user named, whole or not at all, in its folder, made if need be; or a stream, as it comes.

    After the block, `.digest` holds its hashes. Raises as `check_output`, StoreError (also for a pipe that nobody comes
    to read), and BrokenPipeError when the reader of a stream goes away.
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
            _require_free(path, option)  # it may have come meanwhile


def check_output(path: Path, option: str = "-o", force: bool = False, stream: bool = True) -> None:
    """Refuse a file that could not be written: now, not after minutes of encoding.

    `force` allows that a regular file is there already, `stream` that the place is no file but takes bytes one after
    the other. Raises ExistsError, and ConfigError for what cannot be written, is no file, or lies inside an index.
    """
    refuse_inside_index(path, option)
    if is_stream(path):
        _check_stream(path, option, stream)
        return
    target, mode = behind_links(path, option), mode_of(path)
    if mode and stat.S_ISDIR(mode):
        raise ConfigError(f"{option} {path} is a folder; name a file.")
    if mode and not stat.S_ISREG(mode):
        raise ConfigError(f"{option} {path} is a socket or a block device, which is never written to; name a file.")
    if not force:
        _require_free(path, option)
    check_writable(path, target.parent, option)


def check_output_folder(path: Path, option: str = "-o", or_empty: bool = False) -> None:
    """Raises ExistsError where something is already, ConfigError for a folder that could not be made.

    With `or_empty` an empty folder may be there. Folders are never replaced.
    """
    if path == STDOUT:
        raise ConfigError(f"{option} {path} means standard output, but a folder is to be written; name it.")
    refuse_inside_index(path, option)
    if os.path.lexists(path) and not (or_empty and is_folder(path) and not any(path.iterdir())):
        expected = "a new or an empty folder" if or_empty else "the name of a new folder"
        raise ExistsError(f"{option} {path} is already there; expected {expected}.")
    check_writable(path, path.parent, option)


def is_stream(path: Path) -> bool:
    """Whether bytes are to be sent to this place and no file is to appear there: a pipe, a device, an open file."""
    if descriptor_of(path) is not None:
        return True
    mode = mode_of(path)
    return mode is not None and (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode))


def is_stdout(path: Path) -> bool:
    """Whether what is written there comes out of this process's standard output."""
    if (descriptor := descriptor_of(path)) == 1:
        return True
    try:
        ours, theirs = os.fstat(1), path.stat() if descriptor is None else os.fstat(descriptor)
        sink = os.path.samestat(ours, Path(os.devnull).stat())
        return is_stream(path) and not sink and os.path.samestat(ours, theirs)
    except OSError:
        return False


def descriptor_of(path: Path) -> int | None:
    """The number of the open file of this process that a path stands for: 1 of - and /dev/stdout, 3 of /dev/fd/3.

    Such a file is written where it stands, as shells do: > and >> have opened it already.
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


def mode_of(path: Path) -> int | None:
    """What a path leads to, as `stat` tells; None where nothing is, or nobody may look."""
    try:
        return path.stat().st_mode
    except (OSError, RuntimeError):  # RuntimeError: links in a circle
        return None


def is_folder(path: Path) -> bool:
    """Whether a path leads to a folder. No error where nobody may look."""
    mode = mode_of(path)
    return mode is not None and stat.S_ISDIR(mode)


def behind_links(path: Path, option: str) -> Path:
    """Where a path leads, so that a link's target is written and the link stays. Raises ConfigError for a circle."""
    try:
        return (Path("/dev/stdout") if path == STDOUT else path).resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise ConfigError(f"{option} {path} cannot be followed: its links lead in a circle. Name a file.") from error


def refuse_inside_index(path: Path, option: str) -> None:
    """Raises ConfigError for a place inside an index, published or begun: what lies there is the index's own."""
    for folder in behind_links(path, option).parents:
        if is_index_folder(folder):
            raise ConfigError(f"{option} {path} lies inside the index {folder}; name a place outside it.")


def check_writable(path: Path, folder: Path, option: str) -> None:
    """Raises ConfigError unless files can be made in `folder`, or it can be made; `path` is what was named."""
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    if not is_folder(folder):
        wrong = "is a file" if folder == path else f"cannot be made, for {folder} is a file"
        raise ConfigError(f"{option} {path} {wrong}; expected a place where a folder is or can be.")
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ConfigError(f"{option} {path} cannot be written: {folder}: {error.strerror or error}.") from error


def _require_free(path: Path, option: str) -> None:
    if mode_of(path) is not None:
        raise ExistsError(f"{option} {path} is already there; name another file, or pass --force to overwrite it.")


def _check_stream(path: Path, option: str, stream: bool) -> None:
    if not stream:
        raise ConfigError(f"{option} {path} is a stream (a pipe, a device), but a file is needed here; name one.")
    descriptor = descriptor_of(path)
    try:
        if descriptor is None:
            writable = os.access(path, os.W_OK)
        else:
            writable = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    except (OSError, OverflowError):  # it is closed, or a number that none has
        writable = False
    if not writable:
        raise ConfigError(f"{option} {path} is not open for writing; name a file.")


@contextmanager
def _open_stream(path: Path, option: str) -> Iterator[StreamFile]:
    open_file = descriptor_of(path)
    try:
        descriptor = _opened(path) if open_file is None else os.dup(open_file)
    except OSError as error:
        reason = "nobody reads this pipe; start its reader first" if error.errno == errno.ENXIO else error.strerror
        raise StoreError(f"{path}: cannot be written: {reason}.") from error
    file = StreamFile(descriptor, path)
    try:
        if open_file is None and stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ConfigError(f"{option} {path} was a pipe or a device and now is a file. Run the command again.")
        yield file
        file.finish()
    finally:
        file.release()


def _opened(path: Path) -> int:
    """A pipe or a device, opened for writing. Waits a while for the reader of a pipe, then raises OSError (ENXIO)."""
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
    except (OSError, RuntimeError):  # links in a circle
        return False
