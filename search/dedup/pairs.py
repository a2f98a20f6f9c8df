"""Scored pairs of rows, the one score that decides, and sources of pairs.

The score of two vectors is their dot product, exact, rounded to float64 and that to float32. Products of two float32
numbers are exact in float64, so only the order of the sum matters, and it differs between libraries, block sizes and
machines. So the sum is taken in any order, with a bound on its error; where that bound reaches over a rounding boundary
of float32 (about 4 in a million pairs) it is summed again by `math.fsum`, which is exact. So every library and machine
computes the same bits.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from indexer.arrays import Float64Array, Int64Array, Mask, RowIds, Scores, Vectors

_CHUNK_BYTES = 1 << 24
_GATHERED = 1 << 14  # pairs whose vectors are gathered together


@dataclass(frozen=True)
class Pairs:
    """Some pairs: `left` and `right` numbers of distinct vectors, `scores` theirs; all of the same length."""

    left: RowIds
    right: RowIds
    scores: Scores

    def __len__(self) -> int:
        return len(self.scores)

    @classmethod
    def concatenate(cls, batches: list["Pairs"]) -> "Pairs":
        """The pairs of all batches, in order; no pairs for no batches."""
        if not batches:
            return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))
        columns = ([getattr(batch, name) for batch in batches] for name in ("left", "right", "scores"))
        return cls(*map(np.concatenate, columns))

    def take(self, which: Mask | slice) -> "Pairs":
        """Those that a mask or a slice selects."""
        return Pairs(self.left[which], self.right[which], self.scores[which])


class PairSource(Protocol):
    """All pairs of distinct vectors that score at least a threshold: from the vectors, or from a file of pairs.

    Batches are bounded, each pair comes once, and their order means nothing.
    """

    def within(self, members: RowIds) -> Iterator[Pairs]:
        """Pairs of two of the `members`, distinct numbers ascending; which of the two is left means nothing."""
        ...

    def between(self, left: RowIds, right: RowIds) -> Iterator[Pairs]:
        """Pairs of one of `left` and one of `right`, two sets ascending that share no number."""
        ...


def pair_scores(left: Vectors, right: Vectors) -> Scores:
    """Scores of rows paired one by one, (n, d) and (n, d) float32 -> (n,) float32."""
    found = np.empty(len(left), np.float32)
    step = max(1, _CHUNK_BYTES // (8 * max(1, left.shape[1])))
    for start in range(0, len(left), step):
        ones, others = left[start : start + step], right[start : start + step]
        sums = np.einsum("nd,nd->n", ones.astype(np.float64), others.astype(np.float64))
        scores, doubtful = _rounded(sums, left.shape[1])
        for row in doubtful.tolist():
            scores[row] = _exact(ones[row], others[row])
        found[start : start + step] = scores
    return found


def document_scores(vectors: Vectors, document_of: RowIds, left: RowIds, right: RowIds) -> Scores:
    """Scores of documents paired one by one, (n,): of their best pair of rows.

    `document_of` (rows,), ascending, is the document of each of `vectors` (rows, d).
    """
    if len(document_of) == document_of[-1] + 1:
        pieces = (slice(start, start + _GATHERED) for start in range(0, len(left), _GATHERED))
        whole = [pair_scores(vectors[left[piece]], vectors[right[piece]]) for piece in pieces]
        return np.concatenate([np.empty(0, np.float32), *whole])
    starts = np.searchsorted(document_of, np.arange(document_of[-1] + 2))

    def rows(document: int) -> Vectors:
        return vectors[starts[document] : starts[document + 1]]

    pairs = zip(left.tolist(), right.tolist(), strict=True)
    return np.fromiter((tile_scores(rows(one), rows(other)).max() for one, other in pairs), np.float32, len(left))


def tile_scores(left: Vectors, right: Vectors) -> Scores:
    """Scores of every row of `left` with every row of `right`, (n, d) and (m, d) float32 -> (n, m) float32."""
    scores, doubtful = _rounded(left.astype(np.float64) @ right.astype(np.float64).T, left.shape[1])
    for place in doubtful.tolist():
        row, column = divmod(place, scores.shape[1])
        scores[row, column] = _exact(left[row], right[column])
    return scores


def _rounded(sums: Float64Array, dim: int) -> tuple[Scores, Int64Array]:
    """Sums of `dim` products as scores, and the flat places of those that may be rounded the wrong way."""
    # A sum of d products in any order is off by less than d * 2**-52 times the sum of their absolute values, which is
    # at most the product of the norms: 1 for unit vectors, and less than 2 for all that is accepted as such.
    slack = 2 * dim * 2.0**-52
    scores = sums.astype(np.float32)
    return scores, np.flatnonzero((sums - slack).astype(np.float32) != (sums + slack).astype(np.float32))


def _exact(left: Vectors, right: Vectors) -> np.float32:
    return np.float32(math.fsum((left.astype(np.float64) * right.astype(np.float64)).tolist()))
