"""Vectors of words: the rows of a static table, or what a transformer makes of a word wherever a corpus has it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from indexer.errors import EvaluationError
from indexer.parallel import single_blas_thread

Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.floating]
Contexts = Iterable[tuple[str, Rows]]
"""Words, lower-cased and each once, with the vectors (occurrences, d) they have in their contexts."""


class WordTable(Protocol):
    """A table of word vectors (V, d), the most frequent words first, as far as it is needed here."""

    @property
    def vectors(self) -> npt.NDArray[np.float32]: ...

    def row_of(self, word: str) -> int | None:
        """The row of a word; None for one that has none."""
        ...


@dataclass(frozen=True)
class WordVectors:
    """Vectors (n, d), any of which may be the answer to an analogy, and the row of each word that has one.

    Words that are spelt alike but for upper and lower case may share a row. `notes` say how they were come by.
    """

    vectors: Rows
    rows: Mapping[str, int]
    notes: tuple[str, ...] = ()

    def places(self, words: Iterable[str]) -> npt.NDArray[np.intp]:
        """The row of each word, (words,); -1 for one without."""
        return np.fromiter((self.rows.get(word, -1) for word in words), np.intp)


def table_vectors(table: WordTable, words: Iterable[str], candidates: int = 0) -> WordVectors:
    """Vectors of words from a table, as they are written or, where that has none, lower-cased.

    The first `candidates` rows of the table are among the vectors too.
    """
    found: dict[str, int] = {}
    for word in dict.fromkeys(words):
        row = table.row_of(word)
        row = table.row_of(word.lower()) if row is None else row
        if row is not None:
            found[word] = row
    kept = sorted({*found.values(), *range(min(candidates, len(table.vectors)))})
    places = {row: place for place, row in enumerate(kept)}
    return WordVectors(table.vectors[kept], {word: places[row] for word, row in found.items()})


def context_vectors(contexts: Contexts, words: Iterable[str]) -> WordVectors:
    """A vector for each word of `contexts`: the first principal component of those it has there, of length 1.

    `words` are found whatever their case. Raises EvaluationError for vectors that are not finite or all zero.
    """
    places: dict[str, int] = {}
    vectors: list[Array] = []
    for word, rows in contexts:
        places[word] = len(vectors)
        vectors.append(principal_component(rows, word))
    found = {word: places[word.lower()] for word in dict.fromkeys(words) if word.lower() in places}
    return WordVectors(np.array(vectors) if vectors else np.empty((0, 0)), found)


def principal_component(rows: Rows, word: str = "") -> Array:
    """The direction (d,) that tells most of rows (n, d): their first right singular vector, turned towards their mean.

    After Ethayarajh, "How Contextual are Contextualized Word Representations?" (EMNLP 2019, section 3.3), who says of
    it how much of a word's vectors it explains. The rows are not centred: what is wanted is where they lie, not how
    they differ, and one row is its own direction. (The code that goes with the paper does centre them.)
    """
    exact = np.asarray(rows, np.float64)
    if not np.isfinite(exact).all() or not exact.any():
        raise EvaluationError(
            f'the vectors of "{word}" hold NaN or infinity, or are all zero, so nothing can be ranked. The model '
            "overflows or is damaged: try --set encoder.precision=float32, or another model."
        )
    with single_blas_thread():
        component: Array = np.linalg.svd(exact, full_matrices=False)[2][0]
    towards = float(component @ exact.mean(axis=0))
    return -component if towards < 0 else component
