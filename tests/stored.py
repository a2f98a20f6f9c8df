"""Documents of an index without encoder or vectors, for tests of storage and filters."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from indexer.corpus.document import Document
from indexer.corpus.schema import merge_schemas, schema_from_json, schema_to_json
from indexer.store import layout
from indexer.store.documents import DocumentReader, write_documents
from indexer.store.files import make_folder
from indexer.store.manifest import Manifest, PartEntry


def write_index(index: Path, parts: Sequence[Sequence[Document]]) -> Manifest:
    """The documents of an index, and a minimal manifest for them."""
    entries, digests, schemas = [], {}, []
    for number, documents in enumerate(parts):
        name = layout.part_name(number)
        make_folder(index / name)
        digests[f"{name}/{layout.DOCUMENTS}"], schema = write_documents(index / name, documents)
        schemas.append(schema)
        entries.append(PartEntry(name, len(documents), len(documents), "", ""))
    return Manifest(
        generation=1,
        config={},
        encoder={},
        fingerprint="",
        transform={},
        parts=tuple(entries),
        segments=(),
        files=digests,
        schema=schema_to_json(merge_schemas(schemas)),
        documents=sum(map(len, parts)),
        rows=sum(map(len, parts)),
        quality={},
        versions={},
        created="",
    )


def open_index(index: Path, manifest: Manifest, live: Sequence[int] | None = None) -> DocumentReader:
    """Open a reader; `live` are the stored numbers of live documents, None for all."""
    return DocumentReader(
        index, manifest, schema_from_json(manifest.schema), None if live is None else np.array(live, np.int64)
    )
