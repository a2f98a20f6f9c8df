"""Query files of a user, as texts or vectors, with their hash; and id lists."""

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from indexer.corpus.readers.npy import NpyFormatError, map_npy
from indexer.corpus.readers.streams import text_lines
from indexer.corpus.row import BadRow
from indexer.corpus.validation import to_vector
from indexer.errors import ConfigError, IsotropeError
from indexer.system.regular_files import open_regular

QueryEmbeddings = npt.NDArray[np.float32]


@dataclass(frozen=True)
class QueryFile:
    """The queries of a file in order, and the number of blank lines."""

    texts: list[str]
    blank: int


def read_query_file(path: Path, error: type[IsotropeError], where: str = "") -> QueryFile:
    """Return the queries of a file, read by `read_query_lines`.

    Raises `error`, with a message that begins with `where`, if the file cannot be read or has no query.
    """
    try:
        with open_regular(path) as file:
            lines = [text for _, text in read_query_lines(file, f"{where}{path}", error)]
    except OSError as cause:
        raise error(f"{where}{path}: cannot be read: {cause.strerror or cause}.") from cause
    texts = list(filter(None, lines))
    if not texts:
        raise error(f"{where}{path}: no queries; expected one per line.")
    return QueryFile(texts, len(lines) - len(texts))


def read_query_lines(stream: IO[bytes], shown: str, error: type[IsotropeError]) -> Iterator[tuple[int, str]]:
    r"""Yield (line number from 1, query) as they arrive: UTF-8, stripped; a blank line is "".

    Only "\n" ends a line, and a byte order mark is dropped. Raises `error` with `shown`, the line and the byte for
    bytes that are not UTF-8, and OSError as the stream does.
    """
    for number, line in text_lines(stream, shown, error):
        yield number, line.strip()


def read_query_vectors(
    path: str | Path, dim: int, error: type[IsotropeError] = ConfigError, where: str = ""
) -> QueryEmbeddings:
    """Return the raw query embeddings of a .npy file, float32 (n, dim); an array (dim,) is one query. `dim` 0: any.

    Raises `error`, with a message that begins with `where`, for any other file, for no rows, for another dimension, and
    with the row for NaN, infinity and zeros.
    """
    try:
        with open_regular(path) as raw:
            array = map_npy(raw, single=True)
    except OSError as cause:
        raise error(f"{where}{path}: cannot be read: {cause.strerror or cause}.") from cause
    except NpyFormatError as cause:
        raise error(f"{where}{path}: {cause}. Fix: write the file with numpy.save.") from cause
    if dim and array.shape[1] != dim:
        raise error(
            f"{where}{path}: vectors of {array.shape[1]:,} numbers; expected {dim:,}, the length of the "
            "embeddings they are compared with. Fix: encode the queries with the same model."
        )
    if not len(array):
        raise error(f"{where}{path}: no query; expected at least one row.")
    vectors = []
    for number, row in enumerate(array, start=1):
        try:
            vectors.append(to_vector(row, "query"))
        except BadRow as bad:
            raise error(f"{where}{path}:{number}: {bad.what}.") from None
    return np.stack(vectors)


def is_npy(path: str | Path) -> bool:
    """Return whether a query file contains embeddings, by its name."""
    return Path(path).suffix.lower() == ".npy"


def query_file_sha256(path: str, setting: str) -> str:
    """Return the sha256, hex, of the query file of a setting; "" for an empty setting. Raises ConfigError."""
    if not path:
        return ""
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"{setting}: {path} cannot be read: {error.strerror}.") from error


def read_id_file(path: Path) -> list[str]:
    """Return the ids of a file, or of standard input for "-", without empty lines. Raises ConfigError."""
    try:
        if str(path) == "-":
            ids = _ids(sys.stdin.buffer, "stdin") if sys.stdin else []
        else:
            with open_regular(path) as file:
                ids = _ids(file, str(path))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}.") from error
    if not ids:
        raise ConfigError(f"{path}: no ids; expected one per line.")
    return ids


def _ids(stream: IO[bytes], shown: str) -> list[str]:
    return [line for _, line in text_lines(stream, shown, ConfigError) if line]
