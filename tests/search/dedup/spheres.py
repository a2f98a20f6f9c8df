"""Random vectors: uniform on the sphere, and close to given vectors."""

import numpy as np
import numpy.typing as npt

from indexer.arrays import RowIds, Vectors


def unit(rows: npt.NDArray[np.floating]) -> Vectors:
    """Return the rows divided by their lengths."""
    units: Vectors = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return units


def sphere(count: int, dim: int, seed: int = 0) -> Vectors:
    """Return vectors uniform on the sphere."""
    return unit(np.random.default_rng(seed).standard_normal((count, dim)))


def near(vectors: Vectors, rows: RowIds, noise: float, seed: int = 1) -> Vectors:
    """Return a vector close to each row."""
    drawn = np.random.default_rng(seed).standard_normal((len(rows), vectors.shape[1]))
    return unit(vectors[rows] + noise / np.sqrt(vectors.shape[1]) * drawn)
