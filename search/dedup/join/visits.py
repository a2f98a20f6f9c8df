"""Every row in its cell, and which other cells it visits, kept on disk: two bytes a visit, twice."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from indexer.arrays import Float32Array, Float64Array, Int32Array, Int64Array, Mask, RowIds, Vectors
from indexer.system.threads import ordered_map, single_torch_thread
from search.dedup.join.cells import Centroids, visits
from search.dedup.join.tiles import seen_by_all
from search.dedup.vectors import disk_full

_PLACE_BITS = 11
_STORED = 1 << _PLACE_BITS  # rows whose visits are kept together: two bytes hold a place, and a product in
_STEPS = 30  # steps from 0 to 1, rounded up
_PRODUCTS = 1 << 21  # of rows and centroids at once: they stay in the processor's cache
Short = npt.NDArray[np.uint16]


@dataclass(frozen=True)
class Cells:
    """The cell of each row, `own` (n,), of `count`; and who visits which.

    `visited` in the file are the cells that rows visit, by row; `visiting` the places in their block of the rows that
    visit, by block and cell, and above these bits their products with the centroid of the cell in steps, rounded up.
    `closeness` (n,) is a row's product with its own centroid, less what rounding may have added.
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
        """Sort vectors (n, d); `reach` as of `cells.reach`, or less where pairs may be missed. Files begin as `path`.

        Raises StoreError when the disk is full.
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
                _append(visiting, visited)
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
        """Cells that a row visits on average, beside its own."""
        return int(self.row_starts[-1]) / max(1, len(self.own))

    @property
    def share_left(self) -> float:
        """Of the pairs of all rows, the share that lies in one cell or is brought together by a visit."""
        sizes = np.bincount(self.own, minlength=self.count)
        visitors = np.diff(self.cell_starts, axis=1).sum(axis=0, dtype=np.int64)
        return float((sizes * (visitors + sizes / 2)).sum() / max(1.0, len(self.own) ** 2 / 2))

    def visitors(self, cell: int) -> tuple[RowIds, Float64Array]:
        """The rows that visit a cell, ascending, and bounds on their products with its centroid from above."""
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
        """Whether the rows of each pair are in one cell, or one of them visits the other's, (n,) and (n,)."""
        own = self.own
        visit = self.are_visited(left, own[right]) | self.are_visited(right, own[left])
        together: Mask = (own[left] == own[right]) | visit
        return together

    def are_visited(self, rows: RowIds, cells: Int32Array) -> Mask:
        """Whether each row visits the cell beside it, (n,) and (n,)."""
        begins, ends = self.row_starts[rows], self.row_starts[rows + 1]
        found = np.zeros(len(rows), bool)
        # All rows are halved at once: the cells of a row ascend.
        while (open_ := begins < ends).any():
            middle = (begins + ends) // 2
            at = np.zeros(len(rows), np.int64)
            at[open_] = self.lists[middle[open_]]
            found |= open_ & (at == cells)
            below = open_ & (at < cells)
            begins = np.where(below, middle + 1, begins)
            ends = np.where(open_ & ~below, middle, ends)
        return found


@dataclass(frozen=True)
class _Block:
    own: Int32Array
    closeness: Float32Array
    visits: Int64Array  # of each row
    cells: Short  # visited, by row
    visitors: Int64Array  # of each cell
    rows: Short  # that visit, by cell: their places, and their products in steps above them


def _sort(vectors: Vectors, centroids: Centroids, limits: Float32Array, first: int) -> _Block:
    last = min(len(vectors), first + _STORED)
    step = max(1, _PRODUCTS // len(centroids))
    own, best, rows, cells, steps = [], [], [], [], []
    with single_torch_thread():
        for start in range(first, last, step):
            found = visits(centroids.products(vectors[start : min(last, start + step)]), limits)
            own.append(found.own)
            best.append(found.best)
            rows.append(found.rows + (start - first))
            cells.append(found.cells.astype(np.uint16))
            steps.append(_steps(found.products + np.float32(centroids.slack)))
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
    """0 for what is below 0, else 1 and more: the product is at most (step - 1) / `_STEPS`."""
    return 1 + np.clip(np.ceil(products.astype(np.float64) * _STEPS), -1, _STEPS).astype(np.int64)


def _append(source: BinaryIO, target: BinaryIO) -> None:
    source.seek(0)
    while data := source.read(1 << 24):
        target.write(data)


def _open(path: Path) -> Short:
    if not path.stat().st_size:
        return np.zeros(0, np.uint16)
    found: Short = np.memmap(path, np.uint16, mode="r").view(np.ndarray)  # whose slices take a fifth of the time
    return found
