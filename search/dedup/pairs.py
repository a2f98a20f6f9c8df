"""Scored pairs of rows, the one score that decides, and sources of pairs."""
# TODO-DOC search.dedup.pairs:
# TODO-DOC Pairs of distinct vectors, and where they come from.
# TODO-DOC search.dedup.scores:
# TODO-DOC The one score: the dot product of two float32 vectors, exact, rounded to float64 and that to float32.
# TODO-DOC
# TODO-DOC Products of two float32 numbers are exact in float64, so only the order of the sum matters, and it differs between
# TODO-DOC libraries, block sizes and machines. So the sum is taken in any order, with a bound on its error; where that bound
# TODO-DOC reaches over a rounding boundary of float32 (about 4 in a million pairs) it is summed again by `math.fsum`, which is
# TODO-DOC exact. Whoever computes a score therefore gets the same bits.
# TODO-DOC

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float32]
Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Pairs:
    """Some pairs: `left` and `right` numbers of distinct vectors, `scores` theirs; all of the same length."""

    left: Rows
    right: Rows
    scores: Scores

    def __len__(self) -> int:
        return len(self.scores)


class PairSource(Protocol):
    """All pairs of distinct vectors that score at least a threshold: from the vectors, or from a file of pairs.

    Batches are bounded, each pair comes once, and their order means nothing.
    """

    def within(self, members: Rows) -> Iterator[Pairs]:
        """Pairs of two of the `members`, distinct numbers ascending; which of the two is left means nothing."""
        ...

    def between(self, left: Rows, right: Rows) -> Iterator[Pairs]:
        """Pairs of one of `left` and one of `right`, two sets ascending that share no number."""
        ...


_CHUNK_BYTES = 1 << 24
_GATHERED = 1 << 14  # pairs whose vectors are gathered together


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


def document_scores(vectors: Vectors, document_of: Rows, left: Rows, right: Rows) -> Scores:
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


def _rounded(sums: npt.NDArray[np.float64], dim: int) -> tuple[Scores, npt.NDArray[np.int64]]:
    """Sums of `dim` products as scores, and the flat places of those that may be rounded the wrong way."""
    # A sum of d products in any order is off by less than d * 2**-52 times the sum of their absolute values, which is
    # at most the product of the norms: 1 for unit vectors, and less than 2 for all that is accepted as such.
    slack = 2 * dim * 2.0**-52
    scores = sums.astype(np.float32)
    return scores, np.flatnonzero((sums - slack).astype(np.float32) != (sums + slack).astype(np.float32))


def _exact(left: Vectors, right: Vectors) -> np.float32:
    return np.float32(math.fsum((left.astype(np.float64) * right.astype(np.float64)).tolist()))


class PairsInMemory:
    """A `PairSource` over pairs in memory."""

    def __init__(self, pairs: Pairs) -> None:
        self._pairs = pairs

    def within(self, members: Rows) -> Iterator[Pairs]:
        """See `PairSource`."""
        inside = self._mask(members)
        yield self._chosen(inside[self._pairs.left] & inside[self._pairs.right])

    def between(self, left: Rows, right: Rows) -> Iterator[Pairs]:
        """See `PairSource`."""
        one, other, pairs = self._mask(left), self._mask(right), self._pairs
        yield self._chosen((one[pairs.left] & other[pairs.right]) | (other[pairs.left] & one[pairs.right]))

    def _mask(self, members: Rows) -> npt.NDArray[np.bool_]:
        ends = (self._pairs.left, self._pairs.right, members)
        mask = np.zeros(max(int(end.max(initial=-1)) for end in ends) + 1, bool)
        mask[members] = True
        return mask

    def _chosen(self, which: npt.NDArray[np.bool_]) -> Pairs:
        return Pairs(self._pairs.left[which], self._pairs.right[which], self._pairs.scores[which])


def _joined(batches: list[Pairs]) -> Pairs:
    if not batches:
        return Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))
    return Pairs(*(np.concatenate([getattr(batch, name) for batch in batches]) for name in ("left", "right", "scores")))
