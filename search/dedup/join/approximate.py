"""The approximate join, for tens of millions of vectors: it compares only rows of close cells, so it can miss pairs.

The cells are those of `cells`, but a row probes only cells closer than the proof requires, because most pairs lie well
within the bound. The distance of probed cells is chosen, and the recall measured, by the exact join of sampled rows.
"""

import shutil
from typing import Any

import numpy as np

from indexer.arrays import Float64Array, Int64Array, RowIds, Vectors
from search.dedup.join.cells import Centroids, most_cells, reach
from search.dedup.join.exact import ExactJoin
from search.dedup.join.probes import Cells
from search.dedup.join.quantised import float32_accumulation

RECALL = 0.9995  # of the sampled pairs, which decides the distance of probed cells
_LEVELS = 16  # steps from no probes to the probes of the proof
_LEAST_LEVEL = 8  # because a sample may have few pairs
_SAMPLED = 4096  # the sample has as many pairs as so many rows have with all rows
_MOST_SAMPLED = 1 << 18  # rows: 400 MB with 381 dimensions
_CELLS_PER_ROOT = 1.4  # cells per sqrt(rows) with the least total work for centroids and members
_MOST_CELLS = 1 << 16  # cell numbers have two bytes; more than 8,192 cells need more than the default memory
_FEWEST_ROWS = 4096  # for more than one cell
_NEIGHBOURS = 4  # cells that a row is compared with, about


class ApproximateJoin(ExactJoin):
    """The pairs of distinct unit vectors (m, d) that score at least `lowest` and lie in close cells.

    `figures` has the number of cells, the mean number of cells that a row is compared with (`probes`), and the counts
    of pairs of the sampled rows, known and found.
    """

    @property
    def _count(self) -> int:
        count = round(_CELLS_PER_ROOT * len(self.vectors) ** 0.5) if len(self.vectors) >= _FEWEST_ROWS else 1
        return min(count, most_cells(self.options.memory, _MOST_CELLS))

    def _prepare(self) -> dict[str, Any]:
        centroids = self._centroids(self._count, self.kernel.device) if self._count > 1 else None
        sample = self._sample()
        choosing, measuring = self._needed(sample, centroids)
        level = _level(choosing)
        if centroids is not None:
            self.cells = self._sorted(centroids, reach(self.threshold) * level / _LEVELS)
        return {
            "cells": self._count,
            "probes": 1 if self.cells is None else 1 + round(self.cells.mean_probes),
            "sampled_rows": len(sample),
            "sampled_pairs": int(measuring.sum()),
            "found_pairs": int(measuring[: level + 1].sum()),
        }

    def _cells_for(self, pairs: float) -> Cells | None:
        return self.cells

    def _pilot(self) -> None:
        return None

    def _share_compared(self) -> float:
        return min(1.0, 2 * _NEIGHBOURS / self._count)

    def _sample(self) -> RowIds:
        """Return random rows, ascending: evenly spaced rows would leave out copies that follow each other."""
        count = len(self.vectors)
        size = min(count, round((2 * _SAMPLED * count) ** 0.5), _MOST_SAMPLED)
        return np.sort(np.random.default_rng(0).choice(count, size, replace=False))

    def _needed(self, sample: RowIds, centroids: Centroids | None) -> Int64Array:
        """Return the number of pairs of sampled rows that need probes at level 0, 1, ..., `_LEVELS`, (2, levels + 1):
        of the pairs to choose a level, and of others to measure recall."""
        counts = np.zeros((2, _LEVELS + 1), np.int64)
        self.progress.phase("measuring a sample", len(sample))
        folder = self.folder / "sample"
        folder.mkdir()
        join = ExactJoin(self.vectors[sample], self.lowest, folder, self.options)
        join.progress = self.progress
        for pairs in join.pairs_of(iter(join.tasks(np.arange(len(sample))))):
            apart = np.zeros(len(pairs))
            if centroids is not None:
                rows = sample[np.stack([pairs.left, pairs.right])]
                with float32_accumulation():
                    apart = _needed_reach(centroids, self.vectors, *rows) / reach(self.threshold)
            levels = np.ceil(np.clip(apart, 0, 1) * _LEVELS).astype(np.int64)
            np.add.at(counts, (np.minimum(pairs.left, pairs.right) % 2, levels), 1)
        shutil.rmtree(folder)
        return counts


def _level(counts: Int64Array) -> int:
    enough = int(np.searchsorted(np.cumsum(counts), RECALL * counts.sum()))
    return min(_LEVELS, max(_LEAST_LEVEL, enough + 1)) if counts.sum() else _LEVELS


def _needed_reach(centroids: Centroids, vectors: Vectors, first: RowIds, second: RowIds) -> Float64Array:
    """Return the smallest reach (as in `cells.reach`) that finds each pair of rows, (n,), (n,) -> (n,); 0 for pairs in
    one cell."""
    rows, places = np.unique(np.concatenate([first, second]), return_inverse=True)
    products = centroids.products(vectors[rows])
    own, best = products.argmax(axis=1), products.max(axis=1)
    left, right = places[: len(first)], places[len(first) :]
    steps = [best[row] - products[row, own[other]] for row, other in ((left, right), (right, left))]
    needed = np.minimum(*steps) / np.maximum(centroids.apart[own[left], own[right]], 1e-6)
    return np.where(own[left] == own[right], 0.0, needed)
