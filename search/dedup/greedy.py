"""The greedy rule: who is kept, and who stands for whom."""
# TODO-DOC search.dedup.deciding.greedy:
# TODO-DOC Who is kept, and who stands for whom.
# TODO-DOC
# TODO-DOC In priority order a document is kept unless a kept document is a duplicate of it; for a dropped one stands the kept
# TODO-DOC duplicate, also a later one, with the highest score, the first in priority among equals.
# TODO-DOC
# TODO-DOC All pairs may be too many to hold. So the order is cut into stretches short enough that the pairs within one can be
# TODO-DOC held. Once a stretch is decided, the pairs of its kept documents with all others are streamed past: they drop later
# TODO-DOC documents, and may be better representatives of those dropped before. Where the cuts are does not change the result.
# TODO-DOC
# TODO-DOC search.dedup.deciding.claims:
# TODO-DOC What kept documents say of the marks of others: which of them is the best to stand for a document with that mark.
# TODO-DOC
# TODO-DOC A *mark* is what makes documents duplicates: the number of a distinct vector or, where equal texts count, a number
# TODO-DOC for the text, after those of the vectors. Two documents are duplicates if they share a mark or a pair joins two of
# TODO-DOC their marks; their windows, and how many documents share a mark, need no further thought.
# TODO-DOC
# TODO-DOC A *claim* is a score and the rank of a kept document in one 64-bit number: the greatest claim is that of the highest
# TODO-DOC score and, among equals, of the lowest rank, in whatever order claims come.
# TODO-DOC
# TODO-DOC search.dedup.deciding.collection:
# TODO-DOC What the greedy rule needs to know of the documents.

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from search.dedup.pairs import Pairs, PairSource, Rows, Scores


@dataclass(frozen=True)
class DedupDocuments:
    """Documents by number, and for each its windows, its text and its place in the priority order.

    Documents of another index, if any, come first and are numbered on from there.
    """

    document_of: Rows  # (windows,) document of each window, ascending
    vector_of: Rows  # (windows,) number of each window's distinct vector
    text_of: Rows  # (documents,) number of the document's normalised text, dense; -1: blank
    rank: Rows  # (documents,) place in the priority order, 0 first; the others' ranks are the lowest
    self_scores: Scores  # (distinct,) score of each distinct vector with itself
    others: int = 0  # the first so many documents belong to the other index

    def __len__(self) -> int:
        """Number of documents, the others included."""
        return len(self.rank)


Claims = npt.NDArray[np.uint64]
Ranks = npt.NDArray[np.uint32]
Flags = npt.NDArray[np.bool_]
_NOBODY = 0xFFFFFFFF
_SIGN = 0x80000000
_BY_TEXT = -np.inf  # the score of two documents with nothing in common but their text: below every other


class RepresentativeKeys:
    """The marks of all documents, who is kept, and the best claim on each mark so far."""

    def __init__(self, collection: DedupDocuments, by_text: bool) -> None:
        self.rank: Ranks = collection.rank.astype(np.uint32)
        self.kept: Flags = np.zeros(len(collection), bool)
        self._vectors = len(collection.self_scores)
        self._document_of, self._mark_of = _marks(collection, by_text)
        self._starts: Rows = np.searchsorted(self._document_of, np.arange(len(collection) + 1))
        texts = int(collection.text_of.max(initial=-1)) + 1 if by_text else 0
        self._own_scores = np.concatenate([collection.self_scores, np.full(texts, _BY_TEXT, np.float32)])
        self._best: Claims = np.zeros(self.marks, np.uint64)  # 0: no claim
        self._holder: Ranks = np.full(self.marks, _NOBODY, np.uint32)  # the first kept document with the mark

    @property
    def marks(self) -> int:
        """Number of marks."""
        return len(self._own_scores)

    def marks_of(self, documents: Rows) -> tuple[Rows, Rows]:
        """All marks of some documents, one after the other, and where each document's begin: (marks,), (n + 1,)."""
        starts = self._starts[documents]
        counts = self._starts[documents + 1] - starts
        ends = np.cumsum(counts)
        within = np.arange(counts.sum()) + np.repeat(starts - (ends - counts), counts)
        return self._mark_of[within], np.concatenate([[0], ends])

    def vectors_of(self, documents: Rows) -> Rows:
        """The distinct vectors of some documents, ascending."""
        return self._only_vectors(self.marks_of(documents)[0])

    def vectors_in_need(self) -> Rows:
        """The distinct vectors of all documents that are not kept, ascending."""
        return self._only_vectors(self._mark_of[~self.kept[self._document_of]])

    def duplicates(self) -> Flags:
        """Which documents have a claim on one of their marks, (documents,); true of kept ones also."""
        found = np.zeros(len(self.rank), bool)
        found[self._document_of[self._best[self._mark_of] != 0]] = True
        return found

    def keep(self, documents: Rows) -> None:
        """Keep these documents; they claim every mark that is theirs."""
        marks, starts = self.marks_of(documents)
        ranks = np.repeat(self.rank[documents], np.diff(starts))
        self.kept[documents] = True
        np.minimum.at(self._holder, marks, ranks)
        # No threshold is asked: none is above `settings.IDENTICAL`, and vectors that are accepted score more than
        # that with themselves. Of several holders of a mark (documents of another index) the first has the best claim
        # on whatever is paired with it, as all have the same score.
        np.maximum.at(self._best, marks, _claims(self._own_scores[marks], ranks))

    def learn(self, pairs: Pairs) -> None:
        """Kept documents with one mark of a pair claim the other."""
        for source, target in ((pairs.left, pairs.right), (pairs.right, pairs.left)):
            ranks = self._holder[source]
            held = ranks != _NOBODY
            np.maximum.at(self._best, target[held], _claims(pairs.scores[held], ranks[held]))

    def standing_for(self) -> tuple[Rows, Scores]:
        """For each document the rank of the one that stands for it and its score, (documents,) twice.

        -1 and NaN for those that are kept or have no duplicate; NaN for those that have only their text in common.
        """
        best = np.zeros(len(self.rank), np.uint64)
        np.maximum.at(best, self._document_of, self._best[self._mark_of])
        best[self.kept] = 0
        ranks, scores = _unpacked(best)
        ranks[best == 0] = -1
        scores[(best == 0) | (scores == _BY_TEXT)] = np.nan
        return ranks, scores

    def _only_vectors(self, marks: Rows) -> Rows:
        present = np.zeros(self._vectors, bool)
        present[marks[marks < self._vectors]] = True
        return np.flatnonzero(present)


