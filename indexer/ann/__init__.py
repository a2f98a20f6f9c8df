"""The only door to FAISS: make, train, add, search, save, load.

Scores are inner products of unit vectors; higher is closer. Rows are positions within one index object.
"""

from indexer.ann.arrays import Found, Rows, Scores, Vectors
from indexer.ann.asking import takes_selector
from indexer.ann.candidates import candidate_factories
from indexer.ann.choosing import (
    SAMPLE_ROWS,
    Considered,
    Wanted,
    consider,
    copy_of,
    exact,
    least_cost,
    ranked,
    stored_bytes,
)
from indexer.ann.curve import CurvePoint, cheapest_with, parameters_for, recall_curve
from indexer.ann.devices import accelerated
from indexer.ann.faiss_module import require_faiss, set_threads
from indexer.ann.files import Reader, is_mapped, load_index, map_index, save_index
from indexer.ann.gpu import to_cpu, to_device
from indexer.ann.grid import parameter_grid, widen_search
from indexer.ann.layers import is_graph
from indexer.ann.making import (
    add_vectors,
    factory_of,
    is_exact,
    make_index,
    require_factory,
    require_finite,
    vectors_at,
)
from indexer.ann.parameters import require_parameters, search_parameters, set_search_parameters
from indexer.ann.searching import search_index
from indexer.ann.threads import one_thread
from indexer.ann.training import Trainer, train_index
from indexer.ann.truth import RECALL_DEPTH, ROUNDING, ExactBest, Truth, pair_scores
from indexer.ann.work import Work, reads

__all__ = [
    "RECALL_DEPTH",
    "ROUNDING",
    "SAMPLE_ROWS",
    "Considered",
    "CurvePoint",
    "ExactBest",
    "Found",
    "Reader",
    "Rows",
    "Scores",
    "Trainer",
    "Truth",
    "Vectors",
    "Wanted",
    "Work",
    "accelerated",
    "add_vectors",
    "candidate_factories",
    "cheapest_with",
    "consider",
    "copy_of",
    "exact",
    "factory_of",
    "is_exact",
    "is_graph",
    "is_mapped",
    "least_cost",
    "load_index",
    "make_index",
    "map_index",
    "one_thread",
    "pair_scores",
    "parameter_grid",
    "parameters_for",
    "ranked",
    "reads",
    "recall_curve",
    "require_factory",
    "require_faiss",
    "require_finite",
    "require_parameters",
    "save_index",
    "search_index",
    "search_parameters",
    "set_search_parameters",
    "set_threads",
    "stored_bytes",
    "takes_selector",
    "to_cpu",
    "to_device",
    "train_index",
    "vectors_at",
    "widen_search",
]
