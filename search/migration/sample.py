"""A sample of an index's documents, with a question drawn from each, encoded by two encoders.

The pairs are those of `isotrope tune`: a piece of a document is the question, the rest of the document the answer.
Both encoders encode the rest, so that neither has seen the question in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer.arrays import Float32Array, Float64Array, Vectors
from indexer.corpus.document import Document
from indexer.encoders.document_windows import DocumentChunker
from indexer.errors import spelled
from indexer.moments import Moments
from indexer.progress import Progress
from indexer.transforms import Transform
from search.evaluation.sweep import fit_setting
from search.evaluation.target import Target
from search.evaluation.tune.unlabelled import DrawnPair, pairs_of_index
from search.index import Index
from search.migration.maps import BothSides, MapKind, mapped_questions


@dataclass(frozen=True)
class EncodedPairs:
    """Embeddings of the questions (n, d) and of the rows of the answers, and the first row of each answer."""

    questions: Float32Array
    rows: Float32Array
    starts: npt.NDArray[np.int64]
    transform: Transform
    truncated: int = 0

    @property
    def vectors(self) -> tuple[Vectors, Vectors]:
        """Unit vectors of questions and rows."""
        return self.transform.transform(self.questions, "query"), self.transform.transform(self.rows, "document")

    @property
    def scores(self) -> Float64Array:
        """The score of each answer for each question, by its best row, (n, n)."""
        questions, rows = self.vectors
        return best_rows(questions, rows, self.starts)


def best_rows(questions: Vectors, rows: Vectors, starts: npt.NDArray[np.int64]) -> Float64Array:
    """Return the score of each document for each question, by the best of its rows."""
    scores = np.asarray(questions, np.float64) @ np.asarray(rows, np.float64).T
    return scores if len(starts) == len(rows) else np.maximum.reduceat(scores, starts, axis=1)


@dataclass(frozen=True)
class TwiceEncoded:
    """The drawn pairs, encoded by the index's encoder and by the new one."""

    pairs: list[DrawnPair]
    old: EncodedPairs
    new: EncodedPairs

    @property
    def sides(self) -> BothSides:
        """The rows that a map is fitted to. A document of several windows counts by the mean of its rows."""
        questions, rows = self.old.vectors
        new, old = _of_documents(self.new.rows, self.new.starts), _of_documents(rows, self.old.starts)
        return BothSides(new, old, np.asarray(self.new.questions, np.float64), np.asarray(questions, np.float64))

    def mapped_scores(self, kind: MapKind) -> Float64Array:
        """Return the scores (n, n) of new questions in the old space; each is mapped by a fit without its document."""
        _, rows = self.old.vectors
        return best_rows(mapped_questions(kind, self.sides, paired=True), rows, self.old.starts)


def _of_documents(rows: Float32Array | Vectors, starts: npt.NDArray[np.int64]) -> Float64Array:
    wide = np.asarray(rows, np.float64)
    if len(starts) == len(rows):
        return wide
    sizes = np.diff([*starts.tolist(), len(rows)])
    means: Float64Array = np.add.reduceat(wide, starts, axis=0) / sizes[:, None]
    return means


def drawn_pairs(index: Index, size: int) -> list[DrawnPair]:
    """Return at most `size` pairs of the index's documents. Raises EvaluationError if there are too few."""
    full = spelled("call migrate_index", "add --mode full")
    return pairs_of_index(index, size, f"compare encoders on. Fix: {full} to change the encoder without a comparison.")


def encode_twice(
    old: Target, new: Target, pairs: list[DrawnPair], cache: Path | None, progress: Progress
) -> TwiceEncoded:
    """Encode the pairs by both encoders; raises what encoders raise."""
    return TwiceEncoded(pairs, _encoded(old, pairs, cache, progress), _encoded(new, pairs, cache, progress))


def _encoded(subject: Target, pairs: Sequence[DrawnPair], cache: Path | None, progress: Progress) -> EncodedPairs:
    """Encode the pairs; an index's transform is its own, and that of a recipe is fitted on the answers."""
    own, config = subject.own, subject.config
    source = subject.states([own], cache, progress)
    cut = DocumentChunker(subject.spec, config.chunk, ("text",))([Document("", pair.document) for pair in pairs])
    starts = np.arange(len(pairs))
    if cut.windows is not None:
        starts = np.searchsorted(cut.windows.document, starts)
    texts = [pair.query for pair in pairs]
    questions = source.encode(texts, "query").of(texts, own.key)
    rows = source.encode(cut.texts, "document").of(cut.texts, own.key)
    if subject.index is not None:
        transform = subject.index.transform
    else:
        mean = Moments(len(questions), questions.mean(axis=0, dtype=np.float64), np.zeros((0, 0)))
        transform = fit_setting(own, Moments.of(rows), mean)
    return EncodedPairs(questions, rows, starts, transform, source.log.truncated)
