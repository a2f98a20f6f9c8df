"""Every document against every kept one, by plain matrix products: what the verifier believes instead of the join.

float32 products decide all pairs that lie further from what is to be decided than float32 can be wrong; the few others
get their exact score.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from threadpoolctl import threadpool_limits

from indexer.arrays import Mask, RowIds, Scores, Vectors
from indexer.progress import Progress
from indexer.system.threads import available_cores
from search.dedup.pairs import pair_scores
from search.dedup.settings import JoinOptions

_BLOCK = 4096  # rows and columns of a tile, at most
_CELLS = 1 << 18  # cells of a tile looked at together
_GATHERED = 1 << 14  # pairs whose vectors are gathered together
_SHOWN = 8  # violations whose documents are remembered


@dataclass(frozen=True)
class Evidence:
    """What is to be compared. Documents and windows of another index are numbered first."""

    own: Vectors  # (windows, k)
    other: Vectors  # (windows of the other index, k)
    document_of: RowIds  # (all windows,) ascending
    rank: RowIds  # (documents,) place in the priority order; the others' are the lowest, in the order of their numbers
    kept_by: RowIds  # (documents,) the one that stands for it; -1: kept
    lowest: np.float32
    only_other: bool = False  # documents are compared with the other index alone

    def vectors(self, windows: RowIds) -> Vectors:
        """Vectors of some windows, (n, k)."""
        foreign = windows < len(self.other)
        if not foreign.any():
            return self.own[windows - len(self.other)]
        found = np.empty((len(windows), self.own.shape[1]), np.float32)
        found[foreign] = self.other[windows[foreign]]
        found[~foreign] = self.own[windows[~foreign] - len(self.other)]
        return found

    def scores(self, left: RowIds, right: RowIds) -> Scores:
        """Exact scores of windows paired one by one."""
        pieces = [
            pair_scores(self.vectors(left[start:end]), self.vectors(right[start:end]))
            for start, end in pairwise([*range(0, len(left), _GATHERED), len(left)])
        ]
        return np.concatenate([np.empty(0, np.float32), *pieces])

    def windows(self) -> tuple[RowIds, RowIds, RowIds]:
        """Windows of dropped documents; of kept ones; and those that all are compared with, in this order.

        Of windows of the other index with the very same vector the first suffices: it is the first in priority too.
        """
        is_kept = self.kept_by[self.document_of] < 0
        kept = np.flatnonzero(is_kept)
        kept = kept[kept >= len(self.other)]
        digests = b"".join(hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in self.other)
        foreign = np.sort(np.unique(np.frombuffer(digests, "V16"), return_index=True)[1])
        return np.flatnonzero(~is_kept), kept, foreign if self.only_other else np.concatenate([foreign, kept])


@dataclass
class Violations:
    """Pairs of documents that should not be: all counted, the first few remembered."""

    count: int = 0
    first: list[tuple[int, int, float]] = field(default_factory=list)  # document, kept document, their score

    def add(self, evidence: Evidence, left: RowIds, right: RowIds) -> None:
        """Pairs of windows."""
        self.count += len(left)
        room = _SHOWN - len(self.first)
        left, right = left[:room], right[:room]
        documents = zip(evidence.document_of[left].tolist(), evidence.document_of[right].tolist(), strict=True)
        scores = evidence.scores(left, right).tolist()
        self.first += [(one, other, score) for (one, other), score in zip(documents, scores, strict=True)]


def named_scores(evidence: Evidence) -> Scores:
    """Score of each dropped document with the one that stands for it, exactly, (documents,); NaN for kept ones."""
    starts = np.searchsorted(evidence.document_of, np.arange(len(evidence.rank) + 1))
    found = np.full(len(evidence.rank), np.nan, np.float32)
    for documents in _blocks(np.flatnonzero(evidence.kept_by >= 0), _GATHERED):
        standing = evidence.kept_by[documents]
        wide = starts[standing + 1] - starts[standing]
        pairs = (starts[documents + 1] - starts[documents]) * wide  # every window with every window
        owner = np.repeat(np.arange(len(documents)), pairs)
        place = np.arange(len(owner)) - np.repeat(np.cumsum(pairs) - pairs, pairs)
        left = starts[documents][owner] + place // wide[owner]
        right = starts[standing][owner] + place % wide[owner]
        best = np.full(len(documents), -np.inf, np.float32)
        np.maximum.at(best, owner, evidence.scores(left, right))
        found[documents] = best
    return found


class Comparison:
    """Compares everything that must be compared. `scores` as of `named_scores`.

    `kept_pairs`: kept documents that score enough to be duplicates. `closer`: kept documents that should stand for a
    dropped one instead. `unproven` (documents,) says of which dropped documents it is not known yet that a kept one
    that comes before it is its duplicate; whoever is found to have one is taken out.
    """

    def __init__(self, evidence: Evidence, scores: Scores, unproven: Mask, options: JoinOptions) -> None:
        self.evidence, self.unproven = evidence, unproven.copy()
        self.kept_pairs, self.closer = Violations(), Violations()
        self.compared = self.exact = 0
        self._slack = float32_error(evidence.own.shape[1])
        self._block = _block_size(evidence.own.shape[1], options.memory)
        self._threads = options.threads or available_cores()
        by_score = scores >= evidence.lowest
        self._limits = np.where(by_score, scores, evidence.lowest).astype(np.float32)
        # A rival that scores the same must come later; where only the text is the same, no rival may score enough.
        self._ties = np.where(by_score, evidence.rank[evidence.kept_by], len(evidence.rank))

    def run(self, progress: Progress) -> None:
        """Fill in what is said above."""
        dropped, kept, columns = self.evidence.windows()
        tiles = [(rows, columns[: np.searchsorted(columns, rows[-1])]) for rows in _blocks(kept, self._block)]
        progress.phase("comparing pairs", sum(len(rows) * len(against) for rows, against in tiles))
        with threadpool_limits(self._threads, user_api="blas"):
            for rows, against in tiles:
                for block in _blocks(against, self._block):
                    self._kept_tile(rows, block)
                    progress.advance(len(rows) * len(block))
            progress.phase("comparing dropped ones", len(dropped) * len(columns))
            for rows in _blocks(dropped, self._block):
                for block in _blocks(columns, self._block):
                    self._dropped_tile(rows, block)
                    progress.advance(len(rows) * len(block))

    def _kept_tile(self, rows: RowIds, columns: RowIds) -> None:
        """No kept document may score enough with a kept one before it."""
        lowest, document_of = self.evidence.lowest, self.evidence.document_of
        for left, right, about in self._hits(rows, columns, np.full(len(rows), lowest)):
            apart = document_of[right] < document_of[left]
            left, right = left[apart], right[apart]
            wrong = self._settled(left, right, about[apart], np.full(len(left), lowest)) >= lowest
            self.kept_pairs.add(self.evidence, left[wrong], right[wrong])

    def _dropped_tile(self, rows: RowIds, columns: RowIds) -> None:
        documents = self.evidence.document_of[rows]
        least = np.where(self.unproven[documents], self.evidence.lowest, self._limits[documents])
        for left, right, about in self._hits(rows, columns, least):
            self._look_for_closer(left, right, about)
            self._look_for_proof(left, right, about)

    def _look_for_closer(self, left: RowIds, right: RowIds, about: Scores) -> None:
        """No kept document may be a better one to stand for a dropped one."""
        evidence = self.evidence
        rival = evidence.document_of[right] != evidence.kept_by[evidence.document_of[left]]
        left, right, about = left[rival], right[rival], about[rival]
        document = evidence.document_of[left]
        limits = self._limits[document]
        scores = self._settled(left, right, about, limits)
        before = evidence.rank[evidence.document_of[right]] < self._ties[document]
        wrong = (scores > limits) | ((scores == limits) & before)
        self.closer.add(evidence, left[wrong], right[wrong])

    def _look_for_proof(self, left: RowIds, right: RowIds, about: Scores) -> None:
        """Some kept document that comes before a dropped one must be its duplicate."""
        evidence = self.evidence
        document = evidence.document_of[left]
        fit = self.unproven[document] & (evidence.rank[evidence.document_of[right]] < evidence.rank[document])
        left, right, document = left[fit], right[fit], document[fit]
        scores = self._settled(left, right, about[fit], np.full(len(left), evidence.lowest))
        self.unproven[document[scores >= evidence.lowest]] = False

    def _hits(self, rows: RowIds, columns: RowIds, limits: Scores) -> Iterator[tuple[RowIds, RowIds, Scores]]:
        """Pairs of windows that may score as much as their row's limit, and about how much; some at a time."""
        tile: Scores = self.evidence.vectors(rows) @ self.evidence.vectors(columns).T
        self.compared += tile.size
        least = np.nextafter((limits.astype(np.float64) - self._slack).astype(np.float32), np.float32(-2))
        if not (tile.max(axis=1) >= least).any():
            return
        step = max(1, _CELLS // len(columns))
        for start in range(0, len(rows), step):
            part = tile[start : start + step]
            row, column = np.nonzero(part >= least[start : start + step, None])
            if len(row):
                yield rows[start + row], columns[column], part[row, column]

    def _settled(self, left: RowIds, right: RowIds, about: Scores, limits: Scores) -> Scores:
        """Scores that compare with their limits as the exact ones do: those that lie too close to them made exact."""
        doubtful = np.flatnonzero(np.abs(about.astype(np.float64) - limits) <= self._slack)
        self.exact += len(doubtful)
        settled = about.copy()
        settled[doubtful] = self.evidence.scores(left[doubtful], right[doubtful])
        return settled


def float32_error(dim: int) -> float:
    """How far a float32 product of two unit vectors may be from their score.

    A sum of k products in any order, fused or not, is off by at most k u / (1 - k u) times the sum of their absolute
    values (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1), which is at most the product of
    the norms; u = 2**-24. The score itself is rounded, and what underflows is far below that.
    """
    relative = dim * 2.0**-24
    return (1 + 1e-5) * relative / (1 - relative) + 2.0**-22


def _block_size(dim: int, memory: int) -> int:
    """Rows and columns of a tile; the tile, what is compared in it, and the vectors (and their copies) must fit."""
    size = _BLOCK
    while size > 64 and size * size * 5 + 16 * size * dim + _CELLS * 64 > memory:
        size //= 2
    return size


def _blocks(numbers: RowIds, size: int) -> Iterator[RowIds]:
    for start in range(0, len(numbers), size):
        yield numbers[start : start + size]
