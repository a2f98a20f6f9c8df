"""Kinds of index compared on a sample; the promising ones filled with every row, tuned, and measured again.

A sample misleads about inverted lists: it puts a handful of rows into each, so that a query seems to need more of them
than it does. (IVF4096 on a million embeddings: half of its lists for 99.5 % of the ten best by 30,000 of the rows.)
So kinds with lists that are within reach of the best are compared again with every row. Others are filled only if they
promise less work than what was measured so far: among more rows they need as many candidates or more. A graph takes
twenty times as long to fill as codes do, and comes last.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from indexer import ann
from indexer.errors import ConfigError, QualityError
from indexer.pipeline.rows import RowView, VectorBlocks
from indexer.pipeline.steps.recall_queries import Encode, RecallQueries, recall_queries, split_train_queries
from indexer.pipeline.steps.segment_shares import ShardedFill
from indexer.progress import Progress
from indexer.recipe.config import IndexConfig
from indexer.recipe.run_options import RunOptions
from indexer.system.threads import part_threads, single_blas_thread
from indexer.transforms import Transform

_ALIKE = 1.05  # times the work predicted for the same scan with other codes to score again: as good as the same
_NEAR_LISTS = 4  # times the least predicted work: what a prediction may be wrong by where there are inverted lists


@dataclass(frozen=True)
class FilledIndex:
    """An index of all rows, its curve up to the recall asked for, and the point that it is set to."""

    factory: str
    index: Any
    curve: list[ann.OperatingPoint]
    point: ann.OperatingPoint
    bytes_per_vector: float

    @property
    def recall(self) -> float:
        """recall@10 at the point."""
        return self.point.recall

    @property
    def cost(self) -> int:
        """Work of a query at the point."""
        return self.point.work.cost


class Finalists:
    """Kinds that are worth filling, in the order in which to do it, and what they turned out to be.

    `figures` tell of all of them, JSON types. Only the best index is kept in memory.
    """

    def __init__(self, kinds: Sequence[ann.Candidate], recall: float) -> None:
        """`kinds` by ascending work, one at least."""
        self._recall = recall
        least = kinds[0]
        self._near = [] if ann.is_exact(least.factory) else [one for one in kinds if _is_filled_fast(one)]
        self._others = [one for one in kinds if one not in self._near]
        self._least = self._predicted = least.cost  # of all, and of the one that is being filled
        self._scans: dict[str, int] = {}  # of those that reached the recall, with the least predicted for each
        self._best: FilledIndex | None = None
        self.figures: list[dict[str, Any]] = []

    def __iter__(self) -> Iterator[ann.Candidate]:
        """The kinds to fill, decided upon as the ones before have been taken."""
        for one in self._near:
            new = one.cost < _ALIKE * self._scans.get(_scan_of(one), math.inf) and ann.has_lists(one.trained)
            if (new and one.cost <= _NEAR_LISTS * self._least) or self._promises_less(one):
                self._predicted = one.cost
                yield one
        for one in self._others:
            if self._promises_less(one):
                self._predicted = one.cost
                yield one

    def take(self, filled: FilledIndex) -> None:
        """Compare an index of all rows with those before."""
        self.figures.append({"factory": filled.factory, "recall": filled.recall, "cost": filled.cost})
        if filled.recall >= self._recall:
            self._scans.setdefault(_scan_of(filled), self._predicted)
        if self._best is None or self._rank(filled) < self._rank(self._best):
            self._best = filled

    @property
    def best(self) -> FilledIndex:
        """The one of least work that reaches the recall; where none does, the one of highest recall."""
        if self._best is None:
            raise RuntimeError("no index has been filled yet")
        return self._best

    @property
    def missed(self) -> str:
        """Those that did not reach the recall, in words."""
        low = [one for one in self.figures if one["recall"] < self._recall]
        return "; ".join(f"{one['factory']} reached {one['recall']:.4f} with all rows" for one in low)

    def _promises_less(self, one: ann.Candidate) -> bool:
        return not self._scans or one.cost < self.best.cost

    def _rank(self, filled: FilledIndex) -> tuple[bool, float]:
        low = filled.recall < self._recall
        return low, -filled.recall if low else filled.cost


def _is_filled_fast(one: ann.Candidate) -> bool:
    return not ann.is_exact(one.factory) and not ann.is_graph(one.trained)


def _scan_of(one: ann.Candidate | FilledIndex) -> str:
    """What a kind scans, whatever codes score the candidates again."""
    return one.factory.partition(",Refine")[0]


@dataclass(frozen=True)
class IndexRequest:
    """What index is to be made, of what, and how."""

    rows: RowView
    transform: Transform
    config: IndexConfig
    options: RunOptions
    progress: Progress
    encode: Encode | None = None
    path: Path | None = None  # of the segment; workers leave shards beside it, and there are none without it
    share: float = 1.0  # of index.memory

    @property
    def wanted(self) -> ann.IndexRequirements:
        """What the index must be."""
        dim, memory = self.transform.dim, int(self.config.memory_bytes * self.share)
        return ann.IndexRequirements(self.rows.stored, dim, self.config.recall, memory)

    def blocks(self) -> VectorBlocks:
        """The vectors of all rows, a part at a time."""
        return self.rows.blocks(self.transform, part_threads(self.options.threads), self.progress)

    @property
    def workers(self) -> ShardedFill | None:
        """Those who fill an index in shards, where there are several of either."""
        if self.path is None:
            return None
        workers = ShardedFill(self.rows, self.transform, self.options, self.progress, self.path)
        return workers if workers.has_workers else None

    @property
    def device(self) -> str:
        """Where FAISS trains and adds if it can; it cannot on other devices than CUDA's."""
        device = self.options.device
        return "cuda" if device == "auto" else device


