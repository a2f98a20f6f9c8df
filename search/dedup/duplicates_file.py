"""The file of duplicates: one row a dropped document, and beside them the facts of how they were found.

Columns: `id` of the dropped document; `kept_id` of the kept one that stands for it; their `score`; `reason`: "similar"
or "text" (equal normalised text), after "against-" or as "against" when the kept one is of another index; `cluster`:
the number of the kept document's group. Sorted by cluster, then by the dropped document's place in the corpus.
The facts are JSON under the key "isotrope" of the file's key-value metadata; equal runs give equal bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from indexer.errors import ConfigError, CorruptIndexError, EvaluationError
from indexer.output_files import open_output
from indexer.store.documents import parquet_options
from indexer.store.files import FileDigest
from search.dedup.origin import Count, open_parquet, with_facts
from search.dedup.settings import Method, TextDuplicates, check_threshold

REASONS = ("similar", "text", "against", "against-text")
SCHEMA = pa.schema(
    [("id", pa.string()), ("kept_id", pa.string()), ("score", pa.float32()), ("reason", pa.string()),
     ("cluster", pa.int64())]
)  # fmt: skip
ROW_GROUP = 1 << 16  # rows
MADE_BY = "isotrope dedup INDEX --threshold T -o FILE"


class Facts(TypedDict):
    """What is asked of the facts beside the rows; JSON types."""

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
    """What a deduplication found: `facts` (JSON types, the keys of `Facts`) and `table` (the columns of `SCHEMA`)."""

    facts: Mapping[str, Any]
    table: pa.Table


def write_duplicates(path: Path, duplicates: Duplicates, force: bool = False) -> FileDigest:
    """Write the file, whole or not at all; over another one only with `force`. Raises as `open_output`."""
    # One chunk a column: where the chunks of a table end would else show in the pages.
    table = duplicates.table.cast(SCHEMA).combine_chunks()
    table = table.cast(with_facts(SCHEMA, duplicates.facts))
    with open_output(path, force=force) as file:
        pq.write_table(table, pa.PythonFile(file, mode="w"), **parquet_options() | {"row_group_size": ROW_GROUP})
    return file.digest


def read_duplicates(path: Path) -> Duplicates:
    """Read the file, every page checked.

    Raises EvaluationError for a file that is no such file, StoreError for one of a newer format, CorruptIndexError
    for a damaged one.
    """
    with open_parquet(path, SCHEMA, Facts, MADE_BY) as (file, facts):
        _check_values(path, facts)
        _check_words(path, facts)
        table = file.read(use_threads=False)
        table.validate(full=True)  # text that is not UTF-8 is met here and not at some later row
    empty = [name for name in SCHEMA.names if table.column(name).null_count]
    if empty:
        raise CorruptIndexError(f"{path}: {', '.join(empty)} without a value in some rows. Write it again: {MADE_BY}")
    return Duplicates(facts, table.replace_schema_metadata(None))


def _check_words(path: Path, facts: Mapping[str, Any]) -> None:
    words = {
        "method": (facts["method"].get("name"), Method),
        "text_duplicates": (facts["text_duplicates"], TextDuplicates),
    }
    for name, (word, known) in words.items():
        if word not in get_args(known):
            raise EvaluationError(
                f'{path}: "{name}" in its metadata is "{word}"; expected {" or ".join(get_args(known))}. '
                f"Write the file again: {MADE_BY}"
            )


def _check_values(path: Path, facts: Mapping[str, Any]) -> None:
    """What later code computes with; kinds are checked already."""
    against = facts["against"]
    try:
        check_threshold(float(facts["threshold"]))
        sound = against is None or isinstance(against.get("index"), str)
    except (ConfigError, OverflowError):
        sound = False
    if not sound:
        raise EvaluationError(f"{path}: its metadata holds values that no run writes. Write it again: {MADE_BY}")
