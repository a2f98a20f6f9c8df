"""The cell of every row and the cells that it probes, on disk with two bytes a probe, twice."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.arrays import Float32Array, Float64Array, Int32Array, Int64Array, Mask, RowIds, Vectors
from indexer.system.threads import ordered_map, single_torch_thread
from search.dedup.join.cells import Centroids, visits
from search.dedup.join.tiles import seen_by_all
from search.dedup.vectors import disk_full

_PLACE_BITS = 11
_STORED = 1 << _PLACE_BITS  # rows a block: two bytes hold a place in the block, and a product in
_STEPS = 30  # steps from 0 to 1, rounded up
_PRODUCTS = 1 << 21  # of rows and centroids together, within the processor's cache
Short = npt.NDArray[np.uint16]


@dataclass(frozen=True)
class Cells:
    """The cell of each row, `own` (n,), of `count` cells; and the probes.

    The file has two lists: `visited`, the cells that rows probe, by row; and `visiting`, the probing rows, by block and
    cell. An entry of `visiting` has the row's place in its block and, in the bits above, its product with the cell's
    centroid in steps, rounded up. `closeness` (n,) is a lower bound on a row's product with its own centroid.
    """

    own: Int32Array
    closeness: Float32Array
    count: int
    row_starts: Int64Array  # (n + 1,) in `visited`
    cell_starts: Int32Array  # (blocks, count + 1) in a block's part of `visiting`
    path: Path
    lists: Short  # visited, then visiting

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
        try:
            with path.open("wb") as visited, by_cell.open("w+b") as visiting:
                for number, block in enumerate(ordered_map(sort, starts, threads)):
                    first, end = number * _STORED, number * _STORED + len(block.own)
                    own[first:end], closeness[first:end] = block.own, block.closeness
                    counts[first + 1 : end + 1] = block.visits
                    cell_starts[number, 1:] = np.cumsum(block.visitors)
                    visited.write(block.cells.data)
                    visiting.write(block.rows.data)
                    advance(len(block.own))
                visiting.seek(0)
                shutil.copyfileobj(visiting, visited, 1 << 24)
        except OSError as error:
            raise disk_full(path, error) from error
        by_cell.unlink()
        return cls(own, closeness, len(centroids), np.cumsum(counts), cell_starts, path, _open(path))

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"lists": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        with seen_by_all(state["path"]):
            vars(self).update(state, lists=_open(state["path"]))

    @property
    def mean_visits(self) -> float:
        """Mean number of cells that a row probes, without its own."""
        return int(self.row_starts[-1]) / max(1, len(self.own))

    @property
    def share_left(self) -> float:
        """Share of the pairs of all rows that lie in one cell or meet through a probe."""
        sizes = np.bincount(self.own, minlength=self.count)
        visitors = np.diff(self.cell_starts, axis=1).sum(axis=0, dtype=np.int64)
        return float((sizes * (visitors + sizes / 2)).sum() / max(1.0, len(self.own) ** 2 / 2))

    def visitors(self, cell: int) -> tuple[RowIds, Float64Array]:
        """Return the rows that probe a cell, ascending, and upper bounds on their products with its centroid."""
        blocks = np.flatnonzero(self.cell_starts[:, cell + 1] > self.cell_starts[:, cell])
        if not len(blocks):
            return np.zeros(0, np.int64), np.zeros(0)
        firsts = self.row_starts[-1] + self.row_starts[blocks * _STORED]
        begins = (firsts + self.cell_starts[blocks, cell]).tolist()
        ends = (firsts + self.cell_starts[blocks, cell + 1]).tolist()
        kept = np.concatenate([self.lists[begin:end] for begin, end in zip(begins, ends, strict=True)])
        rows = np.repeat(blocks * _STORED, np.subtract(ends, begins)) + (kept & (_STORED - 1))
        return rows, ((kept >> _PLACE_BITS).astype(np.float64) - 1) / _STEPS

    def meet(self, left: RowIds, right: RowIds) -> Mask:
        """Return a mask of the pairs of rows that share a cell or meet through a probe, (n,), (n,) -> (n,)."""
        own = self.own
        probed = self.are_visited(left, own[right]) | self.are_visited(right, own[left])
        met: Mask = (own[left] == own[right]) | probed
        return met

    def are_visited(self, rows: RowIds, cells: Int32Array) -> Mask:
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
    own: Int32Array
    closeness: Float32Array
    visits: Int64Array  # number of probes of each row
    cells: Short  # probed cells, by row
    visitors: Int64Array  # number of probes of each cell
    rows: Short  # probing rows by cell: places, with products in steps in the bits above


def _sort(vectors: Vectors, centroids: Centroids, limits: Float32Array, first: int) -> _Block:
    last = min(len(vectors), first + _STORED)
    step = max(1, _PRODUCTS // len(centroids))
    own, best, rows, cells, steps = [], [], [], [], []
    with single_torch_thread():
        for start in range(first, last, step):
            block = visits(centroids.products(vectors[start : min(last, start + step)]), limits)
            own.append(block.own)
            best.append(block.best)
            rows.append(block.rows + (start - first))
            cells.append(block.cells.astype(np.uint16))
            steps.append(_steps(block.products + np.float32(centroids.slack)))
    row, cell = np.concatenate(rows), np.concatenate(cells)
    by_cell = np.argsort(cell, kind="stable")
    return _Block(
        np.concatenate(own).astype(np.int32),
        np.concatenate(best) - np.float32(centroids.slack),
        np.bincount(row, minlength=last - first),
        cell,
        np.bincount(cell, minlength=len(centroids)),
        (row + (np.concatenate(steps) << _PLACE_BITS))[by_cell].astype(np.uint16),
    )


def _steps(products: Float32Array) -> Int64Array:
    """Return 0 for negative products, else the step with product <= (step - 1) / `_STEPS`."""
    return 1 + np.clip(np.ceil(products.astype(np.float64) * _STEPS), -1, _STEPS).astype(np.int64)


def _open(path: Path) -> Short:
    if not path.stat().st_size:
        return np.zeros(0, np.uint16)
    lists: Short = np.memmap(path, np.uint16, mode="r").view(np.ndarray)  # slices of a plain array are 5 times faster
    return lists
