"""Parquet files of ours: what stands in every one, and what is asked of one before it is believed."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from indexer.errors import CorruptIndexError, EvaluationError, StoreError
from indexer.hashing import canonical_json
from indexer.regular_files import open_regular
from indexer.typed_json import convert_json, decode_json

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]
KEY = b"isotrope"  # of the facts, among the file's key-value metadata
FORMAT = 1


def with_facts(schema: pa.Schema, facts: Mapping[str, Any]) -> pa.Schema:
    """The schema with facts beside it, as canonical JSON: equal facts, equal bytes."""
    return schema.with_metadata({KEY: canonical_json(facts)})


@contextmanager
def open_parquet(
    path: Path, schema: pa.Schema, wanted: Any, made_by: str
) -> Iterator[tuple[pq.ParquetFile, dict[str, Any]]]:
    """A file with the columns of `schema` and facts of the kind `wanted`, a TypedDict; errors of Arrow within the block
    are ours.

    `made_by` is the command that writes such a file. Raises EvaluationError for a file that is no such file,
    StoreError for one of a newer format, CorruptIndexError for one whose pages are damaged.
    """
    try:
        # Opened by us: pyarrow refuses names that are not UTF-8, and its own threads hold files open.
        with open_regular(path) as raw, _parquet(raw, path, made_by) as file:
            facts = _facts(file, path, wanted, made_by)
            _check_columns(file.schema_arrow, schema, path, made_by)
            yield file, facts
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise EvaluationError(f"{path}: cannot be read: {error.strerror or error}.") from error
        raise CorruptIndexError(f"{path}: damaged: {error}. Write it again: {made_by}") from error


def _parquet(raw: Any, path: Path, made_by: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(raw, page_checksum_verification=True, pre_buffer=False)
    except (pa.ArrowException, OSError, MemoryError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        what = f"{path}: not a Parquet file, or cut short: {str(error).rstrip('.')}"
        raise EvaluationError(f"{what}. One comes from: {made_by}") from error


def _facts(file: pq.ParquetFile, path: Path, wanted: Any, made_by: str) -> dict[str, Any]:
    try:
        facts = decode_json((file.metadata.metadata or {})[KEY], dict[str, Any])
        version = facts["format"]
    except (KeyError, ValueError):
        raise EvaluationError(
            f'{path}: its metadata has no "{KEY.decode()}" that says what it was made from. One comes from: {made_by}'
        ) from None
    if isinstance(version, int) and version > FORMAT:
        raise StoreError(f"{path}: written in format {version}; this isotrope reads up to format {FORMAT}. Upgrade it.")
    try:
        convert_json(facts, wanted)
    except ValueError as error:
        raise EvaluationError(f"{path}: its metadata: {error}. Write the file again: {made_by}") from None
    return facts


def _check_columns(found: pa.Schema, wanted: pa.Schema, path: Path, made_by: str) -> None:
    if (found.names, found.types) != (wanted.names, wanted.types):
        raise EvaluationError(
            f"{path}: its columns are {_listed(found)}; expected {_listed(wanted)}. One comes from: {made_by}"
        )


def _listed(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in schema) or "(none)"
