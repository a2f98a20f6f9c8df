"""Recall and latency of an index against exact search, with queries that are not rows of the index.

A query drawn from a document would find that document, so the document and its duplicates are excluded from the
answers of both searches; the index is searched for as many more answers. In an index of windows, answers are windows.

Exact search streams the stored vectors: a float32 matrix product finds candidates, float64 products decide
(`indexer.ann.inner_products`).
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer import ann
from indexer.ann import SCORE_TOLERANCE, GroundTruthBuilder
from indexer.arrays import Float64Array, RowIds, Vectors
from indexer.encoders.protocol import EncodeStats
from indexer.errors import ConfigError, CorruptIndexError, EvaluationError, as_argument, spelled
from indexer.progress import NoProgress, Progress
from indexer.recipe.config import Role
from indexer.typed_arguments import checked
from search.engine import SearchEngine
from search.evaluation.bootstrap import RESAMPLES, interval
from search.evaluation.recall.drawn_queries import SAMPLE, DrawnFrom, draw_queries
from search.evaluation.result import Clock, Result, how_built
from search.formatting import counted
from search.index import Index, LiveRows
from search.latency import percentiles
from search.queries import QuerySet, read_queries

DEPTH = 10
_MOST_DUPLICATES = 1000  # a document with more is a useless query, and needs a search that deep
_TIMED = 1000  # queries
_BATCH = 256  # queries searched together
_PROTOCOL = "against exact search over the stored vectors; a query's own document and its duplicates do not count"


def measure_recall(
    engine: SearchEngine, stored: LiveRows, queries: QuerySet, k: int, progress: Progress
) -> tuple[dict[str, Any], list[str]]:
    """Return recall@k of an index and the latency of single queries as JSON types, and notes.

    "exact": a flat index, whose recall of 1 by construction was confirmed. "excluded_at_most": the most rows that
    were excluded for one query.

    Raises EvaluationError if the index has too few documents for k, and CorruptIndexError if an exact index does not
    return the exact answers.
    """
    index = engine.index
    progress.phase("finding duplicates", None)
    queries, excluded = _useful(queries, duplicates_of(stored, queries.drawn_from), index)
    _require_enough(index, queries, excluded, k)
    log = EncodeStats(on_batch=progress.advance)
    vectors = _vectors(engine, queries, log, progress)
    progress.phase("searching", None)
    answers = _answers(index, vectors, excluded, k)
    progress.phase("searching exactly", None)
    shares = exact_recall(stored, vectors, answers, excluded)
    progress.phase("timing", None)
    exact = all(ann.is_exact(entry.factory) for entry in index.manifest.segments)
    if exact and shares.min() < 1:
        raise CorruptIndexError(
            f"{index.path}: an exact (Flat) index has recall 1 by construction, but recall@{k} is {shares.mean():.4f}: "
            "its segment does not contain the transformed embeddings. Fix: run "
            f"{spelled('verify_index', 'isotrope verify')}, or build again "
            f"with {as_argument('overwrite', True, 'RunOptions')}."
        )
    longer = counted(log.truncated, "query is", "queries are")
    cut = [f"{longer} longer than {index.encoder.max_length} tokens and truncated"] * bool(log.truncated)
    return {
        "k": k,
        **interval(float(shares.mean()), _resampled(shares)).to_dict("recall"),
        "exact": exact,
        "queries": len(shares),
        "origin": queries.origin,
        "excluded_at_most": max(map(len, excluded)),
        "latency_ms": _latency(engine, queries.texts, vectors, k),
    }, [*queries.notes, *cut, *(() if index.numbering.one_to_one else (_WINDOWS,))]


@checked
def evaluate_recall(
    engine: SearchEngine | str | Path,
    k: int = DEPTH,
    file: Path | None = None,
    origin: DrawnFrom | None = None,
    sample: int = SAMPLE,
    progress: Progress | None = None,
) -> Result:
    """Return the result of `measure_recall` for the queries of a file, or for queries drawn from the documents."""
    if not isinstance(engine, SearchEngine):
        with SearchEngine(engine) as opened:
            return evaluate_recall(opened, k, file, origin, sample, progress)
    clock, index = Clock(), engine.index
    if k < 1:
        raise ConfigError(f"k is {k}; expected at least 1.")
    if not len(engine):
        raise EvaluationError(f"{index.path}: has no documents to search. Fix: add documents first.")
    stored = LiveRows(index)
    dim = index.manifest.encoder["dim"]
    queries = read_queries(file, dim) if file else draw_queries(stored, origin, sample)
    measured, notes = measure_recall(engine, stored, queries, k, progress or NoProgress())
    how: dict[str, Any] = {
        "measure": "recall",
        "protocol": _PROTOCOL,
        "cores": os.cpu_count(),
        "search_threads": 1,
        **how_built(index.config, index),
    }
    provenance = clock.provenance(engine.encoder.spec, queries.files, **how)
    transform = index.manifest.files[index.manifest.transform["file"]].sha256
    hashes = {"encoder": index.manifest.fingerprint, "transform": transform}
    return Result("recall", provenance, [measured | describe_segments(index) | hashes], None, notes)


def _vectors(engine: SearchEngine, queries: QuerySet, log: EncodeStats, progress: Progress) -> Vectors:
    """Return unit vectors (n, k) of the queries; embeddings of documents keep the role "document"."""
    if queries.embeddings is None:
        progress.phase("encoding queries", len(queries))
        return engine.embed(queries.texts, "query", log)
    role: Role = "document" if queries.origin == "documents" else "query"
    return engine.index.transform.transform(queries.embeddings, role)


def describe_segments(index: Index) -> dict[str, Any]:
    """Return the kind, search parameters and size of an index, JSON types."""
    segments = index.manifest.segments
    stored = sum(index.manifest.files[entry.file].bytes for entry in segments)
    return {
        "index_type": ", ".join(dict.fromkeys(entry.factory for entry in segments)),
        "search_parameters": [entry.search_parameters for entry in segments],
        "rows": index.manifest.rows,
        "dim": index.transform.dim,
        "bytes_per_vector": stored / max(sum(entry.rows for entry in segments), 1),
    }


_WINDOWS = "answers are windows, of which a document may have several"


def _useful(queries: QuerySet, excluded: list[RowIds], index: Index) -> tuple[QuerySet, list[RowIds]]:
    """Leave out queries whose documents have too many duplicates."""
    too_many = f"occur more than {_MOST_DUPLICATES:,} times"
    if not index.numbering.one_to_one:
        too_many = f"have more than {_MOST_DUPLICATES:,} windows, including those of their duplicates"
    keep = np.flatnonzero([len(rows) <= _MOST_DUPLICATES for rows in excluded])
    if dropped := len(excluded) - len(keep):
        queries = queries.keep(keep, f"{counted(dropped, 'query', 'queries')} left out: from documents that {too_many}")
    if not len(keep):
        raise EvaluationError(
            f"all documents {too_many}; none is a useful query. Fix: name a file with {spelled('file', '--queries')}."
        )
    return queries, [excluded[number] for number in keep.tolist()]


def _require_enough(index: Index, queries: QuerySet, excluded: Sequence[RowIds], k: int) -> None:
    worst = int(np.argmax([len(rows) for rows in excluded]))
    others = index.manifest.rows - len(excluded[worst])
    if others >= k:
        return
    besides = ""
    if len(excluded[worst]):
        name = index.documents.ids([int(queries.drawn_from[worst])])[0]
        copies = len(excluded[worst]) - len(index.numbering.rows_of(queries.drawn_from[[worst]]))
        besides = f', {others:,} of them besides "{name}", the source of a query, and its duplicates ({copies:,})'
    noun = "document" if index.numbering.one_to_one else "window"
    raise EvaluationError(
        f"recall@{k} compares {counted(k, 'answer')}, but {index.path} contains "
        f"{counted(index.manifest.rows, noun)}{besides}. "
        + (f"Fix: pass at most {spelled(f'k={others}', f'-k {others}')}." if others else "There is nothing to measure.")
    )


def _answers(index: Index, vectors: Vectors, excluded: Sequence[RowIds], k: int) -> RowIds:
    """Return the index's k best rows of each query (n, k) without the excluded rows; -1 if there are fewer."""
    answers = np.full((len(vectors), k), -1)
    sizes = np.array([len(rows) for rows in excluded])
    for size in np.unique(sizes).tolist():
        members = np.flatnonzero(sizes == size)
        for start in range(0, len(members), _BATCH):
            batch = members[start : start + _BATCH]
            for number, (_, rows) in zip(batch.tolist(), index.search(vectors[batch], k + size), strict=True):
                others = rows[~np.isin(rows, excluded[number])][:k]
                answers[number, : len(others)] = others
    return answers


