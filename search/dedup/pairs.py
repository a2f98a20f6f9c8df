"""Pairs of distinct vectors, and where they come from."""

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
