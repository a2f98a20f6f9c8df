"""The approximate join, for tens of millions of vectors: it compares only rows of close cells, so it can miss pairs.

The cells are those of `cells`, but a row probes only cells closer than the proof requires, because most pairs lie well
within the bound. The distance of probed cells is chosen, and the recall measured, by the exact join on samples of rows.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from indexer.arrays import Float64Array, Int64Array, RowIds, Vectors
from search.dedup.join.cells import Centroids, most_cells, reach
from search.dedup.join.exact import ExactJoin
from search.dedup.join.probes import Cells
from search.dedup.join.quantised import float32_accumulation
from search.dedup.pairs import Pairs

RECALL = 0.9995  # of the sampled pairs, which decides the distance of probed cells
_LEVELS = 16  # steps from no probes to the probes of the proof
_LEAST_LEVEL = 8  # because a sample may have few pairs
_SAMPLED = 4096  # rows, compared with all rows
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
        rows = np.arange(len(self.vectors))
        sample = np.unique(np.linspace(0, max(0, len(rows) - 1), min(len(rows), _SAMPLED)).astype(np.int64))
        choosing, measuring = sample[0::2], sample[1::2]
        if self._count > 1:
            centroids = self._centroids(self._count, self.kernel.device)
            level = _level(self._needed(choosing, rows, centroids))
            self.cells = self._sorted(centroids, reach(self.threshold) * level / _LEVELS)
        return self._measured(measuring, rows)

    def _cells_for(self, pairs: float) -> Cells | None:
        return self.cells

    def _pilot(self) -> None:
        return None

    def _share_compared(self) -> float:
        return min(1.0, 2 * _SAMPLED / max(1, len(self.vectors)) + 2 * _NEIGHBOURS / self._count)

    def _needed(self, sample: RowIds, rows: RowIds, centroids: Centroids) -> Int64Array:
        """Return the number of pairs of the sampled rows that need probes at level 0, 1, ..., `_LEVELS`."""
        counts = np.zeros(_LEVELS + 1, np.int64)
        with float32_accumulation():
            for pairs in self._exact_pairs(sample, rows):
                apart = _needed_reach(centroids, self.vectors, pairs) / reach(self.threshold)
                levels = np.ceil(np.clip(apart, 0, 1) * _LEVELS).astype(np.int64)
                counts += np.bincount(levels, minlength=len(counts))
        return counts

    def _measured(self, sample: RowIds, rows: RowIds) -> dict[str, Any]:
        """Return the figures, measured on a sample that was not used to choose the level."""
        cells, known, found = self.cells, 0, 0
        for pairs in self._exact_pairs(sample, rows):
            known += len(pairs)
            found += len(pairs) if cells is None else int(np.count_nonzero(cells.meet(pairs.left, pairs.right)))
        return {
            "cells": self._count,
            "probes": 1 if cells is None else 1 + round(cells.mean_probes),
            "sampled_rows": len(sample),
            "sampled_pairs": known,
            "found_pairs": found,
        }

    def _exact_pairs(self, sample: RowIds, rows: RowIds) -> Iterator[Pairs]:
        """Yield all pairs of the sampled rows with any row, each pair once."""
        others = np.setdiff1d(rows, sample, assume_unique=True)
        self.progress.phase("measuring a sample", len(sample) * 2)
        yield from self.pairs_of(iter(self._plain_tasks(sample)))
        yield from self.pairs_of(iter(self._plain_tasks(sample, others)))


def _level(counts: Int64Array) -> int:
    enough = int(np.searchsorted(np.cumsum(counts), RECALL * counts.sum()))
    return min(_LEVELS, max(_LEAST_LEVEL, enough + 1)) if counts.sum() else _LEVELS


def _needed_reach(centroids: Centroids, vectors: Vectors, pairs: Pairs) -> Float64Array:
    """Return the smallest reach (as in `cells.reach`) that finds each pair, (n,); 0 for pairs in one cell."""
    rows, places = np.unique(np.concatenate([pairs.left, pairs.right]), return_inverse=True)
    products = centroids.products(vectors[rows])
    own, best = products.argmax(axis=1), products.max(axis=1)
    left, right = places[: len(pairs)], places[len(pairs) :]
    steps = [best[row] - products[row, own[other]] for row, other in ((left, right), (right, left))]
    needed = np.minimum(*steps) / np.maximum(centroids.apart[own[left], own[right]], 1e-6)
    return np.where(own[left] == own[right], 0.0, needed)
