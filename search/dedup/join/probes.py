"""The cell of every row and the cells that it probes, on disk with two bytes a probe, twice."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.arrays import Float32Array, Int32Array, Int64Array, Mask, RowIds, Vectors
from indexer.system.threads import ordered_map, single_torch_thread
from search.dedup.join.cells import Centroids, find_probes
from search.dedup.join.tiles import seen_by_all
from search.dedup.vectors import temporary_file

_PLACE_BITS = 11
_STORED = 1 << _PLACE_BITS  # rows a block: two bytes hold a place in the block, and a product in
_STEPS = 30  # steps from 0 to 1, rounded up
STEP_PRODUCTS = (np.arange(_STEPS + 2) - 1) / _STEPS  # the largest product of each step
_PRODUCTS = 1 << 21  # of rows and centroids together, within the processor's cache
Short = npt.NDArray[np.uint16]


@dataclass(frozen=True)
class Cells:
    """The cell of each row, `own` (n,), of `count` cells; and the probes.

    The file has two lists: `probed`, the cells that rows probe, by row; and `probing`, the probing rows, by block and
    cell. An entry of `probing` has the row's place in its block and, in the bits above, its product with the cell's
    centroid in steps, rounded up. `closeness` (n,) is a lower bound on a row's product with its own centroid.
    """

    own: Int32Array
    closeness: Float32Array
    count: int
    row_starts: Int64Array  # (n + 1,) in `probed`
    cell_starts: Int32Array  # (blocks, count + 1) in a block's part of `probing`
    path: Path
    lists: Short  # probed, then probing

    @classmethod
    def of(
        cls,
        vectors: Vectors,
        centroids: Centroids,
        reach: float,
        path: Path,
        threads: int,
        advance: Callable[[int], None],
    ) -> "Cells":
        """Sort vectors (n, d) into cells; `reach` is that of `cells.reach`, or less if pairs may be missed.

        Raises StoreError for a full disk.
        """
        own, closeness = np.zeros(len(vectors), np.int32), np.zeros(len(vectors), np.float32)
        counts = np.zeros(len(vectors) + 1, np.int64)
        starts = range(0, len(vectors), _STORED)
        cell_starts = np.zeros((len(starts), len(centroids) + 1), np.int32)
        sort = partial(_sort, vectors, centroids, centroids.limits(reach))
        by_cell = path.with_suffix(".by-cell")
        with temporary_file(path) as probed, temporary_file(by_cell) as probing:
            for number, block in enumerate(ordered_map(sort, starts, threads)):
                first, end = number * _STORED, number * _STORED + len(block.own)
                own[first:end], closeness[first:end] = block.own, block.closeness
                counts[first + 1 : end + 1] = np.bincount(block.rows, minlength=len(block.own))
                cell_starts[number, 1:] = np.cumsum(np.bincount(block.probed, minlength=len(centroids)))
                probed.write(block.probed.data)
                probing.write(block.probing.data)
                advance(len(block.own))
            probing.seek(0)
            shutil.copyfileobj(probing, probed, 1 << 24)
        by_cell.unlink()
        return cls(own, closeness, len(centroids), np.cumsum(counts), cell_starts, path, _open(path))

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"lists": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        with seen_by_all(state["path"]):
            vars(self).update(state, lists=_open(state["path"]))

    @property
    def mean_probes(self) -> float:
        """Mean number of cells that a row probes, without its own."""
        return int(self.row_starts[-1]) / max(1, len(self.own))

    @property
    def share_left(self) -> float:
        """Share of the pairs of all rows that lie in one cell or meet through a probe."""
        sizes = np.bincount(self.own, minlength=self.count)
        probing = np.diff(self.cell_starts, axis=1).sum(axis=0, dtype=np.int64)
        return float((sizes * (probing + sizes / 2)).sum() / max(1.0, len(self.own) ** 2 / 2))

    def probing(self, cell: int) -> tuple[RowIds, Short]:
        """Return the rows that probe a cell, ascending, and the steps of their products with its centroid: places in
        `STEP_PRODUCTS`."""
        blocks = np.flatnonzero(self.cell_starts[:, cell + 1] > self.cell_starts[:, cell])
        if not len(blocks):
            return np.zeros(0, np.int64), np.zeros(0, np.uint16)
        firsts = self.row_starts[-1] + self.row_starts[blocks * _STORED]
        begins = (firsts + self.cell_starts[blocks, cell]).tolist()
        ends = (firsts + self.cell_starts[blocks, cell + 1]).tolist()
        kept = np.concatenate([self.lists[begin:end] for begin, end in zip(begins, ends, strict=True)])
        rows = np.repeat(blocks * _STORED, np.subtract(ends, begins)) + (kept & (_STORED - 1))
        return rows, kept >> np.uint16(_PLACE_BITS)

    def are_probed(self, rows: RowIds, cells: Int32Array) -> Mask:
        """Return a mask of the rows that probe the cell at the same place, (n,), (n,) -> (n,)."""
        begins, ends = self.row_starts[rows], self.row_starts[rows + 1]
        mask = np.zeros(len(rows), bool)
        # A binary search for all rows together: the cells of a row ascend.
        while (open_ := begins < ends).any():
            middle = (begins + ends) // 2
            at = np.zeros(len(rows), np.int64)
            at[open_] = self.lists[middle[open_]]
            mask |= open_ & (at == cells)
            below = open_ & (at < cells)
            begins = np.where(below, middle + 1, begins)
            ends = np.where(open_ & ~below, middle, ends)
        return mask


@dataclass(frozen=True)
class _Block:
    own: RowIds
    closeness: Float32Array
    rows: RowIds  # the place in the block of each probing row, by row
    probed: Short  # probed cells, by row
    probing: Short  # by cell: places of probing rows, with products in steps in the bits above


def _sort(vectors: Vectors, centroids: Centroids, limits: Float32Array, first: int) -> _Block:
    last = min(len(vectors), first + _STORED)
    step = max(1, _PRODUCTS // len(centroids))
    starts = range(first, last, step)
    with single_torch_thread():
        found = [find_probes(centroids.products(vectors[start : min(last, start + step)]), limits) for start in starts]
    rows = np.concatenate([probes.rows + (start - first) for start, probes in zip(starts, found, strict=True)])
    cells = np.concatenate([probes.cells.astype(np.uint16) for probes in found])
    steps = np.concatenate([_steps(probes.products + np.float32(centroids.slack)) for probes in found])
    return _Block(
        np.concatenate([probes.own for probes in found]),
        np.concatenate([probes.best for probes in found]) - np.float32(centroids.slack),
        rows,
        cells,
        (rows + (steps << _PLACE_BITS))[np.argsort(cells, kind="stable")].astype(np.uint16),
    )


def _steps(products: Float32Array) -> Int64Array:
    """Return the least step whose `STEP_PRODUCTS` is at least the product."""
    return 1 + np.clip(np.ceil(products.astype(np.float64) * _STEPS), -1, _STEPS).astype(np.int64)


def _open(path: Path) -> Short:
    if not path.stat().st_size:
        return np.zeros(0, np.uint16)
    lists: Short = np.memmap(path, np.uint16, mode="r").view(np.ndarray)  # slices of a plain array are 5 times faster
    return lists
