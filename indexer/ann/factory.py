"""FAISS factory strings: build empty indexes, add vectors, and put a transform in front.

FAISS's vector instructions process whole registers, so scalar-quantised vectors of 381 dimensions take several times as
long to read as those of 384. "Pad384," pads everything after it with zeros, including the vectors of a refine step.
Dimensions then have no fixed order, so they are allocated to the subspaces of a product quantizer such that the product
of variances is about the same in each: the eigenvalue allocation of Ge et al., Optimized Product Quantization (CVPR
2013), without a rotation, because whitened vectors already lie along their principal axes. On 106,000 vectors of 381
dimensions quantised to 48 bytes, the first 40 candidates contain the ten best rows in 96 % of cases, and in 90 % with
the original order; learning a rotation (OPQ) gave 95 % and took six minutes.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from indexer.ann.faiss_index import (
    adding_threads,
    faiss_message,
    faiss_module,
    import_faiss,
    innermost,
    prefer_matrix_products,
    refine_layer,
)
from indexer.ann.leaves import leaves_of, set_rows, vectors_for_leaves
from indexer.ann.score_aware import score_aware
from indexer.arrays import Float64Array, Int32Array, RowIds, Vectors
from indexer.errors import ConfigError

_USUAL_DIMENSIONS = (384, 768, 1024, 960)
EFFORT = 100  # nodes kept while HNSW links a new node; FAISS's default of 40 gives worse links
_PADDED = re.compile(r"Pad(\d+),(.+)")
_VARIANCE_ROWS = 32_768  # of a sample in random order
# x @ matrix + bias, with matrix (d, k) and bias (k,) in float64, which loses nothing to cancellation.
AffineMap = tuple[Float64Array, Float64Array]


def factory_of(index_type: str) -> str:
    """Return the FAISS factory string of `index.type`."""
    return "Flat" if index_type in ("auto", "flat") else index_type


def is_exact(factory: str) -> bool:
    """Whether an index of this kind compares a query with every unquantised vector."""
    return factory == "Flat"


def make_index(factory: str, dim: int, guessed: bool = False) -> Any:
    """Return an empty, untrained inner-product index. Raises ConfigError for a factory string that FAISS rejects; it
    names no size if `dim` is `guessed`."""
    faiss = import_faiss()
    if "IDMap" in factory or re.search(r"(?<!\d)0(?!\d)|HNSW1(?!\d)", factory):
        # FAISS accepts these strings, but then rejects vectors without ids of their own or crashes the process.
        raise ConfigError(
            f'index.type "{factory}" cannot be used: rows are numbered by the index directory (no IDMap), no size '
            "may be 0, and HNSW needs at least 2 links."
        )
    try:
        index = padded_factory(factory, dim)
    except (RuntimeError, MemoryError) as error:
        size = "" if guessed else f" for {dim} dimensions"
        raise ConfigError(
            f'index.type "{factory}" is not a FAISS factory string{size}: {faiss_message(error)}. '
            f"{_fix(factory, dim, guessed)}."
        ) from error
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise ConfigError(f'index.type "{factory}" does not rank by inner product. Fix: choose another type.')
    return index


def _fix(factory: str, dim: int, guessed: bool) -> str:
    quantizer = re.search(r"PQ(\d+)", factory)
    if quantizer and int(quantizer[1]) and dim % int(quantizer[1]) and not factory.startswith("Pad"):
        subspaces = int(quantizer[1])
        width = (
            f'N,{factory}", N a multiple of {subspaces}'
            if guessed
            else f'{-(-dim // subspaces) * subspaces},{factory}"'
        )
        return f'Fix: put zeros in front: "Pad{width}'
    return 'Fix: use "flat", or a factory string such as "IVF256,Flat" or "HNSW32"'


def check_factory(factory: str, dim: int) -> None:
    """Raise ConfigError if FAISS rejects a factory string; with `dim` 0 (unknown), for all usual sizes."""
    errors = []
    for size in (dim,) if dim else _USUAL_DIMENSIONS:
        try:
            make_index(factory, size, guessed=not dim)
            return
        except ConfigError as error:
            errors.append(error)
    raise errors[0]


def add_vectors(index: Any, vectors: Vectors, threads: int = 0) -> None:
    """Append vectors (n, k), with `threads` as in `score_aware`. Raises ConfigError for NaN and infinity, which FAISS
    would drop silently."""
    vectors = require_finite(vectors)
    prefer_matrix_products(index.d)
    with adding_threads(index):
        if refine_layer(index) is None:
            index.add(vectors)
            return
        before = index.ntotal
        *finer, inside = vectors_for_leaves(index, vectors)
        for leaf, shaped in zip(leaves_of(index), [*finer, score_aware(index, inside, threads)], strict=True):
            leaf.add(shaped)
        set_rows(index, before + len(vectors))


def require_finite(vectors: Vectors) -> Vectors:
    """Return vectors (n, k) as an index stores them. Raises ConfigError for NaN and infinity."""
    if not np.isfinite(vectors).all():
        raise ConfigError("vectors that are not finite (NaN or infinity) cannot be added to an index.")
    return np.ascontiguousarray(vectors, dtype=np.float32)


def reconstruct(index: Any, rows: RowIds) -> Vectors:
    """Return the stored vectors of some rows, (n, k); exact for a flat index."""
    vectors: Vectors = index.reconstruct_batch(np.ascontiguousarray(rows, dtype=np.int64))
    return vectors


def padded_factory(factory: str, dim: int) -> Any:
    """Return FAISS's index of a factory string, padding included, with `EFFORT` for graphs."""
    faiss = faiss_module()
    match = _PADDED.fullmatch(factory)
    if match is None or int(match[1]) < dim:
        index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    else:
        width = int(match[1])
        inside = faiss.index_factory(width, match[2], faiss.METRIC_INNER_PRODUCT)
        padding = faiss.RemapDimensionsTransform(dim, width, False)
        index = faiss.IndexPreTransform(padding, inside)
        index.own_fields = True  # `index` frees both
        padding.this.disown()
        inside.this.disown()
    graph = innermost(index)
    if hasattr(graph, "hnsw"):
        graph.hnsw.efConstruction = EFFORT
    return index


