"""Scored pairs of rows, the exact score, and sources of pairs.

The score of two vectors is their exact dot product, rounded to float64 and then to float32. Products of float32 numbers
are exact in float64, so only the order of the sum matters, which differs between libraries, block sizes and machines.
The sum is computed in any order, with an error bound; if the bound crosses a rounding boundary of float32 (about 4 in a
million pairs), `math.fsum` computes the exact sum. So the bits are the same on every machine.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from indexer.arrays import Float64Array, Int64Array, Mask, RowIds, Scores, Vectors

_CHUNK_BYTES = 1 << 24
_GATHERED = 1 << 14  # pairs scored together


@dataclass(frozen=True)
class Pairs:
    """Pairs of distinct vectors: their numbers `left` and `right`, and `scores`, (n,) each."""

    left: RowIds
    right: RowIds
    scores: Scores

    def __len__(self) -> int:
        return len(self.scores)

    @classmethod
    def concatenate(cls, batches: list["Pairs"]) -> "Pairs":
        """Return the pairs of all batches, in order."""
        if not batches:
            return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))
        columns = ([getattr(batch, name) for batch in batches] for name in ("left", "right", "scores"))
        return cls(*map(np.concatenate, columns))

    def take(self, which: Mask | RowIds | slice) -> "Pairs":
        """Return the selected pairs."""
        return Pairs(self.left[which], self.right[which], self.scores[which])

    def to_list(self) -> list[tuple[int, int, float]]:
        """Return (left, right, score) of each pair."""
        return list(zip(self.left.tolist(), self.right.tolist(), self.scores.tolist(), strict=True))


class PairSource(Protocol):
    """Source of the pairs of distinct vectors that score at least a threshold: a join, or a file of pairs.

    Each pair comes once, in bounded batches, in any order and with either vector as `left`.
    """

    def within(self, members: RowIds) -> Iterator[Pairs]:
        """Yield the pairs of two `members` (ascending, distinct numbers)."""

    def between(self, left: RowIds, right: RowIds) -> Iterator[Pairs]:
        """Yield the pairs of a member of `left` and a member of `right` (both ascending, disjoint)."""


def pair_scores(left: Vectors, right: Vectors) -> Scores:
    """Return the score of each row of `left` with the same row of `right`, (n, d), (n, d) float32 -> (n,) float32."""
    result = np.empty(len(left), np.float32)
    step = max(1, _CHUNK_BYTES // (8 * max(1, left.shape[1])))
    for start in range(0, len(left), step):
        first, second = left[start : start + step], right[start : start + step]
        sums = np.einsum("nd,nd->n", first.astype(np.float64), second.astype(np.float64))
        scores, doubtful = _rounded(sums, left.shape[1])
        for row in doubtful.tolist():
            scores[row] = _exact(first[row], second[row])
        result[start : start + step] = scores
    return result


def document_scores(vectors: Vectors, document_of: RowIds, left: RowIds, right: RowIds) -> Scores:
    """Return the score of each document of `left` with that of `right`, (n,): the score of their best pair of rows.

    `document_of` (rows,), ascending, is the document of each of `vectors` (rows, d).
    """
    if len(document_of) == document_of[-1] + 1:
        pieces = (slice(start, start + _GATHERED) for start in range(0, len(left), _GATHERED))
        scores = [pair_scores(vectors[left[piece]], vectors[right[piece]]) for piece in pieces]
        return np.concatenate([np.empty(0, np.float32), *scores])
    starts = np.searchsorted(document_of, np.arange(document_of[-1] + 2))

    def rows(document: int) -> Vectors:
        return vectors[starts[document] : starts[document + 1]]

    pairs = zip(left.tolist(), right.tolist(), strict=True)
    return np.fromiter((tile_scores(rows(first), rows(second)).max() for first, second in pairs), np.float32, len(left))


def tile_scores(left: Vectors, right: Vectors) -> Scores:
    """Return the scores of all rows of `left` with all rows of `right`, (n, d), (m, d) float32 -> (n, m) float32."""
    scores, doubtful = _rounded(left.astype(np.float64) @ right.astype(np.float64).T, left.shape[1])
    for place in doubtful.tolist():
        row, column = divmod(place, scores.shape[1])
        scores[row, column] = _exact(left[row], right[column])
    return scores


def _rounded(sums: Float64Array, dim: int) -> tuple[Scores, Int64Array]:
    """Return sums of `dim` products as scores, and the flat places of scores that may be rounded wrongly."""
    # The error of a sum of d products in any order is below d * 2**-52 times the sum of their absolute values, which is
    # at most the product of the norms: 1 for unit vectors, and less than 2 for all vectors within the tolerance.
    slack = 2 * dim * 2.0**-52
    scores = sums.astype(np.float32)
    return scores, np.flatnonzero((sums - slack).astype(np.float32) != (sums + slack).astype(np.float32))


def _exact(left: Vectors, right: Vectors) -> np.float32:
    return np.float32(math.fsum((left.astype(np.float64) * right.astype(np.float64)).tolist()))
