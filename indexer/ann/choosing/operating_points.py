"""Operating points of an index: settings of its search parameters, their recall and their cost.

Settings are tried in order of work. With two parameters (inverted lists and rescored candidates), only settings next to
a path are tried: from one setting to the neighbour that gains most recall for its work. That is a few dozen settings
instead of all pairs, most of which cost much and gain nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, Protocol, TypeVar

from indexer.ann.choosing.cost import QueryCost, query_cost
from indexer.ann.choosing.recall import GroundTruth
from indexer.ann.faiss_index import faiss_threads, single_faiss_thread
from indexer.ann.parameters import WIDEST_WALK, largest_parameters, search_parameters, set_search_parameters
from indexer.ann.search import search_index
from indexer.arrays import Int64Array, Mask, SearchResult
from indexer.errors import ConfigError, as_argument
from indexer.system.threads import ordered_map

_ALL = 0.9995  # recall at which the search for better settings ends
LEAST_WIDTH = 16  # of a graph search, which keeps at least as many nodes as rows are wanted
_MOST_CANDIDATES = 1024  # for each row wanted: sorting more takes longer than scanning
_LEAST_SHARE, _MOST_SHARE = 1 / 256, 4  # bounds on the cost of rescoring, relative to scanning
_QUERIES = 64  # in one search of a thread; fixed, so that any number of threads gives the same bits

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
    """Return points of increasing work and recall, until `enough` is reached or no setting finds more.

    `allowed` (rows of the index,) marks the rows to search. `begun` is an earlier curve of the same index and queries
    with a lower `enough`, whose points are not measured again. The index keeps its parameters.
    """
    if begun and begun[-1].recall >= enough:
        return list(begun)
    before, points = search_parameters(index), list[OperatingPoint]()
    known = {_key(point.search_parameters): point for point in begun}

    def measured(setting: Setting) -> OperatingPoint:
        set_search_parameters(index, setting)
        parameters = search_parameters(index)
        if (key := _key(parameters)) not in known:
            recall = truth.recall(_answers(index, truth, allowed))
            known[key] = OperatingPoint(parameters, recall, query_cost(index, truth.depth))
        return known[key]

    try:
        settings = parameter_grid(index, truth.depth)
        for point in _walk(measured, settings) if len(settings[0]) > 1 else map(measured, settings):
            if not points or (point.recall > points[-1].recall and point.work.cost >= points[-1].work.cost):
                points.append(point)
            if point.recall >= enough:
                break
    finally:
        set_search_parameters(index, before)
    return points


def _key(setting: Setting) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(setting.items()))


def _answers(index: Any, truth: GroundTruth, allowed: Mask | None) -> list[SearchResult]:
    """Return the answers to all queries, found on all FAISS threads; any number of threads gives the same bits."""

    def search(start: int) -> list[SearchResult]:
        with single_faiss_thread():
            return search_index(index, truth.queries[start : start + _QUERIES], truth.reach, allowed)

    starts = range(0, len(truth), _QUERIES)
    return [answer for answers in ordered_map(search, starts, faiss_threads()) for answer in answers]


def hits_at(index: Any, truth: GroundTruth, setting: Mapping[str, int], allowed: Mask | None = None) -> Int64Array:
    """Return the right rows that a search with some parameters finds for each query, (n,). The index keeps its own."""
    before = search_parameters(index)
    try:
        set_search_parameters(index, setting)
        return truth.hits(_answers(index, truth, allowed))
    finally:
        set_search_parameters(index, before)


def wider_parameters(index: Any, setting: Mapping[str, int], k: int = 10) -> Setting:
    """Return parameters with each value doubled, up to the largest that a curve tries."""
    most = {name: most for name, (_, most) in _bounds(index, k).items()}
    return {name: max(value, min(2 * value, most.get(name, value))) for name, value in setting.items()}


def _walk(measured: Callable[[Setting], OperatingPoint], grid: Sequence[Setting]) -> Iterator[OperatingPoint]:
    """Walk from one setting of the grid to the neighbour that gains most recall for its work, until none finds more.
    Also yields neighbours with less work than that, and three points between two numbers of lists."""
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
        cheaper = [point for point in around if point.work.cost <= step.work.cost]
        yield from sorted(cheaper, key=lambda point: point.work.cost)
        here = step


def _gain(start: OperatingPoint, end: OperatingPoint) -> float:
    return (end.recall - start.recall) / max(1, end.work.cost - start.work.cost)


def _neighbours(parameters: Setting, grid: Sequence[Setting]) -> list[Setting]:
    """Return the settings of least work, of a grid of ascending work, with a larger value of each parameter, and of
    all."""
    here = {name: parameters[name] for name in grid[0]}  # without parameters that are not tuned
    above = [s for s in grid if s != here and all(s[name] >= value for name, value in here.items())]
    steps = [next((s for s in above if s[name] > value), None) for name, value in here.items()]
    steps.append(next((s for s in above if all(s[name] > value for name, value in here.items())), None))
    return [step for place, step in enumerate(steps) if step is not None and step not in steps[:place]]


class CurvePoint(Protocol):
    """A point of a curve, measured or read from a manifest."""

    @property
    def search_parameters(self) -> Mapping[str, int]: ...

    @property
    def recall(self) -> float: ...


Point = TypeVar("Point", bound=CurvePoint)


def cheapest_point(curve: Sequence[Point], recall: float) -> Point:
    """Return the point of least work that reaches `recall`, else the point of highest recall."""
    return next((point for point in curve if point.recall >= recall), curve[-1])


def parameters_for(curve: Sequence[CurvePoint], recall: float) -> dict[str, int]:
    """Return the search parameters of least work that reach `recall`, from a curve of ascending work. Raises
    ConfigError with the highest recall of the curve."""
    if (point := cheapest_point(curve, recall)).recall >= recall:
        return dict(point.search_parameters)
    raise ConfigError(
        f"no search parameters of this index reach a recall@10 of {recall:g}; the highest measured is "
        f"{curve[-1].recall:.4f}. Fix: use that, search exactly ({as_argument('exact', True)}), "
        "or build with a higher index.recall."
    )


def parameter_grid(index: Any, k: int = 10) -> list[dict[str, int]]:
    """Return settings for the best `k` rows, in ascending work; each parameter grows up to its largest value.

    An index with two parameters (lists and rescored candidates) has all pairs except those that spend nearly all work
    on one parameter and could spend it on the other. An index without parameters has one empty setting.
    """
    steps = {name: _steps(name, least, most) for name, (least, most) in _bounds(index, k).items()}
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
            most = min(_MOST_CANDIDATES, -(-most // k))  # at most as many candidates as rows
        if name == "efSearch":
            most = min(most, WIDEST_WALK)
        bounds[name] = (min(least[name], most), most)
    return bounds


def _steps(name: str, least: int, most: int) -> list[int]:
    """Return `least`, its doublings below `most`, and `most`; of candidates also the values halfway between doublings,
    because the walk looks between two numbers of lists anyway."""
    values = {least, most}
    while least < most:
        halfway = {3 * least // 2} if name == "k_factor" else set()
        values |= {value for value in {2 * least, *halfway} if value < most}
        least *= 2
    return sorted(values)


def _is_balanced(index: Any, k: int, setting: dict[str, int], steps: dict[str, list[int]]) -> bool:
    """Whether neither scanning nor rescoring takes nearly all work while the other could take more."""
    scan = query_cost(index, k, parameters={**setting, "k_factor": 1}).cost
    share = (query_cost(index, k, parameters=setting).cost - scan) / scan
    can_scan_more = any(setting[name] < values[-1] for name, values in steps.items() if name != "k_factor")
    can_score_more = setting["k_factor"] < steps["k_factor"][-1]
    return not (share < _LEAST_SHARE and can_score_more) and not (share > _MOST_SHARE and can_scan_more)
