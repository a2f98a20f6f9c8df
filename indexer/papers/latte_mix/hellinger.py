"""`whitening.kind = "hellinger"`: square roots of probabilities, without fitting."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from indexer.arrays import Embeddings, Float64Array, Vectors
from indexer.recipe.config import Role
from indexer.transforms import FitData, OnStep
from indexer.transforms.whitening import FixedTransform, unit_rows


@dataclass(frozen=True)
class Hellinger(FixedTransform):
    """Square roots of `dim` probabilities: an inner product is then the mean Bhattacharyya coefficient of two rows.

    For embeddings that concatenate categorical distributions (pooling "latte-mix"). With s the inner product, their
    Jensen-Shannon divergence lies between ln 2 (1 - s) and 1 - s. These bounds guarantee a search by s whose candidates
    are then ranked by the divergence.
    """

    kind = "hellinger"

    def transform(self, embeddings: Embeddings, role: Role) -> Vectors:
        """Map probabilities (n, d) to unit vectors (n, d), float32."""
        return unit_rows(embeddings, lambda block: self.project(block, role))

    def project(self, embeddings: Embeddings, role: Role) -> Float64Array:
        """Return the square roots before normalisation, float64 (n, d)."""
        roots: Float64Array = np.sqrt(np.maximum(np.asarray(embeddings, np.float64), 0))
        return roots

    def affine_layers(self, role: Role) -> None:
        """Return None: square roots are not affine."""


TRANSFORM = Hellinger


def fit(data: FitData, settings: Any, on_step: OnStep | None = None) -> Hellinger:
    return Hellinger(int(next(data.blocks()).shape[1]))
