"""Temporary vectors on disk: every step reads the same bits, and memory stays small."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from indexer.arrays import Vectors
from indexer.errors import ConfigError, StoreError
from indexer.transforms import Transform
from search.index import LiveRows

UNIT_TOLERANCE = 5e-7  # of squared norms from 1, so that a vector reaches every threshold with itself
_FIX = "Fix: free some disk space, or name another folder for temporary files: TMPDIR=/elsewhere isotrope dedup ..."


def write_index_vectors(stored: LiveRows, folder: Path, transform: Transform | None = None) -> Vectors:
    """Write all vectors of an index to `folder` and return them memory-mapped, (rows, k) float32.

    `transform` replaces the transform of the index. Raises ConfigError for a vector that is not finite or not of unit
    length, and StoreError for a full disk.
    """
    transform = transform or stored.index.transform
    blocks = ((first, transform.transform(block, "document")) for first, block in stored.embedding_blocks())
    return write_vectors(blocks, len(stored), transform.dim, folder / "vectors.npy")


def write_vectors(blocks: Iterable[tuple[int, Vectors]], rows: int, dim: int, path: Path) -> Vectors:
    """Write blocks (first row, vectors) to a file (rows, dim) and return it memory-mapped."""
    if not rows:
        return np.zeros((0, dim), np.float32)
    try:
        # Written with write(), not through the map: a full disk raises an error and does not kill the process.
        with path.open("wb") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": (rows, dim)}
            np.lib.format.write_array_header_1_0(file, header)
            for first, vectors in blocks:
                check_vectors(vectors, first)
                file.write(np.ascontiguousarray(vectors, "<f4").data)
    except OSError as error:
        raise disk_full(path, error) from error
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


def disk_full(path: Path, error: OSError) -> StoreError:
    """Return the error for a temporary file that cannot be written."""
    return StoreError(f"{path.parent}: temporary vectors cannot be written: {error.strerror or error}. {_FIX}")
