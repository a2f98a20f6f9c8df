"""Search speed of an index on this machine in wall-clock time. The figures are printed and never stored."""

import time
from collections.abc import Callable, Sequence
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


def measure_latency(index: Index, k: int = 10) -> dict[str, Any]:
    """Return the speed of a search for the best k rows, without encoding queries and without fetching documents.

    That is queries per second, one by one on one thread and in batches by threads, and percentiles in milliseconds. The
    queries are document vectors, perturbed as in a build's recall measurement. Raises EvaluationError for an index
    without documents.
    """
    queries = _queries(index)
    ann.set_threads(1)
    for query in queries[:_WARM_UP]:
        index.search(query[None], k)
    seconds = [_seconds(lambda query=query: index.search(query[None], k)) for query in queries[:_SINGLE]]  # type: ignore[misc]
    rates = {str(threads): _rate(index, queries, k, threads) for threads in sorted({1, available_cores()})}
    ann.set_threads(1)
    return {
        "k": k,
        "queries": len(seconds),
        "single_per_second": len(seconds) / sum(seconds),
        "single_ms": _milliseconds(seconds),
        "batch": min(BATCH, len(queries)),
        "batch_per_second": rates,
    }


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
