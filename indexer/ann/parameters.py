"""Search parameters of an index: read and set, and the FAISS call that receives them."""

import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.ann.faiss_index import faiss_module, innermost, kind_of, prefer_matrix_products, refine_layer, unwrap
from indexer.ann.probing import probed_lists
from indexer.arrays import Mask, RowIds, Scores, Vectors
from indexer.errors import ConfigError

SPARE = 16  # candidates beyond k, so that few searches are repeated because of rows that tie with the k-th
SPARSE = 16  # if fewer than one row in so many is allowed, reading them is random access
WIDEST_WALK = 4096  # nodes kept during a graph search; FAISS scans all of them at every step
REACHING = ("nprobe", "efSearch")  # parameters that determine how many rows a search reaches
_MOST_BITS = 8
# Measured at recalls of 0.91 to 0.998 on 200,000 vectors of 128 and 381 dimensions: the recall falls by 0.001 at most.
_FIXED = 1.75
_MARGIN = 1.25  # extra candidates, relative to an even spread of the allowed rows
_SET = threading.Lock()
_accepts: dict[tuple[tuple[str, ...], bool], bool] = {}  # by kind of index and whether a selector is passed
Bits = npt.NDArray[np.uint8]


def search_parameters(index: Any) -> dict[str, int]:
    """Return the parameters of this kind of index and their values."""
    return {name: int(getattr(owner, name)) for name, owner in _owners(index).items()}


def _owners(index: Any) -> dict[str, Any]:
    """Return the object that has each parameter of this kind of index as an attribute."""
    inner = innermost(index)
    owners = {"nprobe": inner, "efSearch": getattr(inner, "hnsw", None), "qb": inner, "k_factor": refine_layer(index)}
    return {name: owner for name, owner in owners.items() if hasattr(owner, name)}


def set_search_parameters(index: Any, parameters: Mapping[str, int]) -> None:
    """Apply parameters from `search_parameters` or a manifest; others keep their values. Raises ConfigError for a
    parameter that the index does not have, or an invalid value."""
    require_parameters(index, parameters)
    owners = _owners(index)
    for name, value in parameters.items():
        setattr(owners[name], name, value)


def prepare_for_faiss_alone(index: Any) -> None:
    """Set search parameters with which FAISS alone, without this package, reaches about the same recall.

    It probes equally many lists for every query, so it needs more of them (see `ProbedLists`).
    """
    if probed_lists(index) is not None:
        lists = innermost(index)
        lists.nprobe = min(math.ceil(_FIXED * lists.nprobe), lists.nlist)


def require_parameters(index: Any, parameters: Mapping[str, int]) -> None:
    """Raise ConfigError for a parameter that the index does not have, or an invalid value."""
    known = search_parameters(index)
    for name, value in parameters.items():
        if name not in known:
            raise ConfigError(
                f'this kind of index has no search parameter "{name}"; it has {", ".join(sorted(known)) or "none"}.'
            )
        least, most = (0, _MOST_BITS) if name == "qb" else (1, 2**31 - 1)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ConfigError(f'search parameter "{name}" is {value!r}; expected a whole number {least} to {most:,}.')


def largest_parameters(index: Any) -> dict[str, int]:
    """Return the values beyond which recall cannot grow, of the parameters that trade speed for recall."""
    inner, rows = innermost(index), max(1, int(index.ntotal))
    largest = {"nprobe": int(getattr(inner, "nlist", 1)), "efSearch": rows, "k_factor": rows}
    return {name: largest[name] for name in search_parameters(index) if name in largest}


def widened_for_filter(index: Any, parameters: Mapping[str, int], share: float) -> dict[str, int]:
    """Return the parameters with which a filtered search reaches as many allowed rows as an unfiltered one reaches
    rows.

    `share` of the rows are allowed. With unchanged parameters, the recall of filtered searches would fall.
    """
    largest = largest_parameters(index)
    wider = {name: min(math.ceil(parameters[name] / share), largest[name]) for name in REACHING if name in parameters}
    return {name: max(value, wider.get(name, value)) for name, value in parameters.items()}


