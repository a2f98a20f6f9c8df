"""The kind of index, chosen by measuring some on a sample of the vectors, and judged by what a query costs.

Each kind is trained as it would be for all vectors, filled with the sample, and tuned to the recall that is asked for.
What a query then costs is counted for all rows, not timed, so the same vectors give the same choice on any machine.

Codes of four bits are scanned with the processor's table look-ups (`x4fs`), each a table of 16 for two or four
dimensions, and the best of them scored again by codes of 8 or 16 bits a dimension: `Refine(SQ8)` finds up to 99 % of
the ten best, `Refine(SQfp16)` 99.9 %, with half the bytes of `RFlat`. "Pad384" deals the dimensions out to the codes.
About as many inverted lists as the square root of the rows, codes of what a vector differs by from the centroid of its
list (`x4fsr`). "IVF1" is one list of everything: unlike the same codes without lists, it can be searched for some rows
only.
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

_LEAST_FOR_LISTS = 100_000  # rows below which scanning all codes takes less than choosing among lists
_LINKS = 32
_REGISTER = 16  # dimensions that vector instructions take at once
_FINER = ("Refine(SQ8)", "Refine(SQfp16)")
_COARSER = ("Refine(SQ6)", "Refine(SQ4)")  # they take less memory, and find less
SAMPLE_ROWS = 30_000
SMALL_BYTES = 64 << 20
# By hnswlib on 12,500, 50,000 and 200,000 whitened embeddings: 95 % of the ten best take an efSearch of 32, 41 and 60,
# 99.5 % of them 124, 155 and 265.
_WIDENING = 0.25


def candidate_factories(rows: int, dim: int, limited: bool) -> list[str]:
    """Factory strings worth measuring for `rows` vectors of `dim` dimensions; `limited`: where memory is.

    Those that take longest to measure come last: they may be out of reach by then.
    """
    wide = -(-dim // _REGISTER) * _REGISTER
    pad, fine, coarse = f"Pad{wide}", f"PQ{wide // 2}x4fs", f"PQ{wide // 4}x4fs"
    scans = [f"IVF1,{coarse}", f"IVF1,{fine}"]
    if rows >= _LEAST_FOR_LISTS:
        lists = f"IVF{nlist_for(rows)}"
        scans = [f"{lists},{fine}r", f"{lists},{coarse}r", *scans]
    found = [f"{pad},{scan},{finer}" for scan in scans for finer in _FINER]
    found.append("IVF1,RaBitQfs,Refine(SQ8)")
    if rows >= _LEAST_FOR_LISTS:
        found.append(f"{lists},Flat")
    if limited:
        found += [f"{pad},IVF1,{coarse},{coarser}" for coarser in _COARSER]
        found += [f"RR{dim},IVF1,RaBitQfs{bits}" for bits in (6, 4)]
        found += ["SQ8", "SQ6", "SQ4"]
    return [*found, f"HNSW{_LINKS}", f"HNSW{_LINKS}_SQ8"]


def nlist_for(rows: int) -> int:
    """Inverted lists for so many rows: the power of two nearest to the square root."""
    return int(2 ** round(math.log2(math.sqrt(rows))))


@dataclass(frozen=True)
class IndexRequirements:
    """What an index must be: `rows` vectors of `dim` dimensions, a recall@10, and the most bytes (0: any number)."""

    rows: int
    dim: int
    recall: float
    memory: int = 0

    def fits(self, bytes_per_vector: float) -> bool:
        """Whether the budget allows so much."""
        return not self.memory or bytes_per_vector * self.rows <= self.memory

    @property
    def is_small(self) -> bool:
        """Whether an exact index is the right one without a look at others.

        A query reads all of it: 64 MiB take a core about 3 ms, which is less than encoding the query does.
        """
        return self.rows * self.dim * 4 <= SMALL_BYTES and self.fits(4 * self.dim)


@dataclass(frozen=True)
class Candidate:
    """A kind of index: what it reached on the sample, and what it takes with all rows. `trained` is an empty one."""

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
    """An exact index, which needs no measuring."""
    width = 4 * wanted.dim
    cost = query_cost(make_index("Flat", wanted.dim), 1, wanted.rows).cost
    return Candidate("Flat", 1.0, cost, width, wanted.fits(width))


def cost_lower_bound(factory: str, wanted: IndexRequirements) -> int:
    """What a query costs at least, whatever the vectors: with the narrowest search that is ever tried."""
    index = make_index(factory, wanted.dim)
    narrow = {name: LEAST_WIDTH if name == "efSearch" else 1 for name in search_parameters(index)}
    return query_cost(
        index, RECALL_DEPTH, wanted.rows, _grown(narrow, wanted.rows / min(wanted.rows, SAMPLE_ROWS))
    ).cost


def measure_candidate(
    factory: str, wanted: IndexRequirements, trainer: IndexTrainer, truth: GroundTruth, rows: int = SAMPLE_ROWS
) -> Candidate:
    """A kind of index, measured with the first `rows` vectors of a trainer's sample.

    `truth` are the best rows of some queries among these.
    """
    empty, sample = trainer.trained(factory), trainer.sample[:rows]
    index = copy_of(empty)
    add_vectors(index, sample)
    point = cheapest_point(recall_curve(index, truth, enough=wanted.recall), wanted.recall)
    cost = query_cost(index, truth.depth, wanted.rows, _grown(point.search_parameters, wanted.rows / len(sample))).cost
    fixed = stored_bytes(empty)
    width = (stored_bytes(index) - fixed) / len(sample) + fixed / wanted.rows
    return Candidate(factory, point.recall, cost, width, wanted.fits(width), point.search_parameters, empty)


def _grown(parameters: dict[str, int], times: float) -> dict[str, int]:
    """What `parameters` become in an index of so many times the rows: a walk through a larger graph must be wider."""
    width = parameters.get("efSearch")
    return parameters if width is None else {**parameters, "efSearch": math.ceil(width * max(times, 1) ** _WIDENING)}


def rank_candidates(considered: Sequence[Candidate], wanted: IndexRequirements) -> list[Candidate]:
    """Those that fit and reach the recall first, by cost; then the others that fit, by recall; then the rest."""

    def rank(one: Candidate) -> tuple[bool, bool, float, float, str]:
        low = one.recall < wanted.recall
        return not one.fits, low, -one.recall if low else one.cost, one.bytes_per_vector, one.factory

    return sorted(considered, key=rank)


def copy_of(index: Any) -> Any:
    """Another index with the same contents."""
    return import_faiss().clone_index(index)


def stored_bytes(index: Any) -> int:
    """Bytes of the index as a file, which is what it takes in memory."""
    counter = _Counter()
    save_index(index, cast(IO[bytes], counter))
    return counter.bytes


class _Counter:
    """A file that keeps nothing but its size."""

    def __init__(self) -> None:
        self.bytes = 0

    def write(self, data: bytes) -> int:
        self.bytes += len(data)
        return len(data)
