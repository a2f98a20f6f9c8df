"""BM25 over texts, and over an open index: scores of all documents for the terms of a query, and the best documents.

Uses bm25s with Lucene's scoring and default parameters (Lu, BM25S, arXiv:2407.03618), which computes every score once.
The baseline of `isotrope evaluate retrieval` and `--hybrid` (`BM25Index`, kept in the user's cache) share this code. A
score depends on the number of documents and their mean length, so other documents need another index. If
`hybrid.unit` is "window", windows are counted instead of documents, and a document has the score of its best window.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from indexer.arrays import Mask, RowIds, Scores, SearchResult
from indexer.corpus.document import Document, joined_text
from indexer.errors import StoreError
from indexer.lazy_imports import require_extra
from indexer.progress import NoProgress, Progress
from indexer.recipe.ranking import HybridConfig
from indexer.store import layout
from indexer.store.manifest import list_generations
from indexer.system.cache import cached_folder
from search.index import Index
from search.ranking.definitions import MOST_SHARE, MOST_TEXTS, Definitions, defining
from search.ranking.exact import id_order, top_k_above_zero
from search.ranking.terms import identifiers, require_packages, terms_key, terms_parameters, tokenize, tokenize_ids

LABEL = "BM25"
_SCORING: dict[str, Any] = {"package": "bm25s", "method": "lucene", "k1": 1.5, "b": 0.75}


def bm25_parameters(config: HybridConfig) -> dict[str, Any]:
    """Return everything that determines a score, as JSON types."""
    unit = {"unit": config.unit} if config.unit == "window" else {}
    return _SCORING | terms_parameters(config) | unit


def describe_bm25(parameters: Mapping[str, Any]) -> str:
    """Return the parameters as one line of text."""
    shown = {name: parameters[name] for name in ("k1", "b") if name in parameters}
    shown |= {"stop words": parameters.get("stopwords"), "stemmer": parameters.get("stemmer")}
    shown |= {name: parameters[name] for name in ("terms", "unit") if parameters.get(name, "words") != "words"}
    listed = [f"{name} {value}" for name, value in shown.items()]
    return ", ".join([f"{LABEL}: {parameters.get('package')}", str(parameters.get("method")), *listed])


_EMPTY = "empty"  # file that stands for an index without terms


class BM25:
    """A bm25s index of texts, from `of` or `load`; both raise MachineError as `require_packages` does."""

    def __init__(self, index: Any, texts: int) -> None:
        """`index` is None if no text has a term: bm25s would divide by their mean length, 0."""
        self._index, self._texts = index, texts
        self._known = set(index.vocab_dict) if index is not None else set()

    @classmethod
    def of(cls, texts: Iterable[str], extra: str, config: HybridConfig) -> "BM25":
        """Return the index of a stream of texts, numbered in order."""
        terms = tokenize_ids(texts, extra, config)
        if not any(terms.ids):
            return cls(None, len(terms.ids))
        scoring = {name: _SCORING[name] for name in ("method", "k1", "b")}
        index = require_extra("bm25s", extra).BM25(**scoring, backend="numpy")
        index.index(terms, show_progress=False)
        return cls(index, len(terms.ids))

    def save(self, folder: Path) -> None:
        """Write the index into a folder, as files that `load` maps."""
        if self._index is None:
            (folder / _EMPTY).write_text("")
        else:
            self._index.save(folder, show_progress=False)

    @classmethod
    def load(cls, folder: Path, texts: int, extra: str) -> "BM25":
        """Return the index that `save` wrote for this number of texts."""
        bm25s = require_extra("bm25s", extra)
        if (folder / _EMPTY).exists():
            return cls(None, texts)
        return cls(bm25s.BM25.load(folder, mmap=True, show_progress=False), texts)

    def knows(self, term: str) -> bool:
        """Return whether a text has a term."""
        return term in self._known

    def is_rare(self, term: str) -> bool:
        """Return whether few texts have a term."""
        if term not in self._known:
            return True
        ends, number = self._index.scores["indptr"], self._index.vocab_dict[term]
        return int(ends[number + 1] - ends[number]) <= max(MOST_TEXTS, MOST_SHARE * self._texts)

    def scores(self, terms: Sequence[str]) -> Scores:
        """Return the score of every text for the terms of a query, (texts,); 0 without a common term.

        A repeated term counts each time.
        """
        terms = [term for term in terms if term in self._known]  # bm25s rejects a query without known terms
        if not terms:
            return np.zeros(self._texts, np.float32)
        return np.asarray(self._index.get_scores(terms), np.float32)


@dataclass(frozen=True)
class WordScores:
    """BM25 scores of every document for a query (documents,), and the numbers of the best documents, best first.

    `windows` are the scores of every window for a query that names a definition: it is answered by that window.
    """

    scores: Scores
    best: RowIds
    windows: Scores | None = None


class BM25Ranking:
    """Documents ranked by BM25, ties by id.

    `places` (documents,) come from `id_order`. `starts` (documents,) are the positions of each document's first window
    in the texts of `bm25`; None: a text is a document. `extra` is the extra to install if a package is missing.
    """

    def __init__(
        self, bm25: BM25, places: RowIds, config: HybridConfig, extra: str, starts: RowIds | None = None
    ) -> None:
        self._bm25, self.places, self._config, self._extra, self._starts = bm25, places, config, extra, starts

    @classmethod
    def of(
        cls, texts: Iterable[str], places: RowIds, config: HybridConfig, extra: str, starts: RowIds | None = None
    ) -> "BM25Ranking":
        """Return the ranking of texts: documents, or with `starts` their windows."""
        return cls(BM25.of(texts, extra, config), places, config, extra, starts)

    def scores(self, queries: Sequence[str]) -> Iterator[Scores]:
        """Yield for each query the score of every document, (documents,); 0 without a common term."""
        for scores, _ in self._scores(queries):
            yield scores

    def _scores(self, queries: Sequence[str]) -> Iterator[tuple[Scores, Scores | None]]:
        """Yield the scores of documents, and those of windows for a query that names a definition."""
        for query, terms in zip(queries, tokenize(queries, self._extra, self._config), strict=True):
            names = self._named(query)
            scores = self._bm25.scores([*terms, *names])
            if self._starts is None:
                yield scores, None
            else:
                yield np.maximum.reduceat(scores, self._starts), scores if names else None

    def _named(self, query: str) -> list[str]:
        """Return the terms of the definitions that a query names."""
        if self._config.terms != "code":
            return []
        words = identifiers(query)
        terms = tokenize([*words, *map(defining, words)], self._extra, self._config)
        pairs = zip(words, terms, terms[len(words) :], strict=False)
        known = [(word, plain, name[0]) for word, plain, name in pairs if name and self._bm25.knows(name[0])]
        return [name for _, plain, name in known if len(words) == 1 or len(plain) > 1 or self._is_rare(plain)]

    def _is_rare(self, terms: Sequence[str]) -> bool:
        return bool(terms) and self._bm25.is_rare(terms[0])  # not a stop word

    def best(self, scores: Scores, k: int, allowed: Mask | None = None) -> SearchResult:
        """Return scores (m,) and document numbers (m,) of the best k above 0, ties in ascending order of id.

        `allowed` (documents,) marks the documents that can be returned; it changes no score.
        """
        return top_k_above_zero(scores if allowed is None else scores * allowed, self.places, k)

    def scored(self, queries: Sequence[str], k: int, allowed: Mask | None = None) -> Iterator[WordScores]:
        """Yield for each query the scores of all documents, and its `best` k."""
        for scores, windows in self._scores(queries):
            yield WordScores(scores, self.best(scores, k, allowed)[1], windows)

    def search(self, queries: Sequence[str], k: int, allowed: Mask | None = None) -> list[SearchResult]:
        """Return the `best` of each query, often fewer than k. Scores of different queries are not comparable."""
        return [self.best(scores, k, allowed) for scores in self.scores(queries)]


WORDS = "bm25"  # kind of its entries in the cache
_RULES = 2  # increase when the same documents would give other files
_EXTRA = "hybrid"
_PLACES, _STARTS = "places.npy", "starts.npy"
_BLOCK = 32  # documents in memory together: a row group of long documents
_MOST_KEPT = 4  # indexes in the cache, each as large as the texts


def _require_kept(index: Index) -> None:
    """Raise StoreError for a removed generation: its documents may be erased, and the cache must not have them."""
    number, kept = index.manifest.generation, list_generations(index.path)
    if number not in kept and number < max(kept, default=0):
        raise StoreError(f"{index.path}: generation {number:,} was removed. Fix: open the index again.")


class BM25Index(BM25Ranking):
    """The documents of an open index ranked by BM25 over the encoded texts, with the recipe's settings.

    Files that the cache lacks are written now, with `progress`. Raises MachineError if bm25s or PyStemmer is not
    installed, CorruptIndexError and StoreError.
    """

    def __init__(self, index: Index, progress: Progress | None = None) -> None:
        require_packages(_EXTRA)
        config = index.config.hybrid
        _require_kept(index)
        self._index, self._progress = index, progress or NoProgress()
        self._by_window = config.unit == "window" and not index.numbering.one_to_one
        folder = cached_folder(WORDS, self._key(config), self._make, _MOST_KEPT)
        starts = np.load(folder / _STARTS, mmap_mode="r") if self._by_window else None
        texts = index.numbering.rows if self._by_window else index.manifest.documents
        bm25 = BM25.load(folder, texts, _EXTRA)
        super().__init__(bm25, np.load(folder / _PLACES, mmap_mode="r"), config, _EXTRA, starts)

    def _key(self, config: HybridConfig) -> dict[str, object]:
        """Return everything that determines the documents and their terms."""
        manifest, columns = self._index.manifest, list(self._index.config.corpus.text)
        kinds = (layout.DOCUMENTS, layout.WINDOWS) if self._by_window else (layout.DOCUMENTS,)
        names = [f"{part.name}/{kind}" for part in manifest.parts for kind in kinds]
        hashes = [manifest.files[name].sha256 for name in (*names, *filter(None, [manifest.deleted]))]
        definitions = {"definitions": 1} if self._has_definitions else {}  # absent from the keys of other indexes
        return {"rules": _RULES, "files": hashes, "columns": columns, "terms": terms_key(config)} | definitions

    @property
    def _has_definitions(self) -> bool:
        config = self._index.config
        return config.corpus.documents == "files" and config.hybrid.terms == "code"

    def _make(self, folder: Path) -> None:
        self._progress.phase(LABEL, self._index.manifest.documents)
        ids: list[str] = []
        BM25.of(self._texts(ids), _EXTRA, self._index.config.hybrid).save(folder)
        np.save(folder / _PLACES, id_order(ids))
        if self._by_window:
            np.save(folder / _STARTS, window_starts(self._index))

    def _texts(self, ids: list[str]) -> Iterator[str]:
        """Yield the text of each document, or of each window, and append the documents' ids to `ids`."""
        stream = self._index.documents.all_documents()
        while documents := list(islice(stream, _BLOCK)):
            whole = [joined_text(document, self._index.config.corpus.text) for document in documents]
            if self._has_definitions:
                yield from self._with_definitions(documents, whole, len(ids))
            else:
                yield from window_texts(self._index, whole, len(ids)) if self._by_window else whole
            ids += [document.id for document in documents]
            self._progress.advance(len(documents))

    def _with_definitions(self, documents: Sequence[Document], whole: Sequence[str], first: int) -> Iterator[str]:
        names = [Definitions(document, self._index.config.corpus.text) for document in documents]
        if not self._by_window:
            yield from (names[number].of(text, 0) for number, text in enumerate(whole))
            return
        for number, start, end in window_spans(self._index, len(whole), first):
            yield names[number].of(whole[number][start:end], start)


def window_starts(index: Index) -> RowIds:
    """Return the first row of each document, (documents,)."""
    numbering = index.numbering
    return np.searchsorted(numbering.documents_of(np.arange(numbering.rows)), np.arange(numbering.documents))


def window_texts(index: Index, texts: Sequence[str], first: int) -> Iterator[str]:
    """Yield the text of each window of the documents from number `first` on, given their joined texts."""
    for number, start, end in window_spans(index, len(texts), first):
        yield texts[number][start:end]


def window_spans(index: Index, count: int, first: int) -> Iterator[tuple[int, int, int]]:
    """Yield document (from 0), start and end of each window of `count` documents from number `first` on."""
    rows = index.numbering.rows_of(np.arange(first, first + count))
    documents, spans = index.numbering.documents_of(rows), index.numbering.spans(rows)
    for document, (start, end) in zip(documents.tolist(), spans.tolist(), strict=True):
        yield document - first, start, end
