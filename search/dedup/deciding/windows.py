"""Vectors of documents with several windows: whose they are, and which of their pairs are of different documents.

Windows of one document overlap and are alike, which says nothing of duplicates: they are never compared.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from search.dedup.deciding.distinct import Distinct
from search.dedup.pairs import Pairs, PairSource, Rows

_LOOKED_UP = 1 << 20  # documents of vectors at once


def is_one_to_one(document_of: Rows) -> bool:
    """Whether every document has one row."""
    return not len(document_of) or bool(document_of[-1] == len(document_of) - 1)


def homes(document_of: Rows, distinct: Distinct) -> Rows:
    """The document of each distinct vector, (distinct,); -1 where several documents have it."""
    found = document_of[distinct.first]
    shared = distinct.number_of[found[distinct.number_of] != document_of]
    found = found.copy()
    found[shared] = -1
    return found


class ApartPairs:
    """A `PairSource` without the pairs that only windows of one document make."""

    def __init__(self, source: PairSource, document_of: Rows, distinct: Distinct) -> None:
        self._source, self._homes = source, homes(document_of, distinct)

    def within(self, members: Rows) -> Iterator[Pairs]:
        """See `PairSource`."""
        return self._apart(self._source.within(members))

    def between(self, left: Rows, right: Rows) -> Iterator[Pairs]:
        """See `PairSource`."""
        return self._apart(self._source.between(left, right))

    def _apart(self, batches: Iterator[Pairs]) -> Iterator[Pairs]:
        for pairs in batches:
            home = self._homes[pairs.left]
            keep = (home < 0) | (home != self._homes[pairs.right])
            if keep.all():
                yield pairs
            elif keep.any():
                yield Pairs(pairs.left[keep], pairs.right[keep], pairs.scores[keep])


class Copies:
    """How many rows hold each distinct vector, and how many pairs of such rows are of different documents."""

    def __init__(self, distinct: Distinct, document_of: Rows) -> None:
        self.counts: Rows = np.bincount(distinct.number_of, minlength=len(distinct.first))
        self._distinct, self._one_to_one = distinct, is_one_to_one(document_of)
        self._documents = int(document_of.max(initial=-1)) + 1
        # Sorted keys of (vector, document), and how many rows have both.
        self._keys, self._times = np.unique(
            distinct.number_of * self._documents + document_of, return_counts=True
        )  # fmt: skip
        self._starts: Rows = np.searchsorted(self._keys, np.arange(len(distinct.first) + 1) * self._documents)

    def within(self) -> tuple[Rows, Rows, Rows]:
        """Of each vector that several documents have: a row, a later one of another document, and how many pairs."""
        shared = np.flatnonzero(np.diff(self._starts) > 1)
        order = np.argsort(self._distinct.number_of, kind="stable")
        ends = np.cumsum(self.counts)[shared]
        second = order[ends - self.counts[shared] + self._times[self._starts[shared]]]
        same = np.add.reduceat(self._times * (self._times - 1) // 2, self._starts[:-1]) if len(self._keys) else ends
        every = self.counts * (self.counts - 1) // 2
        return self._distinct.first[shared], second, (every - same)[shared]

    def between(self, left: Rows, right: Rows) -> Rows:
        """Pairs of rows of different documents that hold each pair of vectors."""
        pairs: Rows = self.counts[left] * self.counts[right]
        if self._one_to_one:
            return pairs
        widths = np.diff(self._starts)
        few, many = np.where(widths[left] <= widths[right], (left, right), (right, left))
        cuts = np.searchsorted(np.cumsum(widths[few]), np.arange(_LOOKED_UP, widths[few].sum(), _LOOKED_UP))
        for part in np.split(np.arange(len(left)), np.unique(cuts)):
            pairs[part] -= self._same(few[part], many[part])
        return pairs

    def _same(self, few: Rows, many: Rows) -> Rows:
        """Pairs of rows of one document."""
        widths = np.diff(self._starts)[few]
        owner = np.repeat(np.arange(len(few)), widths)
        place = np.arange(len(owner)) + np.repeat(self._starts[few] - np.cumsum(widths) + widths, widths)
        wanted = many[owner] * self._documents + self._keys[place] % self._documents
        there = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        found = np.zeros(len(few), np.int64)
        np.add.at(found, owner, np.where(self._keys[there] == wanted, self._times[place] * self._times[there], 0))
        return found


def one_of_each(rows: Rows, document_of: Rows, seed: int) -> Rows:
    """One of the rows (m,) of each document that has some, drawn at random, ascending."""
    drawn: npt.NDArray[np.int64] = np.random.default_rng(seed).permutation(rows)
    _, first = np.unique(document_of[drawn], return_index=True)
    return np.sort(drawn[first])
