"""The cost of a query, computed from an index's structure and not timed, so it is the same on every machine.

Numbers of rows in inverted lists are expected values for a query that falls into a list as often as a stored vector.

The weights of scans with rescored candidates are fitted to times: 200,000 vectors of 128 dimensions, 1,000 queries at
once, product quantizers of two and four dimensions a subspace in 256 to 2,048 lists, on one core of an Intel Xeon (Ice
Lake, AVX-512), in two runs, one of them while other programs ran. A scanned byte took 0.04 and 0.08 ns, a candidate 210
and 390 ns. Over all settings the logarithm of time over cost has a standard deviation of 0.20 and 0.13.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from indexer.ann.faiss_index import faiss_module, storage_of, unwrap
from indexer.ann.parameters import SPARSE, oversampling, search_parameters, supports_filter, widened_for_filter

# Work as bytes read in sequence: a read at a random address, a product with a cached vector or decoding one quantised
# vector, and selecting a row for rescoring among all scanned rows.
_FETCH_BYTES, _PRODUCT_BYTES, _SELECTION_BYTES = 2048, 256, 2560
_SCORED_PER_LINK = 1.6  # new nodes scored per link that HNSW follows, on nearly isotropic vectors


@dataclass(frozen=True)
class QueryCost:
    """The work of one query.

    `bytes` counts all data read: vectors, quantised vectors, links. `products` counts vectors scored one at a time;
    FastScan, which scores 32 quantised vectors at once from tables, counts only in bytes. `fetches` counts random
    reads: nodes of a graph, inverted lists, rescored candidates.
    """

    bytes: int = 0
    products: int = 0
    fetches: int = 0

    @property
    def cost(self) -> int:
        """One figure for time, to compare kinds of index: bytes read in sequence."""
        return self.bytes + _FETCH_BYTES * self.fetches + _PRODUCT_BYTES * self.products

    def __add__(self, other: "QueryCost") -> "QueryCost":
        return QueryCost(self.bytes + other.bytes, self.products + other.products, self.fetches + other.fetches)


def query_cost(
    index: Any, k: int, rows: int | None = None, parameters: Mapping[str, int] | None = None, allowed: int | None = None
) -> QueryCost:
    """Return the work of a query for the best `k`, with the current search parameters or others.

    `rows` replaces the number of rows; inverted lists then grow, and their number stays. `allowed` is the number of
    allowed rows, spread evenly; None is all.
    """
    total = index.ntotal if rows is None else rows
    parameters = {**search_parameters(index), **(parameters or {})}
    if allowed is None or allowed >= total:
        return _layers(index, min(k, total), total, parameters, total)
    searched = _filtered(index, min(k, allowed), total, parameters, allowed)
    scored = score_rows(index, total, allowed)
    return searched if scored is None or searched.cost < scored.cost else scored


def score_rows(index: Any, rows: int, allowed: int) -> QueryCost | None:
    """Return the work of scoring all allowed rows with `storage_of` an index; None if it cannot."""
    store = storage_of(index)
    return _scan(store, rows, _vector_size(store), 0, allowed) if store is not None and supports_filter(store) else None


def _filtered(index: Any, wanted: int, rows: int, parameters: Mapping[str, int], allowed: int) -> QueryCost:
    if not allowed:
        return QueryCost()
    if supports_filter(index):
        return _layers(index, wanted, rows, widened_for_filter(index, parameters, allowed / rows), allowed)
    return _layers(index, oversampling(wanted, allowed, rows), rows, parameters, rows)


def _layers(index: Any, wanted: int, rows: int, parameters: Mapping[str, int], allowed: int) -> QueryCost:
    """Add up the work from the outermost layer to the searched index, which finds at least `wanted` rows."""
    faiss, layers, work = faiss_module(), unwrap(index), QueryCost()
    for layer in layers[:-1]:
        if isinstance(layer, faiss.IndexRefine):
            wanted = min(wanted * parameters["k_factor"], allowed)
            work += QueryCost(wanted * (_vector_size(layer.refine_index) + _SELECTION_BYTES), wanted, wanted)
    return work + _search(faiss, layers[-1], wanted, rows, parameters, allowed)


def _search(faiss: Any, index: Any, wanted: int, rows: int, parameters: Mapping[str, int], allowed: int) -> QueryCost:
    if not rows:
        return QueryCost()
    if hasattr(index, "nprobe"):
        return _lists(faiss, index, rows, parameters["nprobe"], allowed)
    if hasattr(index, "hnsw"):
        links = max(1, index.hnsw.nb_neighbors(0))
        return _graph(_vector_size(index.storage), links, max(parameters["efSearch"], wanted), rows)
    if hasattr(index, "nsg"):
        return _graph(_vector_size(index.storage), max(1, index.nsg.R), max(index.nsg.search_L, wanted), rows)
    return _scan(index, rows, _vector_size(index), 0, allowed)


def _lists(faiss: Any, index: Any, rows: int, nprobe: int, allowed: int) -> QueryCost:
    probes = min(nprobe, index.nlist)
    coarse = faiss.downcast_index(index.quantizer)  # of `nlist` vectors
    coarse_work = _search(faiss, coarse, probes, index.nlist, search_parameters(coarse), index.nlist)
    imbalance = float(index.invlists.imbalance_factor()) if index.ntotal else 1.0  # longer lists are hit more often
    scanned = math.ceil(rows * min(1.0, probes / index.nlist * imbalance))
    hits = math.ceil(scanned * allowed / rows)
    return coarse_work + _scan(index, scanned, index.code_size, 8, hits) + QueryCost(fetches=probes)


def _scan(index: Any, rows: int, vector_size: int, number_size: int, allowed: int) -> QueryCost:
    """Return the work of a sequential scan with row numbers; only FastScan reads vectors that are not allowed."""
    if "FastScan" in type(index).__name__:
        return QueryCost(rows * (vector_size + number_size), 0)
    return QueryCost(rows * number_size + allowed * vector_size, allowed, allowed if allowed * SPARSE < rows else 0)


def _graph(vector_size: int, links: int, width: int, rows: int) -> QueryCost:
    """The work of a walk that keeps the `width` best nodes, each with `links`; a small graph repeats most nodes. Fitted
    to FAISS's counts (`hnsw_stats.ndis`) on 5,000 and 40,000 isotropic vectors with 16 and 32 links a level: within a
    third of them for widths of 16 to 1024. On clustered vectors FAISS scores fewer."""
    descent = links / 2 * math.log(rows + 1)
    visited = min(rows, math.ceil(rows * -math.expm1(-width * _SCORED_PER_LINK * links / 2 / rows) + descent))
    hops = min(rows, width)
    ordering = 4 * hops * width  # FAISS scans all kept nodes at every step
    return QueryCost(visited * vector_size + hops * links * 4 + ordering, visited, visited + hops)


def _vector_size(index: Any) -> int:
    return int(faiss_module().downcast_index(index).sa_code_size())
