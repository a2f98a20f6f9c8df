"""The only door to FAISS: make, train, add, search, save, load.

Scores are inner products of unit vectors; higher is closer. Rows are positions within one index object.
"""

from indexer.ann.choosing.cost import QueryCost, query_cost
from indexer.ann.choosing.operating_points import (
    OperatingPoint,
    cheapest_point,
    parameter_grid,
    parameters_for,
    recall_curve,
)
from indexer.ann.choosing.recall import SCORE_TOLERANCE, GroundTruth, GroundTruthBuilder
from indexer.ann.choosing.selection import (
    SAMPLE_ROWS,
    Candidate,
    IndexRequirements,
    candidate_factories,
    copy_of,
    cost_lower_bound,
    exact_candidate,
    measure_candidate,
    rank_candidates,
    stored_bytes,
)
from indexer.ann.exact import merge_top_k, nothing, on_device, search_blocks, search_rows
from indexer.ann.factory import (
    add_vectors,
    check_factory,
    factory_of,
    is_exact,
    make_index,
    reconstruct,
    require_finite,
)
from indexer.ann.faiss_index import (
    has_lists,
    import_faiss,
    is_graph,
    is_mapped,
    load_index,
    map_index,
    save_index,
    set_threads,
    to_cpu,
    to_gpu,
)
from indexer.ann.index_training import IndexTrainer, train_index
from indexer.ann.merging import IndexMerger, IndexShard, is_mergeable
from indexer.ann.parameters import require_parameters, search_parameters, set_search_parameters, supports_filter
from indexer.ann.products import candidates, pair_products
from indexer.ann.search import search_index

__all__ = [
    "SAMPLE_ROWS",
    "SCORE_TOLERANCE",
    "Candidate",
    "GroundTruth",
    "GroundTruthBuilder",
    "IndexMerger",
    "IndexRequirements",
    "IndexShard",
    "IndexTrainer",
    "OperatingPoint",
    "QueryCost",
    "add_vectors",
    "candidate_factories",
    "candidates",
    "cheapest_point",
    "check_factory",
    "copy_of",
    "cost_lower_bound",
    "exact_candidate",
    "factory_of",
    "has_lists",
    "import_faiss",
    "is_exact",
    "is_graph",
    "is_mapped",
    "is_mergeable",
    "load_index",
    "make_index",
    "map_index",
    "measure_candidate",
    "merge_top_k",
    "nothing",
    "on_device",
    "pair_products",
    "parameter_grid",
    "parameters_for",
    "query_cost",
    "rank_candidates",
    "recall_curve",
    "reconstruct",
    "require_finite",
    "require_parameters",
    "save_index",
    "search_blocks",
    "search_index",
    "search_parameters",
    "search_rows",
    "set_search_parameters",
    "set_threads",
    "stored_bytes",
    "supports_filter",
    "to_cpu",
    "to_gpu",
    "train_index",
]
