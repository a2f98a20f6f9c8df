"""Whitening, and unit length alone, for which nothing is fitted.

Whitening is vector = normalise((embedding - mean of its role) @ projection).

With the covariance S = U D U^T, projection = U_k D_k^(-strength / 2):
strength 1 is the whitening of WhiteningBERT (Huang et al., Findings of EMNLP 2021, section 3.3), 0 centres and
rotates, values between soften it. `dim` keeps the k leading directions. Shrinkage r replaces D by
(1 - r) D + r mean(D) before the power is taken. Directions whose eigenvalue is under `EIGENVALUE_FLOOR` of the
largest carry rounding noise only and are dropped, never amplified: one layer that ends in a LayerNorm is always
rank-deficient.

Leading directions can be taken out first, as SIF does (Arora et al., ICLR 2017, algorithm 1): the r leading
eigenvectors of the second moment about zero. It is one more factor of the projection. With `strength = "none"` the
projection is then an orthonormal basis of what is left, and nothing is centred.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from indexer.arrays import Embeddings, Float64Array, Vectors
from indexer.errors import ConfigError
from indexer.moments import Moments
from indexer.recipe.config import Role, WhiteningConfig
from indexer.system.threads import single_blas_thread

EIGENVALUE_FLOOR = 1e-9  # of the largest eigenvalue; float32 embeddings carry about 1e-14 of it as noise power
BLOCK_ROWS = 4096


class AffineLayer(NamedTuple):
    """embedding @ matrix + bias: float64, matrix (d, k) and bias (k,)."""

    matrix: Float64Array
    bias: Float64Array


@dataclass(frozen=True)
class Whitening:
    """A fitted whitening: `mean` and `query_mean` (d,), `projection` (d, k), `spectrum` (d,) descending.

    `spectrum` are the eigenvalues of the covariance before shrinkage; `note` says in words what the fit could
    not do as asked ("" when all is well).
    """

    mean: Float64Array
    query_mean: Float64Array
    projection: Float64Array
    spectrum: Float64Array
    note: str = ""
    kind = "whitening"

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], settings: Mapping[str, Any]) -> "Whitening":
        """What `arrays` describes. Raises TypeError for arrays of other names, ValueError for others that are none of a
        whitening."""
        found = cls(**{name: np.asarray(array) for name, array in arrays.items()}, note=settings["note"])
        sizes = {found.mean.shape, found.query_mean.shape, found.spectrum.shape, found.projection.shape[:1]}
        if len(sizes) > 1 or found.mean.ndim != 1 or found.projection.ndim != 2 or not found.projection.size:
            raise ValueError("its arrays are not those of a whitening: their shapes do not fit together")
        return found

    @property
    def dim(self) -> int:
        """Vector size k."""
        return int(self.projection.shape[1])

    @property
    def input_dim(self) -> int:
        """Embedding size d."""
        return len(self.mean)

    def transform(self, embeddings: Embeddings, role: Role) -> Vectors:
        """Embeddings (n, d) to unit vectors (n, k), float32. The role selects the mean."""
        return unit_rows(embeddings, lambda block: self.project(block, role))

    def project(self, embeddings: Embeddings, role: Role) -> Float64Array:
        """The transform before normalisation, float64 (n, k)."""
        with single_blas_thread():
            projected: Float64Array = (np.asarray(embeddings, np.float64) - self._mean_of(role)) @ self.projection
        return projected

    def affine_layers(self, role: Role) -> list[AffineLayer]:
        """The one map that `project` is."""
        return [AffineLayer(self.projection, -(self._mean_of(role) @ self.projection))]

    def with_query_mean(self, mean: Float64Array) -> "Whitening":
        """The same transform with queries centred by `mean` (d,)."""
        return dataclasses.replace(self, query_mean=mean)

    def with_note(self, note: str) -> "Whitening":
        """The same transform with another note."""
        return dataclasses.replace(self, note=note)

    def arrays(self) -> dict[str, Float64Array]:
        return {
            "mean": self.mean,
            "query_mean": self.query_mean,
            "projection": self.projection,
            "spectrum": self.spectrum,
        }

    def settings(self) -> dict[str, Any]:
        return {"dim": self.dim, "note": self.note}

    def _mean_of(self, role: Role) -> Float64Array:
        return self.query_mean if role == "query" else self.mean


@dataclass(frozen=True)
class FixedTransform:
    """A map of embeddings of `dim` dimensions that nothing is fitted for; queries and documents alike."""

    dim: int
    note: str = ""
    query_mean = None

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], settings: Mapping[str, Any]) -> Self:
        """What `settings` describes."""
        return cls(settings["dim"], settings["note"])

    @property
    def input_dim(self) -> int:
        """Embedding size, which is that of the vectors."""
        return self.dim

    def with_query_mean(self, mean: Float64Array) -> Self:
        """The same transform: nothing is centred."""
        return self

    def with_note(self, note: str) -> Self:
        """The same transform with another note."""
        return dataclasses.replace(self, note=note)

    def arrays(self) -> dict[str, Float64Array]:
        return {"dim": np.array([self.dim], dtype=np.float64)}

    def settings(self) -> dict[str, Any]:
        return {"dim": self.dim, "note": self.note}


@dataclass(frozen=True)
class Normalisation(FixedTransform):
    """No transform but unit length (`strength = "none"`, and corpora too small to fit anything)."""

    kind = "normalisation"

    def transform(self, embeddings: Embeddings, role: Role) -> Vectors:
        """Embeddings (n, d) to unit vectors (n, d), float32."""
        return unit_rows(embeddings, lambda block: self.project(block, role))

    def project(self, embeddings: Embeddings, role: Role) -> Float64Array:
        """The embeddings as float64."""
        return np.asarray(embeddings, dtype=np.float64)

    def affine_layers(self, role: Role) -> list[AffineLayer]:
        """None: the identity."""
        return []


def fit_whitening(moments: Moments, config: WhiteningConfig, remove: int = 0) -> Whitening | Normalisation:
    """Fit on the moments of a sample of document embeddings, `remove` leading directions taken out first.

    The query mean equals the document mean until `Whitening.with_query_mean` sets another. Fewer than two
    distinct rows have no covariance: the result is then a `Normalisation` that says so in its note.
    Raises ConfigError when more directions are asked for than there are.
    """
    size = len(moments.mean)
    if config.strength == "none" and not remove:
        return Normalisation(size)
    if remove >= size:
        raise ConfigError(f"whitening.remove is {remove}; the encoder gives {size} dimensions. Leave at least one.")
    spectrum, directions = _spectrum(moments, remove)
    kept = int(np.count_nonzero(spectrum > EIGENVALUE_FLOOR * spectrum[0])) if spectrum[0] > 0 else 0
    if moments.count < 2 or not kept:
        return Normalisation(size, f"{_texts(moments.count)}: nothing to fit, vectors are only normalised")
    if config.strength == "none":
        origin = np.zeros(size)
        return Whitening(origin, origin, directions[:, : size - remove], spectrum)
    if config.dim > size:
        raise ConfigError(f"whitening.dim is {config.dim}; the encoder gives {size} dimensions. Ask for at most that.")
    dim = min(config.dim or kept, kept)
    shrunk = (1 - config.shrinkage) * spectrum + config.shrinkage * spectrum.mean()
    projection = directions[:, :dim] * shrunk[:dim] ** (-config.strength / 2)
    mean = np.zeros(size) if config.centre == "none" else moments.mean
    return Whitening(mean, mean, projection, spectrum, _note(moments.count, size, dim, config))


def _spectrum(moments: Moments, remove: int) -> tuple[Float64Array, Float64Array]:
    """Eigenvalues, descending, and eigenvectors as columns, the largest entry of each made positive.

    Those of the directions that were taken out stand last.
    """
    covariance = moments.covariance
    with single_blas_thread():
        if remove:
            covariance = _without(covariance, _leading(covariance + np.outer(moments.mean, moments.mean), remove))
        values, vectors = np.linalg.eigh(covariance)
    values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
    largest = np.abs(vectors).argmax(axis=0)
    signs = np.where(vectors[largest, np.arange(vectors.shape[1])] < 0, -1.0, 1.0)
    return values, vectors * signs


def _leading(moment: Float64Array, count: int) -> Float64Array:
    """The leading eigenvectors (d, count) of a symmetric matrix (d, d)."""
    leading: Float64Array = np.linalg.eigh(moment)[1][:, ::-1][:, :count]
    return leading


def _without(covariance: Float64Array, directions: Float64Array) -> Float64Array:
    """The covariance of rows without their part along `directions` (d, r), to which it gives less than nothing.

    A negative value sets them apart from directions in which the rows merely do not vary.
    """
    rest = np.eye(len(covariance)) - directions @ directions.T
    left: Float64Array = rest @ covariance @ rest - np.trace(covariance) * directions @ directions.T
    return left


def _texts(count: int) -> str:
    return "a sample of one document" if count == 1 else f"a sample of {count} documents, all alike"


def _note(count: int, size: int, dim: int, config: WhiteningConfig) -> str:
    notes = []
    if config.dim > dim:
        notes.append(f"{config.dim} directions were asked for, the sample spans {dim}")
    if count < 4 * size and config.strength != 0:
        notes.append(
            f"fitted on {count:,} texts for {size} dimensions; below about {4 * size:,} the fit follows "
            "the sample's noise: use more texts, a lower strength, fewer dimensions or some shrinkage"
        )
    return "; ".join(notes)


def unit_rows(embeddings: Embeddings, project: Callable[[Embeddings], Float64Array]) -> Vectors:
    """Apply `project` block by block and scale rows to unit length; rows of zeros stay zero."""
    blocks = [_unit(project(embeddings[start : start + BLOCK_ROWS])) for start in range(0, len(embeddings), BLOCK_ROWS)]
    if not blocks:
        return _unit(project(embeddings))
    return np.concatenate(blocks)


def _unit(rows: Float64Array) -> Vectors:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Vectors = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0).astype(np.float32)
    return unit
