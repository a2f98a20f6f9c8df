"""Tasks of a join with cells: compare the rows of each cell with each other and with the rows that probe the cell.

A pair of rows that probe each other's cells is found twice and kept once, in the cell with the lower number.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from indexer.arrays import Int64Array, Mask, RowIds
from search.dedup.join.cells import highest_met
from search.dedup.join.probes import STEP_PRODUCTS, Cells, Short
from search.dedup.join.tiles import QuantisedMatrix, Task, Tile


@dataclass(frozen=True)
class _Members:
    """Rows by cell, and a mask of these rows among all rows."""

    cells: Cells
    rows: RowIds
    starts: Int64Array
    among: Mask

    @classmethod
    def of(cls, cells: Cells, rows: RowIds) -> "_Members":
        own = cells.own[rows]
        order = np.argsort(own, kind="stable")
        starts = np.searchsorted(own[order], np.arange(cells.count + 1))
        among = np.zeros(len(cells.own), bool)
        among[rows] = True
        return cls(cells, rows[order], starts, among)

    def size(self, cell: int) -> int:
        return int(self.starts[cell + 1] - self.starts[cell])

    def own(self, cell: int) -> RowIds:
        return self.rows[self.starts[cell] : self.starts[cell + 1]]

    def probing(self, cell: int) -> tuple[RowIds, Short]:
        rows, steps = self.cells.probing(cell)
        return rows[self.among[rows]], steps[self.among[rows]]


@dataclass(frozen=True)
class CellComparison:
    """Compares quantised rows within cells for scores of at least `threshold`; a task has at most `step` rows."""

    quantised: QuantisedMatrix
    cells: Cells
    threshold: float
    step: int

    def within(self, rows: RowIds) -> list[Task]:
        """Return tasks for the pairs of `rows`, ascending."""
        members = _Members.of(self.cells, rows)
        return [
            (min(self.step, members.size(cell) - first), partial(self._within, members, cell, first))
            for cell in range(self.cells.count)
            for first in range(0, members.size(cell), self.step)
        ]

    def between(self, left: RowIds, right: RowIds) -> list[Task]:
        """Return tasks for the pairs of `left` and `right`, both ascending, disjoint."""
        lefts, rights = _Members.of(self.cells, left), _Members.of(self.cells, right)
        return [(lefts.size(cell), partial(self._between, lefts, rights, cell)) for cell in range(self.cells.count)]

    def _within(self, members: _Members, cell: int, first: int) -> Iterator[Tile]:
        own, last = members.own(cell), first + self.step
        yield from self.quantised.compare_within(own, first, last, self.threshold)
        yield from self._with_probing(own[first:last], *members.probing(cell))

    def _between(self, lefts: _Members, rights: _Members, cell: int) -> Iterator[Tile]:
        left, right = lefts.own(cell), rights.own(cell)
        if len(left):
            yield from self.quantised.compare(left, right, self.threshold)
            yield from self._with_probing(left, *rights.probing(cell))
        if len(right):
            for tile in self._with_probing(right, *lefts.probing(cell)):
                yield Tile(tile.right, tile.left, tile.columns, tile.rows)

    def _with_probing(self, own: RowIds, probing: RowIds, steps: Short) -> Iterator[Tile]:
        """Yield tiles of a cell's rows and its probing rows, without rows too close to the centroid for a match."""
        by_closeness = own[np.argsort(self.cells.closeness[own], kind="stable")]
        highest = highest_met(STEP_PRODUCTS, self.threshold)
        met_by_step = np.searchsorted(self.cells.closeness[by_closeness], highest, side="right")
        met = met_by_step.astype(np.min_scalar_type(len(own)))[steps]  # 16 bits are sorted in an eighth of the time
        order, width = np.argsort(met, kind="stable"), self.quantised.kernel.tile[1]
        order = order[np.searchsorted(met[order], 1) :]
        for start in range(0, len(order), width):
            chunk = order[start : start + width]
            few = np.sort(by_closeness[: met[chunk[-1]]])
            for tile in self.quantised.compare(few, np.sort(probing[chunk]), self.threshold):
                yield self._once(tile)

    def _once(self, tile: Tile) -> Tile:
        """Return a tile without the pairs that the probing row's own cell keeps."""
        own, probing = tile.left[tile.rows], tile.right[tile.columns]
        here, there = self.cells.own[own], self.cells.own[probing]
        elsewhere = there < here
        elsewhere[elsewhere] = self.cells.are_probed(own[elsewhere], there[elsewhere])
        return Tile(tile.left, tile.right, tile.rows[~elsewhere], tile.columns[~elsewhere])