def _resampled(shares: Float64Array) -> Float64Array:
    """Return the means of bootstrap resamples of the queries, drawn as counts of the few distinct shares."""
    values, counts = np.unique(shares, return_counts=True)
    drawn = np.random.default_rng(0).multinomial(len(shares), counts / len(shares), RESAMPLES)
    means: Float64Array = drawn @ values / len(shares)
    return means


def _latency(engine: SearchEngine, texts: Sequence[str], vectors: Vectors, k: int) -> dict[str, dict[str, float]]:
    """Return percentiles in ms of single queries on one search thread after a warm-up, without fetching documents.

    They are for the search alone, and for texts also with encoding, of at most `_TIMED` queries, spread evenly.
    """
    chosen = np.unique(np.linspace(0, len(vectors) - 1, min(_TIMED, len(vectors))).astype(int)).tolist()
    timed = {"search": percentiles(lambda number: engine.index.search(vectors[number : number + 1], k), chosen)}
    if texts:
        timed["with_encoding"] = percentiles(
            lambda number: engine.index.search(engine.embed([texts[number]]), k), chosen
        )
    return timed


_QUERY_ROWS = 1024  # queries per matrix product


def duplicates_of(stored: LiveRows, documents: RowIds) -> list[RowIds]:
    """Return the rows of each document with their duplicates, ascending; none for a document of -1.

    Duplicates have the same text hash, or vectors with a score of at least 1 - `SCORE_TOLERANCE`.
    """
    known = np.flatnonzero(documents >= 0)
    duplicates: list[list[RowIds]] = [[] for _ in documents]
    if len(known):
        own = [stored.index.numbering.rows_of(documents[[position]]) for position in known.tolist()]
        rows, owners = np.concatenate(own), np.repeat(known, [len(each) for each in own]).tolist()
        for position, each in zip(known.tolist(), own, strict=True):
            duplicates[position].append(each)
        for owner, text, vector in zip(owners, _same_text(stored, rows), _same_vector(stored, rows), strict=True):
            duplicates[owner] += [text, vector]
    return [np.unique(np.concatenate([np.zeros(0, np.int64), *rows])) for rows in duplicates]


