"""Square roots of probabilities: an inner product of two rows is then their mean Bhattacharyya coefficient.

For embeddings that are categorical distributions side by side (pooling "latte-mix"). With s the inner product, their
Jensen-Shannon divergence lies between ln 2 (1 - s) and 1 - s, which is what makes a search by s followed by a ranking
of its candidates by the divergence provable (`search.divergence`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.config import Role
from indexer.transforms.protocol import Rows, Vectors
from indexer.transforms.whitening import normalise_blocks


@dataclass(frozen=True)
class Hellinger:
    """Nothing is fitted: `dim` numbers, of which all are probabilities."""

    dim: int
    note: str = ""
    kind = "hellinger"

    def transform(self, embeddings: Rows, role: Role) -> Vectors:
        """Probabilities (n, d) to unit vectors (n, d), float32; both roles alike."""
        return normalise_blocks(embeddings, lambda block: np.sqrt(np.maximum(np.asarray(block, np.float64), 0)))

    def arrays(self) -> dict[str, npt.NDArray[np.float64]]:
        return {"dim": np.array([self.dim], dtype=np.float64)}

    def settings(self) -> dict[str, Any]:
        return {"dim": self.dim, "note": self.note}
