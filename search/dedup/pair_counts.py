"""One pass over all pairs from a floor up: how many there are at each score, and a few of each, without holding them.

Pairs are those of rows of different documents: of documents, or where these have several windows, of windows. Rows
with the very same vector are pairs too, and each pair of different vectors stands for as many pairs as there are rows
with either: all are counted and none of them listed, so one text copied a million times is no trouble.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from indexer.arrays import RowIds, Scores, Vectors
from search.dedup.distinct import Distinct, VectorCopies, is_one_to_one
from search.dedup.greedy import DedupDocuments, decide
from search.dedup.pairs import Pairs, PairsInMemory, PairSource, pair_scores
from search.dedup.settings import lowest_score

STEPS = 1000  # a step of thresholds is one of so many parts of 1
PAIRS_HELD = 1 << 22  # pairs of different vectors that are kept to decide who would be dropped
_KEPT = 8  # pairs next to each step that are kept, on either side
_BUFFER = 1 << 17  # pairs worked on together
_ROWS = 1 << 14  # rows read together


@dataclass(frozen=True)
class NearestPairs:
    """Pairs of rows in order: the nearest to a threshold first, of equals the first rows."""

    left: RowIds
    right: RowIds
    scores: Scores

    def __len__(self) -> int:
        return len(self.scores)


@dataclass(frozen=True)
class PairCounts:
    """What was found; thresholds asked about are steps, at least the floor."""

    distinct: Distinct
    document_of: RowIds  # (rows,) ascending
    edges: Scores  # (bins,) the lowest score of each bin: the floor, then one a step
    counts: tuple[int, ...]  # pairs in each bin
    lowest: tuple[NearestPairs, ...]  # the lowest pairs of each bin, ascending
    highest: tuple[NearestPairs, ...]  # the highest pairs of each bin, descending
    earlier: Scores  # (distinct,) best score with a vector that occurs earlier; -inf: none from the floor up
    held: Pairs | None  # all pairs of different vectors; None if they were too many

    @property
    def windowed(self) -> bool:
        """Whether documents have several rows, so that pairs are of windows."""
        return not is_one_to_one(self.document_of)

    def pairs(self, threshold: float) -> int:
        """Pairs of rows at or above the threshold."""
        return sum(self.counts[self._bin(threshold) :])

    def above(self, threshold: float) -> Iterator[tuple[int, int, float]]:
        """(row, later row, score) of pairs at or above the threshold, the nearest first; there may be more."""
        return _in_order(self.lowest[self._bin(threshold) :])

    def below(self, threshold: float) -> Iterator[tuple[int, int, float]]:
        """(row, later row, score) of pairs below the threshold, the nearest first; there may be more."""
        return _in_order(self.highest[: self._bin(threshold)][::-1])

    def unlike(self, threshold: float) -> RowIds:
        """Rows of which no two of different documents score the threshold or more: those without such an earlier
        row."""
        return self.distinct.first[self.earlier < lowest_score(threshold)]

    def dropped(self, threshold: float) -> tuple[int, bool]:
        """Documents that would be dropped if the first is preferred; and True, or False where it may be fewer.

        Without the pairs it is all that have a duplicate before them; some of those duplicates may be dropped too.
        """
        if self.held is None:
            first = self.document_of[self.distinct.first]
            alike = self.earlier >= lowest_score(threshold)
            after = alike[self.distinct.number_of] | (first[self.distinct.number_of] < self.document_of)
            return len(np.unique(self.document_of[after])), False
        chosen = self.held.scores >= lowest_score(threshold)
        source = PairsInMemory(self.held.take(chosen))
        documents = _documents(self.distinct, self.document_of)
        decision = decide(documents, source, drop_texts=False, pair_limit=PAIRS_HELD)
        return int(np.count_nonzero(decision.kept_by >= 0)), True

    def _bin(self, threshold: float) -> int:
        return int(np.searchsorted(self.edges, lowest_score(threshold)))


def count_pairs(
    vectors: Vectors,
    distinct: Distinct,
    source: PairSource,
    floor: float,
    pairs_held: int = PAIRS_HELD,
    document_of: RowIds | None = None,
) -> PairCounts:
    """Ask `source` once for all pairs; it has those of distinct vectors that score at least `floor`.

    `vectors` (rows, k) are those of all rows; `document_of` (rows,) is the document of each, where some have several.
    """
    documents = np.arange(len(vectors)) if document_of is None else document_of
    counting = _Counting(distinct, documents, floor, pairs_held)
    counting.add_identical(vectors)
    members = np.arange(len(distinct.first))
    for pairs in _buffered(source.within(members) if len(members) > 1 else ()):
        counting.add(pairs)
    return counting.result()


class _Counting:
    """What is known after some of the pairs."""

    def __init__(self, distinct: Distinct, document_of: RowIds, floor: float, pairs_held: int) -> None:
        self.distinct, self.document_of, self.room = distinct, document_of, pairs_held
        steps = np.arange(int(floor * STEPS) + 1, STEPS + 1) / STEPS
        edges = {float(lowest_score(floor)), *(float(lowest_score(step)) for step in steps.tolist())}
        self.edges: Scores = np.array(sorted(edges), np.float32)
        self.counts = np.zeros(len(self.edges), np.int64)
        self.copies = VectorCopies(distinct, document_of)
        self.earlier: Scores = np.full(len(distinct.first), -np.inf, np.float32)
        self.lowest, self.highest = _Nearest(1), _Nearest(-1)
        self.held: list[Pairs] = []

    def add_identical(self, vectors: Vectors) -> None:
        """Pairs of rows with the same vector."""
        first, second, counts = self.copies.within()
        for start in range(0, len(first), _ROWS):
            part = slice(start, start + _ROWS)
            rows = vectors[first[part]]
            self._note(first[part], second[part], pair_scores(rows, rows), counts[part])

    def add(self, pairs: Pairs) -> None:
        """Pairs of distinct numbers."""
        low, high = np.minimum(pairs.left, pairs.right), np.maximum(pairs.left, pairs.right)
        np.maximum.at(self.earlier, high, pairs.scores)
        weights = self.copies.between(low, high)
        self._note(self.distinct.first[low], self.distinct.first[high], pairs.scores, weights)
        self.room -= len(pairs)
        self.held = [*self.held, pairs] if self.room >= 0 else []

    def result(self) -> PairCounts:
        return PairCounts(
            self.distinct,
            self.document_of,
            self.edges,
            tuple(self.counts.tolist()),
            self.lowest.by_bin(len(self.edges)),
            self.highest.by_bin(len(self.edges)),
            self.earlier,
            Pairs.concatenate(self.held) if self.room >= 0 else None,
        )

    def _note(self, left: RowIds, right: RowIds, scores: Scores, weights: RowIds) -> None:
        bins = np.searchsorted(self.edges, scores, side="right") - 1
        np.add.at(self.counts, bins, weights)  # whole numbers, which bincount would make floats of
        apart = self.document_of[left] != self.document_of[right]  # else only copies elsewhere make a pair
        bins, left, right, scores = bins[apart], left[apart], right[apart], scores[apart]
        for nearest in (self.lowest, self.highest):
            nearest.add(bins, left, right, scores)


class _Nearest:
    """The few lowest (sign 1) or highest (sign -1) pairs of each bin."""

    def __init__(self, sign: int) -> None:
        self.sign = sign
        self.bins = np.zeros(0, np.int64)
        self.near = NearestPairs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))

    def add(self, bins: RowIds, left: RowIds, right: RowIds, scores: Scores) -> None:
        bins, near = np.concatenate([self.bins, bins]), self.near
        left, right = np.concatenate([near.left, left]), np.concatenate([near.right, right])
        scores = np.concatenate([near.scores, scores])
        order = np.lexsort((right, left, self.sign * scores, bins))
        bins = bins[order]
        first = np.arange(len(bins)) - np.searchsorted(bins, bins) < _KEPT
        order = order[first]
        self.bins, self.near = bins[first], NearestPairs(left[order], right[order], scores[order])

    def by_bin(self, count: int) -> tuple[NearestPairs, ...]:
        cuts = np.searchsorted(self.bins, np.arange(1, count))
        columns = (np.split(column, cuts) for column in (self.near.left, self.near.right, self.near.scores))
        return tuple(NearestPairs(*parts) for parts in zip(*columns, strict=True))


def _documents(distinct: Distinct, document_of: RowIds) -> DedupDocuments:
    documents = np.arange(int(document_of.max(initial=-1)) + 1)
    ones = np.ones(len(distinct.first), np.float32)
    return DedupDocuments(document_of, distinct.number_of, np.full(len(documents), -1), documents, ones)


def _in_order(bins: tuple[NearestPairs, ...]) -> Iterator[tuple[int, int, float]]:
    """Pairs of one bin after the other; ends with the first bin of which not all are kept."""
    for near in bins:
        yield from zip(near.left.tolist(), near.right.tolist(), near.scores.tolist(), strict=True)
        if len(near) == _KEPT:
            return


def _buffered(batches: Iterable[Pairs]) -> Iterator[Pairs]:
    """The same pairs in fewer batches."""
    waiting: list[Pairs] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += len(batch)
        if count >= _BUFFER:
            yield Pairs.concatenate(waiting)
            waiting, count = [], 0
    yield Pairs.concatenate(waiting)
