"""Parts: a fixed number of documents each, cut in corpus order, complete once `part.json` exists."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct, field

from indexer.arrays import Embeddings, Int32Array, TextHashes
from indexer.corpus.document import Document
from indexer.encoders.windows import Windows
from indexer.errors import CorruptIndexError, StoreError
from indexer.hashing import canonical_json
from indexer.moments import Moments
from indexer.store import layout
from indexer.store.documents import parquet_options
from indexer.store.files import FileDigest, atomic_write, atomic_write_bytes, digest_file
from indexer.store.integrity import as_damage, read_checked
from indexer.store.layout import Count, Hash, PartFile, PartName, Size
from indexer.store.manifest import Manifest
from indexer.store.stores import open_stored, store_of
from indexer.typed_json import decode_json

_PIECE = 1 << 20  # characters of a text that are hashed at a time
_MOST_BYTES = 1 << 27  # of a record, which grows with the files and columns of the part
_WINDOWS_SCHEMA = pa.schema(
    [pa.field("text_hash", pa.binary(16), nullable=False), pa.field("tokens", pa.int32(), nullable=False)]
)
_CHUNKED_SCHEMA = pa.schema(
    [*_WINDOWS_SCHEMA, *(pa.field(name, pa.int32(), nullable=False) for name in ("document", "start", "end"))]
)


class PartRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of `part.json` of a complete part. `files` maps plain file names to digests."""

    documents: Count
    rows: Count
    dim: Size
    document_key: Hash
    embedding_key: Hash
    fingerprint: Hash
    tokens: Count
    truncated: Count
    not_finite: Count
    zero: Count
    schema: dict[str, Any]
    files: dict[PartFile, FileDigest]
    without_tokens: Count = 0  # rows whose text has no token of a static table
    # documents, counted from 0, that crashed the encoder: stored, never live
    quarantined: tuple[Count, ...] = field(default=(), name="set_aside")

    def to_json(self) -> bytes:
        """Return the bytes of `part.json`."""
        plain = msgspec.to_builtins(self)
        if not self.quarantined:
            del plain["set_aside"]
        return json.dumps(plain, sort_keys=True, indent=1, ensure_ascii=False).encode() + b"\n"


class PartDocuments(Struct, frozen=True, forbid_unknown_fields=True):
    """A part with written documents. `digest` is that of documents.parquet."""

    documents: Count
    document_key: Hash
    embedding_key: Hash
    schema: dict[str, Any]
    digest: FileDigest


class ListedPart(Struct, frozen=True, forbid_unknown_fields=True):
    """A part in `pending.json`; `known` lists rows whose embeddings are copied from a complete part."""

    name: PartName
    rows: Count
    written: PartDocuments
    known: list[tuple[PartName, list[Count], list[Count]]]


class PendingList(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of `pending.json`."""

    format: Count
    config: dict[str, Any]
    fingerprint: Hash
    parts: list[ListedPart]


@dataclass(frozen=True)
class PartRows:
    """The rows of a part: text hashes (n, 2), tokens (n,) before truncation, embeddings (n, d) as stored."""

    hashes: TextHashes
    lengths: Int32Array
    embeddings: Embeddings
    windows: Windows | None = None  # the document of each row; None: row i is document i
    truncated: int = 0
    without_tokens: int = 0
    quarantined: tuple[int, ...] = ()


def embedding_key(fingerprint: str, hashes: TextHashes) -> str:
    """Return the hash of the inputs of a part's embeddings: the encoder and the texts, in order."""
    return hashlib.sha256(fingerprint.encode() + hashes.tobytes()).hexdigest()


def document_key(embeddings: str, documents: Sequence[Document], rules: dict[str, Any]) -> str:
    """Return the hash of the inputs of a part: embeddings, ids, titles, texts, metadata, column rules."""
    digest = hashlib.sha256(embeddings.encode() + canonical_json(rules))
    for document in documents:
        for piece in _row_json(document):
            digest.update(piece.encode())
    return digest.hexdigest()


def write_windows(folder: Path, rows: PartRows) -> FileDigest:
    """Write one line per vector: the hash of its text and the text's tokens before truncation.

    With chunking also its document, counted from the first of the part, and the start and end of the window in the
    document's joined text, in characters.
    """
    buffers = [None, pa.py_buffer(rows.hashes.tobytes())]
    texts = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(rows.hashes), buffers)
    columns, schema, windows = [rows.lengths], _WINDOWS_SCHEMA, rows.windows
    if windows is not None:
        columns, schema = [*columns, windows.document, windows.start, windows.end], _CHUNKED_SCHEMA
    table = pa.table([texts, *(pa.array(column, pa.int32()) for column in columns)], schema=schema)
    with atomic_write(folder / layout.WINDOWS) as file:
        pq.write_table(table, pa.PythonFile(file, mode="w"), **parquet_options())
    return file.digest