@dataclass(frozen=True)
class BuiltIndex:
    """An index of all rows in memory with its search parameters set; no `index` where an exact one is best.

    `zero` counts vectors that are zero; `figures` go into the manifest, JSON types.
    """

    factory: str
    index: Any = None
    recall: float | None = None
    zero: int = 0
    figures: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def build_named(request: IndexRequest, factory: str) -> BuiltIndex:
    """The index of a FAISS factory string, tuned to the recall asked for.

    Raises ConfigError for a factory string or a memory budget that does not fit, QualityError for a missed recall.
    """
    making = _Making(request)
    filled = making.fill(factory, making.trainer.trained(factory))
    if not request.wanted.fits(filled.bytes_per_vector):
        raise ConfigError(too_large(request, factory, filled.bytes_per_vector))
    if filled.recall < request.config.recall:
        _refuse_low(request, filled.recall, factory)
    return making.made(filled, "asked for by index.type")


def choose_index(request: IndexRequest) -> BuiltIndex:
    """The index that takes a query least work among those that reach the recall and fit the memory budget.

    Two filled indexes are in memory at most. Raises ConfigError when no kind fits, QualityError when none that fits
    reaches the recall.
    """
    making = _Making(request)
    considered = making.considered()
    finalists = Finalists(_worth_filling(request, considered), request.config.recall)
    for one in finalists:
        if ann.is_exact(one.factory):
            figures = _compared(considered, finalists)
            return BuiltIndex("Flat", figures={"index": {"why": _why(request, considered, finalists), **figures}})
        finalists.take(making.fill(one.factory, ann.copy_of(one.trained)))  # empty still, unlike what is made of it
    best, why = finalists.best, _why(request, considered, finalists)
    if best.recall < request.config.recall:
        _refuse_low(request, best.recall, best.factory)
        why = "the highest recall of those that fit index.memory"
    return making.made(best, why, _compared(considered, finalists))


def too_large(request: IndexRequest, factory: str, bytes_per_vector: float) -> str:
    """That an index does not fit the memory budget, and the ways out."""
    needed = bytes_per_vector * request.wanted.rows / 2**20
    share = "" if request.share == 1 else f", of which {request.share:.1%} are for these rows"
    return (
        f"index.memory is {request.config.memory}{share}, but {factory} takes {needed:,.0f}M for "
        f"{request.wanted.rows:,} vectors ({bytes_per_vector:,.0f} bytes each). Allow more, choose another index.type, "
        "or keep fewer dimensions (whitening.dim)."
    )


