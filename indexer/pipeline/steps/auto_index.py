"""The automatic choice of an index: kinds compared on a sample, the best ones filled with all rows and measured again.

A sample overestimates the cost of inverted lists: with few rows in each list, a query seems to need more lists than it
does. (IVF4096 on a million embeddings: half of its lists for 99.5 % of the ten best by 30,000 of the rows.) So kinds
with lists that are close to the best are compared again with all rows. Other kinds are filled only if their predicted
work is less than the measured work of the best so far: with more rows they need as many candidates or more. Graphs are
filled last, because that takes twenty times as long as filling codes.
"""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from tempfile import TemporaryFile
from typing import IO, Any

from indexer import ann
from indexer.errors import ConfigError, QualityError, as_argument
from indexer.pipeline.rows import VectorBlocks
from indexer.pipeline.steps.parallel_segments import ShardedFill
from indexer.pipeline.steps.recall_queries import Encode, RecallQueries, recall_queries, split_train_queries
from indexer.recipe.index_config import IndexConfig
from indexer.system.threads import single_blas_thread

_ALIKE = 1.05  # a kind with the same scan within this factor of predicted work counts as equal
_NEAR_LISTS = 4  # factor by which the predicted work of inverted lists may be wrong


@dataclass(frozen=True)
class FilledIndex:
    """An index of all rows, its recall curve up to the requested recall, and its operating point."""

    factory: str
    index: Any  # None while it is in a file
    curve: list[ann.OperatingPoint]
    point: ann.OperatingPoint
    bytes_per_vector: float

    @property
    def recall(self) -> float:
        return self.point.recall

    @property
    def cost(self) -> int:
        return self.point.work.cost


class Finalists:
    """The kinds of index to fill, in order, and the results of filling them.

    `figures` has the results of all filled kinds, JSON types. Only the best index is kept.
    """

    def __init__(self, kinds: Sequence[ann.Candidate], recall: float) -> None:
        """`kinds` by ascending work, at least one."""
        self._recall = recall
        least = kinds[0]
        self._near = [] if ann.is_exact(least.factory) else [kind for kind in kinds if _is_filled_fast(kind)]
        self._others = [kind for kind in kinds if kind not in self._near]
        self._least = self._predicted = least.cost  # of all kinds, and of the kind being filled
        self._scans: dict[str, int] = {}  # scans that reached the recall, with their least predicted work
        self._best: FilledIndex | None = None
        self._file: IO[bytes] | None = None  # with the best index, while another is filled
        self.figures: list[dict[str, Any]] = []

    def __iter__(self) -> Iterator[ann.Candidate]:
        """Yield the kinds to fill; each decision uses the results taken so far."""
        for kind in (*self._near, *self._others):
            near = kind in self._near and kind.cost <= _NEAR_LISTS * self._least and ann.has_lists(kind.trained)
            is_new = kind.cost < _ALIKE * self._scans.get(_scan_of(kind), math.inf)
            if (near and is_new) or self._promises_less(kind):
                self._predicted = kind.cost
                yield kind

    def take(self, filled: FilledIndex) -> None:
        """Record an index of all rows, and keep it if it is the best so far."""
        self.figures.append({"factory": filled.factory, "recall": filled.recall, "cost": filled.cost})
        if filled.recall >= self._recall:
            self._scans.setdefault(_scan_of(filled), self._predicted)
        if self._best is None or self._rank(filled) < self._rank(self._best):
            self._best, self._file = filled, None

    def set_aside(self, file: IO[bytes]) -> None:
        """Move the best index so far into a file, in place of its contents: each filled index needs much memory."""
        if self._best is not None and self._file is None:
            try:
                file.seek(0)
                file.truncate()
                ann.save_index(self._best.index, file)
                file.flush()
            except OSError:  # the disk is full: the index stays in memory, and the file makes room
                os.truncate(file.fileno(), 0)
            else:
                self._best, self._file = replace(self._best, index=None), file

    @property
    def best(self) -> FilledIndex:
        """The index of least work that reaches the recall; if none does, the index of highest recall."""
        if self._best is None:
            raise RuntimeError("no index has been filled yet")
        if self._file is not None:
            size, _ = self._file.tell(), self._file.seek(0)
            index = ann.load_index(self._file, self._best.factory, size)
            ann.set_search_parameters(index, self._best.point.search_parameters)
            self._best, self._file = replace(self._best, index=index), None
        return self._best

    @property
    def missed(self) -> str:
        """The kinds that missed the recall, in words."""
        low = [kind for kind in self.figures if kind["recall"] < self._recall]
        return "; ".join(f"{kind['factory']} reached {kind['recall']:.4f} with all rows" for kind in low)

    def _promises_less(self, kind: ann.Candidate) -> bool:
        return not self._scans or self._best is None or kind.cost < self._best.cost

    def _rank(self, filled: FilledIndex) -> tuple[bool, float]:
        low = filled.recall < self._recall
        return low, -filled.recall if low else filled.cost


