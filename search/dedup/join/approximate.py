"""The join for tens of millions of vectors: only rows of neighbouring cells are compared, so pairs can be missed.

Cells are those of `cells`, but a row visits only those that are nearer than the proof asks for: most pairs lie well
inside the bound. How many pairs are missed is measured against the exact join on a sample of rows, and so is how near a
visited cell must be.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from indexer.arrays import Float64Array, Int64Array, RowIds, Vectors
from indexer.progress import Progress
from search.dedup.join.cells import Centroids, most_cells, reach
from search.dedup.join.codes import float32_accumulation
from search.dedup.join.exact import ExactJoin
from search.dedup.join.visits import Cells
from search.dedup.pairs import Pairs
from search.dedup.settings import JoinOptions

RECALL = 0.9995  # of the sampled pairs: cells as far away as this takes are visited
_LEVELS = 16  # steps between no visits and those that prove all
_LEAST_LEVEL = 8  # visited in any case, as a sample may hold few pairs
_SAMPLED = 4096  # rows, which are compared with all
_CELLS_PER_ROOT = 1.4  # cells for each unit of sqrt(rows): the least work in all, centroids and members together
_MOST_CELLS = 1 << 16  # two bytes hold the number of one; more than 8,192 take more memory than the default
_FEWEST_ROWS = 4096  # below this one cell holds all
_NEIGHBOURS = 4  # cells that a row is compared with, about


class ApproximateJoin(ExactJoin):
    """The pairs of distinct unit vectors (m, d) that score at least `lowest` and lie in neighbouring cells.

    `figures` says how many cells there are, with how many a row is compared on average (`probes`), and how many of the
    sampled rows' pairs are found.
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
        wanted = round(_CELLS_PER_ROOT * len(vectors) ** 0.5) if len(vectors) >= _FEWEST_ROWS else 1
        self._count = min(wanted, most_cells(options.memory, _MOST_CELLS))
        super().__init__(vectors, lowest, folder, options, progress)
        rows = np.arange(len(vectors))
        sample = np.unique(np.linspace(0, max(0, len(rows) - 1), min(len(rows), _SAMPLED)).astype(np.int64))
        choosing, telling = sample[0::2], sample[1::2]
        if self._count > 1:
            centroids = self._centroids(self._count, self.kernel.device)
            level = self._level(self._needed(choosing, rows, centroids), recall)
            self.cells = self._sorted(centroids, reach(self.threshold) * level / _LEVELS)
        self.figures = self._measured(telling, rows)

    def _cells_for(self, pairs: float) -> Cells | None:
        return self.cells

    def _pilot(self) -> None:
        return None

    def _share_compared(self) -> float:
        return min(1.0, 2 * _SAMPLED / max(1, len(self.vectors)) + 2 * _NEIGHBOURS / self._count)

    def _needed(self, sample: RowIds, rows: RowIds, centroids: Centroids) -> Int64Array:
        """How many pairs of the sampled rows take a visit at level 0, 1, ... of `_LEVELS`."""
        counts = np.zeros(_LEVELS + 1, np.int64)
        with float32_accumulation():
            for pairs in self._exact_pairs(sample, rows):
                apart = _visit_needed(centroids, self.vectors, pairs) / reach(self.threshold)
                levels = np.ceil(np.clip(apart, 0, 1) * _LEVELS).astype(np.int64)
                counts += np.bincount(levels, minlength=len(counts))
        return counts

    def _level(self, counts: Int64Array, target: float) -> int:
        enough = int(np.searchsorted(np.cumsum(counts), target * counts.sum()))
        return min(_LEVELS, max(_LEAST_LEVEL, enough + 1)) if counts.sum() else _LEVELS

    def _measured(self, sample: RowIds, rows: RowIds) -> dict[str, Any]:
        """What cells there are, and how well they do on a sample that did not choose them."""
        known = found = 0
        for pairs in self._exact_pairs(sample, rows):
            known += len(pairs)
            found += (
                len(pairs) if self.cells is None else int(np.count_nonzero(self.cells.meet(pairs.left, pairs.right)))
            )
        return {
            "cells": self._count,
            "probes": 1 if self.cells is None else 1 + round(self.cells.mean_visits),
            "sampled_rows": len(sample),
            "sampled_pairs": known,
            "found_pairs": found,
        }

    def _exact_pairs(self, sample: RowIds, rows: RowIds) -> Iterator[Pairs]:
        """All pairs of a sampled row with any other; those of two sampled rows once."""
        others = np.setdiff1d(rows, sample, assume_unique=True)
        self.progress.phase("measuring a sample", len(sample) * 2)
        yield from self.pairs_of(iter(self._plain_within(sample)))
        yield from self.pairs_of(iter(self._plain_between(sample, others)))


def _visit_needed(centroids: Centroids, vectors: Vectors, pairs: Pairs) -> Float64Array:
    """How far away, as of `cells.reach`, a cell must be visited for each pair to be met, (n,); 0 in one cell."""
    rows, places = np.unique(np.concatenate([pairs.left, pairs.right]), return_inverse=True)
    products = centroids.products(vectors[rows])
    own, best = products.argmax(axis=1), products.max(axis=1)
    left, right = places[: len(pairs)], places[len(pairs) :]
    steps = [best[one] - products[one, own[other]] for one, other in ((left, right), (right, left))]
    needed = np.minimum(*steps) / np.maximum(centroids.apart[own[left], own[right]], 1e-6)
    return np.where(own[left] == own[right], 0.0, needed)
