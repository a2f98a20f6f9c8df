"""Recall and latency of an index against exact search, on queries that are not rows of the index.

A query drawn from a document would find that document, so the document and its duplicates are taken out of both
lists, the index's and the exact one, before they are compared. The index is asked for as many more answers. Where
documents have several windows, answers are windows.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer import ann
from indexer.arrays import RowIds, Vectors
from indexer.encoders import EncodeStats, Role
from indexer.errors import ConfigError, CorruptIndexError, EvaluationError
from indexer.progress import NoProgress, Progress
from search.engine import SearchEngine
from search.evaluation.recall.exact import duplicates_of, exact_recall
from search.evaluation.recall.held_out import SAMPLE, HeldOut, Origin, draw_queries, read_queries
from search.evaluation.resampling import RESAMPLES, Interval, interval
from search.opened import OpenIndex
from search.printable import counted
from search.provenance import Clock, how_built
from search.stored import StoredRows

DEPTH = 10
_MOST_DUPLICATES = 1000  # a document with more is no useful query, and would be searched for that deep
_TIMED = 1000  # queries
_WARM_UP = 10  # queries
_PERCENTILES = (50, 90, 99)
_BATCH = 256  # queries searched together
_PROTOCOL = "against exact search over the stored vectors; a query's own document and its duplicates do not count"
Shares = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Recall:
    """What was measured. `recall` is the mean over queries; latencies are in milliseconds."""

    k: int
    recall: Interval
    exact: bool  # a flat index: recall is 1 by construction, and was found to be
    queries: int
    origin: str
    excluded: int  # rows taken out of both lists, at most for one query
    latency: dict[str, dict[str, float]]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON types, without the notes."""
        return {
            "k": self.k,
            "recall": self.recall.value,
            "low": self.recall.low,
            "high": self.recall.high,
            "exact": self.exact,
            "queries": self.queries,
            "origin": self.origin,
            "excluded_at_most": self.excluded,
            "latency_ms": self.latency,
        }


def measure_recall(engine: SearchEngine, stored: StoredRows, queries: HeldOut, k: int, progress: Progress) -> Recall:
    """recall@k of an index's own answers, and how long single queries take.

    Raises EvaluationError when the index holds too few documents for k, and CorruptIndexError when an exact index
    does not give the exact answers.
    """
    opened = engine.opened
    progress.phase("finding duplicates", None)
    queries, excluded = _useful(queries, duplicates_of(stored, queries.rows), opened)
    _require_enough(opened, queries, excluded, k)
    log = EncodeStats(on_batch=progress.advance)
    vectors = _vectors(engine, queries, log, progress)
    progress.phase("searching", None)
    answers = _answers(opened, vectors, excluded, k)
    progress.phase("searching exactly", None)
    shares = exact_recall(stored, vectors, answers, excluded)
    progress.phase("timing", None)
    exact = all(ann.is_exact(entry.factory) for entry in opened.manifest.segments)
    if exact and shares.min() < 1:
        _refuse_inexact(opened, shares, k)
    limit = opened.encoder.max_length  # the recipe's may be 0, the model's own
    longer = counted(log.truncated, "query is", "queries are")
    cut = (f"{longer} longer than {limit} tokens and cut there",) if log.truncated else ()
    return Recall(
        k,
        interval(float(shares.mean()), _resampled(shares)),
        exact,
        len(shares),
        queries.origin,
        max(map(len, excluded)),
        _latency(engine, queries.texts, vectors, k),
        (*queries.notes, *cut, *_units(opened)),
    )


