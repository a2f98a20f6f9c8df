"""The join for tens of millions of vectors: only rows of neighbouring cells are compared, so pairs can be missed.

Each row belongs to the cell of its nearest centroid and visits the next ones; two rows are compared when one visits the
other's cell. The centroids are fitted on codes, so a row's own code finds its cells by one product with each centroid.
How many pairs are missed is measured against the exact join on a sample of rows, and so is how many cells to visit.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from indexer.arrays import Int32Array, RowIds, Vectors
from indexer.progress import Progress
from search.dedup.join import CodeMatrix, ExactJoin, Task, Tile
from search.dedup.pairs import Pairs
from search.dedup.settings import JoinOptions

MOST_PROBES = 16
RECALL = 0.9995  # of the sampled pairs: as many cells are visited as this takes
_FEWEST_PROBES = 8  # cells a row is compared with in any case, as a sample may hold few pairs
_SAMPLED = 4096  # rows, which are compared with all
_CELLS_PER_ROOT = 2  # cells for each unit of sqrt(rows): the least work in all, centroids and members together
_FEWEST_ROWS = 4096  # below this one cell holds all
_SAMPLE, _ROUNDS = 32, 4  # rows a cell that the centroids are fitted on, and rounds of k-means
_BLOCK = 2048  # rows
Probes = Int32Array  # (n, p)


@dataclass(frozen=True)
class Cells:
    """The cells of all rows: `probes` (n, p), nearest first; `count` of them."""

    probes: Probes
    count: int

    @property
    def own(self) -> Int32Array:
        """The cell each row belongs to, (n,)."""
        nearest: Probes = self.probes[:, 0]
        return nearest

    def probe_rank(self, rows: RowIds, cells: npt.NDArray[np.integer]) -> RowIds:
        """At which place each row visits a cell, paired one by one; `MOST_PROBES` where it does not."""
        same = self.probes[rows] == cells[:, None]
        return np.where(same.any(axis=1), same.argmax(axis=1), MOST_PROBES)


def fit_cells(coded: CodeMatrix) -> Cells:
    """Centroids by k-means on rows spread evenly over all, and the nearest cells of every row."""
    rows = len(coded.codes)
    if not rows:
        return Cells(np.zeros((0, 1), np.int32), 1)
    count = round(_CELLS_PER_ROOT * rows**0.5) if rows >= _FEWEST_ROWS else 1
    centroids = _centroids(coded, count)
    probes = np.zeros((rows, min(MOST_PROBES, count)), np.int32)
    for start in range(0, rows, _BLOCK):
        block = coded.codes[start : start + _BLOCK].to(coded.kernel.device)
        products = coded.kernel.products(block, centroids)
        probes[start : start + _BLOCK] = products.float().topk(probes.shape[1], dim=1).indices.cpu().numpy()
    return Cells(probes, count)


def _centroids(coded: CodeMatrix, count: int) -> torch.Tensor:
    """Codes (count, width) of centroids; what stands for the rest of a vector is left out of them."""
    taken = np.linspace(0, len(coded.codes) - 1, min(len(coded.codes), _SAMPLE * count)).astype(np.int64)
    sample = coded.codes.index_select(0, torch.from_numpy(taken).to(coded.codes.device)).to(coded.kernel.device)
    points = sample.float()
    points[:, coded.kernel.basis.size :] = 0
    length = points.norm(dim=1).mean()
    centroids = points[torch.linspace(0, len(points) - 1, count).long().to(points.device)]
    for _ in range(_ROUNDS):
        nearest = torch.cat(list(_nearest(coded, sample, _code(centroids, length, coded))))
        sums = torch.zeros_like(centroids).index_add_(0, nearest, points)
        lengths = sums.norm(dim=1, keepdim=True)
        centroids = torch.where(lengths > 0, sums / lengths.clamp(min=1e-30), centroids)
    return _code(centroids, length, coded)


def _nearest(coded: CodeMatrix, sample: torch.Tensor, centroids: torch.Tensor) -> Iterator[torch.Tensor]:
    for start in range(0, len(sample), _BLOCK):
        yield coded.kernel.products(sample[start : start + _BLOCK], centroids).argmax(dim=1)


def _code(centroids: torch.Tensor, length: torch.Tensor, coded: CodeMatrix) -> torch.Tensor:
    """Centroids as codes: as long as a row's code is on average."""
    codes = centroids / centroids.norm(dim=1, keepdim=True).clamp(min=1e-30) * length
    if coded.kernel.dtype == torch.int8:
        codes = codes.round().clamp(-127, 127)
    rounded: torch.Tensor = codes.to(coded.kernel.dtype)
    return rounded


