"""What is searched: a corpus that is encoded here, or an index.

A corpus goes the way a build takes it: the same texts, the same sample for the fit, the same query-like texts. So a
recipe measured before anything is built gives the figures of the index it would build.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer.arrays import Embeddings, RowIds
from indexer.corpus.corpus import OnError, read_corpus
from indexer.corpus.document import Document, joined_text, pseudo_query
from indexer.corpus.query_file import is_npy, read_query_file, read_query_vectors
from indexer.encoders.chunker import DocumentChunker
from indexer.errors import ConfigError, EvaluationError
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
from search.files import file_hash
from search.index import Index
from search.queries import find_beir_file
from search.ranking.bm25 import window_starts, window_texts
from search.text import counted

_BLOCK_ROWS = 4096


class BeirCorpus:
    """The corpus of a BEIR folder, encoded once for every setting of `source`. Only `prepare` costs encoding.

    `ids` are those of the documents, by number. `document_of` is the document of each row, once prepared; None when
    row i is document i. `notes` say what was left out when it was read, `truncated` how many documents, or windows of
    them, were cut at the encoder's max_length.
    """

    def __init__(
        self, folder: Path, subject: Target, source: EmbeddingSource, progress: Progress, on_error: OnError = "fail"
    ) -> None:
        self.file = find_beir_file(folder, "corpus.jsonl")
        self._config, self._source = subject.config, source
        progress.phase("reading", None)
        corpus = read_corpus(self.file, config=self._config.corpus, on_error=on_error)
        self._documents: list[Document] = list(corpus)
        rejected = corpus.report.rejected
        self.notes = [
            f"{counted(number, 'row', 'rows')} of {self.file.name} left out: {why}"
            for why, number in sorted(rejected.items())
        ]
        progress.advance(len(self._documents))
        if not self._documents:
            raise EvaluationError(f"{self.file}: holds no documents; there is nothing to search.")
        self.ids = [document.id for document in self._documents]
        self.truncated = 0
        self.document_of: RowIds | None = None
        self._cutter = DocumentChunker(subject.spec, self._config.chunk)
        self._moments: dict[PoolingKey, Moments] = {}

    def texts(self) -> list[str]:
        """The whole text of each document."""
        return [joined_text(document, self._config.corpus.text) for document in self._documents]

    def bm25_texts(self, unit: Bm25Unit) -> tuple[list[str], RowIds | None]:
        """What BM25 counts in: the text of each document, or of each window and where each document's begin, (n,)."""
        texts = self.texts()
        cut = self._cutter(texts) if unit == "window" else None
        if cut is None or cut.windows is None:
            return texts, None
        return cut.texts, np.searchsorted(cut.windows.document, np.arange(len(texts)))

    def prepare(self, query_like: bool) -> None:
        """Encode what the other methods need, and query-like texts if they are wanted."""
        cut = self._cutter(self.texts())
        self.document_of = None if cut.windows is None else cut.windows.document.astype(np.int64)
        states, lengths = encode_with_lengths(self._source, cut.texts, "document")
        self.truncated = count_cut(self._source, lengths)
        self._embeddings = states.rows
        self._positions = np.array([states.positions[text] for text in cut.texts])
        self._query_moments = self._moments_of_queries() if query_like else {}

    def material(self, key: PoolingKey) -> FitData:
        """The embeddings that a transform is fitted on."""
        sampled = self._sample
        if self.document_of is not None:
            sampled = np.flatnonzero(np.isin(self.document_of, sampled))

        def moments() -> Moments:
            if key not in self._moments:
                self._moments[key] = Moments.of(self._rows(key, sampled))
            return self._moments[key]

        return FitData(moments, lambda: iter([self._rows(key, sampled)]))

    def query_moments(self, key: PoolingKey) -> Moments:
        """Moments of embeddings of query-like texts."""
        return self._query_moments[key]

    def blocks(self, key: PoolingKey) -> Iterator[Embeddings]:
        """Embeddings (m, d) of all rows, in order."""
        for start in range(0, len(self._positions), _BLOCK_ROWS):
            yield self._rows(key, np.arange(start, min(start + _BLOCK_ROWS, len(self._positions))))

    def _rows(self, key: PoolingKey, rows: RowIds) -> Embeddings:
        """Embeddings of some rows, in the type an index would store."""
        taken = self._embeddings[key][self._positions[rows]]
        stored: Embeddings = taken.astype(self._config.store.embeddings, copy=False)
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
    """The documents and raw embeddings of an index, as `BeirCorpus` has them. Files up to 256 MB are hashed first.

    Raises ConfigError for settings of other layers or another pooling than the index holds.
    """

    def __init__(self, subject: Target, index: Index, source: EmbeddingSource) -> None:
        _require_own_layers(subject, index, source)
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
        self._query_moments = self._mean_of_queries() if query_like else None

    def material(self, key: PoolingKey) -> FitData:
        return self._subject.material

    def query_moments(self, key: PoolingKey) -> Moments:
        if self._query_moments is None:
            raise ValueError("query-like texts were not prepared")
        return self._query_moments

    def blocks(self, key: PoolingKey) -> Iterator[Embeddings]:
        return (embeddings for _, embeddings in self._stored.embedding_blocks())

    def _mean_of_queries(self) -> Moments:
        """A transform keeps its means in embedding space, so the index's own mean of queries serves any strength."""
        transform, whitening = self._opened.transform, self._opened.config.whitening
        if transform.query_mean is not None and whitening.centres_by_role:
            return Moments.of(transform.query_mean[None])
        if not self._subject.spec.traits.encodes_texts or is_npy(whitening.query_sample):
            return self._mean_of_given()
        sampled = self._subject.sample.count_documents(whitening.sample)
        texts = _query_texts(whitening, self._stored.id_hashes, sampled, self._opened.documents.fetch)
        return _moments_of(self._source, texts)[self._subject.own.key]

    def _mean_of_given(self) -> Moments:
        """The mean of the recipe's own query embeddings; of the documents where it names none."""
        file = self._opened.config.whitening.query_sample
        if not file:
            self.notes.append("queries are centred by the mean of the documents: the index knows no other queries")
            return self._subject.moments
        return Moments.of(read_query_vectors(file, self._opened.manifest.encoder["dim"]))


