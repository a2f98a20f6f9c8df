"""A published generation, as the writer of the next one reads it, or an index whose transform is reused."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np

from indexer.arrays import Mask, RowIds
from indexer.corpus.document import Document
from indexer.corpus.schema import schema_from_json
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.identity import EncoderIdentity
from indexer.models.resolution import spec_of_index
from indexer.pipeline.rows import RowView
from indexer.recipe.config import BuildConfig, without_auto
from indexer.store import layout, parts
from indexer.store.documents import DocumentReader
from indexer.store.embeddings import EmbeddingReader
from indexer.store.files import FileDigest
from indexer.store.integrity import load_transform
from indexer.store.manifest import Manifest
from indexer.store.numbering import DocumentIds, LiveNumbering
from indexer.transforms import Transform

_BATCH = 1024  # documents whose vectors are read together


class PublishedIndex:
    """A published generation, read lazily; `close` closes its files."""

    def __init__(self, index: Path, manifest: Manifest) -> None:
        self.index, self.manifest = index, manifest

    def close(self) -> None:
        for name in ("documents", "_embeddings"):
            if name in self.__dict__:
                self.__dict__[name].close()

    @cached_property
    def config(self) -> BuildConfig:
        return without_auto(BuildConfig.from_dict(self.manifest.config))  # of indexes without these settings

    def spec(self, model: str | Path | None = None) -> EncoderSpec:
        """Resolve the encoder; `model` is its folder if it has moved. Raises ModelError, MismatchError."""
        return spec_of_index(self.index, self.manifest, model)

    def spec_without_files(self) -> EncoderSpec:
        """Return the encoder for steps that encode nothing, without looking for its files."""
        encoder = self.manifest.encoder
        identity, fitted = EncoderIdentity.from_dict(encoder["identity"]), "state" in encoder["identity"]
        base = replace(identity, state=None).fingerprint
        return EncoderSpec(
            encoder["model"],
            encoder["folder"],
            identity,
            self.manifest.fingerprint,
            bool(encoder["folder"]),
            state=str(self.index / layout.state_folder(base)) if fitted else None,
        )

    @cached_property
    def transform(self) -> Transform:
        """The transform. Raises CorruptIndexError."""
        return load_transform(self.index, self.manifest)

    @property
    def transform_digest(self) -> FileDigest:
        """Digest of the transform's file."""
        return self.manifest.files[self.manifest.transform["file"]]

    def records(self) -> list[parts.PartRecord]:
        return [parts.published_record(self.index, self.manifest, part.name) for part in self.manifest.parts]

    # --- rows

    @cached_property
    def numbering(self) -> LiveNumbering:
        return LiveNumbering(self.index, self.manifest)

    @property
    def live(self) -> Mask:
        """Which stored documents are live, (stored documents,), as a copy."""
        live = self.numbering.live_documents
        return np.ones(self.manifest.stored_documents, bool) if live is None else live.copy()

    def stored(self, numbers: RowIds) -> RowIds:
        """Return the stored numbers of live documents."""
        stored = self.numbering.stored_documents
        return numbers if stored is None else stored[numbers]

    def rows(self) -> RowView:
        entries, live = self.manifest.parts, self.numbering.live_documents
        hashes = np.zeros(self.manifest.stored_documents, np.uint64)
        hashes[slice(None) if live is None else live] = self._ids.hashes
        folders = [self.index / part.name for part in entries]
        return RowView(folders, [part.documents for part in entries], [part.rows for part in entries], hashes, live)

    # --- documents

    @cached_property
    def documents(self) -> DocumentReader:
        """Live documents by number."""
        schema = schema_from_json(self.manifest.schema)
        return DocumentReader(self.index, self.manifest, schema, self.numbering.stored_documents)

    def find(self, ids: Sequence[str]) -> dict[str, tuple[int, Document]]:
        """Return the number and the document of each known id; the last one if several documents share the id."""
        numbers = sorted(self._ids.find(ids).values())
        documents = zip(numbers, self.fetch(numbers), strict=True)
        return {document.id: (number, document) for number, document in documents}

    @cached_property
    def _ids(self) -> DocumentIds:
        return DocumentIds(self.documents)

    def fetch(self, numbers: Sequence[int]) -> list[Document]:
        """Return live documents by number, in the order given, with the vectors that they were given with."""
        return list(self._with_vectors(self.documents.fetch(numbers), self.stored(np.array(numbers, np.int64))))

    def all_documents(self) -> Iterator[Document]:
        """Yield every live document in order, as `fetch` returns them."""
        return self._with_vectors(self.documents.all_documents(), self.stored(np.arange(self.manifest.documents)))

    def stored_documents(self, first: int) -> list[Document]:
        """Return the stored documents from number `first` on, including deleted ones."""
        numbers = np.arange(first, self.manifest.stored_documents)
        with closing(DocumentReader(self.index, self.manifest, schema_from_json(self.manifest.schema))) as reader:
            return list(self._with_vectors(reader.fetch(numbers.tolist()), numbers))

    def _with_vectors(self, documents: Iterable[Document], rows: RowIds) -> Iterator[Document]:
        """Yield documents, with the embeddings of the stored `rows` as vectors if the encoder encodes no texts."""
        stream = iter(documents)
        if self.config.encoder.traits.encodes_texts:
            yield from stream
            return
        for start in range(0, len(rows), _BATCH):
            embeddings = self._embeddings.rows(rows[start : start + _BATCH]).astype(np.float32, copy=False)
            for document, vector in zip(islice(stream, len(embeddings)), embeddings, strict=True):
                yield replace(document, vector=vector)

    @cached_property
    def _embeddings(self) -> EmbeddingReader:
        return EmbeddingReader(self.index, self.manifest)
