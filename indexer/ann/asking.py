"""One call of FAISS: search parameters and allowed rows travel with the call, so that no index is changed by it.

Kinds of index that take neither are asked without; whether a kind does is found by trying, once.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.ann.arrays import Mask, Rows, Scores, Vectors
from indexer.ann.faiss_module import loaded_faiss, prefer_matrix_products
from indexer.ann.layers import kind_of, layers_of
from indexer.ann.parameters import search_parameters, set_search_parameters

Bits = npt.NDArray[np.uint8]
_SET = threading.Lock()
_takes: dict[tuple[tuple[str, ...], bool], bool] = {}  # by kind of index and whether a selector is passed


def ask(
    index: Any,
    queries: Vectors,
    reach: int,
    parameters: Mapping[str, int],
    candidates: int = 0,
    allowed: Mask | None = None,
) -> tuple[Scores, Rows]:
    """The best `reach` rows of each query (n, d) as FAISS gives them, (n, reach): padded with row -1.

    `candidates` are scored again where the index does that. `allowed` (ntotal,) is for kinds that `takes_selector`.
    """
    prefer_matrix_products(index.d)
    queries = np.ascontiguousarray(queries, dtype=np.float32)
    found: tuple[Scores, Rows]
    if allowed is None and not _takes_parameters(index):
        with _set(index, parameters):
            found = index.search(queries, reach)
        return found
    factor = max(1.0, candidates / reach) if candidates else float(parameters.get("k_factor", 1))
    found = index.search(queries, reach, params=_made(index, parameters, factor, _packed(allowed)))
    return found


def takes_selector(index: Any) -> bool:
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
    faiss, layers = loaded_faiss(), layers_of(index)
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