SearchedCorpus = BeirCorpus | IndexedCorpus


def open_collection(
    folder: Path, subject: Target, source: EmbeddingSource, progress: Progress, on_error: OnError = "fail"
) -> tuple[SearchedCorpus, dict[str, str]]:
    """Return what is searched, the subject's index or else the folder's corpus, and the hash of the corpus file."""
    if subject.index:
        return IndexedCorpus(subject, subject.index, source), {}
    corpus = BeirCorpus(folder, subject, source, progress, on_error)
    return corpus, {corpus.file.name: file_hash(corpus.file)}


def _require_own_layers(subject: Target, index: Index, source: EmbeddingSource) -> None:
    own = subject.own
    if any(source.fingerprint(key) != subject.spec.fingerprint for key in source.keys):
        layers = ",".join(map(str, own.layers))
        raise ConfigError(
            f"{index.path}: holds embeddings of layers {layers} with {own.pooling} pooling only, so no other can be "
            "measured on it. Leave out --layers and --pooling, or measure a recipe instead of an index."
        )


def _query_texts(
    config: WhiteningConfig,
    hashes: npt.NDArray[np.uint64],
    sampled: int,
    fetch: Callable[[list[int]], list[Document]],
) -> list[str]:
    """The texts a build estimates the mean of queries from: the user's file, else drawn from the sample."""
    if config.query_sample:
        return read_query_file(Path(config.query_sample), ConfigError, "whitening.query_sample: ").texts
    rows = bottom_k(hashes, min(QUERY_TEXTS, sampled))
    texts = [text for document in fetch(rows.tolist()) if (text := pseudo_query(document))]
    if not texts:
        raise ConfigError(
            "no query-like text could be drawn from the corpus (no titles, no sentences). Name a file of queries "
            "with --set whitening.query_sample=FILE, or pass --centre common."
        )
    return texts


def _moments_of(source: EmbeddingSource, queries: list[str]) -> dict[PoolingKey, Moments]:
    """Moments of query-like texts, one that occurs twice counted twice, as a build counts it."""
    states = source.encode(queries, "query")
    return {key: Moments.of(states.of(queries, key)) for key in states.rows}