class _Making:
    """Vectors to train on, by id hash, queries to measure with, and indexes filled with every row.

    The exact answers are found as the rows go by for the first time.
    """

    def __init__(self, request: IndexRequest) -> None:
        request.progress.phase("drawing queries", None)
        rows, held_out = split_train_queries(request.rows)
        training = request.rows.vectors(request.transform, rows)
        self.trainer = ann.IndexTrainer(training, request.device)
        self._queries: RecallQueries = recall_queries(
            request.rows, request.transform, request.config, held_out, training, request.encode
        )
        self._request = request
        self._blocks = request.blocks()
        self._truth: ann.GroundTruth | None = None
        self._zero = 0

    def considered(self) -> list[ann.Candidate]:
        """Kinds of index measured on a sample, best first; without those that would be dearer whatever they find."""
        request, sample, queries = self._request, self.trainer.sample[: ann.SAMPLE_ROWS], self._queries
        best = ann.GroundTruthBuilder(queries.vectors, origins=queries.origins)
        with single_blas_thread():
            best.update(0, sample)
        truth, wanted = ann.GroundTruth.of(best), request.wanted
        factories = ann.candidate_factories(wanted.rows, wanted.dim, bool(wanted.memory))
        request.progress.phase("measuring kinds of index", len(factories))
        found = [ann.exact_candidate(wanted)]
        for factory in factories:
            least = min((one.cost for one in found if one.fits and one.recall >= wanted.recall), default=math.inf)
            if ann.cost_lower_bound(factory, wanted) < least:  # graphs take most of the time here, and seldom are that
                found.append(ann.measure_candidate(factory, wanted, self.trainer, truth))
            request.progress.advance(1)
        return ann.rank_candidates(found, wanted)

    def fill(self, factory: str, index: Any) -> FilledIndex:
        """Fill a trained, empty index and tune it to the recall."""
        request = self._request
        index = ann.to_gpu(index, request.device)
        queries, best = self._queries, None
        if self._truth is None:
            best = ann.GroundTruthBuilder(queries.vectors, excluded=queries.own, origins=queries.origins)
        workers = request.workers
        if workers is not None and ann.is_mergeable(index):
            self._zero = workers.fill(index, best)
        else:
            self._fill_alone(index, best)
        if best is not None:
            self._truth = ann.GroundTruth.of(best)
        index = ann.to_cpu(index)
        request.progress.phase("tuning", None)
        curve = ann.recall_curve(index, self._measured_by, request.rows.live_rows, request.config.recall)
        point = ann.cheapest_point(curve, request.config.recall)
        ann.set_search_parameters(index, point.search_parameters)
        return FilledIndex(factory, index, curve, point, ann.stored_bytes(index) / index.ntotal)

    def _fill_alone(self, index: Any, best: ann.GroundTruthBuilder | None) -> None:
        live = self._request.rows.live_rows
        for first, vectors in self._blocks:
            ann.add_vectors(index, vectors)
            if best is not None:
                best.update(first, vectors, None if live is None else live[first : first + len(vectors)])
        self._zero = self._blocks.zero

    def made(self, filled: FilledIndex, why: str, compared: dict[str, Any] | None = None) -> BuiltIndex:
        """An index with all that is to be said of it, its whole curve included."""
        figures = {
            "recall_at_10": filled.recall,
            "queries": len(self._measured_by),
            "query_origin": self._queries.described,
            "bytes_per_vector": filled.bytes_per_vector,
            "why": why,
            **(compared or {}),
        }
        request = self._request
        request.progress.phase("measuring recall", None)
        curve = ann.recall_curve(filled.index, self._measured_by, request.rows.live_rows, begun=filled.curve)
        low = filled.recall < request.config.recall
        notes = (_low(filled.recall, request.config.recall, filled.factory),) if low else ()
        if request.workers is not None and not ann.is_mergeable(filled.index):
            notes = (*notes, f"{filled.factory} was filled by one process: such an index cannot be made of shards")
        whole = {"index": figures, "recall_curve": [point.to_dict() for point in curve]}
        return BuiltIndex(filled.factory, filled.index, filled.recall, self._zero, whole, notes)

    @property
    def _measured_by(self) -> ann.GroundTruth:
        if self._truth is None:
            raise RuntimeError("no index has been filled yet")
        return self._truth


def _worth_filling(request: IndexRequest, considered: Sequence[ann.Candidate]) -> list[ann.Candidate]:
    """The kinds that fit and reached the recall on the sample, best first; failing that, the nearest that fits.

    An exact index reaches it, so there is none only where that does not fit.
    """
    fitting = [one for one in considered if one.fits]
    if not fitting:
        least = min(considered, key=lambda one: one.bytes_per_vector)
        raise ConfigError(too_large(request, f"the smallest kind considered ({least.factory})", least.bytes_per_vector))
    good = [one for one in fitting if one.recall >= request.config.recall]
    if not good:
        _refuse_low(request, fitting[0].recall, f"{fitting[0].factory}, the best that fits index.memory, on a sample")
    return good or fitting[:1]


def _refuse_low(request: IndexRequest, recall: float, factory: str) -> None:
    if not request.options.allow_low_recall:
        raise QualityError(
            f"the index was not published, because {_low(recall, request.config.recall, factory)}. Choose another "
            'index.type ("auto", "flat"), allow more index.memory, lower index.recall, or publish it as it is with '
            "--allow-low-recall."
        )


def _low(recall: float, target: float, factory: str) -> str:
    return f"recall_at_10 is {recall:.4f} ({factory}), below index.recall {target:g}"


def _why(request: IndexRequest, considered: Sequence[ann.Candidate], finalists: Finalists) -> str:
    wanted = request.wanted
    good = sum(one.fits and one.recall >= wanted.recall for one in considered)
    budget = " and fit index.memory" if wanted.memory else ""
    reached = f"reach recall@10 {wanted.recall:g}{budget}"
    why = f"least work a query of the {good} among {len(considered)} kinds that {reached}"
    filled = len(finalists.figures)
    again = f"{filled} of them compared with all rows" if filled > 1 else ""
    about = "; ".join(part for part in (again, finalists.missed) if part)
    return f"{why} ({about})" if about else why


def _compared(considered: Sequence[ann.Candidate], finalists: Finalists) -> dict[str, Any]:
    """All kinds, as the sample has it, and those filled, as they are."""
    return {"candidates": [one.to_dict() for one in considered], "filled": finalists.figures}