def evaluate_recall(
    engine: SearchEngine,
    k: int = DEPTH,
    file: Path | None = None,
    origin: Origin | None = None,
    sample: int = SAMPLE,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """`measure_recall` on the queries of a file, or else drawn from the documents, as a result file (JSON types)."""
    clock, opened = Clock(), engine.opened
    if k < 1:
        raise ConfigError(f"k is {k}; expected at least 1.")
    stored = StoredRows(opened)
    dim = opened.manifest.encoder["dim"]
    queries = read_queries(file, dim) if file else draw_queries(stored, origin, sample)
    measured = measure_recall(engine, stored, queries, k, progress or NoProgress())
    how: dict[str, Any] = {
        "measure": "recall",
        "protocol": _PROTOCOL,
        "cores": os.cpu_count(),
        "search_threads": 1,
        **how_built(opened.config, opened),
    }
    provenance = clock.provenance(engine.encoder.spec, queries.files, **how)
    transform = opened.manifest.files[opened.manifest.transform["file"]].sha256
    made = {"encoder": opened.manifest.fingerprint, "transform": transform}
    row = measured.to_dict() | describe_segments(opened) | made
    return {"provenance": provenance, "results": [row], "notes": list(measured.notes)}


def _vectors(engine: SearchEngine, queries: HeldOut, log: EncodeStats, progress: Progress) -> Vectors:
    """Unit vectors of the queries (n, k). Documents that are asked with as they are stay documents."""
    if queries.embeddings is None:
        progress.phase("encoding queries", len(queries))
        return engine.embed(queries.texts, "query", log)
    role: Role = "document" if queries.origin == "documents" else "query"
    return engine.opened.transform.transform(queries.embeddings, role)


def describe_segments(opened: OpenIndex) -> dict[str, Any]:
    """Kind, search parameters and size of an index: JSON types."""
    segments = opened.manifest.segments
    stored = sum(opened.manifest.files[entry.file].bytes for entry in segments)
    return {
        "index_type": ", ".join(dict.fromkeys(entry.factory for entry in segments)),
        "search_parameters": [entry.search_parameters for entry in segments],
        "rows": opened.manifest.rows,
        "dim": opened.transform.dim,
        "bytes_per_vector": stored / max(sum(entry.rows for entry in segments), 1),
    }


def _units(opened: OpenIndex) -> tuple[str, ...]:
    """What is said where answers are not documents."""
    return () if opened.numbering.one_to_one else ("answers are windows, of which a document may have several",)


def _nouns(opened: OpenIndex) -> tuple[str, str]:
    """What one answer is called, and several."""
    return ("document", "documents") if opened.numbering.one_to_one else ("window", "windows")


def _useful(queries: HeldOut, excluded: list[RowIds], opened: OpenIndex) -> tuple[HeldOut, list[RowIds]]:
    """Without the queries whose document is repeated too often to search past."""
    too_many = f"are there more than {_MOST_DUPLICATES:,} times"
    if not opened.numbering.one_to_one:
        too_many = f"have more than {_MOST_DUPLICATES:,} windows, those of their duplicates included"
    keep = np.flatnonzero([len(rows) <= _MOST_DUPLICATES for rows in excluded])
    if dropped := len(excluded) - len(keep):
        queries = queries.keep(keep, f"{counted(dropped, 'query', 'queries')} left out: from documents that {too_many}")
    if not len(keep):
        raise EvaluationError(
            f"there are only documents that {too_many}, so none is a useful query. Name a file of queries with "
            "--queries."
        )
    return queries, [excluded[number] for number in keep.tolist()]


def _require_enough(opened: OpenIndex, queries: HeldOut, excluded: Sequence[RowIds], k: int) -> None:
    worst = int(np.argmax([len(rows) for rows in excluded]))
    others = opened.manifest.rows - len(excluded[worst])
    if others >= k:
        return
    besides = ""
    if len(excluded[worst]):
        name = opened.documents.ids([int(queries.rows[worst])])[0]
        copies = len(excluded[worst]) - len(opened.numbering.rows_of(queries.rows[[worst]]))
        besides = f', {others:,} of them besides "{name}", which a query is drawn from, and its duplicates ({copies:,})'
    raise EvaluationError(
        f"recall@{k} compares {counted(k, 'answer', 'answers')}, but {opened.path} holds "
        f"{counted(opened.manifest.rows, *_nouns(opened))}{besides}. "
        + (f"Ask for at most -k {others}." if others else "There is nothing to measure.")
    )


def _answers(opened: OpenIndex, vectors: Vectors, excluded: Sequence[RowIds], k: int) -> RowIds:
    """The index's k best rows of each query (n, k), its excluded ones passed over; -1 where it gave fewer."""
    answers = np.full((len(vectors), k), -1)
    sizes = np.array([len(rows) for rows in excluded])
    for size in np.unique(sizes).tolist():
        members = np.flatnonzero(sizes == size)
        for start in range(0, len(members), _BATCH):
            batch = members[start : start + _BATCH]
            for number, (_, rows) in zip(batch.tolist(), opened.search(vectors[batch], k + size), strict=True):
                others = rows[~np.isin(rows, excluded[number])][:k]
                answers[number, : len(others)] = others
    return answers


def _refuse_inexact(opened: OpenIndex, shares: Shares, k: int) -> None:
    raise CorruptIndexError(
        f"{opened.path}: an exact (Flat) index has recall 1 by construction, but recall@{k} is {shares.mean():.4f}: "
        "its segment does not hold the transformed embeddings. Run isotrope verify, or build again with --overwrite."
    )


def _resampled(shares: Shares) -> Shares:
    """Means of bootstrap resamples of the queries, drawn as counts of the few distinct shares there are."""
    values, counts = np.unique(shares, return_counts=True)
    drawn = np.random.default_rng(0).multinomial(len(shares), counts / len(shares), RESAMPLES)
    means: Shares = drawn @ values / len(shares)
    return means


def _latency(engine: SearchEngine, texts: Sequence[str], vectors: Vectors, k: int) -> dict[str, dict[str, float]]:
    """Percentiles in ms of one query after another, on one thread of search, after a warm-up: the search alone,
    and with encoding the text, if there are texts. Documents are not fetched. At most `_TIMED` queries, spread evenly.
    """
    chosen = np.unique(np.linspace(0, len(vectors) - 1, min(_TIMED, len(vectors))).astype(int)).tolist()
    timed = {"search": _timed(lambda number: engine.opened.search(vectors[number : number + 1], k), chosen)}
    if texts:
        timed["with_encoding"] = _timed(lambda number: engine.opened.search(engine.embed([texts[number]]), k), chosen)
    return timed


def _timed(run: Callable[[int], object], numbers: Sequence[int]) -> dict[str, float]:
    for number in numbers[:_WARM_UP]:
        run(number)
    taken = []
    for number in numbers:
        start = time.perf_counter()
        run(number)
        taken.append(1000 * (time.perf_counter() - start))
    percentiles = np.percentile(taken, _PERCENTILES).tolist()
    return {"queries": len(numbers)} | {
        f"p{level}": round(value, 4) for level, value in zip(_PERCENTILES, percentiles, strict=True)
    }
