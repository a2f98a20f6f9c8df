"""What an index stores beside its segments: raw embeddings, text hashes and lengths, row by row."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer.sampling import Sample, draw_sample, id_hash
from indexer.store import layout, parts
from indexer.store.verify import check_files
from search.opened import OpenIndex

Vectors = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]
Embeddings = npt.NDArray[np.floating]
BLOCK_ROWS = 4096


class StoredRows:
    """Rows of an open index, read a block at a time.

    The files behind them are hashed first if they are at most 256 MB, as those that search needs are when an
    index is opened; above that `isotrope verify` does it. Raises CorruptIndexError.
    """

    def __init__(self, opened: OpenIndex) -> None:
        self.opened = opened
        self.folders = [opened.path / part.name for part in opened.manifest.parts]
        self.firsts: list[int] = np.cumsum([0, *(part.rows for part in opened.manifest.parts)]).tolist()
        files = (layout.EMBEDDINGS, layout.MOMENTS, layout.WINDOWS)
        check_files(
            opened.path, opened.manifest, [f"{part.name}/{file}" for part in opened.manifest.parts for file in files]
        )

    def __len__(self) -> int:
        return self.firsts[-1]

    @cached_property
    def id_hashes(self) -> npt.NDArray[np.uint64]:
        """A hash for each id, in row order: what samples are drawn by."""
        return np.array([id_hash(identity) for identity in self.opened.documents.all_ids()], np.uint64)

    def sample(self, size: int | str) -> Sample:
        """The `size` rows with the smallest id hash, or "all"."""
        counts = [part.rows for part in self.opened.manifest.parts]
        return draw_sample(self.folders, counts, self.id_hashes, size)

    def embedding_blocks(self) -> Iterator[tuple[int, Embeddings]]:
        """(first row, raw embeddings (m, d)) for every row, block by block."""
        for folder, first in zip(self.folders, self.firsts[:-1], strict=True):
            embeddings = parts.open_embeddings(folder)
            for start in range(0, len(embeddings), BLOCK_ROWS):
                yield first + start, embeddings[start : start + BLOCK_ROWS]

    def vector_blocks(self) -> Iterator[tuple[int, Vectors]]:
        """(first row, vectors (m, k)) for every row: the transform of the stored embeddings, block by block."""
        for first, embeddings in self.embedding_blocks():
            yield first, self.opened.transform.transform(embeddings, "document")

    def hash_blocks(self) -> Iterator[tuple[int, parts.TextHashes]]:
        """(first row, text hashes (m, 2)) a part at a time."""
        for folder, first in zip(self.folders, self.firsts[:-1], strict=True):
            yield first, parts.read_text_hashes(folder)

    def length_blocks(self) -> Iterator[npt.NDArray[np.int32]]:
        """Tokens of each text before truncation, (m,), a part at a time."""
        return map(parts.read_lengths, self.folders)

    def vectors(self, rows: Rows) -> Vectors:
        """Vectors of the given rows, (n, k), in the order given."""
        found = np.zeros((len(rows), self.opened.transform.dim), np.float32)
        for positions, within, folder in self._by_part(rows):
            embeddings = parts.open_embeddings(folder)[within]
            found[positions] = self.opened.transform.transform(embeddings, "document")
        return found

    def text_hashes(self, rows: Rows) -> parts.TextHashes:
        """Text hashes of the given rows, (n, 2), in the order given."""
        found = np.zeros((len(rows), 2), np.uint64)
        for positions, within, folder in self._by_part(rows):
            found[positions] = parts.read_text_hashes(folder)[within]
        return found

    def _by_part(self, rows: Rows) -> Iterator[tuple[Rows, Rows, Path]]:
        part_of = np.searchsorted(self.firsts, rows, side="right") - 1
        for part in np.unique(part_of).tolist():
            positions = np.flatnonzero(part_of == part)
            yield positions, rows[positions] - self.firsts[part], self.folders[part]