def write_embeddings(folder: Path, embeddings: Embeddings) -> FileDigest:
    """Write raw pooled embeddings (n, d) as .npy, float32 or float16."""
    with atomic_write(folder / layout.EMBEDDINGS) as file:
        np.lib.format.write_array(file, np.ascontiguousarray(embeddings), allow_pickle=False)
    return file.digest


def write_moments(folder: Path, moments: Moments) -> FileDigest:
    return atomic_write_bytes(folder / layout.MOMENTS, moments.to_bytes())


def write_part(folder: Path, documents: PartDocuments, rows: PartRows, fingerprint: str) -> PartRecord:
    """Write the files of a part other than its documents; the record comes last and completes the part."""
    stored = rows.embeddings
    files = {
        layout.DOCUMENTS: documents.digest,
        layout.WINDOWS: write_windows(folder, rows),
        layout.EMBEDDINGS: write_embeddings(folder, stored),
        layout.MOMENTS: write_moments(folder, Moments.of(stored)),
    }
    record = PartRecord(
        documents=documents.documents,
        rows=len(stored),
        dim=stored.shape[1],
        document_key=documents.document_key,
        embedding_key=documents.embedding_key,
        fingerprint=fingerprint,
        tokens=int(rows.lengths.sum()),
        truncated=rows.truncated,
        not_finite=int(np.count_nonzero(~np.isfinite(stored).all(axis=1))),
        zero=int(np.count_nonzero(~stored.any(axis=1))),
        schema=documents.schema,
        files=files,
        without_tokens=rows.without_tokens,
        quarantined=rows.quarantined,
    )
    atomic_write_bytes(folder / layout.PART, record.to_json())
    return record


def read_record(folder: Path) -> PartRecord | None:
    """Return the record of a complete part; None if it is missing or damaged."""
    store, name = store_of(folder)
    try:
        return parse_record(store.read_record(name, _MOST_BYTES))
    except (OSError, ValueError):
        return None


def published_record(index: Path, manifest: Manifest, part: str) -> PartRecord:
    """Return the record of a part of an index. Raises CorruptIndexError."""
    name = f"{part}/{layout.PART}"
    try:
        return parse_record(read_checked(index / name, manifest.files[name]))
    except ValueError as error:
        raise CorruptIndexError(f"{index / name}: damaged ({error}). Fix: build the index again.") from error


def parse_record(data: bytes) -> PartRecord:
    """Return the record whose `to_json` returned `data`. Raises ValueError for other data."""
    return decode_json(data, PartRecord, layout.MAX_DEPTH)


