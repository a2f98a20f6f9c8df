"""What a generation holds, as its steps see it: parts, their documents and rows, and which of them are live."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer.corpus.schema import parse
from indexer.hashing import hash_id
from indexer.sampling import Population
from indexer.store import parts
from indexer.store.documents import DocumentReader
from indexer.store.manifest import Manifest, PartEntry
from indexer.store.numbering import LiveNumbering, Mask


@dataclass(frozen=True)
class Contents:
    """Parts in order. `hashes` are of the ids of all stored documents; `live` is None when none of them is deleted."""

    folders: Sequence[Path]
    documents: Sequence[int]
    rows: Sequence[int]
    hashes: npt.NDArray[np.uint64]
    live: Mask | None = None

    @property
    def population(self) -> Population:
        """The live documents, to draw samples from."""
        hashes = self.hashes if self.live is None else self.hashes[self.live]
        return Population(self.folders, self.documents, self.rows, hashes, self.live)

    @cached_property
    def document_of(self) -> npt.NDArray[np.int64]:
        """The stored document of each stored row, (rows,)."""
        found, first = [np.zeros(0, np.int64)], 0
        for folder, documents, rows in zip(self.folders, self.documents, self.rows, strict=True):
            inside = np.arange(rows) if documents == rows else parts.read_window_documents(folder)
            found.append(inside.astype(np.int64) + first)
            first += documents
        return np.concatenate(found)

    @property
    def live_rows(self) -> Mask | None:
        """Which stored rows are live, (rows,); None when all are."""
        if self.live is None:
            return None
        live: Mask = self.live[self.document_of]
        return live


def contents_of(
    index: Path,
    entries: Sequence[PartEntry],
    live: Mask | None,
    hashes: npt.NDArray[np.uint64] | None = None,
) -> Contents:
    """Contents of parts that a manifest lists; without hashes where nothing is to be drawn from them."""
    documents, rows = [part.documents for part in entries], [part.rows for part in entries]
    known = np.zeros(sum(documents), np.uint64) if hashes is None else hashes
    return Contents([index / part.name for part in entries], documents, rows, known, live)


def published_contents(index: Path, published: Manifest) -> Contents:
    """What a published generation holds."""
    hashes = np.array([hash_id(identity) for identity in all_documents(index, published).all_ids()], np.uint64)
    return contents_of(index, published.parts, LiveNumbering(index, published).live_documents, hashes)


def all_documents(index: Path, published: Manifest) -> DocumentReader:
    """The stored documents of a generation, deleted ones included."""
    return DocumentReader(index, published, parse(published.schema))


def live_documents(index: Path, published: Manifest) -> DocumentReader:
    """The documents of a generation, by their numbers."""
    return DocumentReader(index, published, parse(published.schema), LiveNumbering(index, published).stored_documents)
