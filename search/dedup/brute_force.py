"""Comparison of every document with every kept document, by plain matrix products, for the verifier.

float32 products decide all pairs whose distance from a limit exceeds the float32 error; the few others get their exact
score.
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
_CELLS = 1 << 18  # scores of a tile processed together
_GATHERED = 1 << 14  # pairs scored together
_SHOWN = 8  # violations whose documents are stored


@dataclass(frozen=True)
class DecidedWindows:
    """Vectors of all windows, and the decision about their documents. The other index is numbered first."""

    own: Vectors  # (windows, k)
    other: Vectors  # (windows of the other index, k)
    document_of: RowIds  # (all windows,) ascending
    rank: RowIds  # (documents,) place in the priority order; lowest for the other index, in order of number
    kept_by: RowIds  # (documents,) number of the representative; -1: kept
    lowest: np.float32
    only_other: bool = False  # documents are compared only with the other index

    def vectors(self, windows: RowIds) -> Vectors:
        """Return the vectors of windows, (n, k)."""
        foreign = windows < len(self.other)
        if not foreign.any():
            return self.own[windows - len(self.other)]
        vectors = np.empty((len(windows), self.own.shape[1]), np.float32)
        vectors[foreign] = self.other[windows[foreign]]
        vectors[~foreign] = self.own[windows[~foreign] - len(self.other)]
        return vectors

    def scores(self, left: RowIds, right: RowIds) -> Scores:
        """Return the exact score of each window of `left` with the same place of `right`."""
        pieces = [
            pair_scores(self.vectors(left[start:end]), self.vectors(right[start:end]))
            for start, end in pairwise([*range(0, len(left), _GATHERED), len(left)])
        ]
        return np.concatenate([np.empty(0, np.float32), *pieces])

    def windows(self) -> tuple[RowIds, RowIds, RowIds]:
        """Return the windows of dropped documents, of kept documents, and the windows to compare with.

        Of equal vectors of the other index, only the first is compared: it is the first in priority too.
        """
        is_kept = self.kept_by[self.document_of] < 0
        kept = np.flatnonzero(is_kept)
        kept = kept[kept >= len(self.other)]
        digests = b"".join(hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in self.other)
        foreign = np.sort(np.unique(np.frombuffer(digests, "V16"), return_index=True)[1])
        return np.flatnonzero(~is_kept), kept, foreign if self.only_other else np.concatenate([foreign, kept])


@dataclass
class Violations:
    """Violating pairs of documents: the count, and the first few."""

    count: int = 0
    first: list[tuple[int, int, float]] = field(default_factory=list)  # document, kept document, their score

    def add(self, decided: DecidedWindows, left: RowIds, right: RowIds) -> None:
        """Add pairs of windows."""
        self.count += len(left)
        room = _SHOWN - len(self.first)
        left, right = left[:room], right[:room]
        columns = decided.document_of[left], decided.document_of[right], decided.scores(left, right)
        self.first += zip(*(column.tolist() for column in columns), strict=True)


def named_scores(decided: DecidedWindows) -> Scores:
    """Return the exact score of each dropped document with its representative, (documents,); NaN for kept documents."""
    starts = np.searchsorted(decided.document_of, np.arange(len(decided.rank) + 1))
    scores = np.full(len(decided.rank), np.nan, np.float32)
    for documents in _blocks(np.flatnonzero(decided.kept_by >= 0), _GATHERED):
        kept = decided.kept_by[documents]
        width = starts[kept + 1] - starts[kept]
        pairs = (starts[documents + 1] - starts[documents]) * width  # every window with every window
        owner = np.repeat(np.arange(len(documents)), pairs)
        place = np.arange(len(owner)) - np.repeat(np.cumsum(pairs) - pairs, pairs)
        left = starts[documents][owner] + place // width[owner]
        right = starts[kept][owner] + place % width[owner]
        best = np.full(len(documents), -np.inf, np.float32)
        np.maximum.at(best, owner, decided.scores(left, right))
        scores[documents] = best
    return scores


class Comparison:
    """Compares all windows with all kept windows. `scores` as of `named_scores`.

    `kept_pairs` are kept documents that are duplicates of each other; `closer` are kept documents that should be the
    representative of a dropped document. `unproven` (documents,) marks dropped documents without a known kept duplicate
    before them; `run` clears the mark of each document for which it finds such a duplicate.
    """

    def __init__(self, decided: DecidedWindows, scores: Scores, unproven: Mask, options: JoinOptions) -> None:
        self.decided, self.unproven = decided, unproven.copy()
        self.kept_pairs, self.closer = Violations(), Violations()
        self.compared = self.exact = 0
        self._slack = float32_error(decided.own.shape[1])
        self._block = _block_size(decided.own.shape[1], options.memory)
        self._threads = options.threads or available_cores()
        by_score = scores >= decided.lowest
        self._limits = np.where(by_score, scores, decided.lowest).astype(np.float32)
        # A rival with the same score must come later; if only the text is equal, no rival may reach the threshold.
        self._ties = np.where(by_score, decided.rank[decided.kept_by], len(decided.rank))

    def run(self, progress: Progress) -> None:
        """Compare all tiles."""
        dropped, kept, columns = self.decided.windows()
        tiles = [(rows, columns[: np.searchsorted(columns, rows[-1])]) for rows in _blocks(kept, self._block)]
        progress.phase("comparing kept documents", sum(len(rows) * len(against) for rows, against in tiles))
        with threadpool_limits(self._threads, user_api="blas"):
            for rows, against in tiles:
                for block in _blocks(against, self._block):
                    self._kept_tile(rows, block)
                    progress.advance(len(rows) * len(block))
            progress.phase("comparing dropped documents", len(dropped) * len(columns))
            for rows in _blocks(dropped, self._block):
                for block in _blocks(columns, self._block):
                    self._dropped_tile(rows, block)
                    progress.advance(len(rows) * len(block))

    def _kept_tile(self, rows: RowIds, columns: RowIds) -> None:
        """Find kept documents that are duplicates of a kept document before them."""
        lowest, document_of = self.decided.lowest, self.decided.document_of
        for left, right, about in self._hits(rows, columns, np.full(len(rows), lowest)):
            apart = document_of[right] < document_of[left]
            left, right = left[apart], right[apart]
            wrong = self._settled(left, right, about[apart], np.full(len(left), lowest)) >= lowest
            self.kept_pairs.add(self.decided, left[wrong], right[wrong])

    def _dropped_tile(self, rows: RowIds, columns: RowIds) -> None:
        documents = self.decided.document_of[rows]
        least = np.where(self.unproven[documents], self.decided.lowest, self._limits[documents])
        for left, right, about in self._hits(rows, columns, least):
            self._find_closer(left, right, about)
            self._find_proof(left, right, about)

    def _find_closer(self, left: RowIds, right: RowIds, about: Scores) -> None:
        """Find kept documents that are better representatives."""
        decided = self.decided
        rival = decided.document_of[right] != decided.kept_by[decided.document_of[left]]
        left, right, about = left[rival], right[rival], about[rival]
        document = decided.document_of[left]
        limits = self._limits[document]
        scores = self._settled(left, right, about, limits)
        before = decided.rank[decided.document_of[right]] < self._ties[document]
        wrong = (scores > limits) | ((scores == limits) & before)
        self.closer.add(decided, left[wrong], right[wrong])

    def _find_proof(self, left: RowIds, right: RowIds, about: Scores) -> None:
        """Find kept duplicates that come before a dropped document."""
        decided = self.decided
        document = decided.document_of[left]
        fit = self.unproven[document] & (decided.rank[decided.document_of[right]] < decided.rank[document])
        left, right, document = left[fit], right[fit], document[fit]
        scores = self._settled(left, right, about[fit], np.full(len(left), decided.lowest))
        self.unproven[document[scores >= decided.lowest]] = False

    def _hits(self, rows: RowIds, columns: RowIds, limits: Scores) -> Iterator[tuple[RowIds, RowIds, Scores]]:
        """Yield pairs of windows that may reach the limit of their row, with float32 scores, in pieces."""
        tile: Scores = self.decided.vectors(rows) @ self.decided.vectors(columns).T
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
        """Return the scores, computed exactly where they are within the float32 error of their limits."""
        doubtful = np.flatnonzero(np.abs(about.astype(np.float64) - limits) <= self._slack)
        self.exact += len(doubtful)
        settled = about.copy()
        settled[doubtful] = self.decided.scores(left[doubtful], right[doubtful])
        return settled


def float32_error(dim: int) -> float:
    """Return a bound on the difference between a float32 product of two unit vectors and their score.

    The error of a sum of k products in any order, fused or not, is at most k u / (1 - k u) times the sum of their
    absolute values (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1), which is at most the
    product of the norms; u = 2**-24. The rounding of the score is added; underflow is far below that.
    """
    relative = dim * 2.0**-24
    return (1 + 1e-5) * relative / (1 - relative) + 2.0**-22


def _block_size(dim: int, memory: int) -> int:
    """Return the rows and columns of a tile that fits in memory with its vectors and intermediate arrays."""
    size = _BLOCK
    while size > 64 and size * size * 5 + 16 * size * dim + _CELLS * 64 > memory:
        size //= 2
    return size


def _blocks(numbers: RowIds, size: int) -> Iterator[RowIds]:
    for start in range(0, len(numbers), size):
        yield numbers[start : start + size]
