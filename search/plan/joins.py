"""The work of the near-duplicate joins, as `search.dedup` does it: pairs compared, and how they grow with the rows.

The exact join compares all pairs of a few rows. Of more it compares what cells leave. The share of pairs that is left
falls as 1 / sqrt(rows), as cells get more with the rows; where there are as many as there may be, it stays. The
approximate join has its cells in proportion to sqrt(rows), up to the same number. So both grow with rows^1.5, and from
there with the square of the rows.
"""

from dataclasses import dataclass

from search.plan.constants import constants

MOST_CELLS = 8192  # these are the limits of `search.dedup.join.cells` and `search.dedup.join.approximate`
LEAST_WORK = 4e10  # multiplications, of at most `WIDTH` numbers a pair: less is done without cells
WIDTH, INT8_COST = 96, 0.3
CELLS_PER_ROOT = 1.4
_WIDE = 256  # dimensions above which constants are those of 381-dimensional vectors


@dataclass(frozen=True)
class ExactWork:
    """Pairs that are compared, of rows² / 2, and the cells that leave them; no cells: all pairs are compared."""

    rows: int
    cells: int
    share: float

    @property
    def pairs(self) -> float:
        """Compared."""
        return self.rows**2 / 2 * self.share


def width_name(dim: int) -> str:
    """Which constants stand for so many dimensions."""
    return "wide" if dim > _WIDE else "narrow"


def exact_work(rows: int, dim: int) -> ExactWork:
    """What the exact join compares of so many vectors."""
    if rows**2 / 2 * min(dim, WIDTH) * INT8_COST < LEAST_WORK:
        return ExactWork(rows, 0, 1.0)
    a_cell = constants()["join.rows_a_cell"].value
    growing = min(rows, MOST_CELLS * a_cell)
    share = constants()[f"join.{width_name(dim)}.left"].value / growing**0.5
    return ExactWork(rows, round(growing / a_cell), min(1.0, share))


def growing_with_root(rows: int) -> float:
    """The rows up to which cells of the approximate join get more, or all."""
    return min(rows, (MOST_CELLS / CELLS_PER_ROOT) ** 2)
