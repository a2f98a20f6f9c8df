"""Every error this project raises on purpose, so that one `except IsotropeError` catches them all.

    IsotropeError
    ├── ConfigError        a setting: an unknown key, a value out of range, an argument that makes no sense
    │   └── UnknownDocumentError   the index holds no document with that id
    ├── CorpusError        the text to be indexed: a malformed row, a duplicate id, a file that cannot be read
    ├── ModelError         the model: weights not found, not safetensors, a tokenizer that does not fit
    ├── StoreError         the index directory
    │   ├── NotAnIndexError    there is nothing to open
    │   ├── CorruptIndexError  bytes are not what the manifest says
    │   ├── LockedError        another process is writing
    │   └── ExistsError        a complete index of another recipe or corpus, or a file or folder, is in the way
    ├── MismatchError      the encoder at hand is not the one the index was built with
    ├── QualityError       a build gate failed; nothing was published
    ├── EvaluationError    test data: no scores, judgements that match nothing, a figure that is undefined
    └── MachineError       the device, memory, disk or an installed library
        └── ShardLostError     a process that holds a part of an index does not answer

A message says what was found, what was expected, where, and the way out. The command line prints it as it is
and exits with 1 (2 where the command line itself is wrong).
"""

_shown: dict[str, str] = {}  # folders that nobody named, and what stands for them in messages


def show_as(folder: str, name: str) -> None:
    """Messages say `name` instead of this folder: it is the cache's stand-in for what the user named."""
    _shown[folder] = name


def as_shown(text: str) -> str:
    """A message as it is shown."""
    for folder, name in _shown.items():
        text = text.replace(folder, name)
    return text


class IsotropeError(Exception):
    """Base of the tree above."""

    def __str__(self) -> str:
        return as_shown(super().__str__())


class ConfigError(IsotropeError):
    """A setting or argument is wrong."""


class UnknownDocumentError(ConfigError):
    """The index holds no document with that id."""


class CorpusError(IsotropeError):
    """The corpus cannot be read as asked."""


class ModelError(IsotropeError):
    """The model cannot be found, loaded or used as asked."""


class StoreError(IsotropeError):
    """The index directory cannot be read or written."""


class NotAnIndexError(StoreError):
    """The path holds no published index."""


class CorruptIndexError(StoreError):
    """A file of the index is missing, cut short or changed."""


class LockedError(StoreError):
    """Another process is writing to this index."""


class ExistsError(StoreError):
    """A complete index of another recipe or corpus, or a file or folder that may not be overwritten, is in the way."""


class MismatchError(IsotropeError):
    """The encoder at hand is not the one the index was built with."""


class QualityError(IsotropeError):
    """A build gate failed; nothing was published."""


class EvaluationError(IsotropeError):
    """Test data cannot be read, or what is asked of it has no defined value."""


class MachineError(IsotropeError):
    """The device, memory, disk or an installed library is not up to what was asked."""


class ShardLostError(MachineError):
    """A process that holds a part of an index does not answer; the others do."""
