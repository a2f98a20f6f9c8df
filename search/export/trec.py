"""Export of the hits for a file of queries as a TREC run, and the format of such runs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from indexer.ann.score_order import from_sort_key, sort_key
from indexer.arrays import Scores, SearchResult
from indexer.encoders.protocol import EncodeStats
from indexer.errors import EvaluationError
from indexer.system.output_files import output_name
from indexer.typed_arguments import checked
from search.engine import SearchEngine
from search.export.report import ExportReport
from search.formatting import counted
from search.queries import QuerySet, read_queries
from search.ranking.options import SearchOptions
from search.result_files import check_outputs, read_by, write_output

KIND = "trec-run"
_TAG = "isotrope"


@checked
def export_trec_run(
    index: str | Path | SearchEngine, path: str | Path, queries: str | Path, k: int = 100, *, force: bool = False
) -> ExportReport:
    """Write the best `k` documents of every query: `query Q0 document rank score isotrope`, one line per hit.

    Pass a `SearchEngine` as `index` to choose the model's folder and the run options. `queries` has the formats of
    `search.queries.read_queries`. An existing file is overwritten only with `force`. Raises ConfigError for k below 1
    and a path that cannot be written, ExistsError, EvaluationError for queries that cannot be read and ids that contain
    white space, and the errors of `SearchEngine`.
    """
    target, options = Path(path), SearchOptions(k)
    engine = index if isinstance(index, SearchEngine) else SearchEngine(index)
    check_outputs(
        {output_name(): target}, read_by(engine.index.path, queries, engine.index.config.encoder.model), force
    )
    query_set = read_queries(queries, engine.index.manifest.encoder["dim"])
    require_plain_ids(query_set.ids)
    log = EncodeStats()
    ids, results = _ranked(engine, query_set, options, log)
    require_plain_ids(ids)
    digest = write_output(target, run_lines(_TAG, query_set.ids, ids, results), force=force)
    facts = {"queries": len(query_set), "k": k, "hits": sum(len(rows) for _, rows in results)}
    notes = list(query_set.notes)
    if log.truncated:
        limit = engine.index.encoder.max_length
        notes.append(f"{counted(log.truncated, 'query', 'queries')} longer than {limit} tokens, cut there")
    return ExportReport(KIND, target, {target.name: digest.bytes}, facts, tuple(notes))


def _ranked(
    engine: SearchEngine, queries: QuerySet, options: SearchOptions, log: EncodeStats
) -> tuple[list[str], list[SearchResult]]:
    """Return the ids of all hits, and for each query the scores of its hits and their positions among these ids."""
    if queries.embeddings is not None:
        options = replace(options, rerank_depth=0)  # a cross-encoder reads texts
    ranked = engine.rank(queries.texts if queries.embeddings is None else queries.embeddings, options, log)
    documents = np.unique([hit.document for answer in ranked for hit in answer])
    scores = (np.array([hit.score for hit in answer], np.float32) for answer in ranked)
    places = (np.searchsorted(documents, [hit.document for hit in answer]) for answer in ranked)
    results = list(zip(scores, places, strict=True))
    return engine.index.documents.ids(documents.tolist()), results


def require_plain_ids(ids: Sequence[str], unless: str = "") -> None:
    """Raise EvaluationError if an id is empty or contains white space, which separates the columns of a run.

    `unless` begins the fix, such as "leave out run, or ".
    """
    for name in ids:
        if not name or name.split() != [name]:
            raise EvaluationError(
                f'the id "{name}" is empty or contains white space, which separates the columns of a TREC run. '
                f"Fix: {unless}use ids without white space."
            )


def run_lines(tag: str, queries: Sequence[str], ids: Sequence[str], answers: Sequence[SearchResult]) -> bytes:
    """Return `query Q0 document rank score tag`, one line per hit. The rows in `answers` are positions in `ids`."""
    lines = []
    for query, (scores, rows) in zip(queries, answers, strict=True):
        pairs = zip(rows.tolist(), strictly_falling(scores).tolist(), strict=True)
        lines += [f"{query} Q0 {ids[row]} {rank} {score:.9g} {tag}\n" for rank, (row, score) in enumerate(pairs, 1)]
    return "".join(lines).encode()


def strictly_falling(scores: Scores) -> Scores:
    """Return descending scores (n,) with ties broken: each tied score is lowered by single steps of float32.

    trec_eval sorts a run by float32 score and breaks ties by descending id. Without ties it evaluates the ranking as
    written.
    """
    steps = np.arange(len(scores))
    return from_sort_key(np.minimum.accumulate(sort_key(scores) + steps) - steps)