def oversampling(wanted: int, allowed: int, rows: int) -> int:
    """Return how many rows to search for if rows that are not allowed are dropped afterwards. At most the number of
    allowed rows: scoring those one by one is less work."""
    return min(rows, max(allowed, wanted + SPARE), math.ceil((wanted + SPARE) * _MARGIN * rows / allowed))


def faiss_search(
    index: Any,
    queries: Vectors,
    reach: int,
    parameters: Mapping[str, int],
    candidates: int = 0,
    allowed: Mask | None = None,
) -> tuple[Scores, RowIds]:
    """Return the best `reach` rows of each query (n, d) from FAISS, (n, reach), padded with row -1.

    `candidates` rows are rescored if the index has a refine layer. `allowed` (ntotal,) requires a kind of index that
    `supports_filter`. Of inverted lists, `nprobe` is the number that a query probes on average (`ProbedLists`).
    """
    prefer_matrix_products(index.d)
    queries = np.ascontiguousarray(queries, dtype=np.float32)
    hits: tuple[Scores, RowIds]
    if allowed is None and not _accepts_parameters(index, None):
        with _set(index, parameters):
            hits = index.search(queries, reach)
        return hits
    factor = max(1.0, candidates / reach) if candidates else float(parameters.get("k_factor", 1))
    bits = None if allowed is None else np.packbits(allowed, bitorder="little")
    if (lists := probed_lists(index)) is not None:
        if len(queries) > 1:
            leaf = _leaf(faiss_module(), lists.lists, {**parameters, "nprobe": lists.lists.nlist}, _selector(bits))
            return lists.search(queries, reach, parameters["nprobe"], round(factor * reach), leaf)
        parameters = {**parameters, "nprobe": lists.count(queries, parameters["nprobe"])}  # FAISS alone is faster
    hits = index.search(queries, reach, params=_faiss_parameters(index, parameters, factor, bits))
    return hits


def supports_filter(index: Any) -> bool:
    """Whether this kind of index can skip rows during the search, by a trial search without allowed rows."""
    return _accepts_parameters(index, np.zeros((index.ntotal + 7) // 8, np.uint8))


def _accepts_parameters(index: Any, bits: Bits | None) -> bool:
    kind = kind_of(index), bits is not None
    if kind not in _accepts and index.ntotal:
        _accepts[kind] = _try_parameters(index, bits)
    return _accepts.get(kind, False)


def _try_parameters(index: Any, bits: Bits | None) -> bool:
    params = _faiss_parameters(index, search_parameters(index), 1.0, bits)
    try:
        _, rows = index.search(np.zeros((1, index.d), np.float32), 1, params=params)
    except RuntimeError:
        return False
    return bits is None or bool((rows < 0).all())


def _faiss_parameters(index: Any, parameters: Mapping[str, int], factor: float, bits: Bits | None) -> Any:
    """Return FAISS's parameter objects, nested like the layers; each keeps its inner object alive."""
    faiss, layers = faiss_module(), unwrap(index)
    params = _leaf(faiss, layers[-1], parameters, _selector(bits))
    for layer in reversed(layers[:-1]):
        if isinstance(layer, faiss.IndexRefine):
            inside = {} if params is None else {"base_index_params": params}
            params = faiss.IndexRefineSearchParameters(k_factor=factor, **inside)
        elif params is not None:
            params = faiss.SearchParametersPreTransform(index_params=params)
    return params


def _selector(bits: Bits | None) -> dict[str, Any]:
    return {} if bits is None else {"sel": faiss_module().IDSelectorBitmap(bits)}


def _leaf(faiss: Any, index: Any, parameters: Mapping[str, int], selector: dict[str, Any]) -> Any:
    """Return the parameter object of the searched index; None if it has no parameters and gets no selector."""
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
    """Set parameters on an index that accepts none with a search, for one thread at a time, and restore them."""
    with _SET:
        before = search_parameters(index)
        set_search_parameters(index, parameters)
        try:
            yield
        finally:
            set_search_parameters(index, before)
