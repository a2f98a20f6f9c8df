"""Making an index: what its factory string means, and adding."""

import re
from typing import Any

import numpy as np

from indexer.ann.arrays import Rows, Vectors
from indexer.ann.faiss_module import prefer_matrix_products, reason_of, require_faiss
from indexer.ann.shaping import make_shaped
from indexer.ann.threads import adding_threads
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
            f"{_way_out(factory, dim)}."
        ) from error
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise ConfigError(f'index.type "{factory}" does not rank by inner product; choose another.')
    return index


def _way_out(factory: str, dim: int) -> str:
    """What to do about a factory string: a product quantizer shares the dimensions out evenly."""
    quantizer = re.search(r"PQ(\d+)", factory)
    if quantizer and int(quantizer[1]) and dim % int(quantizer[1]) and not factory.startswith("Pad"):
        codes = int(quantizer[1])
        return f'Put zeros in front: "Pad{-(-dim // codes) * codes},{factory}"'
    return 'Use "flat", or a factory string such as "IVF256,Flat" or "HNSW32"'


def require_factory(factory: str, dim: int) -> None:
    """Refuse a factory string that FAISS takes for no usual size; `dim` is 0 while the size is not known."""
    sizes = (dim,) if dim else _USUAL_DIMENSIONS
    errors = []
    for size in sizes:
        try:
            make_index(factory, size)
        except ConfigError as error:
            errors.append(error)
        else:
            return
    raise errors[0]


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
