"""Whitening, and normalisation to unit length without a fit.

vector = normalise((embedding - mean of its role) @ projection).

With the covariance S = U D U^T, projection = U_k D_k^(-strength / 2): strength 1 is the whitening of WhiteningBERT
(Huang et al., Findings of EMNLP 2021, section 3.3), 0 centres and rotates, values between soften it. `dim` keeps the k
leading directions. Shrinkage r replaces D by (1 - r) D + r mean(D) before the power. Directions whose eigenvalue is
below `EIGENVALUE_FLOOR` of the largest contain only rounding noise and are dropped, never amplified: a layer that ends
in a LayerNorm is always rank-deficient.

Leading directions can be removed first, as in SIF (Arora et al., ICLR 2017, algorithm 1): the r leading eigenvectors of
the second moment about zero, as a further factor of the projection. With `strength = "none"`, the projection is an
orthonormal basis of the remaining space, and nothing is centred.
"""

import dataclasses
from abc import abstractmethod
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

EIGENVALUE_FLOOR = 1e-9  # of the largest eigenvalue; the noise power of float32 embeddings is about 1e-14 of it
BLOCK_ROWS = 4096
ROWS_PER_DIRECTION = 2
"""Rows for each direction that an index keeps, from which on it is whitened.

n rows span n - 1 directions, and a whitening drops all others: of later documents and of queries only the rest remains.
With n just above the dimensions d, nothing is dropped, but the smallest eigenvalues are near zero by chance and are
amplified most. The mean variance of unseen rows is n / (n - d - 1) in ideal Gaussian data: 2 for n = 2 d, infinite for
n = d + 1. SciFact by a static table (d = 128, strength 0.5), nDCG@10 of fits on n documents: raw embeddings 46.0;
n = 64 37.1; n = 129 17.8; n = 192 46.6; n = 256 48.1; all 5,183 51.1.
"""


class AffineLayer(NamedTuple):
    """embedding @ matrix + bias, in float64: matrix (d, k) and bias (k,)."""

    matrix: Float64Array
    bias: Float64Array


@dataclass(frozen=True)
class Whitening:
    """A fitted `indexer.transforms.Transform`: `mean` and `query_mean` (d,), `projection` (d, k), `spectrum` (d,).

    `spectrum` contains the eigenvalues of the covariance before shrinkage, descending.
    """

    mean: Float64Array
    query_mean: Float64Array
    projection: Float64Array
    spectrum: Float64Array
    note: str = ""
    kind = "whitening"

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], settings: Mapping[str, Any]) -> "Whitening":
        """Return the whitening with these arrays. Raises TypeError for wrong names, ValueError for wrong shapes."""
        new = cls(**{name: np.asarray(array) for name, array in arrays.items()}, note=settings["note"])
        sizes = {new.mean.shape, new.query_mean.shape, new.spectrum.shape, new.projection.shape[:1]}
        if len(sizes) > 1 or new.mean.ndim != 1 or new.projection.ndim != 2 or not new.projection.size:
            raise ValueError("the shapes of its arrays are not those of a whitening")
        return new

    @property
    def dim(self) -> int:
        return int(self.projection.shape[1])

    @property
    def input_dim(self) -> int:
        return len(self.mean)

    def transform(self, embeddings: Embeddings, role: Role) -> Vectors:
        return unit_rows(embeddings, lambda block: self.project(block, role))

    def project(self, embeddings: Embeddings, role: Role) -> Float64Array:
        with single_blas_thread():
            projected: Float64Array = (np.asarray(embeddings, np.float64) - self._mean_of(role)) @ self.projection
        return projected

    def affine_layers(self, role: Role) -> list[AffineLayer]:
        return [AffineLayer(self.projection, -(self._mean_of(role) @ self.projection))]

    def with_query_mean(self, mean: Float64Array) -> "Whitening":
        return dataclasses.replace(self, query_mean=mean)

    def arrays(self) -> dict[str, Float64Array]:
        return {name: getattr(self, name) for name in ("mean", "query_mean", "projection", "spectrum")}

    def settings(self) -> dict[str, Any]:
        return {"dim": self.dim, "note": self.note}

    def _mean_of(self, role: Role) -> Float64Array:
        return self.query_mean if role == "query" else self.mean


@dataclass(frozen=True)
class FixedTransform:
    """A transform of embeddings of `dim` dimensions without a fit, the same for queries and documents.

    Subclasses define `kind`, `project` and `affine_layers` of `indexer.transforms.Transform`.
    """

    dim: int
    note: str = ""
    query_mean = None

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], settings: Mapping[str, Any]) -> Self:
        return cls(settings["dim"], settings["note"])

    @property
    def input_dim(self) -> int:
        return self.dim

    def transform(self, embeddings: Embeddings, role: Role) -> Vectors:
        return unit_rows(embeddings, lambda block: self.project(block, role))

    @abstractmethod
    def project(self, embeddings: Embeddings, role: Role) -> Float64Array: ...

    def with_query_mean(self, mean: Float64Array) -> Self:
        return self

    def arrays(self) -> dict[str, Float64Array]:
        return {"dim": np.array([self.dim], dtype=np.float64)}

    def settings(self) -> dict[str, Any]:
        return {"dim": self.dim, "note": self.note}


