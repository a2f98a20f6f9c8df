"""Postings: for each term the documents that hold it and how often, and nothing that depends on other documents.

So the postings of a part hold for as long as the part does. What changes with every add and delete (how many documents
there are, how many hold a term, their mean length) is counted when a question comes, see `bm25`.
"""

import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
import numpy.typing as npt

from search.hybrid.terms import numbered_terms

Numbers = npt.NDArray[np.int64]
Unsigned = npt.NDArray[np.unsignedinteger]
Text = tuple[str, str]
"""Id and text of a document."""
_BLOCK = 4096  # texts at a time
_HIGH, _LOW = 32, (1 << 32) - 1  # a term and a document share a 64-bit key


@dataclass(frozen=True)
class Strings:
    """UTF-8 strings one after another: string n is `data[starts[n] : starts[n + 1]]`."""

    data: npt.NDArray[np.uint8]
    starts: Unsigned

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Strings":
        encoded = [text.encode() for text in texts]
        starts = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        return cls(np.frombuffer(b"".join(encoded), np.uint8), _small(starts))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, number: int) -> bytes:
        return self.data[self.starts[number] : self.starts[number + 1]].tobytes()


@dataclass(frozen=True)
class Postings:
    """Of some documents, numbered from 0. Term t is in `documents[starts[t] : starts[t + 1]]`, ascending.

    Numbers are stored in the smallest unsigned type that holds them.
    """

    terms: Strings  # ascending
    prefixes: npt.NDArray[np.uint64]  # the first eight bytes of each term, in the order of the terms
    starts: Unsigned  # (terms + 1,)
    documents: Unsigned
    counts: Unsigned  # how often the term is in each of `documents`
    lengths: Unsigned  # terms of each document
    ids: Strings  # of the documents

    @classmethod
    def of(cls, documents: Iterable[Text], extra: str) -> "Postings":
        """The postings of documents, read a few thousand at a time. Raises as `require_terms`."""
        numbers: dict[str, int] = {}  # of the terms, as they come
        ids: list[str] = []
        lengths, keys, counts = ([np.zeros(0, np.int64)] for _ in range(3))
        for block in _blocks(documents):
            lists, vocabulary = numbered_terms([text for _, text in block], extra)
            own = np.zeros(len(vocabulary), np.int64)
            for term, number in vocabulary.items():
                own[number] = numbers.setdefault(term, len(numbers))
            lengths.append(np.array([len(terms) for terms in lists], np.int64))
            terms = own[np.fromiter(chain.from_iterable(lists), np.int64, int(lengths[-1].sum()))]
            holders = np.repeat(np.arange(len(ids), len(ids) + len(block)), lengths[-1])
            found, times = np.unique(terms << _HIGH | holders, return_counts=True)
            keys.append(found)
            counts.append(times)
            ids += [identity for identity, _ in block]
        return cls._ordered(list(numbers), np.concatenate(keys), np.concatenate(counts), np.concatenate(lengths), ids)

    @classmethod
    def _ordered(cls, terms: list[str], keys: Numbers, counts: Numbers, lengths: Numbers, ids: list[str]) -> "Postings":
        """Terms in the order they came in become ascending ones, so that equal documents give equal bytes."""
        order = sorted(range(len(terms)), key=terms.__getitem__)  # of code points, as of UTF-8
        place = np.zeros(len(terms), np.int64)
        place[order] = np.arange(len(terms))
        held = place[keys >> _HIGH]
        keys = held << _HIGH | keys & _LOW
        sorting = np.argsort(keys)
        starts = np.concatenate([[0], np.cumsum(np.bincount(held, minlength=len(terms)))]).astype(np.int64)
        ascending = [terms[number] for number in order]
        return cls(
            terms=Strings.of(ascending),
            prefixes=_prefixes([term.encode() for term in ascending]),
            starts=_small(starts),
            documents=_small(keys[sorting] & _LOW),
            counts=_small(counts[sorting]),
            lengths=_small(lengths),
            ids=Strings.of(ids),
        )

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.lengths)

    def holders(self, terms: Sequence[bytes]) -> list[tuple[Unsigned, Unsigned]]:
        """For each term the documents that hold it, ascending, and how often."""
        wanted = _prefixes(terms)
        lows = np.searchsorted(self.prefixes, wanted, "left").tolist()
        highs = np.searchsorted(self.prefixes, wanted, "right").tolist()
        found = []
        for term, low, high in zip(terms, lows, highs, strict=True):
            place = bisect.bisect_left(self.terms, term, low, high)
            there = place < high and self.terms[place] == term
            own = slice(self.starts[place], self.starts[place + 1]) if there else slice(0)
            found.append((self.documents[own], self.counts[own]))
        return found


def _blocks(documents: Iterable[Text]) -> Iterator[list[Text]]:
    rest = iter(documents)
    while block := list(islice(rest, _BLOCK)):
        yield block


def _prefixes(terms: Iterable[bytes]) -> npt.NDArray[np.uint64]:
    """The first eight bytes of each term, ordered as the terms are."""
    return np.array([int.from_bytes(term[:8].ljust(8, b"\0")) for term in terms], np.uint64)


def _small(numbers: Numbers) -> Unsigned:
    """The same numbers in the smallest unsigned type that holds them."""
    small: Unsigned = numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))
    return small
