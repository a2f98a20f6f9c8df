"""Inner products of unit vectors: float32 finds candidates, float64 decides.

The last bits of a float32 product depend on the device and on how many are computed at once. A float32 sum of d
products of unit vectors, in any order, has an error of at most d * 2**-24. A limit that is itself such a product has
the same error, so every row within twice that of a limit is a candidate.
"""

import numpy as np

from indexer.arrays import Float64Array, RowIds, Scores, Vectors

_PAIRS = 8192  # float64 dot products at once


def float32_slack(dim: int) -> float:
    """Return the most by which float32 products of `dim` dimensions may swap a row and a limit."""
    return dim * 2.0**-23


def candidates(rough: Scores, least: Scores | Float64Array | float, dim: int) -> tuple[RowIds, RowIds]:
    """Return (query, row) of the float32 products (n, m) that may reach `least`, one for all or (n,)."""
    limits = least - float32_slack(dim)
    query, row = np.nonzero(rough >= (limits[:, None] if isinstance(limits, np.ndarray) else limits))
    return query, row


def pair_products(queries: Vectors, query: RowIds, vectors: Vectors, row: RowIds) -> Float64Array:
    """Return float64 products of pairs, (n,): queries[query[i]] with vectors[row[i]]."""
    products = np.zeros(len(query))
    for start in range(0, len(query), _PAIRS):
        part = slice(start, start + _PAIRS)
        left, right = queries[query[part]].astype(np.float64), vectors[row[part]].astype(np.float64)
        products[part] = np.einsum("nd,nd->n", left, right)
    return products


def matrix_products(left: Vectors, right: Vectors) -> Float64Array:
    """Return float64 products of every row of `left` (n, d) with every row of `right` (m, d), (n, m)."""
    return left.astype(np.float64) @ right.astype(np.float64).T
