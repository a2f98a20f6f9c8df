"""The greedy rule: the kept documents, and the representative of each dropped document.

In priority order a document is kept unless it is a duplicate of a kept document. The representative of a dropped
document is the kept duplicate with the highest score, the first in priority among equal scores; it may come later.

The pairs of all documents may exceed memory, so the order is cut into stretches whose pairs fit. After each stretch,
the pairs of its kept documents with all others are streamed: they drop later documents, and may be better
representatives of documents dropped before. The cuts do not change the result.

A *key* makes documents duplicates: the number of a distinct vector or, if equal texts count, a number for the text,
after the vectors. Two documents are duplicates if they share a key or a pair joins two of their keys, so windows and
copies need no special case. A *candidate* for representative is the score and the rank of a kept document packed into
64 bits: the maximum has the highest score and, among equals, the lowest rank, in any order of candidates.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from indexer.ann.score_order import NO_KEY, pack, unpack
from indexer.arrays import Int64Array, Mask, RowIds, Scores
from search.dedup.pairs import Pairs, PairSource

PackedPairs = npt.NDArray[np.uint64]
Ranks = npt.NDArray[np.uint32]
HELD_PAIR_BYTES = 112  # of working memory for each pair in memory, with its copies
_NOBODY = 0xFFFFFFFF
_BY_TEXT = -np.inf  # the score of documents that share only their text, below every other score
_HALF = np.uint64(32)
_AT_ONCE = 1 << 16  # documents converted to Python numbers together


@dataclass(frozen=True)
class DedupDocuments:
    """Windows, texts and priority of documents; documents of the other index come first."""

    document_of: RowIds  # (windows,) document of each window, ascending
    vector_of: RowIds  # (windows,) number of each window's distinct vector
    text_of: RowIds  # (documents,) number of the document's normalised text, dense; -1: blank
    rank: RowIds  # (documents,) place in the priority order, 0 first; lowest for the other index
    self_scores: Scores  # (distinct,) score of each distinct vector with itself
    others: int = 0  # number of documents of the other index

    def __len__(self) -> int:
        """Number of documents of both indexes."""
        return len(self.rank)


@dataclass(frozen=True)
class Decision:
    """The representatives of all documents."""

    kept_by: RowIds  # (documents,) number of the representative; -1: kept
    scores: Scores  # (documents,) score with the representative; NaN for kept documents and for equal texts only


class RepresentativeKeys:
    """The keys and kept flags of all documents, and the best candidate of each key so far."""

    def __init__(self, documents: DedupDocuments, by_text: bool) -> None:
        self.rank: Ranks = documents.rank.astype(np.uint32)
        self.kept: Mask = np.zeros(len(documents), bool)
        self._vectors = len(documents.self_scores)
        self._document_of, self._key_of = _document_keys(documents, by_text)
        self._starts: RowIds = np.searchsorted(self._document_of, np.arange(len(documents) + 1))
        texts = int(documents.text_of.max(initial=-1)) + 1 if by_text else 0
        self._self_scores = np.concatenate([documents.self_scores, np.full(texts, _BY_TEXT, np.float32)])
        self._best: Int64Array = np.full(self.count, NO_KEY)  # no candidate
        self._holder: Ranks = np.full(self.count, _NOBODY, np.uint32)  # the first kept document with the key

    @property
    def count(self) -> int:
        """Number of keys."""
        return len(self._self_scores)

    def keys_of(self, documents: RowIds) -> tuple[RowIds, RowIds]:
        """Return the keys of documents (keys,), and the start of each document's keys, (n + 1,)."""
        starts = self._starts[documents]
        counts = self._starts[documents + 1] - starts
        ends = np.cumsum(counts)
        within = np.arange(counts.sum()) + np.repeat(starts - (ends - counts), counts)
        return self._key_of[within], np.concatenate([[0], ends])

    def vectors_of(self, documents: RowIds) -> RowIds:
        """Return the distinct vectors of documents, ascending."""
        return self._only_vectors(self.keys_of(documents)[0])

    def vectors_in_need(self) -> RowIds:
        """Return the distinct vectors of all documents that are not kept, ascending."""
        return self._only_vectors(self._key_of[~self.kept[self._document_of]])

    def duplicates(self) -> Mask:
        """Return a mask of documents with a candidate for one of their keys, (documents,), kept documents included."""
        mask = np.zeros(len(self.rank), bool)
        mask[self._document_of[self._best[self._key_of] != NO_KEY]] = True
        return mask

    def keep(self, documents: RowIds) -> None:
        """Keep documents; they become candidates for their own keys."""
        keys, starts = self.keys_of(documents)
        ranks = np.repeat(self.rank[documents], np.diff(starts))
        self.kept[documents] = True
        np.minimum.at(self._holder, keys, ranks)
        # Without a check of the threshold: it is at most `settings.IDENTICAL`, and every vector scores more with
        # itself. Several documents of the other index may have one key; the first is the best candidate, as all have
        # the same score.
        np.maximum.at(self._best, keys, pack(self._self_scores[keys], ranks))

    def add_pairs(self, pairs: Pairs) -> None:
        """Make kept documents with one key of a pair candidates for the other key."""
        for source, target in ((pairs.left, pairs.right), (pairs.right, pairs.left)):
            ranks = self._holder[source]
            held = ranks != _NOBODY
            np.maximum.at(self._best, target[held], pack(pairs.scores[held], ranks[held]))

    def representatives(self) -> tuple[RowIds, Scores]:
        """Return the rank of each document's representative and its score, (documents,) each.

        Kept documents and documents without a duplicate have -1 and NaN; documents that share only a text have NaN.
        """
        best = np.full(len(self.rank), NO_KEY)
        np.maximum.at(best, self._document_of, self._best[self._key_of])
        best[self.kept] = NO_KEY
        scores, ranks = unpack(best)
        ranks[best == NO_KEY] = -1
        scores[(best == NO_KEY) | (scores == _BY_TEXT)] = np.nan
        return ranks, scores

    def _only_vectors(self, keys: RowIds) -> RowIds:
        present = np.zeros(self._vectors, bool)
        present[keys[keys < self._vectors]] = True
        return np.flatnonzero(present)


