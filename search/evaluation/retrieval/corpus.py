"""The searched collection: a corpus that is encoded here, or an index.

A corpus is processed as in a build: the same texts, the same sample for the fit, the same query-like texts. So a recipe
without an index gives the figures of the index that it would build.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer.arrays import Embeddings, RowIds
from indexer.corpus.corpus import OnError, read_corpus
from indexer.corpus.document import Document, joined_text, pseudo_query
from indexer.corpus.query_file import is_npy, read_query_file, read_query_vectors
from indexer.encoders.document_windows import DocumentChunker
from indexer.errors import ConfigError, EvaluationError, set_to, spelled
from indexer.hashing import bottom_k, hash_id
from indexer.models.identity import PoolingKey
from indexer.moments import Moments
from indexer.pipeline.steps.fit import QUERY_TEXTS
from indexer.progress import Progress
from indexer.recipe.config import WhiteningConfig
from indexer.recipe.ranking import Bm25Unit
from indexer.transforms import FitData
from search.evaluation.embeddings import EmbeddingSource, count_cut, encode_with_lengths
from search.evaluation.target import Target
from search.formatting import counted
from search.index import Index
from search.queries import find_beir_file
from search.ranking.bm25 import window_starts, window_texts
from search.result_files import file_hash

_BLOCK_ROWS = 4096


class BeirCorpus:
    """The corpus of a BEIR folder, encoded by `prepare` once for every setting of `source`.

    `ids` are the ids of the documents by number. After `prepare`, `document_of` is the document of each row, or None
    if row i is document i. `notes` list skipped rows; `truncated` counts truncated documents or windows.
    """

    def __init__(
        self, folder: Path, subject: Target, source: EmbeddingSource, progress: Progress, on_error: OnError = "fail"
    ) -> None:
        self.file = find_beir_file(folder, "corpus.jsonl")
        self._config, self._source = subject.config, source
        progress.phase("reading", None)
        corpus = read_corpus(self.file, config=replace(self._config.corpus, documents="rows"), on_error=on_error)
        self._documents: list[Document] = list(corpus)
        self.notes = [
            f"{counted(number, 'row')} of {self.file.name} left out: {reason}"
            for reason, number in sorted(corpus.report.rejected.items())
        ]
        progress.advance(len(self._documents))
        if not self._documents:
            raise EvaluationError(f"{self.file}: contains no documents; expected at least one to search.")
        self.ids = [document.id for document in self._documents]
        self.truncated = 0
        self.document_of: RowIds | None = None
        self._cutter = DocumentChunker(subject.spec, self._config.chunk, self._config.corpus.text)
        self._material: dict[PoolingKey, FitData] = {}

    def texts(self) -> list[str]:
        """Return the whole text of each document."""
        return [joined_text(document, self._config.corpus.text) for document in self._documents]

    def bm25_texts(self, unit: Bm25Unit) -> tuple[list[str], RowIds | None]:
        """Return the texts for BM25: of each document, or of each window and the start of each document's, (n,)."""
        cut = self._cutter(self._documents) if unit == "window" else None
        if cut is None or cut.windows is None:
            return self.texts(), None
        return cut.windows.texts(self.texts()), np.searchsorted(cut.windows.document, np.arange(len(self.ids)))

    def prepare(self, query_like: bool) -> None:
        """Encode the texts for the other methods, optionally with query-like texts."""
        cut = self._cutter(self._documents)
        self.document_of = None if cut.windows is None else cut.windows.document.astype(np.int64)
        states, lengths = encode_with_lengths(self._source, cut.texts, "document")
        self.truncated = count_cut(self._source, lengths)
        self._embeddings = states.rows
        self._positions = np.array([states.positions[text] for text in cut.texts])
        self._query_moments = self._moments_of_queries() if query_like else {}

    def material(self, key: PoolingKey) -> FitData:
        """Return the embeddings that a transform is fitted on."""
        sampled = self._sample
        if self.document_of is not None:
            sampled = np.flatnonzero(np.isin(self.document_of, sampled))
        if key not in self._material:
            moments = cache(lambda: Moments.of(self._rows(key, sampled)))
            self._material[key] = FitData(moments, lambda: iter([self._rows(key, sampled)]))
        return self._material[key]

    def query_moments(self, key: PoolingKey) -> Moments:
        """Return moments of embeddings of query-like texts."""
        return self._query_moments[key]

    def blocks(self, key: PoolingKey) -> Iterator[Embeddings]:
        """Yield embeddings (m, d) of all rows, in order."""
        for start in range(0, len(self._positions), _BLOCK_ROWS):
            yield self._rows(key, np.arange(start, min(start + _BLOCK_ROWS, len(self._positions))))

    def _rows(self, key: PoolingKey, rows: RowIds) -> Embeddings:
        """Return embeddings of some rows, in the type that an index would store."""
        selected = self._embeddings[key][self._positions[rows]]
        stored: Embeddings = selected.astype(self._config.store.embeddings, copy=False)
        return stored

    def _moments_of_queries(self) -> dict[PoolingKey, Moments]:
        def fetch(rows: list[int]) -> list[Document]:
            return [self._documents[row] for row in rows]

        texts = _query_texts(self._config.whitening, self._hashes, len(self._sample), fetch)
        return _moments_of(self._source, texts)

    @cached_property
    def _hashes(self) -> npt.NDArray[np.uint64]:
        return np.array([hash_id(identity) for identity in self.ids], np.uint64)

    @cached_property
    def _sample(self) -> RowIds:
        return bottom_k(self._hashes, self._config.whitening.sample)


