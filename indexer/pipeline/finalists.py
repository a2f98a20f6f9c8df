"""Which of the kinds of index compared on a sample are filled with every row, and which of those is best.

A sample misleads about inverted lists: it puts a handful of rows into each, so that a query seems to need more of them
than it does. (IVF4096 on a million embeddings: half of its lists for 99.5 % of the ten best by 30,000 of the rows.)
So kinds within reach of the best are compared again with every row, where filling is quick; a graph takes twenty times
as long to fill as codes do, and is filled only if it promises less work than what was measured so far.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from indexer import ann

_NEAR = 4  # times the least predicted work: what a prediction may be wrong by


@dataclass(frozen=True)
class FilledIndex:
    """An index of all rows, its curve up to the recall asked for, and the point that it is set to."""

    factory: str
    index: Any
    curve: list[ann.CurvePoint]
    point: ann.CurvePoint
    bytes_per_vector: float

    @property
    def recall(self) -> float:
        """recall@10 at the point."""
        return self.point.recall

    @property
    def cost(self) -> int:
        """Work of a query at the point."""
        return self.point.work.cost


class Finalists:
    """Kinds that are worth filling, in the order in which to do it, and what they turned out to be.

    `figures` tell of all of them, JSON types. Only the best index is kept in memory.
    """

    def __init__(self, kinds: Sequence[ann.Considered], recall: float) -> None:
        """`kinds` by ascending work, one at least."""
        self._recall = recall
        first = kinds[0]
        self._near = [one for one in kinds if not ann.is_exact(first.factory) and _is_near(one, first.cost)]
        self._others = [one for one in kinds if one not in self._near]
        self._scans: set[str] = set()  # of those that reached the recall
        self._best: FilledIndex | None = None
        self.figures: list[dict[str, Any]] = []

    def __iter__(self) -> Iterator[ann.Considered]:
        """The kinds to fill, decided upon as the ones before have been taken."""
        for one in self._near:
            if _scan_of(one) not in self._scans or self._promises_less(one):
                yield one
        for one in self._others:
            if self._promises_less(one):
                yield one

    def take(self, filled: FilledIndex) -> None:
        """Compare an index of all rows with those before."""
        self.figures.append({"factory": filled.factory, "recall": filled.recall, "cost": filled.cost})
        if filled.recall >= self._recall:
            self._scans.add(_scan_of(filled))
        if self._best is None or self._rank(filled) < self._rank(self._best):
            self._best = filled

    @property
    def best(self) -> FilledIndex:
        """The one of least work that reaches the recall; where none does, the one of highest recall."""
        if self._best is None:
            raise RuntimeError("no index has been filled yet")
        return self._best

    @property
    def missed(self) -> str:
        """Those that did not reach the recall, in words."""
        low = [one for one in self.figures if one["recall"] < self._recall]
        return "; ".join(f"{one['factory']} reached {one['recall']:.4f} with all rows" for one in low)

    def _promises_less(self, one: ann.Considered) -> bool:
        return not self._scans or one.cost < self.best.cost

    def _rank(self, filled: FilledIndex) -> tuple[bool, float]:
        low = filled.recall < self._recall
        return low, -filled.recall if low else filled.cost


def _is_near(one: ann.Considered, least: int) -> bool:
    return one.cost <= _NEAR * least and not ann.is_exact(one.factory) and not ann.is_graph(one.trained)


def _scan_of(one: ann.Considered | FilledIndex) -> str:
    """What a kind scans, whatever codes score the candidates again."""
    return one.factory.partition(",Refine")[0]
