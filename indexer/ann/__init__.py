"""The interface of FAISS in this product: make, train, fill, search, save and load indexes.

Scores are inner products of unit vectors: higher is closer. Rows are positions within one index object.
"""

from indexer.ann.choosing.cost import QueryCost as QueryCost
from indexer.ann.choosing.cost import query_cost as query_cost
from indexer.ann.choosing.operating_points import OperatingPoint as OperatingPoint
from indexer.ann.choosing.operating_points import cheapest_point as cheapest_point
from indexer.ann.choosing.operating_points import parameter_grid as parameter_grid
from indexer.ann.choosing.operating_points import parameters_for as parameters_for
from indexer.ann.choosing.operating_points import recall_curve as recall_curve
from indexer.ann.choosing.recall import SCORE_TOLERANCE as SCORE_TOLERANCE
from indexer.ann.choosing.recall import GroundTruth as GroundTruth
from indexer.ann.choosing.recall import GroundTruthBuilder as GroundTruthBuilder
from indexer.ann.choosing.selection import SAMPLE_ROWS as SAMPLE_ROWS
from indexer.ann.choosing.selection import Candidate as Candidate
from indexer.ann.choosing.selection import IndexRequirements as IndexRequirements
from indexer.ann.choosing.selection import candidate_factories as candidate_factories
from indexer.ann.choosing.selection import copy_of as copy_of
from indexer.ann.choosing.selection import cost_lower_bound as cost_lower_bound
from indexer.ann.choosing.selection import exact_candidate as exact_candidate
from indexer.ann.choosing.selection import measure_candidate as measure_candidate
from indexer.ann.choosing.selection import rank_candidates as rank_candidates
from indexer.ann.choosing.selection import stored_bytes as stored_bytes
from indexer.ann.exact import merge_top_k as merge_top_k
from indexer.ann.exact import nothing as nothing
from indexer.ann.exact import on_device as on_device
from indexer.ann.exact import search_blocks as search_blocks
from indexer.ann.exact import search_rows as search_rows
from indexer.ann.factory import add_vectors as add_vectors
from indexer.ann.factory import check_factory as check_factory
from indexer.ann.factory import factory_of as factory_of
from indexer.ann.factory import is_exact as is_exact
from indexer.ann.factory import make_index as make_index
from indexer.ann.factory import reconstruct as reconstruct
from indexer.ann.factory import require_finite as require_finite
from indexer.ann.faiss_index import has_lists as has_lists
from indexer.ann.faiss_index import import_faiss as import_faiss
from indexer.ann.faiss_index import is_graph as is_graph
from indexer.ann.faiss_index import is_mapped as is_mapped
from indexer.ann.faiss_index import load_index as load_index
from indexer.ann.faiss_index import map_index as map_index
from indexer.ann.faiss_index import save_index as save_index
from indexer.ann.faiss_index import set_threads as set_threads
from indexer.ann.faiss_index import to_cpu as to_cpu
from indexer.ann.faiss_index import to_gpu as to_gpu
from indexer.ann.index_training import IndexTrainer as IndexTrainer
from indexer.ann.inner_products import candidates as candidates
from indexer.ann.inner_products import pair_products as pair_products
from indexer.ann.merging import IndexMerger as IndexMerger
from indexer.ann.merging import IndexShard as IndexShard
from indexer.ann.merging import is_mergeable as is_mergeable
from indexer.ann.parameters import require_parameters as require_parameters
from indexer.ann.parameters import search_parameters as search_parameters
from indexer.ann.parameters import set_search_parameters as set_search_parameters
from indexer.ann.parameters import supports_filter as supports_filter
from indexer.ann.search import search_index as search_index
