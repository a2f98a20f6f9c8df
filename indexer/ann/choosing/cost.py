"""What a query costs, worked out from an index's structure: no stopwatch, so the same on every machine.

Rows of inverted lists are expected values for a query that falls into a list as often as a stored vector does.

The weights of scans with candidates scored again are fitted to times: 200,000 vectors of 128 dimensions, 1,000 queries
at once, codes of two and four dimensions in 256 to 2,048 lists, on one core of an Intel Xeon (Ice Lake, AVX-512), in
two runs, one of them beside other programs. A byte scanned took 0.04 and 0.08 ns, a candidate 210 and 390 ns. Over all
settings the logarithm of time over cost has a standard deviation of 0.20 and 0.13.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from indexer.ann.faiss_index import faiss_module, storage_of, unwrap
from indexer.ann.parameters import SPARSE, oversampling, search_parameters, supports_filter, widened_for_filter

_FETCH_BYTES = 2048  # a read at an address known a moment before takes as long as this many bytes in sequence
_PRODUCT_BYTES = 256  # and so does multiplying a vector that is in the cache, or decoding a code one row at a time
_SELECTION_BYTES = 2560  # and choosing a row to be scored again, among all that were scanned, as this many
_VISITS = 1.6  # nodes newly scored for each link slot that HNSW follows, on nearly isotropic vectors


@dataclass(frozen=True)
class QueryCost:
    """The work of one query.

    `bytes` are all that is read: vectors, codes, links. `products` counts vectors scored one at a time, whole or
    decoded from a code; FastScan, which scores 32 codes at once from tables, counts in bytes alone. `fetches` counts
    reads that do not follow the one before: nodes of a graph, inverted lists, candidates scored again.
    """

    bytes: int
    products: int
    fetches: int = 0

    @property
    def cost(self) -> int:
        """One figure to compare kinds of index by: time, in bytes read in sequence."""
        return self.bytes + _FETCH_BYTES * self.fetches + _PRODUCT_BYTES * self.products

    def __add__(self, other: "QueryCost") -> "QueryCost":
        return QueryCost(self.bytes + other.bytes, self.products + other.products, self.fetches + other.fetches)


def query_cost(
    index: Any,
    k: int,
    rows: int | None = None,
    parameters: Mapping[str, int] | None = None,
    allowed: int | None = None,
) -> QueryCost:
    """The work of a query for the best `k`, with the search parameters as they are, or some others.

    `rows`: as if the index held that many. Inverted lists then grow with it, and their number stays. `allowed`: how
    many rows may be found, spread evenly; None is all.
    """
    total = index.ntotal if rows is None else rows
    parameters = {**search_parameters(index), **(parameters or {})}
    if allowed is None or allowed >= total:
        return _layers(index, min(k, total), total, parameters, total)
    searched = _filtered(index, min(k, allowed), total, parameters, allowed)
    scored = score_rows(index, total, allowed)
    return searched if scored is None or searched.cost < scored.cost else scored


def score_rows(index: Any, rows: int, allowed: int) -> QueryCost | None:
    """The work of scoring all allowed rows of an index by its `storage_of`; None where none can."""
    store = storage_of(index)
    return _scan(store, rows, _code_size(store), 0, allowed) if store is not None and supports_filter(store) else None


def _filtered(index: Any, wanted: int, rows: int, parameters: Mapping[str, int], allowed: int) -> QueryCost:
    if not allowed:
        return QueryCost(0, 0)
    if supports_filter(index):
        return _layers(index, wanted, rows, widened_for_filter(index, parameters, allowed / rows), allowed)
    return _layers(index, oversampling(wanted, allowed, rows), rows, parameters, rows)


def _layers(index: Any, wanted: int, rows: int, parameters: Mapping[str, int], allowed: int) -> QueryCost:
    """From the outermost layer to the one that is searched, which is asked for `wanted` rows or more."""
    faiss, layers, work = faiss_module(), unwrap(index), QueryCost(0, 0)
    for layer in layers[:-1]:
        if isinstance(layer, faiss.IndexRefine):
            wanted = min(wanted * parameters["k_factor"], allowed)
            work += QueryCost(wanted * (_code_size(layer.refine_index) + _SELECTION_BYTES), wanted, wanted)
    return work + _search(faiss, layers[-1], wanted, rows, parameters, allowed)


def _search(faiss: Any, index: Any, wanted: int, rows: int, parameters: Mapping[str, int], allowed: int) -> QueryCost:
    if not rows:
        return QueryCost(0, 0)
    if hasattr(index, "nprobe"):
        return _lists(faiss, index, rows, parameters["nprobe"], allowed)
    if hasattr(index, "hnsw"):
        links = max(1, index.hnsw.nb_neighbors(0))
        return _graph(_code_size(index.storage), links, max(parameters["efSearch"], wanted), rows)
    if hasattr(index, "nsg"):
        return _graph(_code_size(index.storage), max(1, index.nsg.R), max(index.nsg.search_L, wanted), rows)
    return _scan(index, rows, _code_size(index), 0, allowed)


def _lists(faiss: Any, index: Any, rows: int, nprobe: int, allowed: int) -> QueryCost:
    probes = min(nprobe, index.nlist)
    coarse = faiss.downcast_index(index.quantizer)  # of `nlist` vectors
    found = _search(faiss, coarse, probes, index.nlist, search_parameters(coarse), index.nlist)
    imbalance = float(index.invlists.imbalance_factor()) if index.ntotal else 1.0  # longer lists are hit more often
    scanned = math.ceil(rows * min(1.0, probes / index.nlist * imbalance))
    hits = math.ceil(scanned * allowed / rows)
    return found + _scan(index, scanned, index.code_size, 8, hits) + QueryCost(0, 0, probes)


def _scan(index: Any, rows: int, code_size: int, number_size: int, allowed: int) -> QueryCost:
    """Codes in sequence, with the numbers of their rows; only FastScan reads those of rows that are not allowed."""
    if "FastScan" in type(index).__name__:
        return QueryCost(rows * (code_size + number_size), 0)
    return QueryCost(rows * number_size + allowed * code_size, allowed, allowed if allowed * SPARSE < rows else 0)


def _graph(code_size: int, links: int, width: int, rows: int) -> QueryCost:
    """A walk that keeps the `width` best nodes it has seen, `links` from each; in a small graph most were seen before.

    Fitted to the counts of FAISS (`hnsw_stats.ndis`) on 5,000 and 40,000 isotropic vectors with 16 and 32 links a
    level: within a third of them for widths of 16 to 1024. On clustered vectors FAISS scores fewer.
    """
    descent = links / 2 * math.log(rows + 1)
    visited = min(rows, math.ceil(rows * -math.expm1(-width * _VISITS * links / 2 / rows) + descent))
    hops = min(rows, width)
    ordering = 4 * hops * width  # FAISS looks through all it keeps at every step
    return QueryCost(visited * code_size + hops * links * 4 + ordering, visited, visited + hops)


def _code_size(index: Any) -> int:
    return int(faiss_module().downcast_index(index).sa_code_size())