def _document_keys(documents: DedupDocuments, by_text: bool) -> tuple[RowIds, RowIds]:
    """Return the pairs of document and key, documents ascending."""
    if not by_text:
        return documents.document_of, documents.vector_of
    written = np.flatnonzero(documents.text_of >= 0)
    owners = np.concatenate([documents.document_of, written])
    keys = np.concatenate([documents.vector_of, documents.text_of[written] + len(documents.self_scores)])
    order = np.argsort(owners, kind="stable")
    return owners[order], keys[order]


@dataclass(frozen=True)
class _Held:
    """Pairs in 12 bytes each, for fewer than 2**32 vectors."""

    ends: PackedPairs  # left and right
    scores: Scores

    def unpack(self) -> Pairs:
        return Pairs((self.ends >> _HALF).astype(np.int64), self.ends.astype(np.uint32).astype(np.int64), self.scores)


def decide(
    documents: DedupDocuments, source: PairSource, drop_texts: bool, pair_limit: int, among: bool = True
) -> Decision:
    """Keep or drop every document, given the pairs of duplicate vectors in `source`.

    With `drop_texts`, documents of equal text are duplicates at any score. All documents of the other index are kept;
    without `among`, documents are compared only with them. Holds at most `pair_limit` pairs, 28 bytes each, and a few
    numbers for each document and vector. The limit and the order of pairs do not change the result.
    """
    keys = RepresentativeKeys(documents, drop_texts)
    order = np.argsort(documents.rank)
    if documents.others:
        others = order[: documents.others]
        keys.keep(others)
        _spread(keys, source, others, known=order[:0])
    if among:
        _decide_among(keys, source, order[documents.others :], pair_limit)
    ranks, scores = keys.representatives()
    kept_by = np.where(ranks < 0, -1, order[ranks]) if len(order) else ranks
    return Decision(kept_by, scores)


def _decide_among(keys: RepresentativeKeys, source: PairSource, pending: RowIds, pair_limit: int) -> None:
    """Decide the `pending` documents, in priority order, stretch by stretch."""
    length = len(pending)
    while True:
        pending = pending[~keys.duplicates()[pending]]
        if not len(pending):
            return
        stretch = pending[:length]
        # A stretch of one document needs no pairs.
        members = keys.vectors_of(stretch) if len(stretch) > 1 else stretch[:0]
        pairs = _collect(source, members, pair_limit)
        if pairs is None:
            length = len(stretch) // 2
            continue
        kept = _first_come(keys, stretch, pairs)
        keys.keep(kept)
        for held in pairs:
            keys.add_pairs(held.unpack())
        _spread(keys, source, kept, known=members)
        pending, length = pending[len(stretch) :], 2 * len(stretch)


