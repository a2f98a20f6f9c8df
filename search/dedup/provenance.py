"""Facts of the Parquet files of duplicates and pairs: their origin, and the checks before a file is used."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from indexer.errors import CorruptIndexError, EvaluationError, MismatchError, StoreError, as_argument, spelled
from indexer.hashing import canonical_json, canonical_sha256
from indexer.system.regular_files import open_regular
from indexer.typed_json import convert_json, decode_json
from search.index import Index

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]
KEY = b"isotrope"  # of the facts in the file's key-value metadata
FORMAT = 1


def with_facts(schema: pa.Schema, facts: Mapping[str, Any]) -> pa.Schema:
    """Return the schema with facts in its metadata, as canonical JSON: equal facts give equal bytes."""
    return schema.with_metadata({KEY: canonical_json(facts)})


@contextmanager
def open_parquet(
    path: Path, schema: pa.Schema, wanted: Any, made_by: str
) -> Iterator[tuple[pq.ParquetFile, dict[str, Any]]]:
    """Open a file with the columns of `schema` and facts of the TypedDict `wanted`; convert Arrow errors of the block.

    `made_by` is the command that writes such a file. Raises EvaluationError for another kind of file, StoreError for a
    newer format, CorruptIndexError for damaged pages.
    """
    try:
        # Opened here, because pyarrow rejects names that are not UTF-8 and its threads keep files open.
        with open_regular(path) as raw, _parquet(raw, path, made_by) as file:
            facts = _facts(file, path, wanted, made_by)
            _check_columns(file.schema_arrow, schema, path, made_by)
            yield file, facts
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise EvaluationError(f"{path}: cannot be read: {error.strerror or error}.") from error
        raise CorruptIndexError(f"{path}: damaged: {error}. Fix: write it again: {made_by}") from error


def _parquet(raw: Any, path: Path, made_by: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(raw, page_checksum_verification=True, pre_buffer=False)
    except (pa.ArrowException, OSError, MemoryError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        what = f"{path}: not a Parquet file, or truncated: {str(error).rstrip('.')}"
        raise EvaluationError(f"{what}. Fix: write one: {made_by}") from error


def _facts(file: pq.ParquetFile, path: Path, wanted: Any, made_by: str) -> dict[str, Any]:
    try:
        facts = decode_json((file.metadata.metadata or {})[KEY], dict[str, Any])
        version = facts["format"]
    except (KeyError, ValueError):
        raise EvaluationError(
            f'{path}: its metadata has no "{KEY.decode()}" entry with its origin. Fix: write one: {made_by}'
        ) from None
    if isinstance(version, int) and version > FORMAT:
        raise StoreError(
            f"{path}: written in format {version}, but this version reads up to format {FORMAT}. Fix: upgrade isotrope."
        )
    try:
        convert_json(facts, wanted)
    except ValueError as error:
        raise EvaluationError(f"{path}: its metadata: {error}. Fix: write the file again: {made_by}") from None
    return facts


def _check_columns(columns: pa.Schema, expected: pa.Schema, path: Path, made_by: str) -> None:
    if (columns.names, columns.types) != (expected.names, expected.types):
        raise EvaluationError(
            f"{path}: its columns are {_listed(columns)}; expected {_listed(expected)}. Fix: write one: {made_by}"
        )


def _listed(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in schema) or "(none)"


def origin_of(index: Index) -> dict[str, Any]:
    """Return the facts about an index, JSON types: "fingerprint", "transform" (sha256) and "index"."""
    manifest = index.manifest
    transform = manifest.files[manifest.transform["file"]].sha256
    return {"fingerprint": manifest.fingerprint, "transform": transform, "index": _index(index)}


def origin_of_other(index: Index | None) -> dict[str, Any] | None:
    """Return the fact "against" about the index that documents were compared with, if any."""
    if index is None:
        return None
    return {"index": index.path.resolve().name, **_index(index), "documents": index.manifest.documents}


def check_origin(facts: Mapping[str, Any], index: Index, where: object) -> None:
    """Raise MismatchError if the facts are about another index; `where` names their file."""
    origin = origin_of(index)
    words = {
        "fingerprint": "another encoder: fingerprint",
        "transform": "vectors of another transform: sha256",
        "index": "another index or generation:",
    }
    for name, what in words.items():
        if facts[name] != origin[name]:
            raise MismatchError(
                f"{where}: made from {what} {_in_words(facts[name])}; {index.path} has {_in_words(origin[name])}. Fix: "
                "name the original index, or find the duplicates of this one: "
                + spelled("deduplicate(INDEX, T)", "isotrope dedup INDEX --threshold T")
            )


def check_other(facts: Mapping[str, Any], other: Index | None, where: object) -> None:
    """Raise MismatchError if the facts are about a comparison with another index than `other`; its path may differ."""
    stored, named = _without_place(facts["against"]), _without_place(origin_of_other(other))
    if stored != named:
        names = f"names {other.path}, {_in_words(named)}" if other else "is missing"
        place = f" ({facts['against']['index']})" if stored else ""
        raise MismatchError(
            f"{where}: made against {_in_words(stored)}{place}; {as_argument('against')} {names}. "
            f"Fix: name the same index with {as_argument('against')}, or find the duplicates again."
        )


def require_same_encoder(index: Index, other: Index) -> None:
    """Raise MismatchError if two indexes have different encoders, because scores between them have no meaning.

    Precomputed embeddings are compared by the name of their model and by their length.
    """
    if other.manifest.fingerprint != index.manifest.fingerprint:
        raise MismatchError(
            f"{other.path} and {index.path} have different encoders (fingerprints "
            f"{other.manifest.fingerprint[:12]}... and {index.manifest.fingerprint[:12]}...), so their vectors cannot "
            "be compared. Fix: build one of them again with the [encoder] settings of the other; whitening and index "
            "type may differ."
        )
    sizes = other.manifest.encoder["dim"], index.manifest.encoder["dim"]
    if sizes[0] != sizes[1]:
        raise MismatchError(
            f"{other.path} has embeddings of {sizes[0]:,} numbers, {index.path} of {sizes[1]:,}, so their vectors "
            "cannot be compared. Fix: build one of them again from embeddings of the other's model."
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
