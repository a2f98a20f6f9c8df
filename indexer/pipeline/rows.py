"""The rows of some parts, as the steps of a build see them: sampled, as embeddings, as vectors block by block."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer.corpus.document import Document
from indexer.corpus.schema import schema_from_json
from indexer.hashing import bottom_k, hash_id
from indexer.moments import Moments, tree_sum
from indexer.parallel import ordered_map, single_blas_thread
from indexer.progress import Progress
from indexer.store import parts
from indexer.store.documents import DocumentReader, read_documents_at
from indexer.store.embeddings import open_embeddings
from indexer.store.manifest import Manifest, PartEntry
from indexer.store.numbering import LiveNumbering, Mask
from indexer.transforms import FitData, Transform

# TODO-DOC indexer.sampling: Samples of a corpus that do not depend on its order: the documents with the smallest hash of their id. And query-like texts, which stand for what a user might type when nobody has typed anything yet.

# TODO-DOC indexer.pipeline.contents: What a generation holds, as its steps see it: parts, their documents and rows, and which of them are live.

Numbers = npt.NDArray[np.int64]
Rows = Numbers
Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Population:
    """What a sample is drawn from: the parts of an index, a hash for the id of each live document, and which those are.

    `documents` and `rows` count what each part stores; `live` (stored documents,) is None when no document is deleted.
    """

    folders: Sequence[Path]
    documents: Sequence[int]
    rows: Sequence[int]
    hashes: npt.NDArray[np.uint64]
    live: npt.NDArray[np.bool_] | None = None

    def draw_documents(self, size: int | str) -> list[Numbers]:
        """The `size` live documents with the smallest id hash, or "all": of each part, counted from its start.

        Nothing has to be encoded yet.
        """
        chosen = bottom_k(self.hashes, size)
        if self.live is not None:
            chosen = np.flatnonzero(self.live)[chosen]
        ends = np.cumsum([0, *self.documents])
        cuts = np.searchsorted(chosen, ends)
        return [chosen[low:high] - end for low, high, end in zip(cuts, cuts[1:], ends, strict=False)]

    def draw(self, size: int | str) -> "Sample":
        """The same documents with their rows."""
        documents = self.draw_documents(size)
        rows = [
            inside if count == own else np.flatnonzero(np.isin(parts.read_window_documents(folder), inside))
            for folder, inside, count, own in zip(self.folders, documents, self.rows, self.documents, strict=True)
        ]
        return Sample(list(self.folders), documents, rows, list(self.rows))


@dataclass(frozen=True)
class Sample:
    """The documents the fit sees and their rows, part by part, ascending; numbers count from the start of the part."""

    folders: list[Path]
    documents: list[Numbers]
    part_rows: list[Numbers]
    stored: list[int]  # rows each part holds

    def __len__(self) -> int:
        """Rows sampled."""
        return sum(map(len, self.part_rows))

    @property
    def everything(self) -> bool:
        """Whether every stored row is in it."""
        return len(self) == sum(self.stored)

    @property
    def firsts(self) -> list[int]:
        """The first row of each part, and the number of rows at the end."""
        firsts: list[int] = np.cumsum([0, *self.stored]).tolist()
        return firsts

    @property
    def rows(self) -> Numbers:
        """Sampled rows, counted through all parts."""
        return np.concatenate([rows + first for rows, first in zip(self.part_rows, self.firsts, strict=False)])

    def embeddings(self, part: int) -> npt.NDArray[np.floating]:
        """Embeddings of the sampled rows of a part, (n, d)."""
        embeddings, rows = open_embeddings(self.folders[part]), self.part_rows[part]
        return embeddings if len(rows) == len(embeddings) else embeddings[rows]

    def fit_data(self) -> FitData:
        """What a transform is fitted on."""
        return FitData(self.moments, lambda: map(self.embeddings, range(len(self.folders))))

    def moments(self) -> Moments:
        """Moments of the sample, merged in one fixed tree over the parts."""
        if self.everything:
            return tree_sum(parts.load_moments(folder) for folder in self.folders)
        return tree_sum(Moments.of(self.embeddings(part)) for part in range(len(self.folders)))


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
    return DocumentReader(index, published, schema_from_json(published.schema))


def live_documents(index: Path, published: Manifest) -> DocumentReader:
    """The documents of a generation, by their numbers."""
    return DocumentReader(
        index, published, schema_from_json(published.schema), LiveNumbering(index, published).stored_documents
    )


def chosen_documents(chosen: Sample) -> Iterator[Document]:
    """The chosen documents, in order."""
    return drawn_documents(chosen.folders, chosen.documents)


def drawn_documents(folders: Sequence[Path], drawn: Sequence[Numbers]) -> Iterator[Document]:
    """Documents of some parts, by their numbers within each, in order."""
    for folder, documents in zip(folders, drawn, strict=True):
        if len(documents):
            yield from read_documents_at(folder, documents.tolist())


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


def segment_source(contents: Contents, transform: Transform) -> SegmentSource:
    """All rows of some parts, as one segment is made of them."""
    firsts = [0, *accumulate(contents.rows)]
    hashes = contents.hashes[contents.document_of]
    return SegmentSource(transform, list(contents.folders), firsts, hashes, contents.live_rows)
