"""Embeddings that came with the corpus, on their way into parts and back: nothing is encoded."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer.config import StoreConfig
from indexer.corpus.document import Document
from indexer.errors import CorpusError
from indexer.pipeline.part_files import PendingPart
from indexer.store.embeddings import EmbeddingReader
from indexer.store.parts import PartRows, TextHashes, write_part

Embeddings = npt.NDArray[np.floating]
_BATCH = 1024  # documents whose vectors are read together


def given_embeddings(documents: Sequence[Document], store: StoreConfig) -> Embeddings:
    """The vectors of some documents as they are stored, (n, d). Raises CorpusError for one that does not fit."""
    vectors = np.stack([_vector(document) for document in documents])
    with np.errstate(over="ignore"):
        stored: Embeddings = vectors.astype(store.embeddings)
    unfit = np.flatnonzero(~np.isfinite(stored).all(axis=1) | ~stored.any(axis=1))
    if len(unfit):
        limits = np.finfo(store.embeddings)
        raise CorpusError(
            f'document "{documents[unfit[0]].id}": its vector cannot be stored as {store.embeddings}: a number is '
            f"beyond {limits.max:g}, or all are smaller than {limits.smallest_subnormal:.0e}. "
            'Set store.embeddings = "float32", or scale the vectors.'
        )
    return stored


def complete_given(
    folder: Path, slot: PendingPart, hashes: TextHashes, embeddings: Embeddings, fingerprint: str
) -> PendingPart:
    """The slot of a part whose documents are written, once the rest of it is."""
    rows = PartRows(hashes, np.zeros(len(embeddings), np.int32), embeddings)
    return replace(slot, record=write_part(folder, slot.written, rows, fingerprint), given=True)


def same_document(one: Document, stored: Document, store: StoreConfig) -> bool:
    """Whether a document is the stored one, its vector too if it comes with one: rounded as storing it rounds it."""
    if one != stored or one.vector is None or stored.vector is None:
        return one == stored and one.vector is stored.vector
    with np.errstate(over="ignore"):
        rounded = one.vector.astype(store.embeddings).astype(np.float32)
    return np.array_equal(rounded, stored.vector)


def with_vectors(
    documents: Iterable[Document], rows: npt.NDArray[np.int64], reader: EmbeddingReader
) -> Iterator[Document]:
    """Documents of an index, each with the embedding stored in its row, float32."""
    stream = iter(documents)
    for start in range(0, len(rows), _BATCH):
        embeddings = reader.rows(rows[start : start + _BATCH]).astype(np.float32, copy=False)
        for document, vector in zip(islice(stream, len(embeddings)), embeddings, strict=True):
            yield replace(document, vector=vector)


def _vector(document: Document) -> npt.NDArray[np.float32]:
    if document.vector is None:
        raise CorpusError(f'document "{document.id}" comes without a vector; expected one, as the recipe says.')
    return document.vector
