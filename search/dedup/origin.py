"""Parquet files of ours: what each was made from, and what is asked of one before it is believed."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from indexer.errors import CorruptIndexError, EvaluationError, MismatchError, StoreError
from indexer.hashing import canonical_json, canonical_sha256
from indexer.system.regular_files import open_regular
from indexer.typed_json import convert_json, decode_json
from search.index import Index

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


_ANEW = "Name the index it was made from, or find the duplicates of this one anew: isotrope dedup INDEX --threshold T"


def origin_of(index: Index) -> dict[str, Any]:
    """What a result says of its index, JSON types: "fingerprint", "transform" (sha256) and "index"."""
    manifest = index.manifest
    transform = manifest.files[manifest.transform["file"]].sha256
    return {"fingerprint": manifest.fingerprint, "transform": transform, "index": _index(index)}


def origin_of_other(index: Index | None) -> dict[str, Any] | None:
    """What a result says of the index that its own was compared with, if any: "against"."""
    if index is None:
        return None
    return {"index": index.path.resolve().name, **_index(index), "documents": index.manifest.documents}


def check_origin(facts: Mapping[str, Any], index: Index, where: object) -> None:
    """Raises MismatchError, naming what differs, unless the facts are those of this index; `where` names their file."""
    found = origin_of(index)
    words = {
        "fingerprint": "another encoder: fingerprint",
        "transform": "vectors of another transform: sha256",
        "index": "another index, or another generation of it:",
    }
    for name, what in words.items():
        if facts[name] != found[name]:
            raise MismatchError(
                f"{where}: made from {what} {_in_words(facts[name])}; {index.path} has {_in_words(found[name])}. "
                f"{_ANEW}"
            )


def check_other(facts: Mapping[str, Any], other: Index | None, where: object) -> None:
    """The same for the index that the documents were compared with, wherever it now lies."""
    told, found = facts["against"], origin_of_other(other)
    told_of, found_of = _without_place(told), _without_place(found)
    if told_of != found_of:
        named = f"--against names {other.path}, {_in_words(found_of)}" if other else "no --against was given"
        place = f" ({told['index']})" if told else ""
        raise MismatchError(
            f"{where}: made against {_in_words(told_of)}{place}; {named}. "
            "Name the same other index as then, with --against, or find the duplicates anew."
        )


def require_same_encoder(index: Index, other: Index) -> None:
    """Raises MismatchError when two indexes have different encoders: scores between them would mean nothing.

    Embeddings that came with a corpus are told apart by the model they are said to be of, and by their length.
    """
    if other.manifest.fingerprint != index.manifest.fingerprint:
        raise MismatchError(
            f"{other.path} was made by another encoder than {index.path} (fingerprint "
            f"{other.manifest.fingerprint[:12]}... instead of {index.manifest.fingerprint[:12]}...), so their vectors "
            "cannot be compared. Build one of them again with the other's [encoder] settings; whitening and index "
            "type may differ."
        )
    sizes = other.manifest.encoder["dim"], index.manifest.encoder["dim"]
    if sizes[0] != sizes[1]:
        raise MismatchError(
            f"{other.path} holds embeddings of {sizes[0]:,} numbers, {index.path} of {sizes[1]:,}, so their vectors "
            "cannot be compared. Build one of them again from embeddings of the other's model."
        )


def _index(index: Index) -> dict[str, Any]:
    manifest = index.manifest
    return {"generation": manifest.generation, "manifest": canonical_sha256(manifest.to_dict())}


def _without_place(facts: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return {name: value for name, value in facts.items() if name != "index"} if facts is not None else None


def _in_words(facts: Any) -> str:
    if facts is None:
        return "no other index"
    if not isinstance(facts, Mapping):
        return f"{str(facts)[:12]}..."
    return f"generation {facts.get('generation')} (manifest {str(facts.get('manifest'))[:12]}...)"