class ApproximateJoin(ExactJoin):
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

    def tasks_within(self, members: RowIds) -> list[Task]:
        """See `ExactJoin`; a piece is a cell."""
        lists = self._lists(members)
        return list(self._cell_tasks(lists, lists, itself=True))

    def tasks_between(self, left: RowIds, right: RowIds) -> list[Task]:
        """See `ExactJoin`."""
        return list(self._cell_tasks(self._lists(left), self._lists(right), itself=False))

    def _lists(self, rows: RowIds) -> "_Lists":
        return _Lists(self.cells.own[rows], self.cells.probes[rows, 1 : self._visited], rows)

    def _cell_tasks(self, left: "_Lists", right: "_Lists", itself: bool) -> Iterator[Task]:
        for cell in range(self.cells.count):
            own, others = left.own(cell), right.own(cell)
            if itself:
                work = self._tiles_within(own, right.visitors(cell))
            else:
                work = self._tiles_between(own, others, left.visitors(cell), right.visitors(cell))
            yield len(own), work

    def _tiles_within(self, own: RowIds, visitors: RowIds) -> Callable[[], Iterator[Tile]]:
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
        self, own: RowIds, others: RowIds, visitors: RowIds, other_visitors: RowIds
    ) -> Callable[[], Iterator[Tile]]:
        def tiles() -> Iterator[Tile]:
            yield from self.coded.compare(own, np.sort(np.concatenate([others, other_visitors])), self.threshold)
            for tile in self.coded.compare(others, visitors, self.threshold):
                found = self._kept(tile, lambda other, visitor: np.zeros(len(other), bool))
                yield Tile(found.right, found.left, found.columns, found.rows)

        return tiles

    def _kept(self, tile: Tile, first: Callable[[RowIds, RowIds], Any]) -> Tile:
        """The pairs of a cell's rows (left) and its visitors that are not found in the visitor's cell too.

        Where they are, `first` says which of the two places keeps them.
        """
        own, visitor = tile.left[tile.rows], tile.right[tile.columns]
        returned = self.cells.probe_rank(own, self.cells.own[visitor]) < self._visited
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

    def _exact_pairs(self, sample: RowIds, rows: RowIds) -> Iterator[Pairs]:
        """All pairs of a sampled row with any other; those of two sampled rows once."""
        others = np.setdiff1d(rows, sample, assume_unique=True)
        yield from self.pairs_of(iter(super().tasks_within(sample)))
        yield from self.pairs_of(iter(super().tasks_between(sample, others)))

    def _ranks(self, sample: RowIds, rows: RowIds) -> RowIds:
        """How many pairs of the sampled rows take a visit to 1, 2, ... cells, and last how many are not found."""
        counts, own = np.zeros(MOST_PROBES + 1, np.int64), self.cells.own
        for pairs in self._exact_pairs(sample, rows):
            one = self.cells.probe_rank(pairs.left, own[pairs.right])
            found = np.minimum(one, self.cells.probe_rank(pairs.right, own[pairs.left]))
            counts += np.bincount(found, minlength=len(counts))
        return counts


class _Lists:
    """The rows that belong to a cell, and those that visit it."""

    def __init__(self, own: Probes, visited: Probes, rows: RowIds) -> None:
        self._own = _by_cell(own, rows)
        self._visitors = _by_cell(visited.ravel(), np.repeat(rows, visited.shape[1]))

    def own(self, cell: int) -> RowIds:
        return _of(self._own, cell)

    def visitors(self, cell: int) -> RowIds:
        return _of(self._visitors, cell)


def _by_cell(cells: Probes, rows: RowIds) -> tuple[Probes, RowIds]:
    order = np.argsort(cells, kind="stable")
    return cells[order], rows[order]


def _of(sorted_rows: tuple[Probes, RowIds], cell: int) -> RowIds:
    cells, rows = sorted_rows
    first, last = np.searchsorted(cells, [cell, cell + 1])
    return rows[first:last]
