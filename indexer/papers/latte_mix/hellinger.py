"""`whitening.kind = "hellinger"`: square roots of probabilities, without fitting."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from indexer.arrays import Embeddings, Float64Array
from indexer.recipe.config import Role
from indexer.transforms import FitData, OnStep
from indexer.transforms.whitening import FixedTransform


@dataclass(frozen=True)
class Hellinger(FixedTransform):
    """Square roots of `dim` probabilities: an inner product is then the mean Bhattacharyya coefficient of two rows.

    For embeddings that concatenate categorical distributions (pooling "latte-mix"). Their inner product bounds their
    Jensen-Shannon divergence (`divergence`), which guarantees a search whose candidates are then ranked by divergence.
    """

    kind = "hellinger"

    def project(self, embeddings: Embeddings, role: Role) -> Float64Array:
        """Return the square roots before normalisation, float64 (n, d)."""
        return np.sqrt(np.maximum(np.asarray(embeddings, np.float64), 0))

    def affine_layers(self, role: Role) -> None:
        """Return None: square roots are not affine."""


TRANSFORM = Hellinger


def fit(data: FitData, settings: Any, on_step: OnStep | None = None) -> Hellinger:
    return Hellinger(int(next(data.blocks()).shape[1]))
