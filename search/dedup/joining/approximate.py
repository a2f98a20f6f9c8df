"""The join for tens of millions of vectors: only rows of neighbouring cells are compared, so pairs can be missed.

How many are missed is measured against the exact join on a sample of rows, and so is how many cells to visit.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from indexer.progress import Progress
from search.dedup.joining.cells import MOST_PROBES, Probes, fit_cells
from search.dedup.joining.join import Task, VectorJoin
from search.dedup.joining.tiles import Tile
from search.dedup.pairs import Pairs, Rows, Vectors
from search.dedup.settings import JoinOptions

RECALL = 0.9995  # of the sampled pairs: as many cells are visited as this takes
_FEWEST_PROBES = 8  # cells a row is compared with in any case, as a sample may hold few pairs
_SAMPLED = 4096  # rows, which are compared with all


class ApproximateJoin(VectorJoin):
    """The pairs of distinct unit vectors (m, d) that score at least `lowest` and lie in neighbouring cells.

    `figures` says how many cells there are and are visited, and the share of the sampled rows' pairs that are found.
    """

    def __init__(
        self,
        vectors: Vectors,
        lowest: np.float32,
        folder: Path,
        options: JoinOptions = JoinOptions(),  # noqa: B008 - frozen
        progress: Progress | None = None,
        recall: float = RECALL,
    ) -> None:
        super().__init__(vectors, lowest, folder, options, progress)
        self.progress.phase("sorting into cells", None)
        self.cells = fit_cells(self.coded)
        self.figures = self._measure(recall)
        self._visited = int(self.figures["probes"])

    def within(self, members: Rows) -> Iterator[Pairs]:
        """See `PairSource`."""
        lists = self._lists(members)
        self.progress.phase("comparing vectors", len(members))
        return self.pairs_of(self._cell_tasks(lists, lists, itself=True))

    def between(self, left: Rows, right: Rows) -> Iterator[Pairs]:
        """See `PairSource`."""
        self.progress.phase("comparing with those kept", len(left))
        return self.pairs_of(self._cell_tasks(self._lists(left), self._lists(right), itself=False))

    def _lists(self, rows: Rows) -> "_Lists":
        return _Lists(self.cells.own[rows], self.cells.probes[rows, 1 : self._visited], rows)

    def _cell_tasks(self, left: "_Lists", right: "_Lists", itself: bool) -> Iterator[Task]:
        for cell in range(self.cells.count):
            own, others = left.own(cell), right.own(cell)
            if itself:
                work = self._tiles_within(own, right.visitors(cell))
            else:
                work = self._tiles_between(own, others, left.visitors(cell), right.visitors(cell))
            yield len(own), work

    def _tiles_within(self, own: Rows, visitors: Rows) -> Callable[[], Iterator[Tile]]:
        def tiles() -> Iterator[Tile]:
            if len(own):
                step = self.kernel.tile[0]
                for first in range(0, len(own), step):
                    yield from self.coded.compare_within(own, first, first + step, self.threshold)
                # A pair of two rows that visit each other's cells comes once: in the cell of the lower number.
                for tile in self.coded.compare(own, visitors, self.threshold):
                    yield self._kept(tile, lambda own, visitor: self.cells.own[own] < self.cells.own[visitor])

        return tiles

    def _tiles_between(
        self, own: Rows, others: Rows, visitors: Rows, other_visitors: Rows
    ) -> Callable[[], Iterator[Tile]]:
        def tiles() -> Iterator[Tile]:
            yield from self.coded.compare(own, np.sort(np.concatenate([others, other_visitors])), self.threshold)
            for tile in self.coded.compare(others, visitors, self.threshold):
                found = self._kept(tile, lambda other, visitor: np.zeros(len(other), bool))
                yield Tile(found.right, found.left, found.columns, found.rows)

        return tiles

    def _kept(self, tile: Tile, first: Callable[[Rows, Rows], Any]) -> Tile:
        """The pairs of a cell's rows (left) and its visitors that are not found in the visitor's cell too.

        Where they are, `first` says which of the two places keeps them.
        """
        own, visitor = tile.left[tile.rows], tile.right[tile.columns]
        returned = self.cells.rank(own, self.cells.own[visitor]) < self._visited
        keep = ~returned | first(own, visitor)
        return Tile(tile.left, tile.right, tile.rows[keep], tile.columns[keep])

    def _measure(self, target: float) -> dict[str, Any]:
        """Two samples of rows compared with all: one says how many cells to visit, the other how well that does."""
        rows = np.arange(len(self.vectors))
        sample = np.unique(np.linspace(0, max(0, len(rows) - 1), min(len(rows), _SAMPLED)).astype(np.int64))
        choosing, telling = (np.cumsum(self._ranks(half, rows)) for half in (sample[0::2], sample[1::2]))
        enough = np.flatnonzero(choosing[:MOST_PROBES] >= target * choosing[-1])
        most = self.cells.probes.shape[1]
        probes = min(most, max(_FEWEST_PROBES, int(enough[0]) + 1)) if len(enough) else most
        return {
            "cells": self.cells.count,
            "probes": probes,
            "sampled_rows": len(sample[1::2]),
            "sampled_pairs": int(telling[-1]),
            "found_pairs": int(telling[probes - 1]),
        }

    def _exact_pairs(self, sample: Rows, rows: Rows) -> Iterator[Pairs]:
        """All pairs of a sampled row with any other; those of two sampled rows once."""
        others = np.setdiff1d(rows, sample, assume_unique=True)
        yield from super().within(sample)
        yield from super().between(sample, others)

    def _ranks(self, sample: Rows, rows: Rows) -> Rows:
        """How many pairs of the sampled rows take a visit to 1, 2, ... cells, and last how many are not found."""
        counts, own = np.zeros(MOST_PROBES + 1, np.int64), self.cells.own
        for pairs in self._exact_pairs(sample, rows):
            one = self.cells.rank(pairs.left, own[pairs.right])
            found = np.minimum(one, self.cells.rank(pairs.right, own[pairs.left]))
            counts += np.bincount(found, minlength=len(counts))
        return counts


class _Lists:
    """The rows that belong to a cell, and those that visit it."""

    def __init__(self, own: Probes, visited: Probes, rows: Rows) -> None:
        self._own = _by_cell(own, rows)
        self._visitors = _by_cell(visited.ravel(), np.repeat(rows, visited.shape[1]))

    def own(self, cell: int) -> Rows:
        return _of(self._own, cell)

    def visitors(self, cell: int) -> Rows:
        return _of(self._visitors, cell)


def _by_cell(cells: Probes, rows: Rows) -> tuple[Probes, Rows]:
    order = np.argsort(cells, kind="stable")
    return cells[order], rows[order]


def _of(sorted_rows: tuple[Probes, Rows], cell: int) -> Rows:
    cells, rows = sorted_rows
    first, last = np.searchsorted(cells, [cell, cell + 1])
    return rows[first:last]
