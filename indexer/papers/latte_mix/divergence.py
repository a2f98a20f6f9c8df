"""Similarity of two texts: closed forms between the latent mixtures of Latte-Mix, in float64.

A row (width,) is a text: the concatenated class probabilities of `dims` dimensions. Rows are not normalised again:
means in float32 sum to 1 within about 1e-6, and the statements below hold within that error.

With s the inner product of two rows' unit vectors sqrt(p) / sqrt(dims), the mean Bhattacharyya coefficient of the
dimensions, and JS the mean Jensen-Shannon divergence in nats:  ln 2 (1 - s) <= JS <= 1 - s.  This holds for each class,
between (sqrt p - sqrt q)^2 / 2 and the terms of JS: their ratio falls from 1 at p = q to ln 2 where p or q is 0.
"""

import numpy as np

from indexer.arrays import Embeddings, Float64Array
from indexer.errors import ConfigError, EvaluationError

Normals = tuple[Embeddings, Embeddings]  # mean and standard deviation of a text's tokens, (tokens, dims) each
LN2 = float(np.log(2))
_BLOCK_ROWS = 64  # a block of rows stays in the processor's cache
_TINY = np.finfo(np.float64).tiny


def js_similarity(left: Embeddings, right: Embeddings, dims: int) -> Float64Array:
    """Return 1 - JS / ln 2 of paired rows (n, width) and (n, width): (n,). 1 for equal texts, 0 for texts without a
    common class in any dimension. JS is the mean over the dimensions. Raises ConfigError for rows that do not fit."""
    _check(left, right, dims, paired=True)
    similarities = np.empty(len(left))
    for start in range(0, len(left), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        rows, others = np.asarray(left[block], np.float64), np.asarray(right[block], np.float64)
        similarities[block] = _js_similarity(_entropy((rows + others) / 2), _entropy(rows), _entropy(others), dims)
    return similarities


def js_similarities(left: Embeddings, right: Embeddings, dims: int) -> Float64Array:
    """Return the `js_similarity` of every row of `left` (n, width) with every row of `right` (m, width): (n, m)."""
    _check(left, right, dims)
    rows = np.asarray(left, np.float64)
    entropies = _entropy(rows)
    table = np.empty((len(left), len(right)))
    for start in range(0, len(right), _BLOCK_ROWS):
        others = np.asarray(right[start : start + _BLOCK_ROWS], np.float64)
        other_entropies, block = _entropy(others), table[:, start : start + _BLOCK_ROWS]
        for number, row in enumerate(rows):
            between = _entropy((row + others) / 2)
            block[number] = _js_similarity(between, entropies[number], other_entropies, dims)
    return table


def negative_l2(left: Embeddings, right: Embeddings) -> Float64Array:
    """Return minus the Euclidean distance of paired rows (n, width) and (n, width): (n,)."""
    _check(left, right, paired=True)
    distances: Float64Array = np.linalg.norm(np.asarray(left, np.float64) - right, axis=1)
    return -distances


def mixture_l2(left: Normals, right: Normals) -> float:
    """Return the L2 distance of two texts' mixtures of normal distributions, 0 or more.

    `left` and `right` are mean and standard deviation (tokens, dims) of their tokens; a text's density in a dimension
    is the mean of its tokens' densities. The result is the root of the mean over the dimensions of the integral of
    (f - g)^2: a joint mixture over all dimensions would multiply `dims` densities, and its distances vanish. The
    integral of N(x; a, s^2) N(x; b, t^2) is N(a - b; 0, s^2 + t^2). Raises EvaluationError for a text without tokens.
    """
    for mean, deviation in (left, right):
        if not len(mean) or mean.shape != deviation.shape or mean.shape[1] != left[0].shape[1]:
            raise EvaluationError(
                f"a text has means of shape {mean.shape} and deviations of shape {deviation.shape}; expected "
                f"(tokens, {left[0].shape[1]}) for both, with at least one token."
            )
    squared = _overlap(left, left) - 2 * _overlap(left, right) + _overlap(right, right)
    return float(np.sqrt(np.maximum(squared, 0).mean()))


def _overlap(left: Normals, right: Normals) -> Float64Array:
    """Return the integral of the product of two mixtures, (dims,)."""
    (means, deviations), (other_means, other_deviations) = left, right
    apart = np.asarray(means, np.float64)[:, None] - other_means
    variance = np.square(deviations, dtype=np.float64)[:, None] + np.square(other_deviations, dtype=np.float64)
    density: Float64Array = np.exp(-np.square(apart) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
    overlap: Float64Array = density.mean(axis=(0, 1))
    return overlap


def _js_similarity(between: Float64Array, left: Float64Array, right: Float64Array, dims: int) -> Float64Array:
    """Return the similarity from entropies: JS = H((p + q) / 2) - (H(p) + H(q)) / 2, exactly 0 for equal rows."""
    return np.clip(1 - (between - (left + right) / 2) / (dims * LN2), 0, 1)


def _entropy(rows: Float64Array) -> Float64Array:
    logs = np.maximum(rows, _TINY)
    np.log(logs, out=logs)
    entropy: Float64Array = -np.einsum("ij,ij->i", rows, logs)
    return entropy


def _check(left: Embeddings, right: Embeddings, dims: int = 1, paired: bool = False) -> None:
    fits = left.ndim == right.ndim == 2 and left.shape[1] == right.shape[1] and left.shape[1] % dims == 0
    if not fits or (paired and len(left) != len(right)):
        raise ConfigError(
            f"rows of shape {left.shape} and {right.shape} cannot be compared in {dims} dimensions; expected rows of "
            f"the same width, divisible by {dims}{', and equally many' if paired else ''}."
        )
