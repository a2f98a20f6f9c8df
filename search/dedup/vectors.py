"""Temporary vectors on disk: every step reads the same bits, and memory stays small."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from indexer.arrays import Vectors
from indexer.errors import ConfigError, StoreError

UNIT_TOLERANCE = 5e-7  # of squared norms from 1, so that a vector reaches every threshold with itself


def write_vectors(blocks: Iterable[tuple[int, Vectors]], rows: int, dim: int, path: Path) -> Vectors:
    """Write blocks (first row, vectors) to a file and return it memory-mapped, (rows, dim) float32.

    Raises ConfigError for a vector that is not finite or not of unit length, and StoreError for a full disk.
    """
    if not rows:
        return np.zeros((0, dim), np.float32)
    with temporary_file(path) as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (rows, dim)})
        for first, vectors in blocks:
            check_vectors(vectors, first)
            file.write(np.ascontiguousarray(vectors, "<f4").data)
    mapped: Vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    return mapped


def check_vectors(vectors: Vectors, first: int = 0) -> None:
    """Raise ConfigError if a row is not finite or not of unit length; `first` is the number of the first row."""
    norms = np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64)
    wrong = np.flatnonzero(~(np.abs(norms - 1) <= UNIT_TOLERANCE))  # also catches NaN
    if len(wrong):
        row, norm = first + int(wrong[0]), float(np.sqrt(norms[wrong[0]]))
        problem = f"has the length {norm:.7g}" if np.isfinite(norm) else "is not finite (NaN or infinity)"
        raise ConfigError(
            f"the vector of row {row} {problem}; expected unit length within {UNIT_TOLERANCE / 2:g}. {len(wrong):,} "
            "such rows in this block. Fix: normalise in float64, or build the index again."
        )


@contextmanager
def temporary_file(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file for writing, not through a map: a full disk then raises StoreError, not a signal."""
    try:
        with path.open("w+b") as file:
            yield file
    except OSError as error:
        raise StoreError(
            f"{path.parent}: temporary vectors cannot be written: {error.strerror or error}. Fix: free some disk "
            "space, or name another folder for temporary files with the environment variable TMPDIR."
        ) from error
