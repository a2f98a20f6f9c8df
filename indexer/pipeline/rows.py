"""The rows of some parts, as every step of a build sees them: sampled, as embeddings, as vectors block by block.

Samples do not depend on the order of the corpus: they are the live documents with the smallest hashes of their ids.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer.arrays import Embeddings, Mask, RowIds, Vectors
from indexer.corpus.document import Document
from indexer.hashing import bottom_k
from indexer.moments import Moments, tree_sum
from indexer.progress import Progress
from indexer.store import parts
from indexer.store.documents import read_documents_at
from indexer.store.embeddings import open_embeddings
from indexer.system.threads import ordered_map, single_blas_thread
from indexer.transforms import FitData, Transform


@dataclass(frozen=True)
class RowView:
    """Rows of some parts, in order. Deleted ones are stored, and nothing is measured with them.

    `documents` and `rows` count what each of the `folders` stores. `id_hashes` (stored documents,) are those of ids, by
    which samples are drawn; those of deleted documents are never looked at. `live` (stored documents,) is None where
    no document is deleted. `chosen` holds the rows of each part that are seen, ascending, counted from its start; None
    for all: a sample is a view too.
    """

    folders: Sequence[Path]
    documents: Sequence[int]
    rows: Sequence[int]
    id_hashes: npt.NDArray[np.uint64]
    live: Mask | None = None
    chosen: Sequence[RowIds] | None = None

    def __len__(self) -> int:
        """Rows seen, deleted ones among them unless they were chosen."""
        return self.stored if self.chosen is None else sum(map(len, self.chosen))

    @property
    def stored(self) -> int:
        """Rows of all parts."""
        return sum(self.rows)

    @cached_property
    def firsts(self) -> list[int]:
        """The first row of each part, and the number of rows at the end."""
        return [0, *accumulate(self.rows)]

    @property
    def row_ids(self) -> RowIds:
        """The rows seen, counted through all parts, (rows,)."""
        if self.chosen is None:
            return np.arange(self.stored)
        return np.concatenate([rows + first for rows, first in zip(self.chosen, self.firsts, strict=False)])

    @cached_property
    def document_of(self) -> RowIds:
        """The stored document of each stored row, (stored rows,)."""
        found, first = [np.zeros(0, np.int64)], 0
        for folder, documents, rows in zip(self.folders, self.documents, self.rows, strict=True):
            inside = np.arange(rows) if documents == rows else parts.read_window_documents(folder)
            found.append(inside.astype(np.int64) + first)
            first += documents
        return np.concatenate(found)

    @cached_property
    def live_rows(self) -> Mask | None:
        """Which stored rows are live, (stored rows,); None when all are."""
        if self.live is None:
            return None
        live: Mask = self.live[self.document_of]
        return live

    # --- samples

    def sample(self, count: int | str) -> "RowView":
        """The rows of the `count` live documents with the smallest id hash, or of "all" live ones."""
        drawn = self._draw(count)
        chosen = [
            inside if documents == rows else np.flatnonzero(np.isin(parts.read_window_documents(folder), inside))
            for folder, inside, rows, documents in zip(self.folders, drawn, self.rows, self.documents, strict=True)
        ]
        return replace(self, chosen=chosen)

    def sampled_documents(self, count: int | str) -> Iterator[Document]:
        """The documents of `sample(count)`, in order. Nothing has to be encoded yet."""
        for folder, documents in zip(self.folders, self._draw(count), strict=True):
            if len(documents):
                yield from read_documents_at(folder, documents.tolist())

    def count_documents(self, count: int | str) -> int:
        """How many documents `sample(count)` holds."""
        live = sum(self.documents) if self.live is None else int(np.count_nonzero(self.live))
        return live if count == "all" else min(int(count), live)

    def _draw(self, count: int | str) -> list[RowIds]:
        """The stored documents of a sample, of each part, counted from its start."""
        if self.live is None:
            drawn = bottom_k(self.id_hashes, count)
        else:
            live = np.flatnonzero(self.live)
            drawn = live[bottom_k(self.id_hashes[live], count)]
        ends = np.cumsum([0, *self.documents])
        cuts = np.searchsorted(drawn, ends)
        return [drawn[low:high] - end for low, high, end in zip(cuts, cuts[1:], ends, strict=False)]

    @cached_property
    def sampling_order(self) -> RowIds:
        """Live rows by the hash of their document's id: any stretch is a sample, whatever the order of the corpus."""
        order = np.argsort(self._row_hashes, kind="stable")
        return order if self.live_rows is None else order[self.live_rows[order]]

    def rows_of_same_document(self, rows: RowIds) -> tuple[RowIds, ...]:
        """For each of some rows, all live rows of its document: more than itself where documents have windows."""
        hashes = self._row_hashes[self.sampling_order]
        starts, ends = (np.searchsorted(hashes, self._row_hashes[rows], side=side) for side in ("left", "right"))
        return tuple(np.sort(self.sampling_order[start:end]) for start, end in zip(starts, ends, strict=True))

    @cached_property
    def _row_hashes(self) -> npt.NDArray[np.uint64]:
        """The id hash of each stored row's document, (stored rows,)."""
        return self.id_hashes[self.document_of]

    # --- embeddings and vectors

    def embeddings(self, part: int) -> Embeddings:
        """Embeddings of the rows seen of a part, (n, d), mapped where they are all of it."""
        embeddings = open_embeddings(self.folders[part])
        if self.chosen is None or len(self.chosen[part]) == len(embeddings):
            return embeddings
        return embeddings[self.chosen[part]]

    def moments(self) -> Moments:
        """Moments of the rows seen, summed in one fixed tree over the parts."""
        if len(self) == self.stored:
            return tree_sum(parts.load_moments(folder) for folder in self.folders)
        return tree_sum(map(Moments.of, self._blocks()))

    def fit_data(self) -> FitData:
        """What a transform is fitted on."""
        return FitData(self.moments, self._blocks)

    def _blocks(self) -> Iterator[Embeddings]:
        return map(self.embeddings, range(len(self.folders)))

    def vectors(self, transform: Transform, rows: RowIds) -> Vectors:
        """Unit vectors (n, k) of some stored rows, in the order given."""
        found = np.zeros((len(rows), transform.dim), np.float32)
        part_of = np.searchsorted(self.firsts, rows, side="right") - 1
        with single_blas_thread():
            for part in np.unique(part_of).tolist():
                places = np.flatnonzero(part_of == part)
                order = places[np.argsort(rows[places], kind="stable")]  # a file is read from front to back
                embeddings = open_embeddings(self.folders[part])[rows[order] - self.firsts[part]]
                found[order] = transform.transform(embeddings, "document")
        return found

    def blocks(self, transform: Transform, threads: int, progress: Progress) -> "VectorBlocks":
        """The vectors of all stored rows, a part at a time on some threads."""

        def vectors(folder: Path) -> Vectors:
            return transform.transform(open_embeddings(folder), "document")

        return VectorBlocks(vectors, self, threads, progress)

    def run(self, of_parts: slice) -> "RowView":
        """The rows of some parts that follow each other."""
        first = sum(self.documents[: of_parts.start])
        documents = slice(first, first + sum(self.documents[of_parts]))
        return RowView(
            self.folders[of_parts],
            self.documents[of_parts],
            self.rows[of_parts],
            self.id_hashes[documents],
            None if self.live is None else self.live[documents],
            None if self.chosen is None else self.chosen[of_parts],
        )


