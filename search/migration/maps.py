"""Affine maps from the embeddings of one encoder to the vectors of another, fitted on texts that both encoded.

    procrustes   a rotation and one scale (Schoenemann, 1966)
    affine       ridge regression; the penalty is chosen by cross-validation
    whitened     a rotation between both sides after whitening, so that directions of little variance count

Each is fitted on documents and questions together, each centred by its own mean, because their means differ under
every encoder. The bias is that of questions: the mean of the mapped questions is the mean of the old ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from indexer.arrays import Float64Array, Vectors
from indexer.system.threads import single_blas_thread
from search.query_encoder import AffineMap

MapKind = Literal["procrustes", "affine", "whitened"]
FOLDS = 5
_PENALTIES = (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0)  # of the mean variance of a dimension
_SHRINKAGE = 0.05  # of the mean variance, added to each side before it is whitened

Rows = npt.NDArray[np.floating]


@dataclass(frozen=True)
class FittedMap(AffineMap):
    """A map from the new embeddings to the old vectors, of a kind."""

    kind: MapKind
    penalty: float = 0.0  # of ridge regression, in units of the mean variance


@dataclass(frozen=True)
class BothSides:
    """Embeddings of the new encoder and vectors of the old one, row by row of the same texts."""

    new: Float64Array  # (n, d)
    old: Float64Array  # (n, k)
    new_questions: Float64Array  # (m, d)
    old_questions: Float64Array  # (m, k)

    def rows(self, documents: npt.NDArray[np.bool_], questions: npt.NDArray[np.bool_]) -> "BothSides":
        """Return some of the documents and questions."""
        return BothSides(
            self.new[documents], self.old[documents], self.new_questions[questions], self.old_questions[questions]
        )


def fit_map(kind: MapKind, sides: BothSides) -> FittedMap:
    """Return the map of a kind from the new embeddings to the old vectors."""
    with single_blas_thread():
        new, old = _centred(sides.new, sides.new_questions), _centred(sides.old, sides.old_questions)
        matrix, penalty = _FITS[kind](new, old)
        bias = sides.old_questions.mean(axis=0) - sides.new_questions.mean(axis=0) @ matrix
    return FittedMap(matrix, bias, kind, penalty)


def mapped_questions(kind: MapKind, sides: BothSides, paired: bool) -> Vectors:
    """Return the new questions in the old space (m, k), each mapped by a fit on the questions of other folds.

    If `paired`, question i comes from document i, and the fit leaves that document out as well.
    """
    fold, every = np.arange(len(sides.new_questions)) % FOLDS, np.ones(len(sides.new), bool)
    mapped = np.empty(sides.old_questions.shape, np.float32)
    for number in range(FOLDS):
        seen, asked = fold != number, fold == number
        fitted = fit_map(kind, sides.rows(seen if paired else every, seen))
        mapped[asked] = fitted(sides.new_questions[asked])
    return mapped


def _centred(*groups: Float64Array) -> Float64Array:
    return np.concatenate([rows - rows.mean(axis=0) for rows in groups])


def _rotation(new: Float64Array, old: Float64Array) -> tuple[Float64Array, float]:
    """Return the rotation (d, k) and the scale that bring `new` closest to `old`; both are centred."""
    left, values, right = np.linalg.svd(new.T @ old, full_matrices=False)
    return left @ right, float(values.sum() / max(float((new * new).sum()), np.finfo(float).tiny))


def _procrustes(new: Float64Array, old: Float64Array) -> tuple[Float64Array, float]:
    rotation, scale = _rotation(new, old)
    return rotation * scale, 0.0


def _whitened(new: Float64Array, old: Float64Array) -> tuple[Float64Array, float]:
    whiten, _ = _whitening(new)
    whiten_old, colour_old = _whitening(old)
    rotation, _ = _rotation(new @ whiten, old @ whiten_old)
    return whiten @ rotation @ colour_old, 0.0


def _whitening(rows: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Return the matrices (d, d) that whiten centred rows, and back."""
    values, directions = np.linalg.eigh(rows.T @ rows / len(rows))
    values = np.maximum(values, 0) + _SHRINKAGE * max(float(values.mean()), np.finfo(float).tiny)
    return directions / np.sqrt(values), (directions * np.sqrt(values)).T


def _affine(new: Float64Array, old: Float64Array) -> tuple[Float64Array, float]:
    gram, product = new.T @ new, new.T @ old
    errors = np.zeros(len(_PENALTIES))
    for fold in range(FOLDS):
        left_out, targets = new[fold::FOLDS], old[fold::FOLDS]
        solve = _solver(gram - left_out.T @ left_out, product - left_out.T @ targets)
        errors += [float(((left_out @ solve(penalty) - targets) ** 2).sum()) for penalty in _PENALTIES]
    penalty = _PENALTIES[int(errors.argmin())]
    return _solver(gram, product)(penalty), penalty


def _solver(gram: Float64Array, product: Float64Array) -> Callable[[float], Float64Array]:
    """Return the solution of ridge regression for any penalty, from X'X and X'Y."""
    values, directions = np.linalg.eigh(gram)
    turned, mean = directions.T @ product, max(float(values.mean()), np.finfo(float).tiny)
    return lambda penalty: directions @ (turned / (np.maximum(values, 0) + penalty * mean)[:, None])


_FITS: dict[MapKind, Callable[[Float64Array, Float64Array], tuple[Float64Array, float]]] = {
    "procrustes": _procrustes,
    "affine": _affine,
    "whitened": _whitened,
}
MAP_KINDS: tuple[MapKind, ...] = tuple(_FITS)