def is_intact(folder: Path, record: PartRecord, sent: Mapping[str, int] | None = None) -> bool:
    """Whether every file of the part has the bytes of its record. In object storage only sizes are compared: files are
    checked when they are sent and read. A part that waits to be sent is local, except its documents. `sent`, the sizes
    of the whole index, saves a listing (see `sent_sizes`)."""
    store, part = store_of(folder)
    sizes = store.sent_sizes(part) if sent is None else sent
    if f"{part}/{layout.PART}" in sizes:
        return all(sizes.get(f"{part}/{name}") == digest.bytes for name, digest in record.files.items())
    try:
        return all(
            (folder / name).lstat().st_size == digest.bytes and digest_file(folder / name) == digest
            for name, digest in record.files.items()
            if name != layout.DOCUMENTS or sizes.get(f"{part}/{name}") != digest.bytes
        )
    except (OSError, StoreError):
        return False


def is_stored_intact(folder: Path, record: PartRecord, sent: Mapping[str, int] | None = None) -> bool:
    """Return `is_intact` after fetching every byte from object storage."""
    if not is_intact(folder, record, sent):
        return False
    try:
        store, part = store_of(folder)
        for name, digest in record.files.items():
            if not (folder / name).is_file():
                store.check_stored(f"{part}/{name}", digest)
        return True
    except CorruptIndexError:
        return False


def read_text_hashes(folder: Path) -> TextHashes:
    """Return the text hashes of a part, (n, 2), in row order."""
    chunks = _windows_column(folder, "text_hash").chunks
    whole = [np.frombuffer(chunk.buffers()[1], np.uint64).reshape(-1, 2) for chunk in chunks]
    return np.concatenate(
        [np.zeros((0, 2), np.uint64)]
        + [rows[chunk.offset : chunk.offset + len(chunk)] for rows, chunk in zip(whole, chunks, strict=True)]
    )


def read_token_counts(folder: Path) -> Int32Array:
    """Return the tokens of each text of a part before truncation, (n,), in row order."""
    lengths: Int32Array = _windows_column(folder, "tokens").to_numpy()
    return lengths


def read_window_documents(folder: Path) -> Int32Array:
    """Return the document of each row, (n,), counted from the first of the part; for chunked parts only."""
    documents: Int32Array = _windows_column(folder, "document").to_numpy()
    return documents


def load_moments(folder: Path) -> Moments:
    """Return the moments of a part whose files have been hashed. Raises CorruptIndexError."""
    path = folder / layout.MOMENTS
    try:
        with open_stored(path) as file:
            return Moments.from_bytes(file.read())
    except (OSError, ValueError) as error:
        raise CorruptIndexError(f"{path}: not the moments of a part: {error}. Fix: build the index again.") from error


def _windows_column(folder: Path, name: str) -> pa.ChunkedArray:
    path = folder / layout.WINDOWS
    with as_damage(path), open_stored(path) as file:
        table = pq.read_table(
            file, columns=[name], use_threads=False, pre_buffer=False, page_checksum_verification=True
        )
        column = table.column(0)
        expected = _CHUNKED_SCHEMA.field(name).type
        if column.type != expected or column.null_count:
            raise ValueError(f"{name} is {column.type} with {column.null_count:,} nulls, expected {expected} and none")
        return column


def _row_json(document: Document) -> Iterator[str]:
    """Return the document as a JSON list, in pieces, so that a long text is not copied as a whole. Written by hand,
    because `json.dumps` with options is several times slower."""
    title = "null" if document.title is None else encode_basestring_ascii(document.title)
    metadata = _METADATA.encode(document.metadata) if document.metadata else "{}"
    identity, text = encode_basestring_ascii(document.id), document.text
    if len(text) <= _PIECE:
        yield f"[{identity},{title},{encode_basestring_ascii(text)},{metadata}]"
        return
    yield f'[{identity},{title},"'
    for start in range(0, len(text), _PIECE):
        yield encode_basestring_ascii(text[start : start + _PIECE])[1:-1]
    yield f'",{metadata}]'


def _typed_text(value: object) -> list[str]:
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, datetime | date | time):
        return [type(value).__name__, value.isoformat()]
    return [type(value).__name__, str(value)]


_METADATA = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=_typed_text)
