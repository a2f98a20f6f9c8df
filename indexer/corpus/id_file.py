"""A user's file of document ids, one a line."""

import sys
from pathlib import Path

from indexer.errors import ConfigError


def read_id_file(path: Path) -> list[str]:
    """The ids of a file, or of standard input for "-", in order; empty lines are passed over. Raises ConfigError."""
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        lines = data.decode("utf-8-sig").split("\n")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text ({error.reason} at byte {error.start:,}).") from error
    ids = [line for line in (line.removesuffix("\r") for line in lines) if line]
    if not ids:
        raise ConfigError(f"{path}: holds no id; expected one a line.")
    return ids
