"""TREC runs: the format, and the run of an index for a file of queries."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from indexer.ann.score_order import from_sort_key, sort_key
from indexer.arrays import Scores, SearchResult
from indexer.encoders import EncodeStats
from indexer.errors import EvaluationError
from search.engine import SearchEngine
from search.export import ExportReport
from search.files import check_outputs, read_by, write_output
from search.queries import QuerySet, read_queries
from search.ranking.options import SearchOptions
from search.text import counted

KIND = "trec-run"
_TAG = "isotrope"
_OPTION = "--to trec-run"


def export_trec_run(
    index: str | Path | SearchEngine, path: str | Path, queries: str | Path, k: int = 100, *, force: bool = False
) -> ExportReport:
    """Write the best `k` documents of every query: `query Q0 document rank score isotrope`, one line a hit.

    `index` may be a `SearchEngine`, which says where the model is and how it runs. `queries` as in
    `search.queries.read_queries`; a file that is there already is overwritten with `force` only. Raises ConfigError for
    k below 1 and a path that cannot be written, ExistsError, EvaluationError for queries that cannot be read and ids
    that hold white space, and what `SearchEngine` raises.
    """
    target, asked = Path(path), SearchOptions(k)
    engine = index if isinstance(index, SearchEngine) else SearchEngine(index)
    check_outputs({"-o": target}, read_by(engine.index.path, queries, engine.index.config.encoder.model), force)
    given = read_queries(queries, engine.index.manifest.encoder["dim"])
    require_plain_ids(given.ids, _OPTION)
    log = EncodeStats()
    ids, results = _ranked(engine, given, asked, log)
    require_plain_ids(ids, _OPTION)
    digest = write_output(target, run_lines(_TAG, given.ids, ids, results), "-o", force)
    facts = {"queries": len(given), "k": k, "hits": sum(len(rows) for _, rows in results)}
    return ExportReport(KIND, target, {target.name: digest.bytes}, facts, (*given.notes, *_cut(engine, log)))


def _ranked(
    engine: SearchEngine, queries: QuerySet, options: SearchOptions, log: EncodeStats
) -> tuple[list[str], list[SearchResult]]:
    """Ids of the documents found, and for each query its scores and which of the ids they belong to."""
    if queries.embeddings is not None:
        options = replace(options, rerank_depth=0)  # a cross-encoder reads texts
    ranked = engine.rank(queries.texts if queries.embeddings is None else queries.embeddings, options, log)
    documents = np.unique([found.document for answer in ranked for found in answer])
    results = [
        (
            np.array([found.score for found in answer], np.float32),
            np.searchsorted(documents, [found.document for found in answer]),
        )
        for answer in ranked
    ]
    return engine.index.documents.ids(documents.tolist()), results


def _cut(engine: SearchEngine, log: EncodeStats) -> list[str]:
    if not log.truncated:
        return []
    limit = engine.index.encoder.max_length
    return [f"{counted(log.truncated, 'query', 'queries')} longer than {limit} tokens, cut there"]


def require_plain_ids(ids: Sequence[str], option: str = "--run") -> None:
    """Raises EvaluationError for an id that a run, whose columns are parted by spaces, cannot hold."""
    for name in ids:
        if not name or name.split() != [name]:
            raise EvaluationError(
                f'the id "{name}" holds white space, which parts the columns of a TREC run. Leave out {option}, or '
                "write the ids without it."
            )


def run_lines(tag: str, queries: Sequence[str], ids: Sequence[str], answers: Sequence[SearchResult]) -> bytes:
    """`query Q0 document rank score tag`, one line a hit. `ids` are those of the rows in `answers`."""
    lines = []
    for query, (scores, rows) in zip(queries, answers, strict=True):
        for rank, (row, score) in enumerate(
            zip(rows.tolist(), strictly_falling(scores).tolist(), strict=True), start=1
        ):
            lines.append(f"{query} Q0 {ids[row]} {rank} {score:.9g} {tag}\n")
    return "".join(lines).encode()


def strictly_falling(scores: Scores) -> Scores:
    """Descending scores (n,) with ties, and what follows them, lowered by single steps of float32 until none is left.

    trec_eval sorts a run by score, in float32, and puts ties in descending order of id; without ties it judges
    the ranking that was written.
    """
    steps = np.arange(len(scores))
    return from_sort_key(np.minimum.accumulate(sort_key(scores) + steps) - steps)
