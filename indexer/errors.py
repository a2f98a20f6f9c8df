"""All exceptions that this project raises on purpose; `except IsotropeError` catches every one.

A message states what is wrong, what was expected, where, and the fix. The command line prints it unchanged and exits
with 1, or with 2 if the command line itself is wrong.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

Reader = Literal["library", "shell"]
_shown: dict[str, str] = {}  # folder -> its name in messages
_reader: Reader = "library"  # of the messages of this process; no context variable, since threads would not inherit it
_kept: ContextVar[Reader | None] = ContextVar("kept", default=None)  # of a task


def reader() -> Reader:
    """Return who reads the messages of this process: a Python program, or a user of the command line."""
    return _kept.get() or _reader


@contextmanager
def written_for(reader: Reader) -> Iterator[None]:
    """Write the messages of all threads for this reader in a block."""
    global _reader
    before, _reader = _reader, reader
    try:
        yield
    finally:
        _reader = before


def keep_reader(reader: Reader) -> None:
    """Write the messages of this task, and of threads by `asyncio.to_thread`, for this reader from now on."""
    _kept.set(reader)


def spelled(library: str, shell: str) -> str:
    """Return the text that the reader of messages can use: Python names, or the options of a command.

    Call it when a message is made: a module constant would keep the reader of the import.
    """
    return shell if reader() == "shell" else library


def as_argument(name: str, value: str | int | None = None, of: str = "") -> str:
    """Return an argument, if given with a value: `RunOptions(device="cpu")`, in a shell `--device cpu`.

    `of` is the class that has the argument. A value in capitals is a placeholder.
    """
    option = f"--{name.replace('_', '-')}"
    if value is None:
        return spelled(f"{of}.{name}" if of else name, option)
    written = str(value) if value is True or str(value).isupper() else json.dumps(value)
    assigned = f"{name}={written}"
    return spelled(f"{of}({assigned})" if of else assigned, option if value is True else f"{option} {value}")


def set_to(setting: str, value: str | float) -> str:
    """Return a setting of the recipe with a value: `config.chunk.tokens = 128`, in a shell `--set chunk.tokens=128`."""
    return spelled(f"config.{setting} = {json.dumps(value)}", f"--set {setting}={value}")


def show_as(folder: str, name: str) -> None:
    """Replace a folder by `name` in messages, because it is the cache folder of a URL that the user named."""
    _shown[folder] = name


def as_shown(text: str) -> str:
    """Return a message with the names that users know."""
    for folder, name in _shown.items():
        text = text.replace(folder, name)
    return text


class IsotropeError(Exception):
    """Base class of all exceptions below."""

    def __str__(self) -> str:
        return as_shown(super().__str__())


class ConfigError(IsotropeError):
    """A setting or argument is wrong."""


class UnknownDocumentError(ConfigError):
    """The index contains no document with that id."""


class CorpusError(IsotropeError):
    """The corpus cannot be read with these settings."""


class ModelError(IsotropeError):
    """The model cannot be found, loaded or used with these settings."""


class StoreError(IsotropeError):
    """The index directory cannot be read or written."""


class NotAnIndexError(StoreError):
    """The path contains no published index."""


class CorruptIndexError(StoreError):
    """A file of the index is missing, truncated or changed."""


class LockedError(StoreError):
    """Another process is writing to this index."""


class ExistsError(StoreError):
    """A complete index of another recipe or corpus, or a file or folder that may not be overwritten, already exists."""


class MismatchError(IsotropeError):
    """The encoder differs from the one the index was built with."""


class QualityError(IsotropeError):
    """A build gate failed; nothing was published."""


class NotPublishedError(IsotropeError):
    """A review rejected the new generation (`reviewed_by`)."""


class EvaluationError(IsotropeError):
    """Test data cannot be read, or a figure of it is undefined."""


class MachineError(IsotropeError):
    """The device, memory, disk or an installed library does not meet the request."""


class ShardLostError(MachineError):
    """A process that serves a part of an index does not answer; the others do."""
