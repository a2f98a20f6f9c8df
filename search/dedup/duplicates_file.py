"""The file of duplicates: a row for each dropped document, and the facts of the run.

Columns: `id` of the dropped document; `kept_id` of its representative; their `score`; `reason`: "similar" or "text"
(equal normalised text), for a representative of another index "against" or "against-text"; `cluster`: the number of the
representative's group. Rows are sorted by cluster, then by position in the corpus. The facts are JSON under the key
"isotrope" of the file's key-value metadata; equal runs give equal bytes.

A list as CSV or JSON Lines has the same rows with the texts of both documents, without facts.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from indexer.corpus.document import Document, joined_text
from indexer.corpus.sources import format_of
from indexer.errors import ConfigError, CorruptIndexError, EvaluationError, spelled
from indexer.store.documents import parquet_options
from indexer.store.files import FileDigest
from indexer.system.output_files import open_output
from search.dedup.corpus_writing import CompressedWriter, CorpusColumns, write_documents
from search.dedup.provenance import Count, open_parquet, with_facts
from search.dedup.settings import Method, TextDuplicates, check_threshold
from search.index import Index

REASONS = ("similar", "text", "against", "against-text")
SCHEMA = pa.schema(
    [("id", pa.string()), ("kept_id", pa.string()), ("score", pa.float32()), ("reason", pa.string()),
     ("cluster", pa.int64())]
)  # fmt: skip
LISTED = CorpusColumns(
    "id",
    "",
    "text",
    pa.schema(
        [("kept_id", pa.string()), ("kept_text", pa.string()), ("score", pa.float64()), ("reason", pa.string()),
         ("cluster", pa.int64())]
    ),
    frozenset(),
)  # fmt: skip
"""The columns of a list as CSV or JSON Lines."""
ROW_GROUP = 1 << 16  # rows
_FETCHED = 1024  # documents at once


def made_by() -> str:
    """Return the call that writes such a file."""
    return spelled("deduplicate(INDEX, T).write(FILE.parquet)", "isotrope dedup INDEX --threshold T -o FILE.parquet")


class Facts(TypedDict):
    """The facts of the file, JSON types."""

    format: Count
    threshold: float
    lowest: float
    prefer: str
    method: dict[str, Any]
    text_duplicates: str
    only_against: bool
    fingerprint: str
    transform: str
    index: dict[str, Any]
    against: dict[str, Any] | None
    documents: Count
    kept: Count
    dropped: Count
    reasons: dict[str, Any]
    clusters: Count
    cluster_sizes: dict[str, Any]


@dataclass(frozen=True)
class Duplicates:
    """The contents of the file: `facts` (JSON types, the keys of `Facts`) and `table` (the columns of `SCHEMA`)."""

    facts: dict[str, Any]
    table: pa.Table


def write_duplicates(path: Path, duplicates: Duplicates, force: bool = False) -> FileDigest:
    """Write the file atomically; overwrite only with `force`. Raises what `open_output` raises."""
    # One chunk a column, because the ends of chunks would change the pages.
    table = duplicates.table.cast(SCHEMA).combine_chunks()
    table = table.cast(with_facts(SCHEMA, duplicates.facts))
    with open_output(path, force=force) as file:
        pq.write_table(table, pa.PythonFile(file, mode="w"), **parquet_options() | {"row_group_size": ROW_GROUP})
    return file.digest


def write_list(path: Path, table: pa.Table, index: Index, other: Index | None, force: bool = False) -> FileDigest:
    """Write the rows of `table` with the encoded texts of both documents, as CSV or JSON Lines, compressed or not.

    `other` is the index that documents were compared with, if any. Raises what `open_output` raises.
    """
    file_format, compression = format_of(path)
    with open_output(path, force=force) as file, CompressedWriter(file, compression) as sink:
        write_documents(sink, _listed(table, index, other), file_format, LISTED)
    return file.digest


def _listed(table: pa.Table, index: Index, other: Index | None) -> Iterator[Document]:
    texts = _Texts(index, {*table["id"].to_pylist(), *table["kept_id"].to_pylist()})
    foreign_texts = _Texts(other, set(table["kept_id"].to_pylist())) if other else texts
    for batch in table.to_batches(max_chunksize=_FETCHED):
        rows = batch.to_pylist()
        is_foreign = {row["id"]: row["reason"].startswith("against") for row in rows}
        dropped = texts.of(row["id"] for row in rows)
        kept = texts.of(row["kept_id"] for row in rows if not is_foreign[row["id"]])
        foreign = foreign_texts.of(row["kept_id"] for row in rows if is_foreign[row["id"]])
        # Cast to text first, because 0.95 as float32 is below 0.95 as float64.
        scores = batch.column("score").cast(pa.string()).cast(pa.float64()).to_pylist()
        for row, score in zip(rows, scores, strict=True):
            kept_text = (foreign if is_foreign[row["id"]] else kept)[row["kept_id"]]
            yield Document(row["id"], dropped[row["id"]], metadata=row | {"kept_text": kept_text, "score": score})


class _Texts:
    """Encoded texts of documents by id."""

    def __init__(self, index: Index, ids: Collection[str]) -> None:
        self._index = index
        self._numbers = index.documents.find_ids(ids)  # once, as it reads all ids of the index

    def of(self, ids: Iterable[str]) -> dict[str, str]:
        names = list(dict.fromkeys(ids))
        documents = self._index.documents.fetch([self._numbers[name] for name in names])
        columns = self._index.config.corpus.text
        return {name: joined_text(document, columns) for name, document in zip(names, documents, strict=True)}


def read_duplicates(path: Path) -> Duplicates:
    """Read the Parquet file and check every page.

    Raises EvaluationError for another kind of file, StoreError for a newer format, CorruptIndexError for a damaged
    file.
    """
    if format_of(path)[0] in ("csv", "jsonl"):
        raise EvaluationError(
            f"{path}: a list as CSV or JSON Lines does not contain the settings and the index for a check; expected a "
            f"Parquet file. Fix: write one: {made_by()}"
        )
    with open_parquet(path, SCHEMA, Facts, made_by()) as (file, facts):
        _check_facts(path, facts)
        table = file.read(use_threads=False)
        table.validate(full=True)  # rejects text that is not UTF-8
    empty = [name for name in SCHEMA.names if table.column(name).null_count]
    if empty:
        raise CorruptIndexError(f"{path}: {', '.join(empty)} is null in some rows. Fix: write it again: {made_by()}")
    return Duplicates(facts, table.replace_schema_metadata(None))


def _check_facts(path: Path, facts: Mapping[str, Any]) -> None:
    against = facts["against"]
    try:
        check_threshold(float(facts["threshold"]))
        valid = against is None or isinstance(against.get("index"), str)
    except (ConfigError, OverflowError):
        valid = False
    if not valid:
        raise EvaluationError(f"{path}: its metadata contains invalid values. Fix: write it again: {made_by()}")
    words = {
        "method": (facts["method"].get("name"), Method),
        "text_duplicates": (facts["text_duplicates"], TextDuplicates),
    }
    for name, (word, known) in words.items():
        if word not in get_args(known):
            raise EvaluationError(
                f'{path}: "{name}" in its metadata is "{word}"; expected {" or ".join(get_args(known))}. '
                f"Fix: write the file again: {made_by()}"
            )
