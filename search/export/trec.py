"""TREC runs: the format, and the run of an index for a file of queries."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from indexer.arrays import Embeddings, Scores, SearchResult, Vectors
from indexer.config import RunOptions
from indexer.encoders import EncodeStats
from indexer.encoders.load import open_encoder
from indexer.encoders.spec import spec_of_index
from indexer.errors import EvaluationError
from indexer.store.files import FileDigest
from search.export import ExportReport
from search.files import check_outputs, read_by, write_output
from search.index import Index
from search.queries import read_queries
from search.ranking.documents import RankedDocument
from search.ranking.exact import from_sort_key, sort_key
from search.ranking.ranker import DocumentRanker, SearchOptions
from search.text import counted

KIND = "trec-run"
_TAG = "isotrope"
_OPTION = "--to trec-run"
_BATCH = 256  # queries answered at once


def export_trec_run(
    index: str | Path,
    path: str | Path,
    queries: str | Path,
    k: int = 100,
    model: str | Path | None = None,
    options: RunOptions | None = None,
    *,
    force: bool = False,
) -> ExportReport:
    """Write the best `k` documents of every query: `query Q0 document rank score isotrope`, one line a hit.

    `queries` as in `search.queries.read_queries`, `model` and `options` as in `SearchEngine`; a file that is there already is
    overwritten with `force` only. Raises ConfigError for k below 1 and a path that cannot be written, ExistsError,
    ConfigError or EvaluationError for queries that cannot be read and ids that hold white
    space, and what `SearchEngine` raises.
    """
    target, request = Path(path), SearchOptions(k)
    opened = Index.open(index)
    check_outputs({"-o": target}, read_by(index, queries, model, opened.config.encoder.model), force)
    asked = read_queries(Path(queries), opened.manifest.encoder["dim"])
    require_plain_ids(asked.ids, _OPTION)
    embeddings, notes = asked.embeddings, list(asked.notes)
    if embeddings is None:
        embeddings, cut = _encoded(opened, asked.texts, model, options or RunOptions())
        notes += cut
    ids, found = _answers(opened, opened.transform.transform(embeddings, "query"), request)
    require_plain_ids(ids, _OPTION)
    digest = write_run(target, _TAG, asked.ids, ids, found, option="-o", force=force)
    facts = {"queries": len(asked.ids), "k": k, "hits": sum(len(rows) for _, rows in found)}
    return ExportReport(KIND, target, {target.name: digest.bytes}, facts, tuple(notes))


def _encoded(
    index: Index, texts: Sequence[str], model: str | Path | None, options: RunOptions
) -> tuple[Embeddings, list[str]]:
    """Raw embeddings (n, d) of queries by the index's own encoder, and how many were cut."""
    encoder, log = open_encoder(spec_of_index(index.path, index.manifest, model), options), EncodeStats()
    embeddings = encoder.encode(texts, "query", log)
    if not log.truncated:
        return embeddings, []
    limit = encoder.spec.identity.max_length
    return embeddings, [f"{counted(log.truncated, 'query', 'queries')} longer than {limit} tokens, cut there"]


def _answers(index: Index, vectors: Vectors, request: SearchOptions) -> tuple[list[str], list[SearchResult]]:
    """Ids of the documents found, and for each query its scores and which of the ids they belong to."""
    finder = DocumentRanker(index)
    ranked: list[list[RankedDocument]] = []
    for start in range(0, len(vectors), _BATCH):
        ranked += finder.find(vectors[start : start + _BATCH], request, None)
    documents = np.unique([place.document for places in ranked for place in places])
    found = [
        (
            np.array([place.score for place in places], np.float32),
            np.searchsorted(documents, [place.document for place in places]),
        )
        for places in ranked
    ]
    return index.documents.ids(documents.tolist()), found


def require_plain_ids(ids: Sequence[str], option: str = "--run") -> None:
    """Raises EvaluationError for an id that a run, whose columns are parted by spaces, cannot hold."""
    for name in ids:
        if not name or name.split() != [name]:
            raise EvaluationError(
                f'the id "{name}" holds white space, which parts the columns of a TREC run. Leave out {option}, or '
                "write the ids without it."
            )


def write_run(
    path: Path,
    tag: str,
    queries: Sequence[str],
    ids: Sequence[str],
    answers: Sequence[SearchResult],
    *,
    option: str = "--run",
    force: bool = False,
) -> FileDigest:
    """`query Q0 document rank score tag`, one line a hit. `ids` are those of the rows in `answers`."""
    lines = []
    for query, (scores, rows) in zip(queries, answers, strict=True):
        for rank, (row, score) in enumerate(
            zip(rows.tolist(), strictly_falling(scores).tolist(), strict=True), start=1
        ):
            lines.append(f"{query} Q0 {ids[row]} {rank} {score:.9g} {tag}\n")
    return write_output(path, "".join(lines).encode(), option, force)


def strictly_falling(scores: Scores) -> Scores:
    """Descending scores (n,) with ties, and what follows them, lowered by single steps of float32 until none is left.

    trec_eval sorts a run by score, in float32, and puts ties in descending order of id; without ties it judges
    the ranking that was written.
    """
    steps = np.arange(len(scores))
    return from_sort_key(np.minimum.accumulate(sort_key(scores) + steps) - steps)