@dataclass(frozen=True)
class Normalisation(FixedTransform):
    """Unit length only (`strength = "none"`, and corpora too small for a fit)."""

    kind = "normalisation"

    def project(self, embeddings: Embeddings, role: Role) -> Float64Array:
        return np.asarray(embeddings, dtype=np.float64)

    def affine_layers(self, role: Role) -> list[AffineLayer]:
        """Return no maps: the identity."""
        return []


def fewest_rows(config: WhiteningConfig, size: int) -> int:
    """Return the rows from which on an index with embeddings of `size` dimensions is whitened.

    Raises ConfigError if more directions are requested than exist.
    """
    _require_dim(config, size)
    return ROWS_PER_DIRECTION * (config.dim or size)


def _require_dim(config: WhiteningConfig, size: int) -> None:
    if config.dim > size:
        raise ConfigError(
            f"whitening.dim is {config.dim}, but embeddings have {size} dimensions; expected at most {size}."
        )


def fit_whitening(moments: Moments, config: WhiteningConfig, remove: int = 0) -> Whitening | Normalisation:
    """Fit a whitening on the moments of a sample of document embeddings, after removing `remove` leading directions.

    The query mean equals the document mean until `Whitening.with_query_mean` replaces it. Fewer than two distinct rows
    have no covariance: the result is then a `Normalisation` with a note. Raises ConfigError if more directions are
    requested than exist.
    """
    size = len(moments.mean)
    if config.strength == "none" and not remove:
        return Normalisation(size)
    if remove >= size:
        raise ConfigError(
            f"whitening.remove is {remove}, but embeddings have {size} dimensions; expected at most {size - 1}."
        )
    spectrum, directions = _spectrum(moments, remove)
    kept = int(np.count_nonzero(spectrum > EIGENVALUE_FLOOR * spectrum[0])) if spectrum[0] > 0 else 0
    if moments.count < 2 or not kept:
        return Normalisation(size, f"{_texts(moments.count)}: nothing to fit, vectors are only normalised")
    if config.strength == "none":
        origin = np.zeros(size)
        return Whitening(origin, origin, directions[:, : size - remove], spectrum)
    _require_dim(config, size)
    dim = min(config.dim or kept, kept)
    shrunk = (1 - config.shrinkage) * spectrum + config.shrinkage * spectrum.mean()
    projection = directions[:, :dim] * shrunk[:dim] ** (-config.strength / 2)
    mean = np.zeros(size) if config.centre == "none" else moments.mean
    return Whitening(mean, mean, projection, spectrum, _note(moments.count, size, dim, config))


def _spectrum(moments: Moments, remove: int) -> tuple[Float64Array, Float64Array]:
    """Return eigenvalues, descending, and eigenvectors as columns, the largest entry of each made positive. Removed
    directions come last."""
    covariance = moments.covariance
    with single_blas_thread():
        if remove:
            moment = covariance + np.outer(moments.mean, moments.mean)
            covariance = _without(covariance, np.linalg.eigh(moment)[1][:, ::-1][:, :remove])
        values, vectors = np.linalg.eigh(covariance)
    values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
    largest = np.abs(vectors).argmax(axis=0)
    signs = np.where(vectors[largest, np.arange(vectors.shape[1])] < 0, -1.0, 1.0)
    return values, vectors * signs


def _without(covariance: Float64Array, directions: Float64Array) -> Float64Array:
    """Return the covariance of rows without their component along `directions` (d, r), which get a negative value. The
    negative value distinguishes them from directions in which the rows do not vary."""
    rest = np.eye(len(covariance)) - directions @ directions.T
    left: Float64Array = rest @ covariance @ rest - np.trace(covariance) * directions @ directions.T
    return left


def _texts(count: int) -> str:
    return "a sample of one document" if count == 1 else f"a sample of {count} documents, all alike"


def _note(count: int, size: int, dim: int, config: WhiteningConfig) -> str:
    notes = []
    if config.dim > dim:
        notes.append(f"{config.dim} directions were requested, but the sample spans only {dim}")
    if count < 4 * size and config.strength != 0:
        notes.append(
            f"fitted on {count:,} texts for {size} dimensions; below about {4 * size:,} the fit follows "
            "the sample's noise: use more texts, a lower strength, fewer dimensions or some shrinkage"
        )
    return "; ".join(notes)


def unit_rows(embeddings: Embeddings, project: Callable[[Embeddings], Float64Array]) -> Vectors:
    """Apply `project` block by block and scale rows to unit length; zero rows stay zero."""
    starts = range(0, max(1, len(embeddings)), BLOCK_ROWS)
    return np.concatenate([_unit(project(embeddings[start : start + BLOCK_ROWS])) for start in starts])


def _unit(rows: Float64Array) -> Vectors:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Vectors = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0).astype(np.float32)
    return unit
