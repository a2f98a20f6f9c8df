"""`whitening.kind = "hellinger"`: square roots of probabilities, for which nothing is fitted."""

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

    For embeddings that are categorical distributions side by side (pooling "latte-mix"). With s the inner product,
    their Jensen-Shannon divergence lies between ln 2 (1 - s) and 1 - s: what makes a search by s, followed by a ranking
    of its candidates by the divergence, provable.
    """

    kind = "hellinger"

    def transform(self, embeddings: Embeddings, role: Role) -> Vectors:
        """Probabilities (n, d) to unit vectors (n, d), float32."""
        return unit_rows(embeddings, lambda block: self.project(block, role))

    def project(self, embeddings: Embeddings, role: Role) -> Float64Array:
        """The square roots before normalisation, float64 (n, d)."""
        roots: Float64Array = np.sqrt(np.maximum(np.asarray(embeddings, np.float64), 0))
        return roots

    def affine_layers(self, role: Role) -> None:
        """No affine map gives square roots."""
        return


TRANSFORM = Hellinger


def fit(data: FitData, settings: Any, on_step: OnStep | None = None) -> Hellinger:
    """Return the roots for embeddings of the size of those in `data`."""
    return Hellinger(int(next(data.blocks()).shape[1]))
