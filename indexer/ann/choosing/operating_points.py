"""Operating points of an index: settings of its search parameters, the recall they reach, and what they cost.

Settings are tried in the order of the work they make. Where there are two parameters, a search of inverted lists whose
candidates are scored again, only those are tried that lie beside a path: from one setting to the neighbour that gains
most recall for its work. That is a few dozen instead of all pairs, of which most make much work for nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, Protocol

from indexer.ann.choosing.cost import QueryCost, query_cost
from indexer.ann.choosing.recall import GroundTruth
from indexer.ann.faiss_index import faiss_threads, single_faiss_thread
from indexer.ann.parameters import WIDEST_WALK, largest_parameters, search_parameters, set_search_parameters
from indexer.ann.search import search_index
from indexer.arrays import Mask, SearchResult
from indexer.errors import ConfigError
from indexer.system.threads import ordered_map

_ALL = 0.9995  # recall beyond which nothing more is looked for
LEAST_WIDTH = 16  # of a walk through a graph, which keeps as many nodes as rows are wanted anyway
_MOST_CANDIDATES = 1024  # for each row wanted: to sort more takes longer than to scan
_LEAST_SHARE, _MOST_SHARE = 1 / 256, 4  # of the cost of scanning, what scoring again may cost
_QUERIES = 64  # that a thread searches for at once, however many threads there are: the same bits with any number

Setting = dict[str, int]


@dataclass(frozen=True)
class OperatingPoint:
    """Search parameters, the recall they reach, and the work of a query."""

    search_parameters: dict[str, int]
    recall: float
    work: QueryCost

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {"search_parameters": self.search_parameters, "recall": self.recall} | asdict(self.work)


def recall_curve(
    index: Any,
    truth: GroundTruth,
    allowed: Mask | None = None,
    enough: float = _ALL,
    begun: Sequence[OperatingPoint] = (),
) -> list[OperatingPoint]:
    """Points of ever more work and ever higher recall, until `enough` is reached or no other setting finds more.

    `allowed` (rows of the index,) are those that may be found. `begun` is a curve of the same index and queries that
    had enough earlier, whose points are not measured again. The index keeps the parameters it had.
    """
    if begun and begun[-1].recall >= enough:
        return list(begun)
    before, points = search_parameters(index), list[OperatingPoint]()
    try:
        for point in _tried(_Measured(index, truth, allowed, begun)):
            if not points or (point.recall > points[-1].recall and point.work.cost >= points[-1].work.cost):
                points.append(point)
            if point.recall >= enough:
                break
    finally:
        set_search_parameters(index, before)
    return points


class _Measured:
    """The operating point of each setting of an index, each measured once."""

    def __init__(self, index: Any, truth: GroundTruth, allowed: Mask | None, known: Sequence[OperatingPoint]) -> None:
        self.index, self.depth = index, truth.depth
        self._truth, self._allowed = truth, allowed
        self._points = {_key(point.search_parameters): point for point in known}

    def __call__(self, setting: Setting) -> OperatingPoint:
        set_search_parameters(self.index, setting)
        found = search_parameters(self.index)
        if _key(found) not in self._points:
            recall = self._truth.recall(_answers(self.index, self._truth, self._allowed))
            self._points[_key(found)] = OperatingPoint(found, recall, query_cost(self.index, self.depth))
        return self._points[_key(found)]


def _key(setting: Setting) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(setting.items()))


def _answers(index: Any, truth: GroundTruth, allowed: Mask | None) -> list[SearchResult]:
    """The answers to all queries: on all threads of FAISS, and the same to the last bit on any number of them."""

    def search(start: int) -> list[SearchResult]:
        with single_faiss_thread():
            return search_index(index, truth.queries[start : start + _QUERIES], truth.reach, allowed)

    starts = range(0, len(truth), _QUERIES)
    return [answer for answers in ordered_map(search, starts, faiss_threads()) for answer in answers]


def _tried(measured: _Measured) -> Iterator[OperatingPoint]:
    settings = parameter_grid(measured.index, measured.depth)
    yield from _walk(measured, settings) if len(settings[0]) > 1 else map(measured, settings)


def _walk(measured: _Measured, grid: Sequence[Setting]) -> Iterator[OperatingPoint]:
    """From one setting of the grid to the neighbour that gains most recall for its work, till none finds more.

    Neighbours that make less work than that come with it, and on the way to twice as many lists three points between.
    """
    here = measured(grid[0])
    yield here
    while True:
        start, around = here, [measured(setting) for setting in _neighbours(here.search_parameters, grid)]
        step = max(around, key=lambda point: _gain(start, point), default=start)
        if _gain(start, step) <= 0:
            return
        few, many = start.search_parameters["nprobe"], step.search_parameters["nprobe"]
        between = sorted({few + (many - few) * quarter // 4 for quarter in (1, 2, 3)} - {few})
        around += [measured({**step.search_parameters, "nprobe": lists}) for lists in between]
        yield from sorted((one for one in around if one.work.cost <= step.work.cost), key=lambda one: one.work.cost)
        here = step


def _gain(start: OperatingPoint, end: OperatingPoint) -> float:
    return (end.recall - start.recall) / max(1, end.work.cost - start.work.cost)


def _neighbours(given: Setting, grid: Sequence[Setting]) -> list[Setting]:
    """The settings of the grid that have the next larger value of one parameter, or of both."""
    here = {name: given[name] for name in grid[0]}  # some kinds have parameters that are not tuned
    after = {name: min((one[name] for one in grid if one[name] > value), default=value) for name, value in here.items()}
    steps = [*({**here, name: value} for name, value in after.items()), after]
    return [step for step in steps if step != here and step in grid]


def cheapest_point(curve: Sequence[OperatingPoint], recall: float) -> OperatingPoint:
    """The point of least work that reaches `recall`, or else the one that reaches most."""
    return next((point for point in curve if point.recall >= recall), curve[-1])


class CurvePoint(Protocol):
    """A point of a curve, measured now or read from a manifest."""

    @property
    def search_parameters(self) -> Mapping[str, int]: ...

    @property
    def recall(self) -> float: ...


def parameters_for(curve: Sequence[CurvePoint], recall: float) -> dict[str, int]:
    """The search parameters of least work that reach `recall`, of a curve of ascending work.

    Raises ConfigError naming the highest recall there is.
    """
    for point in curve:
        if point.recall >= recall:
            return dict(point.search_parameters)
    raise ConfigError(
        f"no search parameters of this index reach a recall@10 of {recall:g}; the highest measured is "
        f"{curve[-1].recall:.4f}. Ask for that, search exactly (--exact), or build with a higher index.recall."
    )


def parameter_grid(index: Any, k: int = 10) -> list[dict[str, int]]:
    """Settings for a query for the best `k`, in ascending work; a parameter grows by doubling up to its largest value.

    An index with one parameter has one setting for each doubling. With two, a search whose candidates are scored
    again, there are all pairs but those that spend nearly everything on one of the two and could spend it on the
    other. An index without parameters has one setting, which is empty.
    """
    steps = {name: _doublings(least, most) for name, (least, most) in _bounds(index, k).items()}
    settings = [dict(zip(steps, values, strict=True)) for values in product(*steps.values())]
    if len(steps) > 1:
        settings = [setting for setting in settings if _is_balanced(index, k, setting, steps)]
    return sorted(
        settings, key=lambda setting: (query_cost(index, k, parameters=setting).cost, sorted(setting.items()))
    )


def _bounds(index: Any, k: int) -> dict[str, tuple[int, int]]:
    least, bounds = {"nprobe": 1, "efSearch": LEAST_WIDTH, "k_factor": 1}, {}
    for name, most in largest_parameters(index).items():
        if name == "k_factor":
            most = min(_MOST_CANDIDATES, -(-most // k))  # as many candidates as there are rows
        if name == "efSearch":
            most = min(most, WIDEST_WALK)
        bounds[name] = (min(least[name], most), most)
    return bounds


def _doublings(least: int, most: int) -> list[int]:
    found = [least]
    while found[-1] < most:
        found.append(min(2 * found[-1], most))
    return found


def _is_balanced(index: Any, k: int, setting: dict[str, int], steps: dict[str, list[int]]) -> bool:
    """Whether work could not be moved between scanning and scoring again to where there is far less of it."""
    scan = query_cost(index, k, parameters={**setting, "k_factor": 1}).cost
    share = (query_cost(index, k, parameters=setting).cost - scan) / scan
    can_scan_more = any(setting[name] < values[-1] for name, values in steps.items() if name != "k_factor")
    can_score_more = setting["k_factor"] < steps["k_factor"][-1]
    return not (share < _LEAST_SHARE and can_score_more) and not (share > _MOST_SHARE and can_scan_more)