def exact_recall(
    stored: LiveRows, queries: Vectors, answers: RowIds, excluded: Sequence[RowIds]
) -> npt.NDArray[np.float64]:
    """Return recall@k of each query, (n,): the share of its answers that are among the exact k best.

    `queries` (n, d) are unit vectors, `answers` (n, k) rows of the index (-1: none), `excluded` rows of each query
    that count for neither side. An answer with the score of the k-th best, up to `SCORE_TOLERANCE`, is correct.
    """
    best = GroundTruthBuilder(queries, answers.shape[1], excluded)
    scores = np.full(answers.shape, -np.inf)
    for first, vectors in stored.vector_blocks():
        best.update(first, vectors)
        query, place = np.nonzero((answers >= first) & (answers < first + len(vectors)))
        scores[query, place] = ann.pair_products(queries, query, vectors, answers[query, place] - first)
    share: npt.NDArray[np.float64] = (scores >= best.last_scores[:, None] - SCORE_TOLERANCE).mean(axis=1)
    return share


def _same_text(stored: LiveRows, rows: RowIds) -> list[RowIds]:
    distinct, group = np.unique(stored.text_hashes(rows), axis=0, return_inverse=True)
    numbers = {tuple(pair): number for number, pair in enumerate(distinct.tolist())}
    equal: list[list[int]] = [[] for _ in numbers]
    for first, hashes in stored.hash_blocks():
        for row in np.flatnonzero(np.isin(hashes[:, 0], distinct[:, 0])).tolist():
            if (number := numbers.get(tuple(hashes[row].tolist()))) is not None:
                equal[number].append(first + row)
    members = [np.array(rows, np.int64) for rows in equal]
    return [members[number] for number in group.ravel().tolist()]


def _same_vector(stored: LiveRows, rows: RowIds) -> list[RowIds]:
    distinct, group = np.unique(stored.vectors(rows), axis=0, return_inverse=True)
    equal: list[list[RowIds]] = [[] for _ in distinct]
    limit = 1 - SCORE_TOLERANCE
    for first, vectors in stored.vector_blocks():
        for start in range(0, len(distinct), _QUERY_ROWS):
            rough = distinct[start : start + _QUERY_ROWS] @ vectors.T
            numbers, candidates = ann.candidates(rough, limit, vectors.shape[1])
            same = ann.pair_products(distinct, numbers + start, vectors, candidates) >= limit
            for number in np.unique(numbers[same]).tolist():
                equal[start + number].append(first + candidates[same & (numbers == number)])
    members = [np.concatenate([*rows, np.zeros(0, np.int64)]) for rows in equal]
    return [members[number] for number in group.ravel().tolist()]
