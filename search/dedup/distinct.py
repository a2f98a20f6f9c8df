"""Numbers for equal vectors and equal texts, and pairs without windows of one document.

Vectors that are equal byte for byte get one number, so that the join compares each once; texts that are equal after
normalisation get one number. Windows of one document overlap, so they are similar without being duplicates: their pairs
are left out.
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
DIGEST_BYTES = 16  # no collisions are expected below 10**18 values
_BLOCK_ROWS = 4096
_LOOKED_UP = 1 << 20  # documents looked up together


@dataclass(frozen=True)
class Distinct:
    """Values numbered densely, by their first position."""

    first: RowIds  # (distinct,) first position of each value, ascending
    number_of: RowIds  # (n,) number of the value at each position


def find_distinct(vectors: Vectors) -> Distinct:
    """Number the rows of (n, d) float32 by their bytes, with 16 bytes of memory a row."""
    digests = bytearray()
    for start in range(0, len(vectors), _BLOCK_ROWS):
        block = np.ascontiguousarray(vectors[start : start + _BLOCK_ROWS])
        for row in block.view(np.uint8):
            digests += hashlib.blake2b(row.data, digest_size=DIGEST_BYTES).digest()
    return number_equal(as_digests(digests))


def as_digests(joined: bytearray) -> Digests:
    """Return concatenated digests as an array (n, 2)."""
    return np.frombuffer(joined, np.uint64).reshape(-1, 2)


def number_equal(digests: Digests) -> Distinct:
    """Number the distinct rows of (n, 2)."""
    order = np.lexsort((digests[:, 1], digests[:, 0]))  # stable: the first of equal rows comes first
    arranged = digests[order]
    starts = np.ones(len(order), bool)
    starts[1:] = (arranged[1:] != arranged[:-1]).any(axis=1)
    first = np.sort(order[starts])
    number_of = np.empty(len(order), np.int64)
    number_of[order] = np.searchsorted(first, order[starts])[np.cumsum(starts) - 1]
    return Distinct(first, number_of)


def number_texts(texts: Iterable[str]) -> RowIds:
    """Number texts that are equal after normalisation, densely by first occurrence, (documents,); -1: blank.

    Blank texts equal no other text. Needs 16 bytes of memory a text.
    """
    digests, blank = bytearray(), bytearray()
    for text in texts:
        normalised = normalised_text(text)
        encoded = normalised.encode("utf-8", "surrogatepass")
        digests += hashlib.blake2b(encoded, digest_size=DIGEST_BYTES).digest()
        blank.append(not normalised)
    written = ~np.frombuffer(blank, bool)
    numbers = np.full(len(written), -1, np.int64)
    numbers[written] = number_equal(as_digests(digests)[written]).number_of
    return numbers


def normalised_text(text: str) -> str:
    """Return the text in NFKC with single spaces and none at the ends; case is kept."""
    return " ".join(unicodedata.normalize("NFKC", text).split())  # in this order, as NFKC creates spaces


def is_one_to_one(document_of: RowIds) -> bool:
    """Return whether every document has one row."""
    return not len(document_of) or bool(document_of[-1] == len(document_of) - 1)


def only_document(document_of: RowIds, distinct: Distinct) -> RowIds:
    """Return the document of each distinct vector, (distinct,); -1 if several documents contain it."""
    documents = document_of[distinct.first]
    shared = distinct.number_of[documents[distinct.number_of] != document_of]
    documents[shared] = -1
    return documents


class CrossDocumentPairs:
    """A `PairSource` without pairs that only join windows of one document."""

    def __init__(self, source: PairSource, document_of: RowIds, distinct: Distinct) -> None:
        self._source, self._only_document = source, only_document(document_of, distinct)

    def within(self, members: RowIds) -> Iterator[Pairs]:
        return self._across_documents(self._source.within(members))

    def between(self, left: RowIds, right: RowIds) -> Iterator[Pairs]:
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
    """Counts of the rows with each distinct vector, and of their pairs between different documents."""

    def __init__(self, distinct: Distinct, document_of: RowIds) -> None:
        self.counts: RowIds = np.bincount(distinct.number_of, minlength=len(distinct.first))
        self._distinct, self._one_to_one = distinct, is_one_to_one(document_of)
        self._documents = int(document_of.max(initial=-1)) + 1
        # Sorted keys of (vector, document), and the number of rows with both.
        self._keys, self._times = np.unique(distinct.number_of * self._documents + document_of, return_counts=True)
        self._starts: RowIds = np.searchsorted(self._keys, np.arange(len(distinct.first) + 1) * self._documents)

    def within(self) -> tuple[RowIds, RowIds, RowIds]:
        """Return, for each vector of several documents, a row, a later row of another document, and the pair count."""
        shared = np.flatnonzero(np.diff(self._starts) > 1)
        order = np.argsort(self._distinct.number_of, kind="stable")
        ends = np.cumsum(self.counts)[shared]
        second = order[ends - self.counts[shared] + self._times[self._starts[shared]]]
        same = np.add.reduceat(self._times * (self._times - 1) // 2, self._starts[:-1]) if len(self._keys) else ends
        every = self.counts * (self.counts - 1) // 2
        return self._distinct.first[shared], second, (every - same)[shared]

    def between(self, left: RowIds, right: RowIds) -> RowIds:
        """Return, for each pair of vectors, the number of pairs of rows of different documents."""
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
        """Return the number of pairs of rows of one document."""
        widths = np.diff(self._starts)[few]
        owner = np.repeat(np.arange(len(few)), widths)
        place = np.arange(len(owner)) + np.repeat(self._starts[few] - np.cumsum(widths) + widths, widths)
        keys = many[owner] * self._documents + self._keys[place] % self._documents
        match = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        counts = np.zeros(len(few), np.int64)
        np.add.at(counts, owner, np.where(self._keys[match] == keys, self._times[place] * self._times[match], 0))
        return counts
