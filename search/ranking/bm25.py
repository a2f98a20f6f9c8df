"""BM25 over texts, and over an open index: terms, scores, and the ranking with ties by id.

bm25s with the scoring of Lucene (Lu, BM25S, arXiv:2407.03618): every score is worked out once, with its own default
parameters, English stop words and Snowball's English stemmer. Documents and queries go this one way, for the baseline
of `isotrope evaluate retrieval` (`rank_bm25`) and for `--hybrid` (`BM25Index`, kept in the user's cache) alike. A score
depends on how many documents there are and on their mean length, so other documents mean another index.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from indexer.arrays import Mask, RowIds, Scores, SearchResult
from indexer.cache import cached_folder
from indexer.corpus.document import joined_text
from indexer.lazy import require_extra
from indexer.progress import NoProgress, Progress
from indexer.store import layout
from indexer.versions import version_of
from search.index import Index
from search.ranking.exact import id_order, top_k_above_zero

BM25_PARAMETERS: dict[str, Any] = {
    "package": "bm25s",
    "method": "lucene",
    "k1": 1.5,
    "b": 0.75,
    "stemmer": "english (Snowball)",
    "stopwords": "english",
}


def require_terms(extra: str) -> tuple[Any, Any]:
    """bm25s and PyStemmer. Raises MachineError with the line that installs `extra`, which brings them."""
    return require_extra("bm25s", extra), require_extra("Stemmer", extra)


def tokenize(texts: Sequence[str], extra: str) -> list[list[str]]:
    """The terms of each text, in its order. Raises as `require_terms`."""
    terms: list[list[str]] = _tokenized(texts, extra, return_ids=False)
    return terms


def tokenize_ids(texts: Sequence[str], extra: str) -> Any:
    """`tokenize` as numbers: bm25s's `Tokenized`, with `ids` (a list for each text) and `vocab`. Raises as above."""
    return _tokenized(texts, extra, return_ids=True)


def terms_key() -> dict[str, Any]:
    """What decides which terms a text has."""
    versions = {name: version_of(name) for name in ("bm25s", "PyStemmer")}
    rules = {name: BM25_PARAMETERS[name] for name in ("stemmer", "stopwords")}
    return rules | {"versions": versions, "unicode": unicodedata.unidata_version}


def _tokenized(texts: Sequence[str], extra: str, return_ids: bool) -> Any:
    bm25s, stemming = require_terms(extra)
    return bm25s.tokenize(
        list(texts),
        stopwords=BM25_PARAMETERS["stopwords"],
        stemmer=stemming.Stemmer("english"),
        return_ids=return_ids,
        show_progress=False,
    )


_EMPTY = "empty"  # a file's name, where there is no document with a term


class BM25:
    """Texts as bm25s scores them. Made by `of` or `load`; both raise MachineError as `require_terms` does."""

    def __init__(self, index: Any, documents: int) -> None:
        """`index` is None where no text has a term: bm25s would divide by their mean length."""
        self._index, self._documents = index, documents
        self._known = set(index.vocab_dict) if index is not None else set()

    @classmethod
    def of(cls, texts: Sequence[str], extra: str) -> "BM25":
        """The index of some texts, numbered as they come."""
        terms = tokenize_ids(texts, extra)
        if not any(terms.ids):
            return cls(None, len(texts))
        index = require_extra("bm25s", extra).BM25(
            method=BM25_PARAMETERS["method"], k1=BM25_PARAMETERS["k1"], b=BM25_PARAMETERS["b"], backend="numpy"
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
    def load(cls, folder: Path, documents: int, extra: str) -> "BM25":
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


_RULES = 1  # bump when the same documents would give other files
_EXTRA = "hybrid"
_PLACES = "places.npy"
_BLOCK = 1024  # documents read at a time
_MOST_KEPT = 4  # in the cache: they are as large as the texts


class BM25Index:
    """The documents of an open index as BM25 ranks them, by the texts that were encoded.

    What the cache does not hold is made now, which `progress` is told. Raises MachineError when bm25s or PyStemmer is
    not installed, CorruptIndexError and StoreError.
    """

    def __init__(self, index: Index, progress: Progress | None = None) -> None:
        require_terms(_EXTRA)
        self._index, self._progress = index, progress or NoProgress()
        folder = cached_folder("bm25", self._key(), self._make, _MOST_KEPT)
        self._bm25 = BM25.load(folder, index.manifest.documents, _EXTRA)
        self._places: RowIds = np.load(folder / _PLACES, mmap_mode="r")

    def search(self, queries: Sequence[str], k: int, allowed: Mask | None = None) -> list[SearchResult]:
        """For each query scores (m,) and document numbers (m,) of the best k documents that share a term with it.

        Best first, ties in ascending order of id; often fewer than k, or none. `allowed` (documents,) says which may
        be found; what is counted for the scores does not change with it. Scores are BM25's: above 0, and to be
        compared only within one answer.
        """
        return [self._ranked(terms, k, allowed) for terms in tokenize(queries, _EXTRA)]

    def places(self, documents: Sequence[int]) -> list[int]:
        """Where some documents stand in the ascending order of all ids."""
        places: list[int] = self._places[list(documents)].tolist()
        return places

    def _ranked(self, terms: Sequence[str], k: int, allowed: Mask | None) -> SearchResult:
        scores = self._bm25.scores(terms)
        return top_k_above_zero(scores if allowed is None else scores * allowed, self._places, k)

    def _key(self) -> dict[str, object]:
        """What decides which documents there are, and which terms they have."""
        manifest, columns = self._index.manifest, list(self._index.config.corpus.text)
        names = [f"{part.name}/{layout.DOCUMENTS}" for part in manifest.parts]
        held = [manifest.files[name].sha256 for name in (*names, *filter(None, [manifest.deleted]))]
        return {"rules": _RULES, "files": held, "columns": columns, "terms": terms_key()}

    def _make(self, folder: Path) -> None:
        self._progress.phase("BM25", self._index.manifest.documents)
        ids: list[str] = []
        BM25.of(list(self._texts(ids)), _EXTRA).save(folder)
        np.save(folder / _PLACES, id_order(ids))

    def _texts(self, ids: list[str]) -> Iterator[str]:
        """The text of each document; `ids` becomes their ids."""
        columns, count = self._index.config.corpus.text, self._index.manifest.documents
        for start in range(0, count, _BLOCK):
            documents = self._index.documents.fetch(range(start, min(start + _BLOCK, count)))
            ids += [document.id for document in documents]
            yield from (joined_text(document, columns) for document in documents)
            self._progress.advance(len(documents))


LABEL = "BM25"
_MEASURING_EXTRA = "eval"


def describe_bm25() -> str:
    """The parameters in a few words."""
    return (
        f"{LABEL}: bm25s, {BM25_PARAMETERS['method']}, k1 {BM25_PARAMETERS['k1']}, b {BM25_PARAMETERS['b']}, "
        "English stop words and stemming"
    )


def rank_bm25(texts: Sequence[str], queries: Sequence[str], places: RowIds, depth: int) -> list[SearchResult]:
    """For each query the best `depth` of the texts that share a term with it, ties by id; often fewer, or none.

    `places` are as `id_order` gives them for the ids of the texts. Raises MachineError when bm25s or PyStemmer
    is not installed.
    """
    index = BM25.of(texts, _MEASURING_EXTRA)
    return [top_k_above_zero(index.scores(terms), places, depth) for terms in tokenize(queries, _MEASURING_EXTRA)]
