"""All exceptions that this project raises on purpose; `except IsotropeError` catches every one.

A message states what is wrong, what was expected, where, and the fix. The command line prints it unchanged and exits
with 1, or with 2 if the command line itself is wrong.
"""

_shown: dict[str, str] = {}  # folder -> its name in messages


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


class EvaluationError(IsotropeError):
    """Test data cannot be read, or a figure of it is undefined."""


class MachineError(IsotropeError):
    """The device, memory, disk or an installed library does not meet the request."""


class ShardLostError(MachineError):
    """A process that serves a part of an index does not answer; the others do."""
