"""An index that takes embeddings as an encoder gives them: the query side of a transform as its first layers.

FAISS runs the layers before every search, so its own `read_index(file).search(embeddings, k)` gives what the index
directory gives for the same queries. It would run them before `add` too, where documents have another mean: a portable
index is for searching.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.ann.faiss_module import require_faiss

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class QueryLayers:
    """The affine part of a transform: (x - mean) @ projection, mean (d,) and projection (d, k)."""

    mean: Array
    projection: Array

    def bias(self) -> Array:
        """What is added after the projection, (k,); computed in float64, where nothing is lost to cancellation."""
        bias: Array = -(self.mean @ self.projection)
        return bias


def with_query_layers(index: Any, layers: QueryLayers | None) -> Any:
    """`index` (dimension k) behind the layers and a normalisation to unit length; None: the normalisation only.

    The index is not copied: it must not be changed while the result is in use.
    """
    faiss = require_faiss()
    portable = faiss.IndexPreTransform(index)
    portable.prepend_transform(faiss.NormalizationTransform(index.d, 2.0))
    if layers is not None:
        portable.prepend_transform(_linear(faiss, layers))
    return portable


def _linear(faiss: Any, layers: QueryLayers) -> Any:
    size, dim = layers.projection.shape
    linear = faiss.LinearTransform(size, dim, True)
    faiss.copy_array_to_vector(np.ascontiguousarray(layers.projection.T, np.float32).ravel(), linear.A)
    faiss.copy_array_to_vector(np.ascontiguousarray(layers.bias(), np.float32), linear.b)
    linear.is_trained = True
    return linear
