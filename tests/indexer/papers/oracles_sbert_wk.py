"""SBERT-WK (Wang and Kuo, 2020) by its equations: loops over texts, tokens and layers, in float64."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Qr = Callable[[Array], Array]
WINDOW = 2
LEAST_ALIGNMENT = 1e-6
ROUNDING = 1e-12


def sbert_wk(texts: Sequence[Array]) -> Array:
    """Return one row (d,) per text; a text is (layers, tokens, d), without padding."""
    return np.stack([text_vector(np.asarray(text, np.float64)) for text in texts])


def text_vector(text: Array) -> Array:
    if text.shape[1] > 1:
        text = text[:, :-1]
    tokens = [text[:, number] for number in range(text.shape[1])]
    weights = shares([over_rounding(variance_of_neighbours(token)) for token in tokens])
    return weighted(weights, [token_vector(token) for token in tokens])


def token_vector(token: Array) -> Array:
    """Return the unified vector (d,) of a token (layers, d)."""
    alignments, novelties = [], []
    for layer in range(len(token)):
        alignment, novelty = measures(token, layer, triangle)
        alignments.append(alignment)
        novelties.append(novelty)
    alpha = [a + n for a, n in zip(shares(alignments), shares(novelties), strict=True)]
    return weighted([weight / sum(alpha) for weight in alpha], list(token))


def weighted(weights: Sequence[float], vectors: Sequence[Array]) -> Array:
    total = np.zeros(len(vectors[0]))
    for weight, vector in zip(weights, vectors, strict=True):
        total += weight * vector
    return total


def measures(token: Array, layer: int, qr: Qr) -> tuple[float, float]:
    """Return alignment and novelty of one layer, not divided by their sums."""
    around = [n for n in range(layer - WINDOW, layer + WINDOW + 1) if n != layer and 0 <= n < len(token)]
    upper = qr(np.stack([*(token[n] for n in around), token[layer]], axis=1))
    last = upper[:, -1]
    if not last.any():
        return 0.0, 0.0
    known = np.linalg.norm(last[:-1])
    mean = np.zeros(len(around))
    for number in range(len(around)):
        column = upper[:-1, number]
        mean += (column / np.linalg.norm(column) if column.any() else column) / len(around)
    whole = np.linalg.norm(last)
    beta = float(mean @ last[:-1] / known) if known**2 > ROUNDING * whole**2 else 0.0
    novelty = over_rounding(float(last[-1] / whole) ** 2) ** 0.5
    return 1 / (2 * (len(around) + 1) * max(beta, LEAST_ALIGNMENT)), novelty


def triangle(columns: Array) -> Array:
    """Return R by the Gram-Schmidt process; a column in the span of the earlier ones adds no direction."""
    count = columns.shape[1]
    directions: list[Array] = []
    upper = np.zeros((count, count))
    for number in range(count):
        rest = columns[:, number].copy()
        for _ in range(2):  # twice, against rounding
            for before, direction in enumerate(directions):
                along = float(rest @ direction)
                upper[before, number] += along
                rest = rest - along * direction
        length, whole = float(np.linalg.norm(rest)), float(np.linalg.norm(columns[:, number]))
        if length**2 <= ROUNDING * whole**2:
            directions.append(np.zeros(len(rest)))
        else:
            upper[number, number] = length
            directions.append(rest / length)
    return upper


def variance_of_neighbours(token: Array) -> float:
    """Return the population variance of the cosines of consecutive layers."""
    cosines = []
    for one, other in pairwise(token):
        norms = math.sqrt(float(one @ one)) * math.sqrt(float(other @ other))
        cosines.append(float(one @ other) / norms if norms else 0.0)
    mean = sum(cosines) / len(cosines)
    return sum((cosine - mean) ** 2 for cosine in cosines) / len(cosines)


def over_rounding(value: float) -> float:
    return value if value > ROUNDING else 0.0


def shares(values: Sequence[float]) -> list[float]:
    total = sum(values)
    return [value / total if total > 0 else 1 / len(values) for value in values]