class IndexedCorpus:
    """The documents and raw embeddings of an index, as in `BeirCorpus`. Files up to 256 MB are hashed first.

    Raises ConfigError for settings with other layers or another pooling than the index.
    """

    def __init__(self, subject: Target, index: Index, source: EmbeddingSource) -> None:
        own = subject.own
        if any(source.fingerprint(key) != subject.spec.fingerprint for key in source.keys):
            swept = spelled("layers and poolings", "--layers and --pooling")
            raise ConfigError(
                f"{index.path}: contains only embeddings of layers {','.join(map(str, own.layers))} with "
                f"{own.pooling} pooling. Fix: leave out {swept}, or measure a recipe instead of an index."
            )
        self._subject, self._opened, self._source = subject, index, source
        self.ids = list(index.documents.all_ids())
        numbering = index.numbering
        self.document_of = None if numbering.one_to_one else numbering.documents_of(np.arange(numbering.rows))
        self.notes: list[str] = []
        self.truncated: int = index.manifest.measured.truncated

    def texts(self) -> list[str]:
        columns = self._opened.config.corpus.text
        return [joined_text(document, columns) for document in self._opened.documents.all_documents()]

    def bm25_texts(self, unit: Bm25Unit) -> tuple[list[str], RowIds | None]:
        texts = self.texts()
        if unit == "document" or self.document_of is None:
            return texts, None
        return list(window_texts(self._opened, texts, 0)), window_starts(self._opened)

    def prepare(self, query_like: bool) -> None:
        self._stored = self._subject.stored
        if query_like:
            self._query_moments = self._mean_of_queries()

    def material(self, key: PoolingKey) -> FitData:
        return self._subject.material

    def query_moments(self, key: PoolingKey) -> Moments:
        return self._query_moments

    def blocks(self, key: PoolingKey) -> Iterator[Embeddings]:
        return (embeddings for _, embeddings in self._stored.embedding_blocks())

    def _mean_of_queries(self) -> Moments:
        """Return the mean of queries. A transform stores it in embedding space, so it applies to any strength."""
        transform, whitening = self._opened.transform, self._opened.config.whitening
        if transform.query_mean is not None and whitening.centres_by_role:
            return Moments.of(transform.query_mean[None])
        if not self._subject.spec.traits.encodes_texts or is_npy(whitening.query_sample):
            return self._mean_of_given()
        sampled = self._subject.sample.count_documents(whitening.sample)
        texts = _query_texts(whitening, self._stored.id_hashes, sampled, self._opened.documents.fetch)
        return _moments_of(self._source, texts)[self._subject.own.key]

    def _mean_of_given(self) -> Moments:
        """Return the mean of the recipe's query embeddings, or without them of the documents."""
        file = self._opened.config.whitening.query_sample
        if not file:
            self.notes.append("queries are centred by the mean of the documents: the index has no mean of queries")
            return self._subject.moments
        return Moments.of(read_query_vectors(file, self._opened.manifest.encoder["dim"]))


SearchedCorpus = BeirCorpus | IndexedCorpus


def open_collection(
    folder: Path, subject: Target, source: EmbeddingSource, progress: Progress, on_error: OnError = "fail"
) -> tuple[SearchedCorpus, dict[str, str]]:
    """Return the searched collection, the subject's index or the folder's corpus, and the hash of the corpus file."""
    if subject.index:
        return IndexedCorpus(subject, subject.index, source), {}
    corpus = BeirCorpus(folder, subject, source, progress, on_error)
    return corpus, {corpus.file.name: file_hash(corpus.file)}


def _query_texts(
    config: WhiteningConfig,
    hashes: npt.NDArray[np.uint64],
    sampled: int,
    fetch: Callable[[list[int]], list[Document]],
) -> list[str]:
    """Return the texts that give a build's mean of queries: the user's file, or texts drawn from the sample."""
    if config.query_sample:
        return read_query_file(Path(config.query_sample), ConfigError, "whitening.query_sample: ").texts
    rows = bottom_k(hashes, min(QUERY_TEXTS, sampled))
    texts = [text for document in fetch(rows.tolist()) if (text := pseudo_query(document))]
    if not texts:
        raise ConfigError(
            "no query-like text could be drawn from the corpus (no titles, no sentences). Fix: name a file of queries "
            f"with {set_to('whitening.query_sample', 'FILE')}, or pass "
            + spelled('centres=("common",).', "--centre common.")
        )
    return texts


def _moments_of(source: EmbeddingSource, queries: list[str]) -> dict[PoolingKey, Moments]:
    """Return moments of query-like texts; repetitions count, as in a build."""
    states = source.encode(queries, "query")
    return {key: Moments.of(states.of(queries, key)) for key in states.rows}