def _is_filled_fast(kind: ann.Candidate) -> bool:
    return not ann.is_exact(kind.factory) and not ann.is_graph(kind.trained)


def _scan_of(kind: ann.Candidate | FilledIndex) -> str:
    """Return the part of the factory string before the codes that rescore candidates."""
    return kind.factory.partition(",Refine")[0]


@dataclass(frozen=True)
class IndexRequest(ShardedFill):
    """The rows, transform and settings of an index to build, which workers may fill in shards."""

    config: IndexConfig
    encode: Encode
    share: float = 1.0  # of index.memory

    @property
    def wanted(self) -> ann.IndexRequirements:
        dim, memory = self.transform.dim, int(self.config.memory_bytes * self.share)
        return ann.IndexRequirements(self.rows.stored, dim, self.config.recall, memory)

    def blocks(self) -> VectorBlocks:
        return VectorBlocks(self.rows, self.transform, self.options.threads, self.progress)

    @property
    def device(self) -> str:
        """The device on which FAISS trains and adds vectors: CUDA or the CPU."""
        device = self.options.device
        return "cuda" if device == "auto" else device


@dataclass(frozen=True)
class BuiltIndex:
    """An index of all rows in memory with its search parameters set; without `index` an exact one is best.

    `zero` counts zero vectors; `figures` are for the manifest, JSON types.
    """

    factory: str
    index: Any = None
    recall: float | None = None
    zero: int = 0
    figures: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def search_parameters(self) -> dict[str, int]:
        return {} if self.index is None else ann.search_parameters(self.index)


def build_named(request: IndexRequest, factory: str) -> BuiltIndex:
    """Build the index of a FAISS factory string, tuned to the requested recall.

    Raises ConfigError for a factory string or memory budget that does not fit, QualityError for a missed recall.
    """
    builder = _IndexBuilder(request)
    filled = builder.fill(factory, builder.trainer.trained(factory))
    if not request.wanted.fits(filled.bytes_per_vector):
        raise ConfigError(too_large(request, factory, filled.bytes_per_vector))
    return builder.finish(filled, {"why": "requested by index.type"})


def choose_index(request: IndexRequest) -> BuiltIndex:
    """Build the index of least work a query among those that reach the recall and fit the memory budget.

    One filled index is in memory. Raises ConfigError if no kind fits, QualityError if none that fits reaches
    the recall.
    """
    builder = _IndexBuilder(request)
    considered = builder.considered()
    finalists = Finalists(_worth_filling(request, considered), request.config.recall)
    with TemporaryFile(dir=request.path.parent) as file:
        for kind in finalists:
            if ann.is_exact(kind.factory):
                return BuiltIndex("Flat", figures={"index": _about(request, considered, finalists)})
            finalists.set_aside(file)
            finalists.take(builder.fill(kind.factory, ann.copy_of(kind.trained)))  # the candidate itself stays empty
        best = finalists.best
    about = _about(request, considered, finalists)
    if best.recall < request.config.recall:
        about["why"] = "the highest recall of those that fit index.memory"
    return builder.finish(best, about)


def too_large(request: IndexRequest, factory: str, bytes_per_vector: float) -> str:
    """Return the error text for an index beyond the memory budget."""
    needed = _readable(bytes_per_vector * request.wanted.rows)
    share = "" if request.share == 1 else f" ({request.share:.1%} of it for these rows)"
    return (
        f"index.memory is {request.config.memory}{share}, but {factory} needs {needed} for "
        f"{request.wanted.rows:,} vectors ({bytes_per_vector:,.0f} bytes each). Fix: increase index.memory, choose "
        "another index.type, or keep fewer dimensions (whitening.dim)."
    )


