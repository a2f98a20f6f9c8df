"""Who is kept, and who stands for whom.

In priority order a document is kept unless a kept document is a duplicate of it; for a dropped one stands the kept
duplicate, also a later one, with the highest score, the first in priority among equals.

All pairs may be too many to hold. So the order is cut into stretches short enough that the pairs within one can be
held. Once a stretch is decided, the pairs of its kept documents with all others are streamed past: they drop later
documents, and may be better representatives of those dropped before. Where the cuts are does not change the result.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from search.dedup.deciding.claims import Claimed
from search.dedup.deciding.collection import Collection
from search.dedup.pairs import Pairs, PairSource, Rows, Scores

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
    collection: Collection, source: PairSource, drop_texts: bool, pair_limit: int, among: bool = True
) -> Decision:
    """Keep or drop every document of `collection`; `source` has all pairs of its distinct vectors that count.

    With `drop_texts` documents of equal text are duplicates whatever they score. Documents of the other index are
    all kept. With `among` False documents are compared with those alone, and not with each other. Holds at most
    `pair_limit` pairs at a time, 28 bytes each, and a few numbers for each document and vector; neither the limit
    nor the order in which pairs come changes the result.
    """
    claimed = Claimed(collection, drop_texts)
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


def _decide_among(claimed: Claimed, source: PairSource, pending: Rows, pair_limit: int) -> None:
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


def _spread(claimed: Claimed, source: PairSource, kept: Rows, known: Rows) -> None:
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


def _first_come(claimed: Claimed, stretch: Rows, pairs: list[_Held]) -> Rows:
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


def _take_turns(documents: Rows, claimed: Claimed, neighbours: _Neighbours) -> list[int]:
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
