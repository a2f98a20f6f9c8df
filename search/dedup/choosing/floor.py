"""From which score on pairs are looked for, when nobody said: low enough to see where near-duplicates begin.

A look at a few hundred documents against all. It must be cheap, and need not be exact.
"""

import math

import numpy as np
import numpy.typing as npt

from search.dedup.choosing.background import FEWEST, Counts, count_scores, fit_tail
from search.dedup.deciding.distinct import Distinct
from search.dedup.pairs import Rows, Vectors

CANDIDATES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.92, 0.95, 0.97, 0.99, 0.999)
"""Thresholds that are looked at, if they are not below the floor."""
FLOOR = 0.79  # a little below a candidate, as pairs from below a candidate are shown too
_HIGHEST = 0.98
_PROBES = 512
_BLOCK = 4096
_NEIGHBOURED = 2 / 3  # of the documents may have a neighbour at the floor


def choose_floor(vectors: Vectors, distinct: Distinct, seed: int = 0, document_of: Rows | None = None) -> float:
    """The floor for `suggest`: `FLOOR`, or what fits the space better. `vectors` (rows, k).

    `document_of` (rows,) is the document of each row, where some have several.

    Lower where fewer than one chance pair is expected already below it, as after strong whitening, where few random
    pairs score high. Higher where over two thirds of the documents have a neighbour that near, as in a space that was
    never centred, where all documents are alike: there would be too many pairs, and no background of the few left.
    """
    rows = distinct.first
    if len(rows) < FEWEST:
        return FLOOR
    probes = np.sort(np.random.default_rng(seed).choice(len(rows), min(_PROBES, len(rows)), replace=False))
    documents = rows if document_of is None else document_of[rows]
    nearest, counts = _probe(vectors, rows, probes, documents)
    crowded = math.ceil(100 * float(np.quantile(nearest, 1 - _NEIGHBOURED))) / 100
    return round(min(_HIGHEST, max(crowded, min(FLOOR, _one_by_chance(counts, len(rows)) - 0.01))), 2)


def _one_by_chance(counts: Counts, documents: int) -> float:
    """About the threshold at which one chance pair is expected, rounded down to a multiple of 0.05.

    Near-duplicates are among these pairs. They make it come out too high, and the floor then stays as it is.
    """
    tail = fit_tail(counts, FLOOR)
    if tail is None:
        return 1.0
    at_start = tail.above(tail.start) * documents * (documents - 1) / 2 / int(counts.sum())
    threshold = 1 - (1 - tail.start) * float(at_start ** (-1 / tail.exponent))
    return math.floor(threshold * 20) / 20


def _probe(vectors: Vectors, rows: Rows, probes: Rows, documents: Rows) -> tuple[npt.NDArray[np.float64], Counts]:
    """The highest score of each probe (a position in `rows`) with another document; and the scores of all, counted.

    `documents` (rows,) says whose each of `rows` is.
    """
    left = vectors[rows[probes]].astype(np.float64)
    nearest = np.full(len(probes), -1.0)
    counts = np.zeros(0, np.int64)
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        scores = left @ vectors[block].astype(np.float64).T
        scores[documents[probes][:, None] == documents[start : start + len(block)]] = np.nan  # a document with itself
        others = scores[~np.isnan(scores)]
        counts = count_scores(others) if not len(counts) else counts + count_scores(others)
        np.fmax(nearest, np.fmax.reduce(scores, axis=1), out=nearest)
    return nearest, counts
