"""The query side: the same route from text to vector as the index was built by, then FAISS, then the documents."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

import numpy as np
import numpy.typing as npt

from indexer import ann
from indexer.arrays import Vectors
from indexer.config import RunOptions
from indexer.corpus.document import Document, column_spans, joined_text
from indexer.encoders import Encoder, EncodeStats, Role
from indexer.encoders.load import open_encoder
from indexer.errors import ConfigError, StoreError
from indexer.progress import Progress
from search.index import Index, index_spec
from search.ranking.documents import RankedDocument
from search.ranking.ranker import DocumentRanker, SearchOptions, require_texts
from search.unit_vectors import Mark, UnitVectors, require_array, require_mark

if TYPE_CHECKING:
    from indexer.arrays import Mask, RowIds


_FAISS_THREADS = 1  # one query on a flat index is faster with one than with many


@dataclass(frozen=True, slots=True)
class Window:
    """The stretch of a document that a hit was found by: characters [start, end) of its joined text, and that text.

    The joined text is made of the columns without the white space around them (`joined_text`). `columns` says where the
    stretch stands in each column as it was given: name -> (start, end).
    """

    start: int
    end: int
    text: str
    columns: dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Hit:
    """One answer. `score` is the inner product of two unit vectors: higher is closer, 1 is the same direction.

    With `hybrid` it is a sum of reciprocal ranks, with `similarity="js"` 1 - JS / ln 2. `window` is set where documents
    are chunked.
    """

    id: str
    score: float
    title: str | None
    text: str
    metadata: dict[str, Any]
    window: Window | None = None

    def to_dict(self) -> dict[str, Any]:
        plain = asdict(self)
        return plain if self.window else {name: value for name, value in plain.items() if name != "window"}


Method = TypeVar("Method", bound=Callable[..., Any])


def _following(method: Method) -> Method:
    """A method that is asked again of the next generation where files of this one are gone: `compact` removes them."""

    @wraps(method)
    def answer(self: "SearchEngine", *given: Any, **named: Any) -> Any:
        while True:
            engine = self._current
            try:
                return method(engine, *given, **named)
            except StoreError:
                if not self._follow(engine):
                    raise

    return cast(Method, answer)


class SearchEngine:
    """An open index that answers questions. Opens the newest generation; later ones are not seen, unless `compact`
    removes the files of that one: then the question is asked of the newest.

    `model` points to the model's folder when it has moved; it is used only if its hashes are those of the
    index. Nothing else about the encoder or the transform can be chosen here: both come from the index. `recall` asks
    for that recall@10 instead of the recipe's: the search reaches as far as the build measured that it must.
    Raises NotAnIndexError, CorruptIndexError, StoreError, ConfigError for a recall out of reach, and on first use of
    the encoder ModelError or MismatchError. With `ahead` the index is loaded now and the encoder meanwhile, in a
    thread of its own: the first answer comes sooner.

    Safe to share between threads: any of its methods may be called from any of them at any time, `close` included, and
    the answers are those of one thread. Searches run side by side; what cannot is done by one thread at a time (reading
    documents, working out a filter, and torch, which runs one batch of texts after another).
    """

    def __init__(
        self,
        index: str | Path,
        model: str | Path | None = None,
        options: RunOptions | None = None,
        ahead: bool = False,
        recall: float | None = None,
    ) -> None:
        self._model, self._options, self._recall = model, options or RunOptions(), recall
        self._current = self  # or the engine of a later generation, once the files of this one are gone
        self._encoder: Encoder | None = None
        self._loading: Future[Encoder] | None = None
        self._encoder_lock, self._opening_lock = threading.Lock(), threading.Lock()
        self._of_thread = threading.local()
        self._opened = Index.unchecked(index) if ahead else Index.open(index)
        if ahead:
            loader = ThreadPoolExecutor(1, thread_name_prefix="load-encoder")
            self._loading = loader.submit(self._load_encoder)  # half of it is hashing, which needs no GIL
            loader.shutdown(wait=False)
            self._opened = self._opened.load()
        if recall is not None:
            if not 0 < recall <= 1:
                raise ConfigError(f"recall is {recall:g}; expected more than 0 and at most 1.")
            self._opened.reach_recall(recall)
        if self._options.device not in ("auto", "cpu"):
            self._opened.accelerate(self._options.device)
        self._finder = DocumentRanker(self._opened)

    def __len__(self) -> int:
        """Number of documents."""
        return self.index.manifest.documents

    def __enter__(self) -> "SearchEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the index's files; a later search opens them again."""
        self.index.documents.close()
        self.index.stored_embeddings.close()

    @property
    def index(self) -> Index:
        """The index files behind this engine."""
        return self._current._opened

    @_following
    def check(self, k: int = 10, **asked: Any) -> None:
        """Raises ConfigError for what no search could be asked for: see `Request`, and filters and columns."""
        self._allowed(SearchOptions(k, **asked))

    @_following
    def prepare_hybrid(self, progress: Progress) -> None:
        """Make now what the first hybrid question needs: BM25 of all documents, unless the cache holds it.

        Raises MachineError when bm25s or PyStemmer is not installed.
        """
        self._load_shared()
        self._finder.lexical(progress)

    def search(self, query: str, k: int = 10, **asked: Any) -> list[Hit]:
        """The k documents closest to the query, best first, ties by id; all of them if there are fewer than k.

        `asked` are fields of `Request`: where, group_by, min_score, exact, hybrid, similarity. A query longer than the
        encoder's max_length is cut there, as documents are. Raises ConfigError for a blank query, k below 1 and
        whatever else `Request` does not take, and a filter that cannot be used.
        """
        return self.search_many([query], k, **asked)[0]

    def search_many(
        self, queries: Sequence[str], k: int = 10, log: EncodeStats | None = None, **asked: Any
    ) -> list[list[Hit]]:
        """`search` for several queries in one batch; scores equal those of one by one up to the encoder's rounding."""
        texts = require_texts(queries, "queries", "For a single question call search.")
        for number, query in enumerate(texts, start=1):
            if not query.strip():
                raise ConfigError(f"query {number} is blank; expected some text.")
        hits, seen = self._search_texts(texts, SearchOptions(k, **asked))
        if log is not None:
            log.add(seen)
        return hits

    @_following
    def _search_texts(self, texts: Sequence[str], request: SearchOptions) -> tuple[list[list[Hit]], EncodeStats]:
        """The hits of some texts, and what their encoding saw: of the generation alone that gave the answer."""
        log = EncodeStats()
        allowed = self._allowed(request)  # what is wrong with a filter shows before the encoder is loaded
        if not texts:
            return [], log
        embeddings = self.encoder.encode(texts, "query", log)
        if request.similarity == "js":
            return self._hits(self._finder.find_mixtures(embeddings, request, allowed)), log
        vectors = self._opened.transform.transform(embeddings, "query")
        if request.hybrid:
            return self._hits(self._finder.find_hybrid(texts, vectors, request, allowed)), log
        return self._hits(self._finder.find(vectors, request, allowed)), log

    @_following
    def search_vectors(self, embeddings: npt.NDArray[np.floating], k: int = 10, **asked: Any) -> list[list[Hit]]:
        """`search_many` for queries that are encoded already: raw embeddings (n, d), as the encoder gives them.

        What `embed` gave for queries of this index is taken too, as the vectors that it is; any other `UnitVectors` are
        refused. Raises ConfigError for these and for arrays of another shape, not of numbers or not finite.
        """
        request = SearchOptions(k, **asked)
        if request.hybrid:
            raise ConfigError("hybrid search needs the text of a query, not its vector.")
        if request.similarity == "js":
            require_array(embeddings, self._dim)
            if isinstance(embeddings, UnitVectors):
                raise ConfigError('similarity "js" compares raw embeddings: give encoder.encode(texts, "query").')
            return self._hits(self._finder.find_mixtures(embeddings, request, self._allowed(request)))
        vectors = self._query_vectors(embeddings)
        return self._hits(self._finder.find(vectors, request, self._allowed(request)))

    @_following
    def neighbours(self, identity: str, k: int = 10, **asked: Any) -> list[Hit]:
        """The k documents closest to a stored one, which is not among them, by its own vectors; nothing is encoded.

        Raises ConfigError for an id that the index does not hold.
        """
        request = SearchOptions(k, **asked)
        if request.hybrid:
            raise ConfigError("hybrid search needs the text of a query, not a document's id.")
        allowed = self._allowed(request)
        number = self._opened.documents.find_ids(require_texts([identity], "identity", "")).get(identity)
        if number is None:
            raise ConfigError(f'{self._opened.path}: holds no document with id "{identity}".')
        return self._hits([self._finder.neighbours(number, request, allowed)])[0]

    def embed(self, texts: Sequence[str], role: Role = "query", log: EncodeStats | None = None) -> UnitVectors:
        """Texts to unit vectors (n, k) by the index's own encoder and transform.

        They are no embeddings any more, and carry a mark that says so; see `UnitVectors`. `encoder.encode` gives raw
        embeddings.
        """
        texts = require_texts(texts, "texts", "For a single text give a list of one.")
        if role not in get_args(Role):
            raise ConfigError(f'role is {role!r}; expected "query" or "document".')
        vectors = np.zeros((0, self._opened.transform.dim), np.float32)
        if texts:
            vectors = self._opened.transform.transform(self.encoder.encode(texts, role, log), role)
        return UnitVectors(vectors, Mark(self._space, role))

    @property
    def encoder(self) -> Encoder:
        """The encoder, loaded on first use and only if it is the one the index was built with."""
        with self._encoder_lock:
            if self._encoder is None:
                self._encoder = self._loading.result() if self._loading else self._load_encoder()
        if not getattr(self._of_thread, "faiss", False):
            ann.set_threads(_FAISS_THREADS)  # FAISS keeps the number for the thread that sets it
            self._of_thread.faiss = True
        return self._encoder

    def _follow(self, engine: "SearchEngine") -> bool:
        """Go on with the newest generation in place of that of `engine`; False where there is none."""
        if not engine._opened.is_followed:
            return False
        with self._opening_lock:
            if self._current is engine:
                newest = SearchEngine(engine._opened.path, self._model, self._options, recall=self._recall)
                if newest._opened.manifest.fingerprint == engine._opened.manifest.fingerprint:
                    newest._encoder = engine._encoder
                self._current = newest
        return True

    def _load_encoder(self) -> Encoder:
        return open_encoder(index_spec(self._opened, self._model), self._options)

    def _allowed(self, request: SearchOptions) -> "Mask | None":
        """Which documents may be found, (documents,); None: all."""
        self._load_shared()
        return self._finder.allowed(request)

    def _load_shared(self) -> None:
        """Open what all searches share: threads that came first together would each do so."""
        with self._opening_lock:
            _ = self._opened.transform, self._opened.segments, self._opened.documents, self._opened.stored_embeddings

    @property
    def _space(self) -> str:
        manifest = self._opened.manifest
        return f"{manifest.fingerprint} {manifest.files[manifest.transform['file']].sha256}"

    @property
    def _dim(self) -> int:
        """Length of a raw embedding."""
        return int(self._opened.manifest.encoder["dim"])

    def _query_vectors(self, given: npt.NDArray[np.floating]) -> Vectors:
        """Unit vectors (n, k) of raw embeddings, or those that `embed` made of queries."""
        if isinstance(given, UnitVectors):
            require_mark(given, Mark(self._space, "query"), str(self._opened.path))
            require_array(given, self._opened.transform.dim)
            return np.asarray(given, np.float32)
        require_array(given, self._dim)
        return self._opened.transform.transform(given, "query")

    def _hits(self, answers: Sequence[Sequence[RankedDocument]]) -> list[list[Hit]]:
        numbers = sorted({place.document for answer in answers for place in answer})
        documents = dict(zip(numbers, self._opened.documents.fetch(numbers), strict=True))
        return [[self._hit(documents[place.document], place) for place in answer] for answer in answers]

    def _hit(self, document: Document, place: RankedDocument) -> Hit:
        window = None
        if not self._opened.numbering.one_to_one and place.row >= 0:
            window = self._window(document, np.array([place.row]))
        return Hit(document.id, place.score, document.title, document.text, document.metadata, window)

    def _window(self, document: Document, rows: "RowIds") -> Window:
        start, end = self._opened.numbering.spans(rows)[0].tolist()
        columns = self._opened.config.corpus.text
        spans = column_spans(document, columns, start, end)
        return Window(start, end, joined_text(document, columns)[start:end], spans)