def even_runs(rows: Sequence[int], most: int) -> list[slice]:
    """Parts, given their rows, in runs of about as many rows each: as few as have about `most` or fewer; 0: one run."""
    total, ends = sum(rows), list(accumulate(rows))
    count = -(-total // most) if most else 1
    cuts = {bisect_left(ends, number * total / count) + 1 for number in range(1, count)}
    return [slice(start, end) for start, end in pairwise([0, *sorted(cuts - {len(rows)}), len(rows)])]


class VectorBlocks:
    """(first row, vectors (m, k)) of every part, in order; counts rows and vectors that are zero as they go by."""

    def __init__(self, vectors: Callable[[Path], Vectors], view: RowView, threads: int, progress: Progress) -> None:
        self._vectors, self._view, self._threads, self._progress = vectors, view, threads, progress
        self.count = self.zero = 0

    def __iter__(self) -> Iterator[tuple[int, Vectors]]:
        self.count = self.zero = 0
        self._progress.phase("indexing", self._view.stored)
        with single_blas_thread():  # around all threads, so that none of them lets the others have more
            for vectors in ordered_map(self._vectors, self._view.folders, self._threads):
                yield self.count, vectors
                self.count += len(vectors)
                self.zero += int(np.count_nonzero(~vectors.any(axis=1)))
                self._progress.advance(len(vectors))
