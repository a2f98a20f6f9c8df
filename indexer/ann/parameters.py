"""Search parameters of an index: read, set, and the one call of FAISS that they travel with."""

import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.ann.faiss_index import faiss_module, innermost, kind_of, prefer_matrix_products, refine_layer, unwrap
from indexer.arrays import Mask, RowIds, Scores, Vectors
from indexer.errors import ConfigError

SPARE = 16  # candidates beyond k, so that few searches must be done again for rows that tie with the k-th
SPARSE = 16  # with fewer than one row in so many allowed, reading them is reading here and there
WIDEST_WALK = 4096  # nodes kept on the way through a graph: FAISS looks through all of them at every step
REACHING = ("nprobe", "efSearch")  # parameters that decide how many rows a search comes by
_MOST_BITS = 8
_MARGIN = 1.25  # candidates asked for beyond what an even spread of the allowed rows makes likely
_SET = threading.Lock()
_takes: dict[tuple[tuple[str, ...], bool], bool] = {}  # by kind of index and whether a selector is passed
Bits = npt.NDArray[np.uint8]


def search_parameters(index: Any) -> dict[str, int]:
    """The parameters that this kind of index has, and their values."""
    inner, refine, found = innermost(index), refine_layer(index), dict[str, int]()
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
    inner, refine = innermost(index), refine_layer(index)
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


def widened_for_filter(index: Any, parameters: Mapping[str, int], share: float) -> dict[str, int]:
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


def oversampling(wanted: int, allowed: int, rows: int) -> int:
    """How many rows to ask for, when those that are not allowed are dropped afterwards.

    No more than are allowed in all: to score those one by one is less work.
    """
    return min(rows, max(allowed, wanted + SPARE), math.ceil((wanted + SPARE) * _MARGIN * rows / allowed))


def faiss_search(
    index: Any,
    queries: Vectors,
    reach: int,
    parameters: Mapping[str, int],
    candidates: int = 0,
    allowed: Mask | None = None,
) -> tuple[Scores, RowIds]:
    """The best `reach` rows of each query (n, d) as FAISS gives them, (n, reach): padded with row -1.

    `candidates` are scored again where the index does that. `allowed` (ntotal,) is for kinds of index that
    `supports_filter`.
    """
    prefer_matrix_products(index.d)
    queries = np.ascontiguousarray(queries, dtype=np.float32)
    found: tuple[Scores, RowIds]
    if allowed is None and not _takes_parameters(index):
        with _set(index, parameters):
            found = index.search(queries, reach)
        return found
    factor = max(1.0, candidates / reach) if candidates else float(parameters.get("k_factor", 1))
    found = index.search(queries, reach, params=_made(index, parameters, factor, _packed(allowed)))
    return found


def supports_filter(index: Any) -> bool:
    """Whether this kind of index leaves out rows during the search. Found by a search that no row is allowed for."""
    return _does_take(index, np.zeros((index.ntotal + 7) // 8, np.uint8))


def _takes_parameters(index: Any) -> bool:
    return _does_take(index, None)


def _does_take(index: Any, bits: Bits | None) -> bool:
    kind = kind_of(index), bits is not None
    if kind not in _takes and index.ntotal:
        _takes[kind] = _tried(index, bits)
    return _takes.get(kind, False)


def _tried(index: Any, bits: Bits | None) -> bool:
    params = _made(index, search_parameters(index), 1.0, bits)
    try:
        _, rows = index.search(np.zeros((1, index.d), np.float32), 1, params=params)
    except RuntimeError:
        return False
    return bits is None or bool((rows < 0).all())


def _packed(allowed: Mask | None) -> Bits | None:
    return None if allowed is None else np.packbits(allowed, bitorder="little")


def _made(index: Any, parameters: Mapping[str, int], factor: float, bits: Bits | None) -> Any:
    """FAISS's parameter objects, one in another as the layers are; each keeps what it points to alive."""
    faiss, layers = faiss_module(), unwrap(index)
    params = _leaf(faiss, layers[-1], parameters, {} if bits is None else {"sel": faiss.IDSelectorBitmap(bits)})
    for layer in reversed(layers[:-1]):
        if isinstance(layer, faiss.IndexRefine):
            inside = {} if params is None else {"base_index_params": params}
            params = faiss.IndexRefineSearchParameters(k_factor=factor, **inside)
        elif params is not None:
            params = faiss.SearchParametersPreTransform(index_params=params)
    return params


def _leaf(faiss: Any, index: Any, parameters: Mapping[str, int], selector: dict[str, Any]) -> Any:
    """The parameter object of the index that is searched; None for one that has no parameters and gets no selector."""
    if hasattr(index, "qb"):
        rounded = {"qb": parameters["qb"], "centered": bool(getattr(index, "centered", False)), **selector}
        if hasattr(index, "nprobe"):
            return faiss.IVFRaBitQSearchParameters(nprobe=parameters["nprobe"], **rounded)
        return faiss.RaBitQSearchParameters(**rounded) if selector or "FastScan" not in type(index).__name__ else None
    if hasattr(index, "nprobe"):
        return faiss.SearchParametersIVF(nprobe=parameters["nprobe"], **selector)
    if hasattr(index, "hnsw"):
        return faiss.SearchParametersHNSW(
            efSearch=parameters["efSearch"],
            check_relative_distance=index.hnsw.check_relative_distance,
            bounded_queue=index.hnsw.search_bounded_queue,
            **selector,
        )
    return faiss.SearchParameters(**selector) if selector else None


@contextmanager
def _set(index: Any, parameters: Mapping[str, int]) -> Iterator[None]:
    """Parameters of an index that takes none with a search: set on it for one thread at a time, and set back."""
    with _SET:
        before = search_parameters(index)
        set_search_parameters(index, parameters)
        try:
            yield
        finally:
            set_search_parameters(index, before)