def deal_out_dimensions(index: Any, sample: Vectors) -> None:
    """Allocate the dimensions of a padded index to the subspaces of its product quantizer by their variances in a
    sample.

    Other kinds of index stay unchanged.
    """
    faiss = faiss_module()
    outer, quantizer = faiss.downcast_index(index), getattr(innermost(index), "pq", None)
    if not isinstance(outer, faiss.IndexPreTransform) or quantizer is None or outer.chain.size() != 1:
        return
    padding = faiss.downcast_VectorTransform(outer.chain.at(0))
    if isinstance(padding, faiss.RemapDimensionsTransform):
        variances = np.var(sample[:_VARIANCE_ROWS], axis=0, dtype=np.float64)
        allocation = allocate_dimensions(variances, quantizer.M, quantizer.dsub)
        faiss.copy_array_to_vector(allocation, padding.map)


def allocate_dimensions(variances: Float64Array, subspaces: int, size: int) -> Int32Array:
    """Return the dimension at each place, (subspaces * size,); -1 for none. In descending order of variance, each
    dimension goes to the subspace with room whose product of variances is least."""
    logarithms = np.log(np.maximum(variances / max(variances.max(), 1e-300), 1e-12))
    logarithms -= logarithms.min()  # so that no factor is below 1
    places = np.full((subspaces, size), -1, np.int32)
    products, used = np.zeros(subspaces), np.zeros(subspaces, np.int64)
    for dimension in np.argsort(-variances, kind="stable"):
        subspace = int(np.argmin(np.where(used < size, products, np.inf)))
        places[subspace, used[subspace]] = dimension
        products[subspace] += logarithms[dimension]
        used[subspace] += 1
    return places.ravel()


def with_query_transform(index: Any, layers: Sequence[AffineMap]) -> Any:
    """Return `index` (dimension k) behind the query side of a transform: `layers` in order, then unit length.

    FAISS applies them before every search, so `read_index(file).search(embeddings, k)` gives the answers of the index
    directory. FAISS would also apply them before `add`, although documents have another mean, so use the result only
    for searching. It shares the index, which must not change while the result is in use.
    """
    faiss = import_faiss()
    portable = faiss.IndexPreTransform(index)
    portable.prepend_transform(faiss.NormalizationTransform(index.d, 2.0))
    for layer in reversed(layers):
        portable.prepend_transform(_linear(faiss, *layer))
    return portable


def _linear(faiss: Any, matrix: Float64Array, bias: Float64Array) -> Any:
    size, dim = matrix.shape
    linear = faiss.LinearTransform(size, dim, True)
    faiss.copy_array_to_vector(np.ascontiguousarray(matrix.T, np.float32).ravel(), linear.A)
    faiss.copy_array_to_vector(np.ascontiguousarray(bias, np.float32), linear.b)
    linear.is_trained = True
    return linear
