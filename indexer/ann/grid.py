"""Settings of the search parameters to try, in the order of the work they make."""

from itertools import product
from typing import Any

from indexer.ann.parameters import WIDEST_WALK, largest_parameters, search_parameters, set_search_parameters
from indexer.ann.work import reads

LEAST_WIDTH = 16  # of a walk through a graph, which keeps as many nodes as rows are wanted anyway
_MOST_CANDIDATES = 1024  # for each row wanted: to sort more takes longer than to scan
_LEAST_SHARE, _MOST_SHARE = 1 / 256, 4  # of the cost of scanning, what scoring again may cost


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
    return sorted(settings, key=lambda setting: (reads(index, k, parameters=setting).cost, sorted(setting.items())))


def widen_search(index: Any, k: int = 10) -> bool:
    """Double the search parameter whose doubling costs least; False when the index has none, or all are largest."""
    now, largest = search_parameters(index), largest_parameters(index)
    wider = [{**now, name: min(2 * now[name], most)} for name, most in largest.items() if now[name] < most]
    if not wider:
        return False
    set_search_parameters(index, min(wider, key=lambda setting: reads(index, k, parameters=setting).cost))
    return True


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
    scan = reads(index, k, parameters={**setting, "k_factor": 1}).cost
    share = (reads(index, k, parameters=setting).cost - scan) / scan
    can_scan_more = any(setting[name] < values[-1] for name, values in steps.items() if name != "k_factor")
    can_score_more = setting["k_factor"] < steps["k_factor"][-1]
    return not (share < _LEAST_SHARE and can_score_more) and not (share > _MOST_SHARE and can_scan_more)
