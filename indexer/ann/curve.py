"""Recall against work: what each setting of an index's search parameters reaches, and what it costs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.ann.grid import parameter_grid
from indexer.ann.parameters import search_parameters, set_search_parameters
from indexer.ann.searching import search_index
from indexer.ann.threads import one_thread
from indexer.ann.truth import Truth
from indexer.ann.work import Work, reads
from indexer.errors import ConfigError

_ALL = 0.9995  # recall beyond which nothing more is looked for


@dataclass(frozen=True)
class CurvePoint:
    """Search parameters, the recall they reach, and the work of a query."""

    search_parameters: dict[str, int]
    recall: float
    work: Work

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {"search_parameters": self.search_parameters, "recall": self.recall} | asdict(self.work)


def recall_curve(
    index: Any,
    truth: Truth,
    allowed: npt.NDArray[np.bool_] | None = None,
    enough: float = _ALL,
    begun: Sequence[CurvePoint] = (),
) -> list[CurvePoint]:
    """Points of ever more work and ever higher recall, until `enough` is reached or there is no other setting.

    `allowed` (rows of the index,) are those that may be found. `begun` is a curve of the same index and queries that
    had enough earlier. The index keeps the parameters it had.
    """
    before, points, settings = search_parameters(index), list(begun), parameter_grid(index, truth.depth)
    if points:
        done = points[-1].search_parameters
        where = next(number for number, setting in enumerate(settings) if setting.items() <= done.items())
        settings = settings[where + 1 :] if points[-1].recall < enough else []
    try:
        for parameters in settings:
            set_search_parameters(index, parameters)
            with one_thread():
                recall = truth.recall(search_index(index, truth.queries, truth.reach, allowed))
            if not points or recall > points[-1].recall:
                points.append(CurvePoint(search_parameters(index), recall, reads(index, truth.depth)))
            if recall >= enough:
                break
    finally:
        set_search_parameters(index, before)
    return points


def cheapest_with(curve: Sequence[CurvePoint], recall: float) -> CurvePoint:
    """The point of least work that reaches `recall`, or else the one that reaches most."""
    return next((point for point in curve if point.recall >= recall), curve[-1])


def parameters_for(curve: Sequence[Mapping[str, Any]], recall: float) -> dict[str, int]:
    """The search parameters of least work that reach `recall`, of a curve as a manifest holds it.

    Raises ConfigError naming the highest recall there is.
    """
    for point in curve:
        if point["recall"] >= recall:
            return dict(point["search_parameters"])
    raise ConfigError(
        f"no search parameters of this index reach a recall@10 of {recall:g}; the highest measured is "
        f"{curve[-1]['recall']:.4f}. Ask for that, search exactly (--exact), or build with a higher index.recall."
    )
