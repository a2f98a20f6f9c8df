"""Making an index: what its factory string means, training, adding."""

import re
from typing import Any

import numpy as np

from indexer.ann.arrays import Rows, Vectors
from indexer.ann.faiss_module import loaded_faiss, prefer_matrix_products, reason_of, require_faiss
from indexer.ann.gpu import centroids_on
from indexer.ann.layers import layers_of
from indexer.ann.shaping import deal_out_dimensions, make_shaped
from indexer.ann.threads import adding_threads, training_threads
from indexer.errors import ConfigError

_USUAL_DIMENSIONS = (384, 768, 1024, 960)


def factory_of(index_type: str) -> str:
    """The FAISS factory string behind `index.type`."""
    return "Flat" if index_type in ("auto", "flat") else index_type


def is_exact(factory: str) -> bool:
    """Whether an index of this kind compares a query with every vector as it is."""
    return factory == "Flat"


def make_index(factory: str, dim: int) -> Any:
    """An empty, untrained inner-product index. Raises ConfigError naming a factory string FAISS refuses."""
    faiss = require_faiss()
    if "IDMap" in factory or re.search(r"(?<!\d)0(?!\d)|HNSW1(?!\d)", factory):
        # FAISS accepts these strings; then it refuses vectors without ids of their own, or kills the process.
        raise ConfigError(
            f'index.type "{factory}" cannot be used: rows are numbered by the index directory (no IDMap), no size '
            "may be 0, and HNSW needs at least 2 links."
        )
    try:
        index = make_shaped(factory, dim)
    except (RuntimeError, MemoryError) as error:
        raise ConfigError(
            f'index.type "{factory}" is not a FAISS factory string for {dim} dimensions: {reason_of(error)}. '
            'Use "flat", or a factory string such as "IVF256,Flat" or "HNSW32".'
        ) from error
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise ConfigError(f'index.type "{factory}" does not rank by inner product; choose another.')
    return index


def require_factory(factory: str, dim: int) -> None:
    """Refuse a factory string that FAISS takes for no usual size; `dim` is 0 while the size is not known."""
    sizes = (dim,) if dim else _USUAL_DIMENSIONS
    for size in sizes:
        try:
            make_index(factory, size)
        except ConfigError:
            if size == sizes[-1]:
                raise
        else:
            return


def train_index(index: Any, sample: Vectors, device: str = "cpu") -> None:
    """Train on a sample of vectors (n, k), if the kind of index needs it; on a CUDA device where FAISS can."""
    if index.is_trained:
        return
    prefer_matrix_products(index.d)
    _train_plainly(index)
    deal_out_dimensions(index, sample)
    try:
        with training_threads(index), centroids_on(index, device):
            index.train(np.ascontiguousarray(sample, dtype=np.float32))
    except RuntimeError as error:
        raise ConfigError(
            f"the index cannot be trained on {len(sample):,} vectors: {reason_of(error)}. "
            'Choose a smaller index.type, or "flat".'
        ) from error


def _train_plainly(index: Any) -> None:
    """Leave out of the training what is of no use here.

    K-means would write to stderr that it has few vectors: what an index is worth is measured afterwards. Product
    quantizers would have their centroids put in an order for polysemous search, which takes several times as long.
    """
    faiss, parts = loaded_faiss(), layers_of(index)
    held = [getattr(part, name, None) for part in parts for name in ("refine_index", "storage")]
    for part in [*parts, *(faiss.downcast_index(inside) for inside in held if inside is not None)]:
        if hasattr(part, "do_polysemous_training"):
            part.do_polysemous_training = False
        for owner in (part, getattr(part, "pq", None)):
            if owner is not None and hasattr(owner, "cp"):
                owner.cp.min_points_per_centroid = 1


def add_vectors(index: Any, vectors: Vectors) -> None:
    """Append vectors (n, k). FAISS would drop rows that are not finite without a word, so they are refused."""
    vectors = require_finite(vectors)
    prefer_matrix_products(index.d)
    with adding_threads(index):
        index.add(vectors)


def require_finite(vectors: Vectors) -> Vectors:
    """The vectors (n, k) as an index stores them. Raises ConfigError for NaN and infinity."""
    if not np.isfinite(vectors).all():
        raise ConfigError("vectors that are not finite (NaN or infinity) cannot be added to an index.")
    return np.ascontiguousarray(vectors, dtype=np.float32)


def vectors_at(index: Any, rows: Rows) -> Vectors:
    """The stored vectors of the given rows, (n, k); exact for a flat index."""
    vectors: Vectors = index.reconstruct_batch(np.ascontiguousarray(rows, dtype=np.int64))
    return vectors
