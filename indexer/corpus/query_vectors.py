"""A user's file of queries that are embeddings already."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer.corpus.array_files import NotAnArray, map_array
from indexer.corpus.rejection import BadRow
from indexer.corpus.vector_values import vector_of
from indexer.errors import ConfigError, IsotropeError
from indexer.regular_files import open_regular

Vectors = npt.NDArray[np.float32]


def is_array_file(path: str | Path) -> bool:
    """Whether a file of queries holds embeddings and not texts, by its name."""
    return Path(path).suffix.lower() == ".npy"


def read_query_vectors(
    path: str | Path, dim: int, error: type[IsotropeError] = ConfigError, where: str = ""
) -> Vectors:
    """Query embeddings of a .npy file, float32 (n, dim): raw, as the encoder gave them; an array (dim,) is one query.

    Raises `error`, its message beginning with `where`, for a file that is no such array, one without a row, one of
    another length, and naming the row for NaN, infinity and zeros.
    """
    try:
        with open_regular(path) as raw:
            array = map_array(raw, single=True)
    except OSError as cause:
        raise error(f"{where}{path}: cannot be read: {cause.strerror or cause}.") from cause
    except NotAnArray as cause:
        raise error(f"{where}{path}: {cause}. Write the file with numpy.save.") from cause
    if array.shape[1] != dim:
        raise error(
            f"{where}{path}: holds vectors of {array.shape[1]:,} numbers; expected {dim:,}, the length of the "
            "embeddings they are compared with. Give queries encoded by the same model."
        )
    if not len(array):
        raise error(f"{where}{path}: holds no query; expected at least one row.")
    try:
        return np.stack([_row(array[row], row) for row in range(len(array))])
    except BadRow as bad:
        raise error(f"{where}{path}:{bad.line}: {bad.what}.") from None


def _row(numbers: npt.NDArray[np.floating], row: int) -> Vectors:
    try:
        return vector_of(numbers, "query")
    except BadRow as bad:
        bad.line = row + 1
        raise