def _readable(count: float) -> str:
    """Return bytes as `index.memory` takes them, rounded up, such as "468.8K"."""
    unit = min(4, int(math.log2(max(1.0, count))) // 10)
    return f"{math.ceil(10 * count / 1024**unit) / 10:.5g}{('', 'K', 'M', 'G', 'T')[unit]}"


class _IndexBuilder:
    """Training vectors, queries to measure with, and indexes filled with all rows.

    The first fill also finds the exact answers to the queries.
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
        self._truth: ann.GroundTruth | None = None
        self._zero = 0

    def considered(self) -> list[ann.Candidate]:
        """Return kinds of index measured on a sample, best first; skips kinds whose minimum cost exceeds the best."""
        request, sample, queries = self._request, self.trainer.sample[: ann.SAMPLE_ROWS], self._queries
        best = ann.GroundTruthBuilder(queries.vectors, origins=queries.origins)
        with single_blas_thread():
            best.update(0, sample)
        truth, wanted = ann.GroundTruth.of(best), request.wanted
        factories = ann.candidate_factories(wanted.rows, wanted.dim, bool(wanted.memory))
        request.progress.phase("measuring kinds of index", len(factories))
        kinds = [ann.exact_candidate(wanted)]
        for factory in factories:
            least = min((kind.cost for kind in kinds if kind.fits and kind.recall >= wanted.recall), default=math.inf)
            if ann.cost_lower_bound(factory, wanted) < least:  # mostly skips graphs, which take most of the time here
                kinds.append(ann.measure_candidate(factory, wanted, self.trainer, truth))
            request.progress.advance(1)
        return ann.rank_candidates(kinds, wanted)

    def fill(self, factory: str, index: Any) -> FilledIndex:
        """Fill a trained, empty index and tune it to the recall."""
        request = self._request
        index = ann.to_gpu(index, request.device)
        queries, best = self._queries, None
        if self._truth is None:
            best = ann.GroundTruthBuilder(queries.vectors, excluded=queries.own, origins=queries.origins)
        if request.has_workers and ann.is_mergeable(index):
            self._zero = request.fill(index, best)
        else:
            ann.reserve_rows(index, request.rows.stored)
            self._zero = request.blocks().fill(partial(ann.add_vectors, index), best)
        if best is not None:
            self._truth = ann.GroundTruth.of(best)
        index = ann.to_cpu(index)
        request.progress.phase("tuning", None)
        curve = ann.recall_curve(index, self._measured_by, request.rows.live_rows, request.config.recall)
        point = ann.cheapest_point(curve, request.config.recall)
        ann.set_search_parameters(index, point.search_parameters)
        return FilledIndex(factory, index, curve, point, ann.stored_bytes(index) / index.ntotal)

    def finish(self, filled: FilledIndex, about: dict[str, Any]) -> BuiltIndex:
        """Return an index with all its figures, including the whole recall curve. Raises QualityError."""
        request = self._request
        notes = _note_low(request, filled.recall, filled.factory)
        figures = {
            "recall_at_10": filled.recall,
            "queries": len(self._measured_by),
            "query_origin": self._queries.described,
            "bytes_per_vector": filled.bytes_per_vector,
            **about,
        }
        request.progress.phase("measuring recall", None)
        curve = ann.recall_curve(filled.index, self._measured_by, request.rows.live_rows, begun=filled.curve)
        if request.has_workers and not ann.is_mergeable(filled.index):
            notes = (*notes, f"{filled.factory} was filled by one process: this kind cannot be merged from shards")
        whole = {"index": figures, "recall_curve": [point.to_dict() for point in curve]}
        return BuiltIndex(filled.factory, filled.index, filled.recall, self._zero, whole, notes)

    @property
    def _measured_by(self) -> ann.GroundTruth:
        if self._truth is None:
            raise RuntimeError("no index has been filled yet")
        return self._truth


def _worth_filling(request: IndexRequest, considered: Sequence[ann.Candidate]) -> list[ann.Candidate]:
    """Return the kinds that fit and reached the recall on the sample, best first; if none did, the best that fits.

    An exact index always reaches the recall, but may not fit.
    """
    fitting = [kind for kind in considered if kind.fits]
    if not fitting:
        least = min(considered, key=lambda kind: kind.bytes_per_vector)
        raise ConfigError(too_large(request, f"the smallest kind considered ({least.factory})", least.bytes_per_vector))
    good = [kind for kind in fitting if kind.recall >= request.config.recall]
    if not good:
        _note_low(request, fitting[0].recall, f"{fitting[0].factory}, the best that fits index.memory, on a sample")
    return good or fitting[:1]


def _note_low(request: IndexRequest, recall: float, factory: str) -> tuple[str, ...]:
    """Return a note on a missed recall. Raises QualityError for it unless `options.allow_low_recall`."""
    if recall >= request.config.recall:
        return ()
    low = f"recall_at_10 is {recall:.4f} ({factory}), below index.recall {request.config.recall:g}"
    if not request.options.allow_low_recall:
        raise QualityError(
            f'the index was not published, because {low}. Fix: choose another index.type ("auto", "flat"), more '
            "index.memory or a lower index.recall, or publish it anyway with "
            f"{as_argument('allow_low_recall', True, 'RunOptions')}."
        )
    return (low,)


def _about(request: IndexRequest, considered: Sequence[ann.Candidate], finalists: Finalists) -> dict[str, Any]:
    """Return the reason for the choice, and the figures of all kinds on the sample and of the filled kinds."""
    wanted = request.wanted
    good = sum(kind.fits and kind.recall >= wanted.recall for kind in considered)
    reached = f"reach recall@10 {wanted.recall:g}{' and fit index.memory' if wanted.memory else ''}"
    filled = len(finalists.figures)
    again = f"{filled} of them compared with all rows" if filled > 1 else ""
    more = "; ".join(filter(None, (again, finalists.missed)))
    why = f"least work per query of the {good} among {len(considered)} kinds that {reached}" + (
        f" ({more})" if more else ""
    )
    return {"why": why, "candidates": [kind.to_dict() for kind in considered], "filled": finalists.figures}