def _marks(collection: DedupDocuments, by_text: bool) -> tuple[Rows, Rows]:
    """(document, mark) of every mark of every document, documents ascending."""
    if not by_text:
        return collection.document_of, collection.vector_of
    written = np.flatnonzero(collection.text_of >= 0)
    documents = np.concatenate([collection.document_of, written])
    marks = np.concatenate([collection.vector_of, collection.text_of[written] + len(collection.self_scores)])
    order = np.argsort(documents, kind="stable")
    return documents[order], marks[order]


def _claims(scores: Scores, ranks: Ranks) -> Claims:
    """Greater for a higher score, then for a lower rank; never 0."""
    bits = (scores + np.float32(0)).view(np.uint32)  # -0 becomes 0: they are equal
    ordered = np.where(bits & _SIGN, ~bits, bits | _SIGN)  # floats of either sign in the order of whole numbers
    claims: Claims = ordered.astype(np.uint64) << np.uint64(32) | (_NOBODY - ranks)
    return claims


def _unpacked(claims: Claims) -> tuple[Rows, Scores]:
    """Ranks and scores that `_claims` packed."""
    ordered = (claims >> np.uint64(32)).astype(np.uint32)
    scores: Scores = np.where(ordered & _SIGN, ordered ^ _SIGN, ~ordered).astype(np.uint32).view(np.float32)
    return _NOBODY - (claims & np.uint64(_NOBODY)).astype(np.int64), scores


Packed = npt.NDArray[np.uint64]
_HALF = np.uint64(32)
_AT_ONCE = 1 << 16  # documents turned into Python numbers at once


@dataclass(frozen=True)
class Decision:
    """What becomes of each document."""

    kept_by: Rows  # (documents,) the document that stands for it; -1 for a kept one
    scores: Scores  # (documents,) score with that one; NaN for kept documents and those dropped for their text alone


@dataclass(frozen=True)
class _Held:
    """Pairs in 12 bytes each; there are fewer than 2**32 vectors."""

    ends: Packed  # left and right in one
    scores: Scores

    def unpacked(self) -> Pairs:
        return Pairs((self.ends >> _HALF).astype(np.int64), self.ends.astype(np.uint32).astype(np.int64), self.scores)


def decide(
    collection: DedupDocuments, source: PairSource, drop_texts: bool, pair_limit: int, among: bool = True
) -> Decision:
    """Keep or drop every document of `collection`; `source` has all pairs of its distinct vectors that count.

    With `drop_texts` documents of equal text are duplicates whatever they score. Documents of the other index are
    all kept. With `among` False documents are compared with those alone, and not with each other. Holds at most
    `pair_limit` pairs at a time, 28 bytes each, and a few numbers for each document and vector; neither the limit
    nor the order in which pairs come changes the result.
    """
    claimed = RepresentativeKeys(collection, drop_texts)
    order = np.argsort(collection.rank)
    if collection.others:
        others = order[: collection.others]
        claimed.keep(others)
        _spread(claimed, source, others, known=order[:0])
    if among:
        _decide_among(claimed, source, order[collection.others :], pair_limit)
    ranks, scores = claimed.standing_for()
    kept_by = np.where(ranks < 0, -1, order[ranks]) if len(order) else ranks
    return Decision(kept_by, scores)


