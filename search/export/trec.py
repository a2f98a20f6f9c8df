"""TREC runs: the format, and the run of an index for a file of queries."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from indexer.arrays import Embeddings, Scores, SearchResult, Vectors
from indexer.config import RunOptions
from indexer.corpus.query_file import is_npy, read_query_file, read_query_vectors
from indexer.corpus.sources import COMPRESSIONS
from indexer.encoders import EncodeStats
from indexer.encoders.load import open_encoder
from indexer.encoders.spec import spec_of_index
from indexer.errors import ConfigError, EvaluationError
from indexer.store.files import FileDigest
from search.evaluation.retrieval.beir import find_file, read_texts
from search.export import ExportReport
from search.files import check_outputs, read_by, write_output
from search.index import Index
from search.ranking.documents import RankedDocument
from search.ranking.exact import from_sort_key, sort_key
from search.ranking.ranker import DocumentRanker, SearchOptions
from search.text import counted

KIND = "beir-run"
_TAG = "isotrope"
_OPTION = "--to beir-run"
_BATCH = 256  # queries answered at once


@dataclass(frozen=True)
class Queries:
    """Ids of queries, their texts or else their raw embeddings (n, d), and what there is to say of the reading."""

    names: Sequence[str]
    texts: Sequence[str] = ()
    embeddings: Embeddings | None = None
    notes: tuple[str, ...] = ()


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

    `queries` as in `read_queries`, `model` and `options` as in `SearchEngine`; a file that is there already is
    overwritten with `force` only. Raises ConfigError for k below 1 and a path that cannot be written, ExistsError,
    ConfigError or EvaluationError for queries that cannot be read and ids that hold white
    space, and what `SearchEngine` raises.
    """
    target, request = Path(path), SearchOptions(k)
    opened = Index.open(index)
    check_outputs({"-o": target}, read_by(index, queries, model, opened.config.encoder.model), force)
    asked = read_queries(Path(queries), opened.manifest.encoder["dim"])
    require_plain_ids(asked.names, _OPTION)
    embeddings, notes = asked.embeddings, list(asked.notes)
    if embeddings is None:
        embeddings, cut = _encoded(opened, asked.texts, model, options or RunOptions())
        notes += cut
    ids, found = _answers(opened, opened.transform.transform(embeddings, "query"), request)
    require_plain_ids(ids, _OPTION)
    digest = write_run(target, _TAG, asked.names, ids, found, option="-o", force=force)
    facts = {"queries": len(asked.names), "k": k, "hits": sum(len(rows) for _, rows in found)}
    return ExportReport(KIND, target, {target.name: digest.bytes}, facts, tuple(notes))


def read_queries(path: Path, dim: int) -> Queries:
    """The queries of a BEIR folder, a queries.jsonl (also compressed), a file with one a line, or a .npy file.

    The last holds raw embeddings (n, dim). Where queries have no ids, these are "1", "2", ... in the order of the
    file, blank lines not counted. Raises ConfigError and EvaluationError, naming file and line.
    """
    if path.is_dir():
        return _named(read_texts(find_file(path, "queries.jsonl")))
    if not path.is_file():
        raise ConfigError(f"--queries {path}: no such file or folder.")
    if is_npy(path):
        embeddings = read_query_vectors(path, dim, ConfigError, "--queries ")
        return Queries(_numbers(len(embeddings)), embeddings=embeddings)
    plain = path.name.removesuffix(path.suffix) if path.suffix in COMPRESSIONS else path.name
    if plain.endswith(".jsonl"):
        return _named(read_texts(path))
    found = read_query_file(path, ConfigError, "--queries ")
    notes = (f"{counted(found.blank, 'blank line', 'blank lines')} of {path.name} not counted",) if found.blank else ()
    return Queries(_numbers(len(found.texts)), found.texts, notes=notes)


def _named(texts: dict[str, str]) -> Queries:
    return Queries(list(texts), list(texts.values()))


def _numbers(count: int) -> list[str]:
    return [str(number) for number in range(1, count + 1)]


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
