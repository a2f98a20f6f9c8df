"""The kind of index, chosen by measuring some kinds on a sample of the vectors and comparing the cost of a query.

Each kind is trained as for all vectors, filled with the sample, and tuned to the required recall. The cost of a query
is then computed for all rows, not timed, so the same vectors give the same choice on any machine.

Vectors quantised to four bits a subspace of two or four dimensions are scanned with the processor's table look-ups
(`x4fs`, tables of 16 entries), and the best of them rescored with 8 or 16 bits a dimension: `Refine(SQ8)` finds up to
99 % of the ten best, `Refine(SQfp16)` 99.9 %, with half the bytes of `RFlat`. "Pad384" allocates the dimensions to the
subspaces, and gives scalar quantizers whole registers: they score 381 dimensions nine times as slowly as 384. The
number of inverted lists is about the square root of the rows, and their vectors are quantised relative to the centroid
of the list (`x4fsr`). "IVF1" is one list of all rows: unlike the same kind without lists, it supports filters.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, Any, cast

from indexer.ann.choosing.cost import query_cost
from indexer.ann.choosing.operating_points import LEAST_WIDTH, cheapest_point, recall_curve
from indexer.ann.choosing.recall import RECALL_DEPTH, GroundTruth
from indexer.ann.factory import add_vectors, make_index
from indexer.ann.faiss_index import import_faiss, save_index
from indexer.ann.index_training import IndexTrainer
from indexer.ann.parameters import search_parameters

_LEAST_FOR_LISTS = 100_000  # rows below which scanning all vectors takes less time than choosing among lists
_LINKS = 32
_REGISTER = 16  # dimensions that vector instructions process at once
_FINER = ("Refine(SQ8)", "Refine(SQfp16)")
_COARSER = ("Refine(SQ6)", "Refine(SQ4)")  # less memory and less recall
SAMPLE_ROWS = 30_000
SMALL_BYTES = 64 << 20
# Measured with hnswlib on 12,500, 50,000 and 200,000 whitened embeddings: 95 % of the ten best need an efSearch of 32,
# 41 and 60, 99.5 % of them 124, 155 and 265.
_WIDENING = 0.25


def candidate_factories(rows: int, dim: int, limited: bool) -> list[str]:
    """Return factory strings worth measuring for `rows` vectors of `dim` dimensions; `limited`: memory is limited. The
    slowest to measure come last: by then they may be out of the question."""
    wide = -(-dim // _REGISTER) * _REGISTER
    pad, fine, coarse = f"Pad{wide}", f"PQ{wide // 2}x4fs", f"PQ{wide // 4}x4fs"
    scans = [f"IVF1,{coarse}", f"IVF1,{fine}"]
    if rows >= _LEAST_FOR_LISTS:
        lists = f"IVF{nlist_for(rows)}"
        scans = [f"{lists},{fine}r", f"{lists},{coarse}r", *scans]
    factories = [f"{pad},{scan},{finer}" for scan in scans for finer in _FINER]
    scalar = "" if wide == dim else f"{pad},"
    factories.append(f"{scalar}IVF1,RaBitQfs,Refine(SQ8)")
    if rows >= _LEAST_FOR_LISTS:
        factories.append(f"{lists},Flat")
    if limited:
        factories += [f"{pad},IVF1,{coarse},{coarser}" for coarser in _COARSER]
        factories += [f"RR{wide},IVF1,RaBitQfs{bits}" for bits in (6, 4)]
        factories += [f"{scalar}SQ{bits}" for bits in (8, 6, 4)]
    return [*factories, f"HNSW{_LINKS}", f"{scalar}HNSW{_LINKS}_SQ8"]


def nlist_for(rows: int) -> int:
    """Return the number of inverted lists for some rows: the power of two nearest to the square root."""
    return int(2 ** round(math.log2(math.sqrt(rows))))


@dataclass(frozen=True)
class IndexRequirements:
    """Requirements: `rows` vectors of `dim` dimensions, a recall@10, and the most bytes (0: no limit)."""

    rows: int
    dim: int
    recall: float
    memory: int = 0

    def fits(self, bytes_per_vector: float) -> bool:
        """Whether an index of this size is within the memory limit."""
        return not self.memory or bytes_per_vector * self.rows <= self.memory

    @property
    def is_small(self) -> bool:
        """Whether an exact index is chosen without measuring others. A query reads all of it: 64 MiB take a core about
        3 ms, less than encoding the query."""
        return self.rows * self.dim * 4 <= SMALL_BYTES and self.fits(4 * self.dim)


@dataclass(frozen=True)
class Candidate:
    """A kind of index: its recall on the sample, its cost and size with all rows. `trained` is an empty index."""

    factory: str
    recall: float
    cost: int
    bytes_per_vector: float
    fits: bool
    search_parameters: dict[str, int] = field(default_factory=dict)
    trained: Any = None

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {name: value for name, value in vars(self).items() if name != "trained"}


def exact_candidate(wanted: IndexRequirements) -> Candidate:
    """Return the exact index as a candidate, without measuring."""
    width = 4 * wanted.dim
    cost = query_cost(make_index("Flat", wanted.dim), 1, wanted.rows).cost
    return Candidate("Flat", 1.0, cost, width, wanted.fits(width))


def cost_lower_bound(factory: str, wanted: IndexRequirements) -> int:
    """Return the least cost of a query for any vectors: that of the narrowest search that is tried."""
    index = make_index(factory, wanted.dim)
    narrow = {name: LEAST_WIDTH if name == "efSearch" else 1 for name in search_parameters(index)}
    parameters = _scaled(narrow, wanted.rows / min(wanted.rows, SAMPLE_ROWS))
    return query_cost(index, RECALL_DEPTH, wanted.rows, parameters).cost


def measure_candidate(
    factory: str, wanted: IndexRequirements, trainer: IndexTrainer, truth: GroundTruth, rows: int = SAMPLE_ROWS
) -> Candidate:
    """Return a kind of index, measured with the first `rows` vectors of a trainer's sample. `truth` contains the best
    of these rows for some queries."""
    empty, sample = trainer.trained(factory), trainer.sample[:rows]
    index = copy_of(empty)
    add_vectors(index, sample)
    point = cheapest_point(recall_curve(index, truth, enough=wanted.recall), wanted.recall)
    scaled = _scaled(point.search_parameters, wanted.rows / len(sample))
    cost = query_cost(index, truth.depth, wanted.rows, scaled).cost
    fixed = stored_bytes(empty)
    width = (stored_bytes(index) - fixed) / len(sample) + fixed / wanted.rows
    return Candidate(factory, point.recall, cost, width, wanted.fits(width), point.search_parameters, empty)


def _scaled(parameters: dict[str, int], times: float) -> dict[str, int]:
    """Return `parameters` for an index with `times` the rows: a larger graph needs a wider search."""
    width = parameters.get("efSearch")
    return parameters if width is None else {**parameters, "efSearch": math.ceil(width * max(times, 1) ** _WIDENING)}


def rank_candidates(considered: Sequence[Candidate], wanted: IndexRequirements) -> list[Candidate]:
    """Sort: candidates that fit and reach the recall by cost, others that fit by recall, then the rest."""

    def rank(kind: Candidate) -> tuple[bool, bool, float, float, str]:
        low = kind.recall < wanted.recall
        return not kind.fits, low, -kind.recall if low else kind.cost, kind.bytes_per_vector, kind.factory

    return sorted(considered, key=rank)


def copy_of(index: Any) -> Any:
    """Return a copy of an index."""
    return import_faiss().clone_index(index)


def stored_bytes(index: Any) -> int:
    """Return the bytes of the index as a file, which equals its memory."""
    file = _SizeOnly()
    save_index(index, cast(IO[bytes], file))
    return file.size


class _SizeOnly:
    """A file that keeps only its size."""

    size = 0

    def write(self, data: bytes) -> int:
        self.size += len(data)
        return len(data)
