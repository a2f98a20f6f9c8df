"""What an index stores beside its segments: raw embeddings, text hashes and lengths of its live rows."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer.arrays import Embeddings, RowIds, TextHashes, Vectors
from indexer.hashing import hash_id
from indexer.pipeline.rows import RowView
from indexer.store import layout, parts
from indexer.store.integrity import check_files
from search.opened import OpenIndex

BLOCK_ROWS = 4096


class StoredRows:
    """Rows of an open index, read a block at a time; deleted ones are passed over.

    The files behind them are hashed first if they are at most 256 MB; above that embeddings are checked as they are
    read, the others by `isotrope verify`. Raises CorruptIndexError.
    """

    def __init__(self, opened: OpenIndex) -> None:
        self.opened, self._numbering = opened, opened.numbering
        self._folders = [opened.path / part.name for part in opened.manifest.parts]
        files = (layout.EMBEDDINGS, layout.MOMENTS, layout.WINDOWS)
        check_files(
            opened.path, opened.manifest, [f"{part.name}/{file}" for part in opened.manifest.parts for file in files]
        )

    def __len__(self) -> int:
        return self._numbering.rows

    @cached_property
    def id_hashes(self) -> npt.NDArray[np.uint64]:
        """A hash for each document's id: what samples are drawn by."""
        return np.array([hash_id(identity) for identity in self.opened.documents.all_ids()], np.uint64)

    def sample(self, size: int | str) -> RowView:
        """The rows of the `size` documents with the smallest id hash, or of "all"."""
        held, live = self.opened.manifest.parts, self._numbering.live_documents
        hashes = np.zeros(self.opened.manifest.stored_documents, np.uint64)
        hashes[slice(None) if live is None else live] = self.id_hashes
        documents, rows = [part.documents for part in held], [part.rows for part in held]
        return RowView(self._folders, documents, rows, hashes, live).sample(size)

    def embedding_blocks(self) -> Iterator[tuple[int, Embeddings]]:
        """(first row, raw embeddings (m, d)) for every row, block by block."""
        live, start = self._numbering.live_rows, 0
        for first, embeddings in self.opened.stored_embeddings.blocks():
            kept = embeddings if live is None else embeddings[live[first : first + len(embeddings)]]
            if len(kept):
                yield start, kept
                start += len(kept)

    def vector_blocks(self) -> Iterator[tuple[int, Vectors]]:
        """(first row, vectors (m, k)) for every row: the transform of the stored embeddings, block by block."""
        for first, embeddings in self.embedding_blocks():
            yield first, self.opened.transform.transform(embeddings, "document")

    def hash_blocks(self) -> Iterator[tuple[int, TextHashes]]:
        """(first row, text hashes (m, 2)) a part at a time."""
        start = 0
        for live, folder in self._parts():
            hashes = parts.read_text_hashes(folder)
            hashes = hashes if live is None else hashes[live]
            yield start, hashes
            start += len(hashes)

    def length_blocks(self) -> Iterator[npt.NDArray[np.int32]]:
        """Tokens of each row's text before truncation, (m,), a part at a time."""
        for live, folder in self._parts():
            lengths = parts.read_token_counts(folder)
            yield lengths if live is None else lengths[live]

    def vectors(self, rows: RowIds) -> Vectors:
        """Vectors of the given rows, (n, k), in the order given."""
        return self.opened.vectors(rows)

    def text_hashes(self, rows: RowIds) -> TextHashes:
        """Text hashes of the given rows, (n, 2), in the order given."""
        stored = rows if self._numbering.stored_rows is None else self._numbering.stored_rows[rows]
        firsts = self.opened.stored_embeddings.firsts
        found, part_of = np.zeros((len(rows), 2), np.uint64), np.searchsorted(firsts, stored, side="right") - 1
        for part in np.unique(part_of).tolist():
            places = np.flatnonzero(part_of == part)
            found[places] = parts.read_text_hashes(self._folders[part])[stored[places] - firsts[part]]
        return found

    def _parts(self) -> Iterator[tuple[npt.NDArray[np.bool_] | None, Path]]:
        """(which of its rows are live, folder) of each part."""
        live, firsts = self._numbering.live_rows, self.opened.stored_embeddings.firsts
        for part, folder in enumerate(self._folders):
            yield (None if live is None else live[firsts[part] : firsts[part + 1]]), folder
