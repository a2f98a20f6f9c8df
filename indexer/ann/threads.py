"""How many threads FAISS uses while it makes an index: no more than leave the result as it is and are of use."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from indexer.ann.faiss_module import loaded_faiss
from indexer.ann.layers import innermost, is_graph, layers_of

_MANY_CENTROIDS = 1024  # a k-means of fewer is over in seconds


@contextmanager
def one_thread() -> Iterator[None]:
    """Within the block FAISS runs on one thread."""
    faiss = loaded_faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


@contextmanager
def training_threads(index: Any) -> Iterator[None]:
    """One thread, unless there are many inverted lists to find centroids for.

    Product quantizers are many small k-means, in which threads wait for each other most of the time (measured: 20 times
    the CPU time with two threads); LAPACK's last bits, for PCA and OPQ, depend on their number.
    """
    faiss = loaded_faiss()
    rotated = any(isinstance(layer, faiss.IndexPreTransform) for layer in layers_of(index))
    if getattr(innermost(index), "nlist", 1) < _MANY_CENTROIDS or rotated:
        with one_thread():
            yield
    else:
        yield


@contextmanager
def adding_threads(index: Any) -> Iterator[None]:
    """One thread for a graph whose links depend on the order in which threads come by: NSG, and HNSW before 1.15."""
    faiss = loaded_faiss()
    inner = innermost(index)
    ordered = hasattr(inner, "hnsw") and hasattr(faiss.HNSW, "merge_reverse_links_deterministic")
    if is_graph(index) and not ordered:
        with one_thread():
            yield
    else:
        yield
