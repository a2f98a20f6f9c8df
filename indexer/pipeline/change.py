"""What all changes of a published index share: the lock, the newest generation, and room to write the next."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from indexer.config import BuildConfig
from indexer.corpus.document import Document
from indexer.encoders import EncoderSpec
from indexer.encoders.identity import EncoderIdentity
from indexer.encoders.spec import spec_of_index
from indexer.hashing import fingerprint
from indexer.pipeline.context import BuildContext
from indexer.pipeline.ingest import with_vectors
from indexer.pipeline.rows import live_documents
from indexer.pipeline.sweep import sweep_before
from indexer.store import layout, parts
from indexer.store.checked import check_sizes
from indexer.store.documents import DocumentReader
from indexer.store.embeddings import EmbeddingReader
from indexer.store.files import writer_lock
from indexer.store.manifest import Manifest, load_manifest
from indexer.store.numbering import LiveNumbering, Mask, Numbers


@dataclass(frozen=True)
class Change:
    """A published generation that is about to be followed by another; the index is locked."""

    index: Path
    published: Manifest

    @property
    def config(self) -> BuildConfig:
        """The recipe of the index."""
        return BuildConfig.from_dict(self.published.config)

    @cached_property
    def numbering(self) -> LiveNumbering:
        return LiveNumbering(self.index, self.published)

    @cached_property
    def documents(self) -> DocumentReader:
        """Live documents by number."""
        return live_documents(self.index, self.published)

    def fetch(self, numbers: Sequence[int]) -> list[Document]:
        """Live documents by number, in the order given, with their vectors where they came with some."""
        documents = self.documents.fetch(numbers)
        return list(self._whole(documents, np.array(numbers, np.int64)))

    def all_documents(self) -> Iterator[Document]:
        """Every live document, in order, as `fetch` gives them."""
        return self._whole(self.documents.all_documents(), np.arange(self.published.documents))

    def _whole(self, documents: Iterable[Document], numbers: Numbers) -> Iterator[Document]:
        if self.config.encoder.traits.encodes_texts:
            return iter(documents)
        return with_vectors(documents, self.stored(numbers), self._embeddings)

    @cached_property
    def _embeddings(self) -> EmbeddingReader:
        return EmbeddingReader(self.index, self.published)

    @property
    def live(self) -> Mask:
        """Which stored documents are live, (stored documents,); a copy to change."""
        live = self.numbering.live_documents
        return np.ones(self.published.stored_documents, bool) if live is None else live.copy()

    def stored(self, numbers: Numbers) -> Numbers:
        """Stored numbers of live documents."""
        stored = self.numbering.stored_documents
        return numbers if stored is None else stored[numbers]

    def records(self) -> list[parts.PartRecord]:
        """The records of all parts."""
        return [parts.published_record(self.index, self.published, part.name) for part in self.published.parts]

    def context(self, model: str | Path | None) -> BuildContext:
        """The index as the steps of a build see it, its encoder found. Raises ModelError and MismatchError."""
        spec = spec_of_index(self.index, self.published, model)
        return BuildContext(self.index, self.config, spec, self.published, overwrite=True)

    def context_without_encoder(self) -> BuildContext:
        """The same for steps that encode nothing: the encoder is the published one wherever its files are."""
        encoder = self.published.encoder
        unfitted = fingerprint({key: value for key, value in encoder["identity"].items() if key != "state"})
        state = str(self.index / layout.state_folder(unfitted)) if "state" in encoder["identity"] else None
        spec = EncoderSpec(
            encoder["model"],
            encoder["folder"],
            EncoderIdentity.from_dict(encoder["identity"]),
            self.published.fingerprint,
            bool(encoder["folder"]),
            state,
            unfitted if state else "",
        )
        return BuildContext(self.index, self.config, spec, self.published, overwrite=True)


@contextmanager
def change(index: Path) -> Iterator[Change]:
    """Lock an index for a change. Raises NotAnIndexError, CorruptIndexError, StoreError and LockedError."""
    load_manifest(index)  # says what is wrong with a path that is no index, before a lock file is made there
    with writer_lock(index):
        published = load_manifest(index)
        check_sizes(index, published)
        sweep_before(index, published.fingerprint)
        opened = Change(index, published)
        try:
            yield opened
        finally:
            if "documents" in opened.__dict__:
                opened.documents.close()
            if "_embeddings" in opened.__dict__:
                opened._embeddings.close()
