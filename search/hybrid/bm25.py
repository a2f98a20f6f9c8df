"""BM25 with Lucene's weights, by bm25s (Lu, arXiv:2407.03618): every score worked out once.

A score depends on how many documents there are and on their mean length: other documents mean another index.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from search.extras import require_extra
from search.hybrid.terms import PARAMETERS, numbered_terms

Scores = npt.NDArray[np.float32]
_EMPTY = "empty"  # a file's name, where there is no document with a term


class Bm25:
    """Texts as bm25s scores them. Made by `of` or `load`; both raise MachineError as `require_terms` does."""

    def __init__(self, index: Any, documents: int) -> None:
        """`index` is None where no text has a term: bm25s would divide by their mean length."""
        self._index, self._documents = index, documents
        self._known = set(index.vocab_dict) if index is not None else set()

    @classmethod
    def of(cls, texts: Sequence[str], extra: str) -> "Bm25":
        """The index of some texts, numbered as they come."""
        terms = numbered_terms(texts, extra)
        if not any(terms.ids):
            return cls(None, len(texts))
        index = require_extra("bm25s", extra).BM25(
            method=PARAMETERS["method"], k1=PARAMETERS["k1"], b=PARAMETERS["b"], backend="numpy"
        )
        index.index(terms, show_progress=False)
        return cls(index, len(texts))

    def save(self, folder: Path) -> None:
        """Write it into a folder, as files that `load` maps."""
        if self._index is None:
            (folder / _EMPTY).write_text("")
        else:
            self._index.save(folder, show_progress=False)

    @classmethod
    def load(cls, folder: Path, documents: int, extra: str) -> "Bm25":
        """What `save` wrote for so many documents."""
        bm25s = require_extra("bm25s", extra)
        if (folder / _EMPTY).exists():
            return cls(None, documents)
        return cls(bm25s.BM25.load(folder, mmap=True, show_progress=False), documents)

    def scores(self, terms: Sequence[str]) -> Scores:
        """Of every document for the terms of a query, (documents,); 0 for those that share none. A term that comes
        twice counts twice."""
        terms = [term for term in terms if term in self._known]  # bm25s refuses a query without any
        if not terms:
            return np.zeros(self._documents, np.float32)
        return np.asarray(self._index.get_scores(terms), np.float32)
