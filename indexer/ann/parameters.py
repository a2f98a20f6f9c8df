"""Search parameters: what trades speed for recall, read and set through the wrappers of an index.

- `nprobe`: inverted lists looked into (IVF), 1 to the number of lists.
- `efSearch`: nodes kept during the walk through a graph (HNSW), 1 to the number of rows.
- `k_factor`: candidates scored again for each row wanted (IndexRefine), from 1.
- `qb`: bits a query is rounded to (RaBitQ), 1 to 8; 0 keeps it whole. How the codes are read, so `widen_search` and
  `parameter_grid` leave it as it is.
"""

import math
from collections.abc import Mapping
from typing import Any

from indexer.ann.layers import innermost, refiner
from indexer.errors import ConfigError

SPARE = 16  # candidates beyond k, so that few searches must be done again for rows that tie with the k-th
SPARSE = 16  # with fewer than one row in so many allowed, reading them is reading here and there
WIDEST_WALK = 4096  # nodes kept on the way through a graph: FAISS looks through all of them at every step
REACHING = ("nprobe", "efSearch")  # parameters that decide how many rows a search comes by
_MOST_BITS = 8
_MARGIN = 1.25  # candidates asked for beyond what an even spread of the allowed rows makes likely


def search_parameters(index: Any) -> dict[str, int]:
    """The parameters that this kind of index has, and their values."""
    inner, refine, found = innermost(index), refiner(index), dict[str, int]()
    if hasattr(inner, "nprobe"):
        found["nprobe"] = int(inner.nprobe)
    if hasattr(inner, "hnsw"):
        found["efSearch"] = int(inner.hnsw.efSearch)
    if hasattr(inner, "qb"):
        found["qb"] = int(inner.qb)
    if refine is not None:
        found["k_factor"] = int(refine.k_factor)
    return found


def set_search_parameters(index: Any, parameters: Mapping[str, int]) -> None:
    """Apply what `search_parameters` gave, or a manifest holds; a parameter that is not named stays as it is.

    Raises ConfigError for a parameter that the index does not have, or a value that it cannot take.
    """
    require_parameters(index, parameters)
    inner, refine = innermost(index), refiner(index)
    if "nprobe" in parameters:
        inner.nprobe = parameters["nprobe"]
    if "efSearch" in parameters:
        inner.hnsw.efSearch = parameters["efSearch"]
    if "qb" in parameters:
        inner.qb = parameters["qb"]
    if "k_factor" in parameters and refine is not None:
        refine.k_factor = parameters["k_factor"]


def require_parameters(index: Any, parameters: Mapping[str, int]) -> None:
    """Raises ConfigError for a parameter that the index does not have, or a value that it cannot take."""
    known = search_parameters(index)
    for name, value in parameters.items():
        if name not in known:
            has = ", ".join(sorted(known)) or "none"
            raise ConfigError(f'this kind of index has no search parameter "{name}"; it has {has}.')
        least, most = (0, _MOST_BITS) if name == "qb" else (1, 2**31 - 1)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ConfigError(f'search parameter "{name}" is {value!r}; expected a whole number {least} to {most:,}.')


def largest_parameters(index: Any) -> dict[str, int]:
    """The values beyond which nothing more can be found, of those parameters that trade speed for recall."""
    inner, rows = innermost(index), max(1, int(index.ntotal))
    largest = {"nprobe": int(getattr(inner, "nlist", 1)), "efSearch": rows, "k_factor": rows}
    return {name: largest[name] for name in search_parameters(index) if name in largest}


def wider_for(index: Any, parameters: Mapping[str, int], share: float) -> dict[str, int]:
    """The parameters with which a search comes by as many allowed rows as it does by rows, when all are allowed.

    `share` of the rows are allowed. With parameters left as they are, the recall of filtered searches would fall.
    """
    largest = largest_parameters(index)
    wider = {
        name: max(value, min(math.ceil(value / share), largest[name]))
        for name, value in parameters.items()
        if name in REACHING
    }
    return {**parameters, **wider}


def reach_to_drop(wanted: int, allowed: int, rows: int) -> int:
    """How many rows to ask for, when those that are not allowed are dropped afterwards.

    No more than are allowed in all: to score those one by one is less work.
    """
    return min(rows, max(allowed, wanted + SPARE), math.ceil((wanted + SPARE) * _MARGIN * rows / allowed))
