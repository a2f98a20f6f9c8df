"""The documents that were added, removed or changed between two indexes, by id.

Generations of one index share most of their parts. A part that both indexes contain with equal bytes is not read,
except for documents that only one of them has deleted.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from indexer.arrays import RowIds
from indexer.corpus.row import BadRow
from indexer.corpus.schema import merge_schemas, schema_from_json
from indexer.store import layout
from indexer.store.documents import DocumentReader
from search.index import Index

_BLOCK = 1024  # documents read at a time
_DIGEST = 16  # bytes of the hash of a document


@dataclass(frozen=True)
class DocumentChanges:
    """Ids of documents that only the second index contains, only the first, and both with other contents."""

    added: frozenset[str]
    removed: frozenset[str]
    changed: frozenset[str]


def compare_documents(before: Index, after: Index, on_read: Callable[[int], None]) -> DocumentChanges:
    """Return the changes from one index to another. `on_read` is called with numbers of documents read.

    Contents are title, text and metadata; of embeddings that came with the corpus, also the embedding.
    """
    schemas, alone = _common_schemas(before, after), _unshared(before, after)
    old, new = (
        dict(_contents(index, numbers, schema, on_read))
        for index, numbers, schema in zip((before, after), alone, schemas, strict=True)
    )
    both = old.keys() & new.keys()
    return DocumentChanges(
        frozenset(new.keys() - both),
        frozenset(old.keys() - both),
        frozenset(id_ for id_ in both if old[id_] != new[id_]),
    )


def _common_schemas(before: Index, after: Index) -> list[pa.Schema]:
    """Return schemas to read both indexes with. A whole number equals a float of the same value, if the other index has
    floats in that column."""
    own = [schema_from_json(index.manifest.schema) for index in (before, after)]
    try:
        return [merge_schemas(own)] * 2
    except BadRow:  # the types of a column do not merge, so its values differ
        return own


def _unshared(before: Index, after: Index) -> tuple[RowIds, RowIds]:
    """Return the numbers of documents of each index, ascending, without those that both have in equal parts."""
    old, new = _live_by_part(before), _live_by_part(after)
    numbers = []
    for own, other in ((old, new), (new, old)):
        first, kept = 0, [np.zeros(0, np.int64)]
        for digest, rows in own.items():
            alone = np.flatnonzero(np.isin(rows, other.get(digest, ()), invert=True))
            kept.append(first + alone)
            first += len(rows)
        numbers.append(np.concatenate(kept))
    return numbers[0], numbers[1]


def _live_by_part(index: Index) -> dict[str, RowIds]:
    """Return the live rows of each part by the sha256 of its contents. Equal parts of one index are kept apart."""
    stored, first, live = index.numbering.stored_documents, 0, dict[str, RowIds]()
    names = [layout.DOCUMENTS] if index.config.encoder.traits.encodes_texts else [layout.DOCUMENTS, layout.EMBEDDINGS]
    for part in index.manifest.parts:
        digest = " ".join(index.manifest.files[f"{part.name}/{name}"].sha256 for name in names)
        last = first + part.documents
        rows = np.arange(part.documents)
        if stored is not None:
            rows = stored[slice(*np.searchsorted(stored, [first, last]))] - first
        live[f"{digest} {part.name}" if digest in live else digest] = rows
        first = last
    return live


def _contents(
    index: Index, numbers: RowIds, schema: pa.Schema, on_read: Callable[[int], None]
) -> Iterator[tuple[str, bytes]]:
    """Yield the id and a hash of the contents of some documents."""
    reader = DocumentReader(index.path, index.manifest, schema, index.numbering.stored_documents)
    given = not index.config.encoder.traits.encodes_texts and index.numbering.one_to_one
    try:
        for start in range(0, len(numbers), _BLOCK):
            block = numbers[start : start + _BLOCK]
            vectors = index.embeddings(block) if given else [None] * len(block)
            for document, vector in zip(reader.fetch(block.tolist()), vectors, strict=True):
                content = [document.title, document.text, document.metadata]
                encoded = msgspec.json.encode(content, enc_hook=_as_text, order="sorted")
                hashed = hashlib.blake2b(encoded, digest_size=_DIGEST)
                if vector is not None:
                    hashed.update(vector.tobytes())
                yield document.id, hashed.digest()
            on_read(len(block))
    finally:
        reader.close()


def _as_text(value: Any) -> str:
    return repr(value)
