"""BM25 over an open index. bm25s's index of all its documents is made at the first question, and kept in the user's
cache until they change."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from indexer.arrays import Mask, RowIds, SearchResult
from indexer.cache import cached_folder
from indexer.corpus.document import joined_text
from indexer.progress import NoProgress, Progress
from indexer.store import layout
from search.hybrid.bm25 import Bm25
from search.hybrid.terms import require_terms, terms_key, terms_of
from search.opened import OpenIndex
from search.ranking import places_of, rank_positive

RULES = 1  # bump when the same documents would give other files
_EXTRA = "hybrid"
_PLACES = "places.npy"
_BLOCK = 1024  # documents read at a time
_MOST_KEPT = 4  # in the cache: they are as large as the texts


class Lexical:
    """The documents of an open index as BM25 ranks them, by the texts that were encoded.

    What the cache does not hold is made now, which `progress` is told. Raises MachineError when bm25s or PyStemmer is
    not installed, CorruptIndexError and StoreError.
    """

    def __init__(self, opened: OpenIndex, progress: Progress | None = None) -> None:
        require_terms(_EXTRA)
        self._opened, self._progress = opened, progress or NoProgress()
        folder = cached_folder("bm25", self._key(), self._make, _MOST_KEPT)
        self._bm25 = Bm25.load(folder, opened.manifest.documents, _EXTRA)
        self._places: RowIds = np.load(folder / _PLACES, mmap_mode="r")

    def search(self, queries: Sequence[str], k: int, allowed: Mask | None = None) -> list[SearchResult]:
        """For each query scores (m,) and document numbers (m,) of the best k documents that share a term with it.

        Best first, ties in ascending order of id; often fewer than k, or none. `allowed` (documents,) says which may
        be found; what is counted for the scores does not change with it. Scores are BM25's: above 0, and to be
        compared only within one answer.
        """
        return [self._ranked(terms, k, allowed) for terms in terms_of(queries, _EXTRA)]

    def places(self, documents: Sequence[int]) -> list[int]:
        """Where some documents stand in the ascending order of all ids."""
        places: list[int] = self._places[list(documents)].tolist()
        return places

    def _ranked(self, terms: Sequence[str], k: int, allowed: Mask | None) -> SearchResult:
        scores = self._bm25.scores(terms)
        return rank_positive(scores if allowed is None else scores * allowed, self._places, k)

    def _key(self) -> dict[str, object]:
        """What decides which documents there are, and which terms they have."""
        manifest, columns = self._opened.manifest, list(self._opened.config.corpus.text)
        names = [f"{part.name}/{layout.DOCUMENTS}" for part in manifest.parts]
        held = [manifest.files[name].sha256 for name in (*names, *filter(None, [manifest.deleted]))]
        return {"rules": RULES, "files": held, "columns": columns, "terms": terms_key()}

    def _make(self, folder: Path) -> None:
        self._progress.phase("BM25", self._opened.manifest.documents)
        ids: list[str] = []
        Bm25.of(list(self._texts(ids)), _EXTRA).save(folder)
        np.save(folder / _PLACES, places_of(ids))

    def _texts(self, ids: list[str]) -> Iterator[str]:
        """The text of each document; `ids` becomes their ids."""
        columns, count = self._opened.config.corpus.text, self._opened.manifest.documents
        for start in range(0, count, _BLOCK):
            documents = self._opened.documents.fetch(range(start, min(start + _BLOCK, count)))
            ids += [document.id for document in documents]
            yield from (joined_text(document, columns) for document in documents)
            self._progress.advance(len(documents))
