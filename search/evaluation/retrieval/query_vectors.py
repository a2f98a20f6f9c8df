"""Judged queries whose embeddings are given: a file of vectors with the ids of the queries."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from indexer.config import VECTOR_COLUMN, CorpusConfig
from indexer.corpus import read_corpus
from indexer.encoders.identity import PoolingKey
from indexer.encoders.precomputed import cannot_encode
from indexer.errors import ConfigError, EvaluationError
from search.evaluation.retrieval.collection import encode_counting
from search.evaluation.states import States, StateSource
from search.evaluation.subject import Subject
from search.files import file_hash
from search.printable import counted

_SHOWN = 3  # ids named in a message


def require_queries(path: Path | None, subject: Subject) -> None:
    """Raises ConfigError for queries that cannot be asked: texts without an encoder, vectors without an index."""
    if path is None and not subject.spec.traits.encodes_texts:
        raise ConfigError(
            f"{cannot_encode(subject.spec)} Name the embeddings of the queries: --query-vectors FILE.npy beside "
            "FILE.ids.txt."
        )
    if subject.opened is None and (path or not subject.spec.traits.encodes_texts):
        raise ConfigError("embeddings that are given are measured on an index: build it, and name it after the folder.")


def ask(
    path: Path | None, queries: Mapping[str, str], subject: Subject, source: StateSource
) -> tuple[list[str], States, int, dict[str, str]]:
    """What the queries (id -> text) go by in their embeddings, those, how many were cut, and the files they are from.

    They are encoded now, or read from the file `path` (see `read_states`).
    """
    if path is None:
        texts = list(queries.values())
        return texts, *encode_counting(source, texts, "query"), {}
    names = list(queries)
    states, files = read_states(path, names, subject, source.keys[0])
    return names, states, 0, files


def read_states(path: Path, queries: Sequence[str], subject: Subject, key: PoolingKey) -> tuple[States, dict[str, str]]:
    """Embeddings of some queries by their ids, in the place of their texts, and the sha256 of the file.

    The file is one that a corpus may come in, with a vector a row: FILE.npy beside a list of ids, or Parquet or JSON
    Lines with an id and a "vector". Raises CorpusError for a bad row, and EvaluationError for vectors of another
    length than the index's and for queries that have none.
    """
    given = {row.id: row.vector for row in read_corpus(path, config=CorpusConfig(vector_column=VECTOR_COLUMN))}
    if missing := [query for query in queries if query not in given]:
        shown = ", ".join(f'"{query}"' for query in missing[:_SHOWN])
        raise EvaluationError(
            f"{path}: has no vector for {len(missing):,} of {counted(len(queries), 'judged query', 'judged queries')} "
            f"({shown}{', ...' if len(missing) > _SHOWN else ''}); its ids are those of queries.jsonl."
        )
    embeddings = np.stack([vector for query in queries if (vector := given[query]) is not None])
    dim = subject.opened.manifest.encoder["dim"] if subject.opened else 0
    if embeddings.shape[1] != dim:
        raise EvaluationError(
            f"{path}: holds vectors of {embeddings.shape[1]:,} numbers, the embeddings of the index have {dim:,}. Give "
            "queries encoded by the same model."
        )
    return States({query: row for row, query in enumerate(queries)}, {key: embeddings}), {path.name: file_hash(path)}
