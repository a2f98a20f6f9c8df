"""A user's file of document ids, one a line."""

import sys
from pathlib import Path
from typing import IO

from indexer.corpus.lines import text_lines
from indexer.errors import ConfigError
from indexer.regular_files import open_regular


def read_id_file(path: Path) -> list[str]:
    """The ids of a file, or of standard input for "-", in order; empty lines are passed over. Raises ConfigError."""
    try:
        if str(path) == "-":
            ids = _ids(sys.stdin.buffer, "stdin") if sys.stdin else []
        else:
            with open_regular(path) as file:
                ids = _ids(file, str(path))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}.") from error
    if not ids:
        raise ConfigError(f"{path}: holds no id; expected one a line.")
    return ids


def _ids(stream: IO[bytes], shown: str) -> list[str]:
    return [line for _, line in text_lines(stream, shown, ConfigError) if line]
