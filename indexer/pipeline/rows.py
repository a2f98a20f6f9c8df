"""`RowView`: the rows of some parts, as samples, as embeddings, or as vectors block by block.

Samples do not depend on the order of the corpus: they are the live documents with the smallest id hashes.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer import ann
from indexer.arrays import Embeddings, Mask, RowIds, Vectors
from indexer.corpus.document import Document
from indexer.hashing import bottom_k
from indexer.moments import Moments, tree_sum
from indexer.progress import Progress
from indexer.store import parts
from indexer.store.documents import read_documents_at
from indexer.store.embeddings import open_embeddings
from indexer.system.threads import ordered_map, part_threads, single_blas_thread
from indexer.transforms import FitData, Transform


@dataclass(frozen=True)
class RowView:
    """Rows of some parts, in order. Deleted rows are stored, but never sampled or measured.

    `documents` and `rows` count the contents of each of the `folders`. `id_hashes` (stored documents,) determine the
    samples; the hashes of deleted documents are not used. `live` (stored documents,) is None if no document is deleted.
    `chosen` lists the rows of each part in the view, ascending, counted from its start; None means all rows. A sample
    is a view with chosen rows.
    """

    folders: Sequence[Path]
    documents: Sequence[int]
    rows: Sequence[int]
    id_hashes: npt.NDArray[np.uint64]
    live: Mask | None = None
    chosen: Sequence[RowIds] | None = None

    def __len__(self) -> int:
        """Rows of the view; without `chosen`, deleted rows count too."""
        return self.stored if self.chosen is None else sum(map(len, self.chosen))

    @property
    def stored(self) -> int:
        return sum(self.rows)

    @cached_property
    def firsts(self) -> list[int]:
        """The first row of each part, and at the end the number of rows."""
        return [0, *accumulate(self.rows)]

    @cached_property
    def document_of(self) -> RowIds:
        """The stored document of each stored row, (stored rows,)."""
        numbers, first = [np.zeros(0, np.int64)], 0
        for folder, documents, rows in zip(self.folders, self.documents, self.rows, strict=True):
            inside = np.arange(rows) if documents == rows else parts.read_window_documents(folder)
            numbers.append(inside.astype(np.int64) + first)
            first += documents
        return np.concatenate(numbers)

    @cached_property
    def live_rows(self) -> Mask | None:
        """Which stored rows are live, (stored rows,); None if all are."""
        if self.live is None:
            return None
        live: Mask = self.live[self.document_of]
        return live

    # --- samples

    def sample(self, count: int | str) -> "RowView":
        """Return the rows of the `count` live documents with the smallest id hashes, or of "all" live documents."""
        drawn = self._draw(count)
        chosen = [
            inside if documents == rows else np.flatnonzero(np.isin(parts.read_window_documents(folder), inside))
            for folder, inside, rows, documents in zip(self.folders, drawn, self.rows, self.documents, strict=True)
        ]
        return replace(self, chosen=chosen)

    def sampled_documents(self, count: int | str) -> Iterator[Document]:
        """Yield the documents of `sample(count)` in order. Needs no embeddings."""
        for folder, documents in zip(self.folders, self._draw(count), strict=True):
            if len(documents):
                yield from read_documents_at(folder, documents.tolist())

    def count_documents(self, count: int | str) -> int:
        """Return the number of documents in `sample(count)`."""
        live = sum(self.documents) if self.live is None else int(np.count_nonzero(self.live))
        return live if count == "all" else min(int(count), live)

    def _draw(self, count: int | str) -> list[RowIds]:
        """Return the stored documents of a sample for each part, counted from its start."""
        live = np.arange(len(self.id_hashes)) if self.live is None else np.flatnonzero(self.live)
        drawn = live[bottom_k(self.id_hashes[live], count)]
        ends = np.cumsum([0, *self.documents])
        cuts = np.searchsorted(drawn, ends)
        return [drawn[low:high] - end for low, high, end in zip(cuts, cuts[1:], ends, strict=False)]

    @cached_property
    def sampling_order(self) -> RowIds:
        """Live rows sorted by the id hash of their document: any slice is a sample independent of the corpus order."""
        order = np.argsort(self._row_hashes, kind="stable")
        return order if self.live_rows is None else order[self.live_rows[order]]

    def rows_of_same_document(self, rows: RowIds) -> tuple[RowIds, ...]:
        """Return for each of some rows all live rows (windows) of its document."""
        hashes = self._row_hashes[self.sampling_order]
        starts, ends = (np.searchsorted(hashes, self._row_hashes[rows], side=side) for side in ("left", "right"))
        return tuple(np.sort(self.sampling_order[start:end]) for start, end in zip(starts, ends, strict=True))

    @cached_property
    def _row_hashes(self) -> npt.NDArray[np.uint64]:
        """The id hash of each stored row's document, (stored rows,)."""
        return self.id_hashes[self.document_of]

    # --- embeddings and vectors

    @property
    def dim(self) -> int:
        """Embedding size d. Only for a view with parts."""
        return int(open_embeddings(self.folders[0]).shape[1])

    def embeddings(self, part: int) -> Embeddings:
        """Return the embeddings of the view's rows in a part, (n, d), memory-mapped if it has the whole part."""
        embeddings = open_embeddings(self.folders[part])
        if self.chosen is None or len(self.chosen[part]) == len(embeddings):
            return embeddings
        return embeddings[self.chosen[part]]

    def moments(self) -> Moments:
        """Return the moments of the view's rows, summed in one fixed tree over the parts."""
        if len(self) == self.stored:
            return tree_sum(parts.load_moments(folder) for folder in self.folders)
        return tree_sum(map(Moments.of, self._blocks()))

    def fit_data(self) -> FitData:
        return FitData(self.moments, self._blocks)

    def _blocks(self) -> Iterator[Embeddings]:
        return map(self.embeddings, range(len(self.folders)))

    def vectors(self, transform: Transform, rows: RowIds) -> Vectors:
        """Return the unit vectors (n, k) of some stored rows, in the order given."""
        vectors = np.zeros((len(rows), transform.dim), np.float32)
        part_of = np.searchsorted(self.firsts, rows, side="right") - 1
        with single_blas_thread():
            for part in np.unique(part_of).tolist():
                places = np.flatnonzero(part_of == part)
                order = places[np.argsort(rows[places], kind="stable")]  # read each file from front to back
                embeddings = open_embeddings(self.folders[part])[rows[order] - self.firsts[part]]
                vectors[order] = transform.transform(embeddings, "document")
        return vectors

    def followed_by(self, other: "RowView", live: Mask | None) -> "RowView":
        """Return all rows of this view and then of another; `live` (stored documents of both,) is as in `RowView`."""
        hashes = np.concatenate([self.id_hashes, other.id_hashes])
        folders, documents = [*self.folders, *other.folders], [*self.documents, *other.documents]
        return RowView(folders, documents, [*self.rows, *other.rows], hashes, live)

    def run(self, of_parts: slice) -> "RowView":
        """Return the rows of some consecutive parts."""
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
    """Split parts, given their rows, into the fewest even runs of about `most` rows or fewer; 0: one run."""
    if not rows:
        return []
    total, ends = sum(rows), list(accumulate(rows))
    count = -(-total // most) if most else 1
    cuts = {bisect_left(ends, number * total / count) + 1 for number in range(1, count)}
    return [slice(start, end) for start, end in pairwise([0, *sorted(cuts - {len(rows)}), len(rows)])]


class VectorBlocks:
    """Iterable of (first row, vectors (m, k)) of every stored row, part by part, computed on `part_threads(threads)`
    threads; counts rows and zero vectors on the way."""

    def __init__(
        self, view: RowView, transform: Transform, threads: int, progress: Progress, phase: str = "indexing"
    ) -> None:
        self._transform, self._view, self._threads, self._progress = transform, view, part_threads(threads), progress
        self._phase = phase
        self.count = self.zero = 0

    def _vectors(self, folder: Path) -> Vectors:
        return self._transform.transform(open_embeddings(folder), "document")

    def fill(self, add: Callable[[Vectors, int], None], best: ann.GroundTruthBuilder | None, row: int = 0) -> int:
        """Pass all vectors to `add`, with a number of threads, and meanwhile the live ones to `best` as rows from
        `row` on; return the number of zero vectors."""
        live = self._view.live_rows
        with ThreadPoolExecutor(1, "best") as executor:
            for first, vectors in self:
                chosen = None if live is None else live[first : first + len(vectors)]
                updating = None if best is None else executor.submit(best.update, row + first, vectors, chosen)
                add(vectors, self._threads)
                if updating is not None:
                    updating.result()
        return self.zero

    def __iter__(self) -> Iterator[tuple[int, Vectors]]:
        self.count = self.zero = 0
        self._progress.phase(self._phase, self._view.stored)
        with single_blas_thread():  # around all threads: the limit is global, so no thread may lift it
            for vectors in ordered_map(self._vectors, self._view.folders, self._threads):
                yield self.count, vectors
                self.count += len(vectors)
                self.zero += int(np.count_nonzero(~vectors.any(axis=1)))
                self._progress.advance(len(vectors))