def _decide_among(claimed: RepresentativeKeys, source: PairSource, pending: Rows, pair_limit: int) -> None:
    """Decide the `pending` documents, in priority order, a stretch at a time."""
    length = len(pending)
    while True:
        pending = pending[~claimed.duplicates()[pending]]
        if not len(pending):
            return
        stretch = pending[:length]
        # Pairs within one document mean nothing: a stretch of one is decided without any.
        members = claimed.vectors_of(stretch) if len(stretch) > 1 else stretch[:0]
        pairs = _collect(source, members, pair_limit)
        if pairs is None:
            length = len(stretch) // 2
            continue
        kept = _first_come(claimed, stretch, pairs)
        claimed.keep(kept)
        for held in pairs:
            claimed.learn(held.unpacked())
        _spread(claimed, source, kept, known=members)
        pending, length = pending[len(stretch) :], 2 * len(stretch)


def _collect(source: PairSource, members: Rows, pair_limit: int) -> list[_Held] | None:
    """All pairs of the members, or None if they are more than the limit."""
    held: list[_Held] = []
    room = pair_limit
    for batch in source.within(members) if len(members) > 1 else ():
        room -= len(batch)
        if room < 0:
            return None
        held.append(_Held(batch.left.astype(np.uint64) << _HALF | batch.right.astype(np.uint64), batch.scores.copy()))
    return held


def _spread(claimed: RepresentativeKeys, source: PairSource, kept: Rows, known: Rows) -> None:
    """Tell the documents that are not kept of these that are. All pairs of the `known` vectors are told already."""
    senders = claimed.vectors_of(kept)
    receivers = np.setdiff1d(claimed.vectors_in_need(), known, assume_unique=True)
    both = np.intersect1d(senders, receivers, assume_unique=True)
    for batch in itertools.chain(
        _between(source, senders, np.setdiff1d(receivers, both, assume_unique=True)),
        _between(source, np.setdiff1d(senders, both, assume_unique=True), both),
        source.within(both) if len(both) > 1 else (),
    ):
        claimed.learn(batch)


def _between(source: PairSource, left: Rows, right: Rows) -> Iterator[Pairs]:
    if len(left) and len(right):
        yield from source.between(left, right)


def _first_come(claimed: RepresentativeKeys, stretch: Rows, pairs: list[_Held]) -> Rows:
    """Those of the stretch that are kept: each in its turn, unless one kept before has a mark of its or beside it.

    No document of the stretch has a claim on it yet.
    """
    marks, starts = claimed.marks_of(stretch)
    neighbours = _Neighbours.of(pairs, claimed.marks)
    contested = (np.bincount(marks, minlength=claimed.marks) > 1) | (np.diff(neighbours.bounds) > 0)
    place = np.repeat(np.arange(len(stretch)), np.diff(starts))
    kept = np.ones(len(stretch), bool)
    kept[place[contested[marks]]] = False  # these take their turns; all others are kept
    in_turn = np.flatnonzero(~kept)
    kept[in_turn[_take_turns(stretch[in_turn], claimed, neighbours)]] = True
    return stretch[kept]


@dataclass(frozen=True)
class _Neighbours:
    """For each mark those it is paired with: neighbours[bounds[mark] : bounds[mark + 1]]."""

    bounds: Rows
    marks: npt.NDArray[np.uint32]

    @classmethod
    def of(cls, pairs: list[_Held], marks: int) -> "_Neighbours":
        packed: Packed = np.empty(2 * sum(len(held.scores) for held in pairs), "<u8")
        first = 0
        for held in pairs:
            for ends in (held.ends, held.ends << _HALF | held.ends >> _HALF):
                packed[first : first + len(ends)] = ends
                first += len(ends)
        packed.sort()
        bounds = np.searchsorted(packed, np.arange(marks + 1, dtype=np.uint64) << _HALF)
        return cls(bounds, packed.view("<u4")[::2])


def _take_turns(documents: Rows, claimed: RepresentativeKeys, neighbours: _Neighbours) -> list[int]:
    """Places of the documents that are kept, in the order given."""
    taken = bytearray(claimed.marks)  # read one by one, which is fast, and written many at a time through `take`
    take = np.frombuffer(taken, np.uint8)
    kept: list[int] = []
    for first in range(0, len(documents), _AT_ONCE):
        numbers, starts = claimed.marks_of(documents[first : first + _AT_ONCE])
        begins, ends = neighbours.bounds[numbers].tolist(), neighbours.bounds[numbers + 1].tolist()
        marks, edges = numbers.tolist(), starts.tolist()
        for place, (start, end) in enumerate(itertools.pairwise(edges), first):
            for mark in marks[start:end]:
                if taken[mark]:
                    break
            else:
                kept.append(place)
                for own in range(start, end):
                    taken[marks[own]] = 1
                    if begins[own] != ends[own]:
                        take[neighbours.marks[begins[own] : ends[own]]] = 1
    return kept
