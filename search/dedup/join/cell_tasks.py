"""What a join has to compare once rows are sorted into cells: each cell's rows with one another and with its visitors.

A pair of two rows that visit each other's cells is met twice and kept once, in the cell of the lower number.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from indexer.arrays import Float64Array, Int64Array, Mask, RowIds
from search.dedup.join.cells import highest_met
from search.dedup.join.tiles import CodeMatrix, Task, Tile
from search.dedup.join.visits import Cells


@dataclass(frozen=True)
class _Members:
    """Some rows by cell, and whether each of all rows is among them (None: all are)."""

    cells: Cells
    rows: RowIds
    starts: Int64Array
    among: Mask | None

    @classmethod
    def of(cls, cells: Cells, rows: RowIds) -> "_Members":
        own = cells.own[rows]
        order = np.argsort(own, kind="stable")
        starts = np.searchsorted(own[order], np.arange(cells.count + 1))
        among = None
        if len(rows) < len(cells.own):
            among = np.zeros(len(cells.own), bool)
            among[rows] = True
        return cls(cells, rows[order], starts, among)

    def size(self, cell: int) -> int:
        return int(self.starts[cell + 1] - self.starts[cell])

    def own(self, cell: int) -> RowIds:
        return self.rows[self.starts[cell] : self.starts[cell + 1]]

    def visitors(self, cell: int) -> tuple[RowIds, Float64Array]:
        rows, products = self.cells.visitors(cell)
        return (rows, products) if self.among is None else (rows[self.among[rows]], products[self.among[rows]])


@dataclass(frozen=True)
class CellComparison:
    """Comparing within cells of `coded` rows for scores of at least `threshold`, at most `step` own rows a task."""

    coded: CodeMatrix
    cells: Cells
    threshold: float
    step: int

    def within(self, rows: RowIds) -> list[Task]:
        """Tasks for the pairs of two of `rows`, ascending."""
        members = _Members.of(self.cells, rows)
        return [
            (min(self.step, members.size(cell) - first), self._within(members, cell, first))
            for cell in range(self.cells.count)
            for first in range(0, members.size(cell), self.step)
        ]

    def between(self, left: RowIds, right: RowIds) -> list[Task]:
        """Tasks for the pairs of one of `left` and one of `right`, ascending and apart."""
        ours, theirs = _Members.of(self.cells, left), _Members.of(self.cells, right)
        return [(ours.size(cell), self._between(ours, theirs, cell)) for cell in range(self.cells.count)]

    def _within(self, members: _Members, cell: int, first: int) -> Callable[[], Iterator[Tile]]:
        def tiles() -> Iterator[Tile]:
            own, last = members.own(cell), first + self.step
            yield from self.coded.compare_within(own, first, last, self.threshold)
            yield from self._visited(own[first:last], *members.visitors(cell))

        return tiles

    def _between(self, ours: _Members, theirs: _Members, cell: int) -> Callable[[], Iterator[Tile]]:
        def tiles() -> Iterator[Tile]:
            own, others = ours.own(cell), theirs.own(cell)
            if len(own):
                yield from self.coded.compare(own, others, self.threshold)
                yield from self._visited(own, *theirs.visitors(cell))
            if len(others):
                for tile in self._visited(others, *ours.visitors(cell)):
                    yield Tile(tile.right, tile.left, tile.columns, tile.rows)

        return tiles

    def _visited(self, own: RowIds, visitors: RowIds, products: Float64Array) -> Iterator[Tile]:
        """Rows of a cell against its visitors, each with those that are not too close to the centroid for it."""
        by_closeness = own[np.argsort(self.cells.closeness[own], kind="stable")]
        highest = highest_met(products, self.threshold)
        met = np.searchsorted(self.cells.closeness[by_closeness], highest, side="right")
        order, width = np.argsort(met, kind="stable"), self.coded.kernel.tile[1]
        order = order[np.searchsorted(met[order], 1) :]
        for start in range(0, len(order), width):
            chunk = order[start : start + width]
            few = np.sort(by_closeness[: met[chunk[-1]]])
            for tile in self.coded.compare(few, np.sort(visitors[chunk]), self.threshold):
                yield self._once(tile)

    def _once(self, tile: Tile) -> Tile:
        """Without the pairs of a cell's rows (left) and its visitors that are kept in the visitor's cell."""
        own, visitor = tile.left[tile.rows], tile.right[tile.columns]
        here, there = self.cells.own[own], self.cells.own[visitor]
        elsewhere = there < here
        elsewhere[elsewhere] = self.cells.are_visited(own[elsewhere], there[elsewhere])
        return Tile(tile.left, tile.right, tile.rows[~elsewhere], tile.columns[~elsewhere])
