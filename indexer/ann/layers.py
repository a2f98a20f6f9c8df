"""What an index is made of: the wrappers that a factory string puts around the index that is searched."""

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from indexer.ann.arrays import Vectors
from indexer.ann.faiss_module import loaded_faiss

_known: WeakKeyDictionary[Any, tuple[Any, ...]] = WeakKeyDictionary()  # to unwrap takes as long as a small search


def layers_of(index: Any) -> tuple[Any, ...]:
    """The index and what it wraps, outermost first; they live as long as `index`, which owns them."""
    if index not in _known:
        _known[index] = _unwrapped(index)
    return _known[index]


def _unwrapped(index: Any) -> tuple[Any, ...]:
    if is_on_gpu(index):
        return ()
    faiss = loaded_faiss()
    found = [faiss.downcast_index(index)]
    while (inside := _wrapped(faiss, found[-1])) is not None:
        found.append(faiss.downcast_index(inside))
    return tuple(found)


def innermost(index: Any) -> Any:
    """The index inside the wrappers."""
    return (layers_of(index) or (index,))[-1]


def refiner(index: Any) -> Any | None:
    """The IndexRefine among the layers, which scores candidates again by finer codes or whole vectors."""
    faiss = loaded_faiss()
    return next((layer for layer in layers_of(index) if isinstance(layer, faiss.IndexRefine)), None)


def kind_of(index: Any) -> tuple[str, ...]:
    """Class names of the layers, outermost first."""
    return tuple(type(layer).__name__ for layer in layers_of(index))


def inside_transforms(index: Any, queries: Vectors) -> tuple[Any, Vectors]:
    """The index behind an outermost IndexPreTransform, and the queries (n, d) as it gets them."""
    faiss, layer = loaded_faiss(), loaded_faiss().downcast_index(index)
    if not isinstance(layer, faiss.IndexPreTransform):
        return index, queries
    for number in range(layer.chain.size()):
        queries = layer.chain.at(number).apply(np.ascontiguousarray(queries, dtype=np.float32))
    return inside_transforms(layer.index, queries)


def row_store(index: Any) -> Any | None:
    """The index within an IndexRefine or a graph that holds every row's vector or finer code, by row."""
    faiss, layer = loaded_faiss(), loaded_faiss().downcast_index(index)
    store = layer.refine_index if isinstance(layer, faiss.IndexRefine) else getattr(layer, "storage", None)
    return None if store is None else faiss.downcast_index(store)


def is_on_gpu(index: Any) -> bool:
    """Whether it is one of FAISS's indexes for a GPU."""
    return type(index).__name__.startswith("Gpu")


def is_graph(index: Any) -> bool:
    """Whether a search walks from row to row: HNSW, NSG and the like."""
    return hasattr(innermost(index), "storage")


def is_flat(index: Any) -> bool:
    """Whether it holds the vectors as they are and compares a query with each."""
    return type(index).__name__ in ("IndexFlat", "IndexFlatIP")  # as the factory makes it, and as a file holds it


def _wrapped(faiss: Any, layer: Any) -> Any | None:
    if isinstance(layer, faiss.IndexPreTransform):
        return layer.index
    return layer.base_index if isinstance(layer, faiss.IndexRefine) else None
