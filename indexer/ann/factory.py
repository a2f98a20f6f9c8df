"""Factory strings of FAISS: empty indexes made of them, vectors added, a transform put in front.

FAISS's vector instructions take whole registers, so that scalar codes of 381 dimensions take several times as long to
read as those of 384. "Pad384," puts zeros around everything that follows, what is scored again included. Dimensions
then have no order of their own, and are dealt out to the codes of a product quantizer so that the product of their
variances is about the same in each: the eigenvalue allocation of Ge et al., Optimized Product Quantization (CVPR 2013),
without a rotation, as whitened vectors lie along their principal axes already. On 106,000 vectors of 381 dimensions
the ten best are among the first 40 by codes of 48 bytes in 96 % of cases, and in 90 % in the order as it comes;
learning a rotation (OPQ) gave 95 % and took six minutes.
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
)
from indexer.arrays import Float64Array, Int32Array, RowIds, Vectors
from indexer.errors import ConfigError

_USUAL_DIMENSIONS = (384, 768, 1024, 960)
EFFORT = 100  # nodes kept while a graph finds the neighbours of a new one; FAISS's own 40 leaves worse links
_PADDED = re.compile(r"Pad(\d+),(.+)")
_NO_DIMENSION = -1
_VARIANCE_ROWS = 32_768  # of a sample in random order
# matrix (d, k) and bias (k,), in float64, where nothing of them is lost to cancellation: x @ matrix + bias
AffineMap = tuple[Float64Array, Float64Array]


def factory_of(index_type: str) -> str:
    """The FAISS factory string behind `index.type`."""
    return "Flat" if index_type in ("auto", "flat") else index_type


def is_exact(factory: str) -> bool:
    """Whether an index of this kind compares a query with every vector as it is."""
    return factory == "Flat"


def make_index(factory: str, dim: int) -> Any:
    """An empty, untrained inner-product index. Raises ConfigError naming a factory string FAISS refuses."""
    faiss = import_faiss()
    if "IDMap" in factory or re.search(r"(?<!\d)0(?!\d)|HNSW1(?!\d)", factory):
        # FAISS accepts these strings; then it refuses vectors without ids of their own, or kills the process.
        raise ConfigError(
            f'index.type "{factory}" cannot be used: rows are numbered by the index directory (no IDMap), no size '
            "may be 0, and HNSW needs at least 2 links."
        )
    try:
        index = padded_factory(factory, dim)
    except (RuntimeError, MemoryError) as error:
        raise ConfigError(
            f'index.type "{factory}" is not a FAISS factory string for {dim} dimensions: {faiss_message(error)}. '
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


def check_factory(factory: str, dim: int) -> None:
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


def reconstruct(index: Any, rows: RowIds) -> Vectors:
    """The stored vectors of the given rows, (n, k); exact for a flat index."""
    vectors: Vectors = index.reconstruct_batch(np.ascontiguousarray(rows, dtype=np.int64))
    return vectors


def padded_factory(factory: str, dim: int) -> Any:
    """FAISS's index of a factory string, padded outside of all that follows, with graphs made to last."""
    faiss = faiss_module()
    match = _PADDED.fullmatch(factory)
    if match is None or int(match[1]) < dim:
        index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    else:
        width = int(match[1])
        inside = faiss.index_factory(width, match[2], faiss.METRIC_INNER_PRODUCT)
        padding = faiss.RemapDimensionsTransform(dim, width, False)
        index = faiss.IndexPreTransform(padding, inside)
        index.own_fields = True  # it frees both, so that they live as long as it does
        padding.this.disown()
        inside.this.disown()
    graph = innermost(index)
    if hasattr(graph, "hnsw"):
        graph.hnsw.efConstruction = EFFORT
    return index


def deal_out_dimensions(index: Any, sample: Vectors) -> None:
    """Deal the dimensions of a padded index out to the codes of its product quantizer, by their variances in a sample.

    Leaves other kinds of index as they are.
    """
    faiss = faiss_module()
    outer, quantizer = faiss.downcast_index(index), getattr(innermost(index), "pq", None)
    if not isinstance(outer, faiss.IndexPreTransform) or quantizer is None or outer.chain.size() != 1:
        return
    padding = faiss.downcast_VectorTransform(outer.chain.at(0))
    if isinstance(padding, faiss.RemapDimensionsTransform):
        variances = np.var(sample[:_VARIANCE_ROWS], axis=0, dtype=np.float64)
        dealt = allocate_dimensions(variances, quantizer.M, quantizer.dsub)
        faiss.copy_array_to_vector(dealt, padding.map)


def allocate_dimensions(variances: Float64Array, codes: int, size: int) -> Int32Array:
    """Which dimension goes where, (codes * size,); -1 for none. The one of most variance goes to the code with room
    whose product of variances is least."""
    logarithms = np.log(np.maximum(variances / max(variances.max(), 1e-300), 1e-12))
    logarithms -= logarithms.min()  # so that none of them makes a product smaller
    places = np.full((codes, size), _NO_DIMENSION, np.int32)
    products, taken = np.zeros(codes), np.zeros(codes, np.int64)
    for dimension in np.argsort(-variances, kind="stable"):
        code = int(np.argmin(np.where(taken < size, products, np.inf)))
        places[code, taken[code]] = dimension
        products[code] += logarithms[dimension]
        taken[code] += 1
    return places.ravel()


def with_query_transform(index: Any, layers: Sequence[AffineMap]) -> Any:
    """`index` (dimension k) behind the query side of a transform: `layers`, in their order, then unit length.

    FAISS runs them before every search, so that its own `read_index(file).search(embeddings, k)` gives what the index
    directory gives for the same embeddings. It would run them before `add` too, where documents have another mean: such
    an index is for searching. The index is not copied: it must not be changed while the result is in use.
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
