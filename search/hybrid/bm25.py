"""BM25 with Lucene's weights over the live documents of an index, to the bit as bm25s scores them.

bm25s (Lu, arXiv:2407.03618) stores the score of each term in each document. It depends on the number of documents and
their mean length, so that one more document changes every score. Here postings hold counts, and scores are computed of
the documents that hold a term of the query (Robertson et al., TREC-3, 1994; Kamphuis et al., ECIR 2020, for Lucene's):

    sum over terms  log(1 + (N - n + 0.5) / (n + 0.5)) * f / (f + k1 * (1 - b + b * length / mean length))

N documents, n of them with the term, f times in this one. All three are counted over live documents only, so an index
that grew and shrank gives the scores of one built at once. A filter restricts the answer, not what is counted.
"""

import bisect
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from search.hybrid.postings import Numbers, Postings, Unsigned
from search.hybrid.terms import PARAMETERS

Scores = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
Ranking = tuple[Scores, Numbers]
"""Scores and numbers of documents, best first."""


class Bm25:
    """Documents of one or more `Postings`, numbered through them all; only the live ones count, and have a number.

    `live` says which are, None that all are.
    """

    def __init__(self, parts: Sequence[Postings], live: Mask | None = None) -> None:
        self._parts = parts
        self._firsts: list[int] = np.cumsum([0, *map(len, parts)]).tolist()
        self._live = live
        self._documents = self._firsts[-1] if live is None else int(np.count_nonzero(live))
        self._numbers = None if live is None else np.cumsum(live) - 1  # by place in the postings
        self._places = None if live is None else np.flatnonzero(live)  # by number
        self._norms = self._length_norms()

    def __len__(self) -> int:
        """Number of live documents."""
        return self._documents

    def search(self, terms: Sequence[str], k: int, allowed: Mask | None = None) -> Ranking:
        """The best k of the documents that hold one of the terms, or fewer; ties in ascending order of id.

        A term that comes twice counts twice. `allowed` (documents,) says which may be found.
        """
        scores = self._scores(terms)
        places = np.flatnonzero(scores > 0 if self._live is None else (scores > 0) & self._live)
        numbers = places if self._numbers is None else self._numbers[places]
        if allowed is not None:
            chosen = allowed[numbers]
            places, numbers = places[chosen], numbers[chosen]
        best = self._best(scores[places], places, k)
        return scores[places[best]], numbers[best]

    def ids(self, numbers: Sequence[int]) -> list[str]:
        """The ids of some documents, in the order given."""
        places = numbers if self._places is None else self._places[list(numbers)].tolist()
        return [self._id(place).decode() for place in places]

    def _scores(self, terms: Sequence[str]) -> Scores:
        """Of every document, deleted ones too, (documents,). Added up in the order of the terms, as bm25s does."""
        scores = np.zeros(self._firsts[-1], np.float32)
        encoded = [term.encode() for term in terms]
        found = [part.holders(encoded) for part in self._parts]
        for number in range(len(terms)):
            holders = [own[number] for own in found]
            weight = self._weight([documents for documents, _ in holders])
            for first, (documents, counts) in zip(self._firsts, holders, strict=False):
                often = counts.astype(np.float64)
                shares = often / (self._norms[first:][documents] + often)
                scores[first:][documents] += (weight * shares).astype(np.float32)
        return scores

    def _weight(self, holders: Sequence[Unsigned]) -> np.float32:
        """Lucene's inverse document frequency; `holders` are the documents of each part."""
        count = sum(map(len, holders))
        if self._live is not None:
            parts = zip(self._firsts, holders, strict=False)
            count = sum(int(np.count_nonzero(self._live[first:][documents])) for first, documents in parts)
        return np.float32(math.log(1 + (self._documents - count + 0.5) / (count + 0.5)))

    def _length_norms(self) -> npt.NDArray[np.float64]:
        """What a document's length makes of k1, (documents,)."""
        lengths = np.concatenate([np.zeros(0, np.int64), *(part.lengths for part in self._parts)])
        total = int(lengths.sum() if self._live is None else lengths[self._live].sum())
        k1, b = PARAMETERS["k1"], PARAMETERS["b"]
        norms: npt.NDArray[np.float64] = k1 * ((1 - b) + b * lengths / (total / max(1, self._documents) or 1.0))
        return norms

    def _best(self, scores: Scores, places: Numbers, k: int) -> Numbers:
        """Positions of the best k of `scores`, which are those of the documents at `places`."""
        kept = np.arange(len(scores))
        if len(scores) > k:
            kept = np.flatnonzero(scores >= np.partition(scores, len(scores) - k)[len(scores) - k])
        _, which, times = np.unique(scores[kept], return_inverse=True, return_counts=True)
        by_id = np.zeros(len(kept), np.int64)  # only where it decides
        tied = np.flatnonzero(times[which] > 1)
        by_id[sorted(tied.tolist(), key=lambda position: self._id(int(places[kept[position]])))] = np.arange(len(tied))
        return kept[np.lexsort((by_id, -scores[kept]))[:k]]

    def _id(self, place: int) -> bytes:
        part = bisect.bisect_right(self._firsts, place) - 1
        return self._parts[part].ids[place - self._firsts[part]]
