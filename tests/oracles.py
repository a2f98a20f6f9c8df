"""Slow, obvious re-implementations that fast code is compared with."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating]


def whitening_projection(rows: Array, strength: float, dim: int, shrinkage: float = 0.0, floor: float = 1e-9) -> Array:
    """The definition, by singular values of the centred rows and without moments."""
    centred = np.asarray(rows, np.float64) - np.mean(rows, axis=0, dtype=np.float64)
    _, singular, directions = np.linalg.svd(centred, full_matrices=True)
    variances = np.zeros(centred.shape[1])
    variances[: len(singular)] = singular**2 / len(rows)
    kept = min(dim or len(variances), int((variances > floor * variances[0]).sum()))
    shrunk = (1 - shrinkage) * variances + shrinkage * variances.mean()
    columns = []
    for number in range(kept):
        direction = directions[number]
        if direction[np.abs(direction).argmax()] < 0:
            direction = -direction
        columns.append(direction / shrunk[number] ** (strength / 2))
    return np.stack(columns, axis=1)


def best_rows(vectors: Array, query: Array, ids: Sequence[str], k: int) -> list[tuple[str, float]]:
    """(id, score) of the k best by a float64 dot product rounded to float32, ties by id."""
    scores = [np.float32(sum(float(a) * float(b) for a, b in zip(row, query, strict=True))) for row in vectors]
    order = sorted(range(len(ids)), key=lambda row: (-float(scores[row]), ids[row]))
    return [(ids[row], float(scores[row])) for row in order[:k]]
