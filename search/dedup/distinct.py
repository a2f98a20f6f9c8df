"""Which rows hold the same vector, the same text, or belong to one document.

Vectors that are the same byte for byte get one number, so that the join sees each once; texts that are the same after
normalisation get one too. Windows of one document overlap and are alike, which says nothing of duplicates: pairs of
them are left out.
"""

import hashlib
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from indexer.arrays import RowIds, Vectors
from search.dedup.pairs import Pairs, PairSource

Digests = npt.NDArray[np.uint64]
DIGEST_BYTES = 16  # two different values with one digest are not to be expected before 10**18 of them
_BLOCK_ROWS = 4096
_LOOKED_UP = 1 << 20  # documents of vectors at once


@dataclass(frozen=True)
class Distinct:
    """Values numbered densely, in the order in which they first occur."""

    first: RowIds  # (distinct,) position at which each first occurs, ascending
    number_of: RowIds  # (n,) number of the value at each position


def find_distinct(vectors: Vectors) -> Distinct:
    """Number the rows of (n, d) float32 by their bytes. Reads a block at a time and holds 16 bytes a row."""
    digests = bytearray()
    for start in range(0, len(vectors), _BLOCK_ROWS):
        block = np.ascontiguousarray(vectors[start : start + _BLOCK_ROWS])
        for row in block.view(np.uint8):
            digests += hashlib.blake2b(row.data, digest_size=DIGEST_BYTES).digest()
    return number_equal(as_digests(digests))


def as_digests(joined: bytearray) -> Digests:
    """Digests written one after the other, as (n, 2)."""
    return np.frombuffer(joined, np.uint64).reshape(-1, 2)


def number_equal(digests: Digests) -> Distinct:
    """Number the rows of (n, 2), equal ones alike."""
    order = np.lexsort((digests[:, 1], digests[:, 0]))  # stable: of equal rows the earliest comes first
    arranged = digests[order]
    starts = np.ones(len(order), bool)
    starts[1:] = (arranged[1:] != arranged[:-1]).any(axis=1)
    first_of_group = order[starts]
    number_of_group = np.empty(len(first_of_group), np.int64)
    number_of_group[np.argsort(first_of_group)] = np.arange(len(first_of_group))
    number_of = np.empty(len(order), np.int64)
    number_of[order] = number_of_group[np.cumsum(starts) - 1]
    return Distinct(np.sort(first_of_group), number_of)


def number_texts(texts: Iterable[str]) -> RowIds:
    """Number the texts, equal ones after normalisation alike, (documents,).

    Numbers are dense, in the order in which the texts first occur; -1 stands for a blank text, which equals nothing.
    Holds 16 bytes a text, no text itself.
    """
    digests, blank = bytearray(), bytearray()
    for text in texts:
        normalised = normalised_text(text)
        digests += _digest(normalised)
        blank.append(not normalised)
    written = ~np.frombuffer(blank, bool)
    numbers = np.full(len(written), -1, np.int64)
    numbers[written] = number_equal(as_digests(digests)[written]).number_of
    return numbers


def normalised_text(text: str) -> str:
    """The text in Unicode's form NFKC, every run of white space one space, none at the ends. Case stays."""
    # Folded last: NFKC makes spaces of other characters.
    return " ".join(unicodedata.normalize("NFKC", text).split())


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


def is_one_to_one(document_of: RowIds) -> bool:
    """Whether every document has one row."""
    return not len(document_of) or bool(document_of[-1] == len(document_of) - 1)


def only_document(document_of: RowIds, distinct: Distinct) -> RowIds:
    """The document of each distinct vector, (distinct,); -1 where several documents have it."""
    found = document_of[distinct.first]
    shared = distinct.number_of[found[distinct.number_of] != document_of]
    found = found.copy()
    found[shared] = -1
    return found


class CrossDocumentPairs:
    """A `PairSource` without the pairs that only windows of one document make."""

    def __init__(self, source: PairSource, document_of: RowIds, distinct: Distinct) -> None:
        self._source, self._only_document = source, only_document(document_of, distinct)

    def within(self, members: RowIds) -> Iterator[Pairs]:
        """See `PairSource`."""
        return self._across_documents(self._source.within(members))

    def between(self, left: RowIds, right: RowIds) -> Iterator[Pairs]:
        """See `PairSource`."""
        return self._across_documents(self._source.between(left, right))

    def _across_documents(self, batches: Iterator[Pairs]) -> Iterator[Pairs]:
        for pairs in batches:
            document = self._only_document[pairs.left]
            keep = (document < 0) | (document != self._only_document[pairs.right])
            if keep.all():
                yield pairs
            elif keep.any():
                yield pairs.take(keep)


class VectorCopies:
    """How many rows hold each distinct vector, and how many pairs of such rows are of different documents."""

    def __init__(self, distinct: Distinct, document_of: RowIds) -> None:
        self.counts: RowIds = np.bincount(distinct.number_of, minlength=len(distinct.first))
        self._distinct, self._one_to_one = distinct, is_one_to_one(document_of)
        self._documents = int(document_of.max(initial=-1)) + 1
        # Sorted keys of (vector, document), and how many rows have both.
        self._keys, self._times = np.unique(
            distinct.number_of * self._documents + document_of, return_counts=True
        )  # fmt: skip
        self._starts: RowIds = np.searchsorted(self._keys, np.arange(len(distinct.first) + 1) * self._documents)

    def within(self) -> tuple[RowIds, RowIds, RowIds]:
        """Of each vector that several documents have: a row, a later one of another document, and how many pairs."""
        shared = np.flatnonzero(np.diff(self._starts) > 1)
        order = np.argsort(self._distinct.number_of, kind="stable")
        ends = np.cumsum(self.counts)[shared]
        second = order[ends - self.counts[shared] + self._times[self._starts[shared]]]
        same = np.add.reduceat(self._times * (self._times - 1) // 2, self._starts[:-1]) if len(self._keys) else ends
        every = self.counts * (self.counts - 1) // 2
        return self._distinct.first[shared], second, (every - same)[shared]

    def between(self, left: RowIds, right: RowIds) -> RowIds:
        """Pairs of rows of different documents that hold each pair of vectors."""
        pairs: RowIds = self.counts[left] * self.counts[right]
        if self._one_to_one:
            return pairs
        widths = np.diff(self._starts)
        few, many = np.where(widths[left] <= widths[right], (left, right), (right, left))
        cuts = np.searchsorted(np.cumsum(widths[few]), np.arange(_LOOKED_UP, widths[few].sum(), _LOOKED_UP))
        for part in np.split(np.arange(len(left)), np.unique(cuts)):
            pairs[part] -= self._same(few[part], many[part])
        return pairs

    def _same(self, few: RowIds, many: RowIds) -> RowIds:
        """Pairs of rows of one document."""
        widths = np.diff(self._starts)[few]
        owner = np.repeat(np.arange(len(few)), widths)
        place = np.arange(len(owner)) + np.repeat(self._starts[few] - np.cumsum(widths) + widths, widths)
        wanted = many[owner] * self._documents + self._keys[place] % self._documents
        there = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        found = np.zeros(len(few), np.int64)
        np.add.at(found, owner, np.where(self._keys[there] == wanted, self._times[place] * self._times[there], 0))
        return found
