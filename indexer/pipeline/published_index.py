"""What is published, as whoever writes the next generation reads it; another index too, whose transform is taken over.

A few ids are looked for in their column; whoever goes on asking is answered from 16 bytes a document in memory.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer.arrays import Mask, RowIds
from indexer.corpus.document import Document
from indexer.corpus.schema import schema_from_json
from indexer.hashing import hash_id
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.identity import EncoderIdentity
from indexer.models.resolution import spec_of_index
from indexer.pipeline.rows import RowView
from indexer.recipe.config import BuildConfig
from indexer.store import layout, parts
from indexer.store.documents import DocumentReader
from indexer.store.embeddings import EmbeddingReader
from indexer.store.files import FileDigest
from indexer.store.integrity import load_transform
from indexer.store.manifest import Manifest
from indexer.store.numbering import IdIndex, LiveNumbering
from indexer.transforms import Transform

_BATCH = 1024  # documents whose vectors are read together


class PublishedIndex:
    """A published generation. Nothing is read before it is asked for; `close` lets go of the files."""

    def __init__(self, index: Path, manifest: Manifest) -> None:
        self.index, self.manifest = index, manifest
        self._was_asked = False  # for documents by their ids

    def close(self) -> None:
        """Close what was opened."""
        for name in ("documents", "_embeddings"):
            if name in self.__dict__:
                self.__dict__[name].close()

    @cached_property
    def config(self) -> BuildConfig:
        """The recipe."""
        return BuildConfig.from_dict(self.manifest.config)

    def spec(self, model: str | Path | None = None) -> EncoderSpec:
        """The encoder, found; `model` is its files' folder if they have moved. Raises ModelError, MismatchError."""
        return spec_of_index(self.index, self.manifest, model)

    def spec_without_files(self) -> EncoderSpec:
        """The encoder for steps that encode nothing, wherever its files are."""
        encoder = self.manifest.encoder
        identity, fitted = EncoderIdentity.from_dict(encoder["identity"]), "state" in encoder["identity"]
        base = identity.without_state().fingerprint
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
        """What the transform's file must be."""
        return self.manifest.files[self.manifest.transform["file"]]

    def records(self) -> list[parts.PartRecord]:
        """The records of all parts."""
        return [parts.published_record(self.index, self.manifest, part.name) for part in self.manifest.parts]

    # --- rows

    @cached_property
    def numbering(self) -> LiveNumbering:
        """Numbers of live documents and rows."""
        return LiveNumbering(self.index, self.manifest)

    @property
    def live(self) -> Mask:
        """Which stored documents are live, (stored documents,); a copy to change."""
        live = self.numbering.live_documents
        return np.ones(self.manifest.stored_documents, bool) if live is None else live.copy()

    def stored(self, numbers: RowIds) -> RowIds:
        """Stored numbers of live documents."""
        stored = self.numbering.stored_documents
        return numbers if stored is None else stored[numbers]

    def rows(self) -> RowView:
        """All stored rows."""
        entries, live = self.manifest.parts, self.numbering.live_documents
        hashes = np.zeros(self.manifest.stored_documents, np.uint64)
        hashes[slice(None) if live is None else live] = self._id_hashes()
        folders = [self.index / part.name for part in entries]
        return RowView(folders, [part.documents for part in entries], [part.rows for part in entries], hashes, live)

    def _id_hashes(self) -> npt.NDArray[np.uint64]:
        """Those of all live documents, (documents,)."""
        return np.fromiter(map(hash_id, self.documents.all_ids()), np.uint64, len(self.documents))

    # --- documents

    @cached_property
    def documents(self) -> DocumentReader:
        """Live documents by number."""
        schema = schema_from_json(self.manifest.schema)
        return DocumentReader(self.index, self.manifest, schema, self.numbering.stored_documents)

    def find(self, ids: Sequence[str]) -> dict[str, tuple[int, Document]]:
        """The number and the document of each of these ids that is there; the last where several have one id.

        The first time the column of ids is searched; the second time it is read and kept as hashes.
        """
        numbers = self._by_hash.candidates(ids) if self._was_asked else sorted(self.documents.find_ids(ids).values())
        self._was_asked = True
        asked = set(ids)  # two ids may have one hash
        found = zip(numbers, self.fetch(numbers), strict=True)
        return {document.id: (number, document) for number, document in found if document.id in asked}

    @cached_property
    def _by_hash(self) -> IdIndex:
        return IdIndex(self._id_hashes())

    def fetch(self, numbers: Sequence[int]) -> list[Document]:
        """Live documents by number, in the order given, with their vectors where they came with some."""
        return list(self._whole(self.documents.fetch(numbers), self.stored(np.array(numbers, np.int64))))

    def all_documents(self) -> Iterator[Document]:
        """Every live document, in order, as `fetch` gives them."""
        return self._whole(self.documents.all_documents(), self.stored(np.arange(self.manifest.documents)))

    def stored_documents(self, first: int) -> list[Document]:
        """The stored documents from number `first` on, deleted ones among them."""
        numbers = np.arange(first, self.manifest.stored_documents)
        with closing(DocumentReader(self.index, self.manifest, schema_from_json(self.manifest.schema))) as reader:
            return list(self._whole(reader.fetch(numbers.tolist()), numbers))

    def _whole(self, documents: Iterable[Document], rows: RowIds) -> Iterator[Document]:
        """Documents with their vectors, which are the stored `rows` where the encoder encodes no texts."""
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
