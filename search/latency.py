"""Search speed of an index on this machine in wall-clock time. The figures are printed and never stored."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from indexer import ann
from indexer.arrays import Vectors
from indexer.errors import EvaluationError
from indexer.pipeline.steps.recall_queries import perturbed
from indexer.system.threads import available_cores
from search.index import Index

BATCH = 256
_SINGLE = 500  # single queries
_BATCHES = 8
_WARM_UP = 10  # queries
_PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Latency:
    """Queries per second, one by one on one thread and in batches; percentiles in milliseconds."""

    k: int
    queries: int
    single_per_second: float
    single_ms: dict[str, float]
    batch: int
    batch_per_second: dict[int, float]  # threads -> queries per second

    def to_dict(self) -> dict[str, Any]:
        return vars(self) | {
            "batch_per_second": {str(threads): rate for threads, rate in self.batch_per_second.items()}
        }


def measure_latency(index: Index, k: int = 10) -> Latency:
    """Measure the time to search the best k rows, without encoding queries and without fetching documents.

    The queries are document vectors, perturbed as in a build's recall measurement. Raises EvaluationError for an index
    without documents.
    """
    queries = _queries(index)
    ann.set_threads(1)
    for query in queries[:_WARM_UP]:
        index.search(query[None], k)
    seconds = [_seconds(lambda query=query: index.search(query[None], k)) for query in queries[:_SINGLE]]  # type: ignore[misc]
    rates = {threads: _rate(index, queries, k, threads) for threads in sorted({1, available_cores()})}
    ann.set_threads(1)
    single, batch = len(seconds) / sum(seconds), min(BATCH, len(queries))
    return Latency(k, len(seconds), single, _milliseconds(seconds), batch, rates)


def _queries(index: Index) -> Vectors:
    """Return rows spread evenly over the index, each perturbed toward the row between it and the next."""
    rows = np.unique(np.linspace(0, index.numbering.rows - 1, 2 * _BATCHES * BATCH).astype(np.int64))
    if index.numbering.rows < 1:
        raise EvaluationError(f"{index.path}: the index contains no documents; expected at least one to search.")
    vectors = index.vectors(rows)
    return perturbed(vectors[::2], vectors[1::2] if len(vectors) > 1 else vectors).vectors


def _rate(index: Index, queries: Vectors, k: int, threads: int) -> float:
    ann.set_threads(threads)
    batches = [queries[start : start + BATCH] for start in range(0, len(queries), BATCH)]
    index.search(batches[0], k)
    seconds = sum(_seconds(lambda batch=batch: index.search(batch, k)) for batch in batches)  # type: ignore[misc]
    return len(queries) / seconds


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def percentiles(run: Callable[[int], object], numbers: Sequence[int]) -> dict[str, float]:
    """Return percentiles of the milliseconds that `run` takes for each of `numbers`, after a warm-up."""
    for number in numbers[:_WARM_UP]:
        run(number)
    seconds = [_seconds(lambda number=number: run(number)) for number in numbers]  # type: ignore[misc]
    return {"queries": len(numbers)} | _milliseconds(seconds)


def _milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    values = np.percentile(1000 * np.array(seconds), _PERCENTILES).tolist()
    return {f"p{level}": round(value, 4) for level, value in zip(_PERCENTILES, values, strict=True)}
