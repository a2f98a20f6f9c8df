"""Inputs of a deduplication: documents and vectors of one or two indexes, and which of them are equal."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from indexer.arrays import RowIds, Scores, Vectors
from indexer.corpus.document import joined_text
from indexer.errors import ConfigError, as_argument
from indexer.progress import NoProgress, Progress
from indexer.recipe.loading import named_path
from search.dedup.distinct import CrossDocumentPairs, Distinct, find_distinct, is_one_to_one, number_texts
from search.dedup.pairs import PairSource, document_scores, pair_scores
from search.dedup.provenance import require_same_encoder
from search.dedup.vectors import write_vectors
from search.index import BLOCK_ROWS, Index, LiveRows


@dataclass(frozen=True)
class DedupInputs:
    """Documents of the other index (if any), then those of the index, and the vectors of their windows.

    The first use writes the vectors to `folder`.
    """

    index: Index
    other: Index | None
    folder: Path
    progress: Progress

    @property
    def others(self) -> int:
        """Number of documents of the other index; their numbers come first."""
        return self.other.manifest.documents if self.other else 0

    @property
    def rows(self) -> int:
        """Rows of both indexes."""
        return self.index.manifest.rows + (self.other.manifest.rows if self.other else 0)

    @cached_property
    def vectors(self) -> Vectors:
        """All vectors, (rows, k), memory-mapped; this index's transform applies to both indexes."""
        self.progress.phase("reading vectors", self.rows)
        return write_vectors(self._blocks(), self.rows, self.index.transform.dim, self.folder / "vectors.npy")

    @cached_property
    def distinct(self) -> Distinct:
        """Numbers of vectors that are equal byte for byte."""
        return find_distinct(self.vectors)

    @cached_property
    def distinct_vectors(self) -> Vectors:
        """Each vector once, (distinct, k), memory-mapped."""
        first = self.distinct.first
        if len(first) == len(self.vectors):
            return self.vectors
        blocks = (
            (start, self.vectors[first[start : start + BLOCK_ROWS]]) for start in range(0, len(first), BLOCK_ROWS)
        )
        return write_vectors(blocks, len(first), self.vectors.shape[1], self.folder / "distinct.npy")

    @cached_property
    def self_scores(self) -> Scores:
        """Score of each distinct vector with itself, (distinct,)."""
        return pair_scores(self.distinct_vectors, self.distinct_vectors)

    @cached_property
    def document_of(self) -> RowIds:
        """The document of each row, ascending; a document has a row for each of its windows."""
        own = self.index.numbering.documents_of(np.arange(self.index.manifest.rows))
        if self.other is None:
            return own
        others = self.other.numbering.documents_of(np.arange(self.other.manifest.rows))
        return np.concatenate([others, own + self.others])

    @cached_property
    def text_of(self) -> RowIds:
        """A number for each document's normalised text, (documents,); -1: blank."""
        self.progress.phase("comparing texts", self.others + self.index.manifest.documents)
        return number_texts(chain.from_iterable(self._texts(index) for index in self._indexes))

    def score(self, documents: RowIds, others: RowIds) -> Scores:
        """Return the score of each pair of documents: that of their best pair of windows."""
        return document_scores(self.vectors, self.document_of, documents, others)

    def across_documents(self, source: PairSource) -> PairSource:
        """Return the pairs of a source without pairs of windows of one document."""
        if is_one_to_one(self.document_of):
            return source
        return CrossDocumentPairs(source, self.document_of, self.distinct)

    @property
    def _indexes(self) -> list[Index]:
        return [index for index in (self.other, self.index) if index]

    def _blocks(self) -> Iterator[tuple[int, Vectors]]:
        start = 0
        for index in self._indexes:
            stored = LiveRows(index)
            for first, embeddings in stored.embedding_blocks():
                yield start + first, self.index.transform.transform(embeddings, "document")
                self.progress.advance(len(embeddings))
            start += len(stored)

    def _texts(self, index: Index) -> Iterator[str]:
        for document in index.documents.all_documents():
            self.progress.advance(1)
            yield joined_text(document, index.config.corpus.text)


@contextmanager
def open_inputs(
    index: str | Path | Index, against: str | Path | Index | None = None, progress: Progress | None = None
) -> Iterator[DedupInputs]:
    """Open one or two indexes, and a temporary folder that is deleted when the block ends.

    Raises what `Index.open` raises, ConfigError for an index against itself, and MismatchError for two indexes with
    different encoders.
    """
    require_another(index, against)
    opened = as_index(index)
    other = as_index(against) if against else None
    if other:
        require_same_encoder(opened, other)
    with TemporaryDirectory(prefix="isotrope-dedup-") as folder:
        yield DedupInputs(opened, other, Path(folder), progress or NoProgress())


def as_index(index: str | Path | Index) -> Index:
    """Open an index unless it is open. Raises what `Index.open` raises."""
    return index if isinstance(index, Index) else Index.open(index)


def place_of(index: str | Path | Index | None) -> Path | None:
    """Return the folder of an index, open or not."""
    return index.path if isinstance(index, Index) else named_path(index, "the index") if index else None


def require_another(index: str | Path | Index | None, against: str | Path | Index | None) -> None:
    """Raise ConfigError if both are the same folder: no document would be kept."""
    path, other = place_of(index), place_of(against)
    if not path or not other:
        return
    try:
        same = path.samefile(other)
    except OSError:  # one is missing, which opening it reports
        return
    if same:
        raise ConfigError(
            f"{as_argument('against')} {other} is {path} itself, so no document would be kept. Fix: name another "
            f"index, or leave out {as_argument('against')} to find duplicates within one index."
        )