def _collect(source: PairSource, members: RowIds, pair_limit: int) -> list[_Held] | None:
    """Return all pairs of the members, or None above the limit."""
    held: list[_Held] = []
    room = pair_limit
    for batch in source.within(members) if len(members) > 1 else ():
        room -= len(batch)
        if room < 0:
            return None
        held.append(_Held(batch.left.astype(np.uint64) << _HALF | batch.right.astype(np.uint64), batch.scores.copy()))
    return held


def _spread(keys: RepresentativeKeys, source: PairSource, kept: RowIds, known: RowIds) -> None:
    """Add the pairs of kept documents with documents that are not kept, except pairs of two `known` vectors."""
    senders = keys.vectors_of(kept)
    receivers = np.setdiff1d(keys.vectors_in_need(), known, assume_unique=True)
    both = np.intersect1d(senders, receivers, assume_unique=True)
    for batch in itertools.chain(
        _between(source, senders, np.setdiff1d(receivers, both, assume_unique=True)),
        _between(source, np.setdiff1d(senders, both, assume_unique=True), both),
        source.within(both) if len(both) > 1 else (),
    ):
        keys.add_pairs(batch)


def _between(source: PairSource, left: RowIds, right: RowIds) -> Iterator[Pairs]:
    if len(left) and len(right):
        yield from source.between(left, right)


def _first_come(keys: RepresentativeKeys, stretch: RowIds, pairs: list[_Held]) -> RowIds:
    """Return the documents of a stretch that share no key or pair with an earlier kept document.

    No document of the stretch has a candidate yet.
    """
    numbers, starts = keys.keys_of(stretch)
    neighbours = _Neighbours.of(pairs, keys.count)
    contested = (np.bincount(numbers, minlength=keys.count) > 1) | (np.diff(neighbours.bounds) > 0)
    place = np.repeat(np.arange(len(stretch)), np.diff(starts))
    kept = np.ones(len(stretch), bool)
    kept[place[contested[numbers]]] = False  # decided in turn; all others are kept
    in_turn = np.flatnonzero(~kept)
    kept[in_turn[_take_turns(stretch[in_turn], keys, neighbours)]] = True
    return stretch[kept]


@dataclass(frozen=True)
class _Neighbours:
    """The keys that each key is paired with: others[bounds[key] : bounds[key + 1]]."""

    bounds: RowIds
    others: npt.NDArray[np.uint32]

    @classmethod
    def of(cls, pairs: list[_Held], count: int) -> "_Neighbours":
        packed: PackedPairs = np.empty(2 * sum(len(held.scores) for held in pairs), "<u8")
        first = 0
        for held in pairs:
            for ends in (held.ends, held.ends << _HALF | held.ends >> _HALF):
                packed[first : first + len(ends)] = ends
                first += len(ends)
        packed.sort()
        bounds = np.searchsorted(packed, np.arange(count + 1, dtype=np.uint64) << _HALF)
        return cls(bounds, packed.view("<u4")[::2])


def _take_turns(documents: RowIds, keys: RepresentativeKeys, neighbours: _Neighbours) -> list[int]:
    """Return the places of kept documents, deciding in order."""
    taken = bytearray(keys.count)  # fast to read one by one; `take` writes many together
    take = np.frombuffer(taken, np.uint8)
    kept: list[int] = []
    for first in range(0, len(documents), _AT_ONCE):
        numbers, starts = keys.keys_of(documents[first : first + _AT_ONCE])
        begins, ends = neighbours.bounds[numbers].tolist(), neighbours.bounds[numbers + 1].tolist()
        listed = numbers.tolist()
        for place, (start, end) in enumerate(itertools.pairwise(starts.tolist()), first):
            for key in listed[start:end]:
                if taken[key]:
                    break
            else:
                kept.append(place)
                for at in range(start, end):
                    taken[listed[at]] = 1
                    if begins[at] != ends[at]:
                        take[neighbours.others[begins[at] : ends[at]]] = 1
    return kept
