"""Made vectors: spread evenly over all directions, and near to others."""

import numpy as np
import numpy.typing as npt

from indexer.arrays import RowIds, Vectors


def unit(rows: npt.NDArray[np.floating]) -> Vectors:
    """Rows divided by their lengths."""
    units: Vectors = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return units


def sphere(count: int, dim: int, seed: int = 0) -> Vectors:
    """Vectors spread evenly over all directions."""
    return unit(np.random.default_rng(seed).standard_normal((count, dim)))


def near(vectors: Vectors, rows: RowIds, noise: float, seed: int = 1) -> Vectors:
    """Something near to each of these rows."""
    drawn = np.random.default_rng(seed).standard_normal((len(rows), vectors.shape[1]))
    return unit(vectors[rows] + noise / np.sqrt(vectors.shape[1]) * drawn)
