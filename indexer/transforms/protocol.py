"""What every transform offers: the step from embeddings (n, d) to unit vectors (n, k)."""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from indexer.config import Role

Rows = npt.NDArray[np.floating]
Vectors = npt.NDArray[np.float32]


class Transform(Protocol):
    """A fitted transform. Vectors are float32 and of unit length; a zero row stays zero (the build gate refuses it)."""

    kind: str

    @property
    def dim(self) -> int:
        """Vector size k."""
        ...

    def transform(self, embeddings: Rows, role: Role) -> Vectors:
        """Embeddings (n, d) to vectors (n, k)."""
        ...

    def arrays(self) -> dict[str, npt.NDArray[np.float64]]:
        """What `save` writes."""
        ...

    def settings(self) -> dict[str, Any]:
        """What the manifest says of it: JSON types."""
        ...
