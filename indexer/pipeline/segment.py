"""A segment before and after: the rows it is made of, and what was written."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.parallel import ordered_map, single_blas_thread
from indexer.progress import Progress
from indexer.store.embeddings import open_embeddings
from indexer.store.files import FileDigest
from indexer.transforms import Transform

Vectors = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class SegmentSource:
    """Rows of some parts, in order. Deleted ones are in the segment, but nothing is measured with them.

    `firsts` are the first row of each folder, and the number of rows at the end; `id_hashes` (rows,) those of each
    row's document; `live` (rows,) is None when no row is deleted.
    """

    transform: Transform
    folders: list[Path]
    firsts: list[int]
    id_hashes: npt.NDArray[np.uint64]
    live: Mask | None = None

    @property
    def rows(self) -> int:
        """Rows of the segment, deleted ones included."""
        return self.firsts[-1]

    @cached_property
    def drawing_order(self) -> Rows:
        """Live rows by the hash of their document's id: any stretch is a sample, whatever the order of the corpus."""
        order = np.argsort(self.id_hashes, kind="stable")
        return order if self.live is None else order[self.live[order]]

    def rows_beside(self, rows: Rows) -> tuple[Rows, ...]:
        """For each of some rows, all live rows of its document: more than itself where documents have windows."""
        hashes = self.id_hashes[self.drawing_order]
        starts, ends = (np.searchsorted(hashes, self.id_hashes[rows], side=side) for side in ("left", "right"))
        return tuple(np.sort(self.drawing_order[start:end]) for start, end in zip(starts, ends, strict=True))

    def vectors(self, rows: Rows) -> Vectors:
        """Unit vectors (n, k) of some rows, in the order given."""
        found = np.zeros((len(rows), self.transform.dim), np.float32)
        part_of = np.searchsorted(self.firsts, rows, side="right") - 1
        with single_blas_thread():
            for part in np.unique(part_of).tolist():
                places = np.flatnonzero(part_of == part)
                order = places[np.argsort(rows[places], kind="stable")]  # a file is read from front to back
                embeddings = open_embeddings(self.folders[part])[rows[order] - self.firsts[part]]
                found[order] = self.transform.transform(embeddings, "document")
        return found


@dataclass(frozen=True)
class Filled:
    """A segment, written.

    `index` is the FAISS index with its search parameters set, and `recall` its measured recall@10; both are None
    for an exact index, which is never held in memory. `figures` are for the manifest, JSON types.
    """

    path: Path
    stamp: FileDigest
    factory: str
    dim: int
    rows: int
    zero: int  # rows whose vector is zero: those that equal the mean exactly
    index: Any = None
    recall: float | None = None
    search_parameters: dict[str, int] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class VectorBlocks:
    """(first row, vectors (m, k)) of every part, in order; counts rows and vectors that are zero as they go by."""

    def __init__(self, source: SegmentSource, threads: int, progress: Progress) -> None:
        self._source, self._threads, self._progress = source, threads, progress
        self.count = self.zero = 0

    def __iter__(self) -> Iterator[tuple[int, Vectors]]:
        transform, self.count, self.zero = self._source.transform, 0, 0
        self._progress.phase("indexing", self._source.rows)
        with single_blas_thread():  # around all threads, so that none of them lets the others have more
            for vectors in ordered_map(
                lambda folder: transform.transform(open_embeddings(folder), "document"),
                self._source.folders,
                self._threads,
            ):
                yield self.count, vectors
                self.count += len(vectors)
                self.zero += int(np.count_nonzero(~vectors.any(axis=1)))
                self._progress.advance(len(vectors))
