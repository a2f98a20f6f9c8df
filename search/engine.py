"""The query side: encode and transform as the build did, search with FAISS, and read the documents."""

import math
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

import numpy as np
import numpy.typing as npt

from indexer import ann
from indexer.corpus.document import Document
from indexer.encoders.load import open_encoder
from indexer.encoders.protocol import Encoder, EncodeStats, with_query_prompt
from indexer.errors import ConfigError, StoreError, UnknownDocumentError, spelled
from indexer.lazy_imports import LOADER
from indexer.progress import Progress
from indexer.recipe.config import Role
from indexer.recipe.run_options import RunOptions
from indexer.typed_arguments import checked
from search.hits import Answer, Hit
from search.index import Index
from search.leases import Leases
from search.ranking.documents import RankedDocument
from search.ranking.fetch import fetch_hits
from search.ranking.options import SearchOptions, require_queries, require_texts
from search.ranking.ranker import DocumentRanker, EncodedQueries
from search.ranking.reranker import RerankerChoice, Reranking
from search.shards import ShardOptions, close_hosts, hosted
from search.unit_vectors import Mark, UnitVectors, require_array, require_mark

if TYPE_CHECKING:
    from indexer.arrays import Mask
    from search.filters.facets import ColumnFacet


_FEWEST_RERANKED = 2  # a single hit has no order
_FAISS_THREADS = 1  # faster than many for one query on a flat index

Queries = Sequence[str] | npt.NDArray[np.floating]
"""Texts, raw embeddings (n, d), or the `UnitVectors` (n, k) that `embed` returns for queries."""
Method = TypeVar("Method", bound=Callable[..., Any])


def _following(method: Method) -> Method:
    """Repeat a method with the next generation if `compact` has removed files of this one."""

    @wraps(method)
    def answer(self: "SearchEngine", *given: Any, **named: Any) -> Any:
        while True:
            engine = self._current
            try:
                with engine._leases.lease():
                    return method(engine, *given, **named)
            except StoreError:
                if not self._follow(engine):
                    raise

    return cast(Method, answer)


class SearchEngine:
    """An open index that answers queries. It opens the newest generation and stays with it. If `compact` removes the
    files of that generation, the engine continues with the newest one, or raises StoreError if `follows` was set to
    False. `newest` returns an engine of a later generation.

    `model` is the model's folder if it has moved; its hashes must equal the index's. The encoder and the transform come
    from the index. `recall` sets another recall@10 than the recipe's, by the search parameters that the build measured.
    With `ahead` the index is loaded now and the encoder meanwhile, in its own thread, so the first answer comes sooner.
    With `shards` each segment is opened and searched by its own process, on this machine or others (`search.shards`),
    with the same answers. Raises NotAnIndexError, CorruptIndexError, StoreError, ConfigError for an unreachable recall,
    and on first use of the encoder ModelError or MismatchError. A lost process raises ShardLostError, unless
    `SearchOptions.partial` is set.

    Safe to share between threads: every method, including `close`, may be called from any thread at any time, with the
    same answers. Searches run concurrently; reading documents, evaluating a filter and torch run one at a time.
    """

    @checked
    def __init__(
        self,
        index: str | Path,
        model: str | Path | None = None,
        options: RunOptions | None = None,
        ahead: bool = False,
        recall: float | None = None,
        shards: ShardOptions | Literal["ray"] | None = None,
    ) -> None:
        self._model, self._options, self._recall = model, options or RunOptions(), recall
        self.follows = True
        self._shards = ShardOptions() if shards == "ray" else shards
        if isinstance(self._shards, str):
            raise ConfigError(f'shards is "{self._shards}"; expected "ray", ShardOptions or None.')
        self._current = self  # or the engine of a later generation, once the files of this one are removed
        self._encoder: Encoder | None = None
        self._loading: Future[Encoder] | None = None
        self._encoder_lock, self._opening_lock = threading.Lock(), threading.Lock()
        self._of_thread = threading.local()
        self._leases = Leases(self._close_files)
        here = self._shards is None
        self._index = Index.unchecked(index) if ahead and here else Index.open(index)
        if ahead:
            loader = ThreadPoolExecutor(1, thread_name_prefix=LOADER)
            self._loading = loader.submit(self._load_encoder)  # half of it is hashing, which needs no GIL
            loader.shutdown(wait=False)
        if self._shards is not None:
            self._index = hosted(self._index, self._shards)
        elif ahead:
            self._index = self._index.load()
        if recall is not None and not 0 < recall <= 1:
            raise ConfigError(f"recall is {recall:g}; expected more than 0 and at most 1.")
        self._set_up_segments()
        self._ranker = DocumentRanker(self._index)
        self._reranking = Reranking(self._index.config.rerank, self._options)

    def __len__(self) -> int:
        """Number of documents."""
        return self.index.manifest.documents

    def __enter__(self) -> "SearchEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the index's files once no call uses them; a later search opens them again."""
        self._current._leases.close()

    @property
    def index(self) -> Index:
        """The index files behind this engine."""
        return self._current._index

    @checked
    @_following
    def check(self, options: SearchOptions | int | None = None, **fields: Any) -> None:
        """Raise ConfigError for options, filters or columns that a search would refuse."""
        self._allowed(SearchOptions.of(options, fields))

    @checked
    @_following
    def facets(
        self, where: str | None = None, columns: Collection[str] = (), seconds: float = math.inf
    ) -> "list[ColumnFacet]":
        """Return facets of metadata columns over the documents that meet a condition (see `column_facets`)."""
        from search.filters.facets import column_facets

        among = self._allowed(SearchOptions(where=where))
        return column_facets(self.index, among=among, names=columns, seconds=seconds)

    @checked
    def rerank_by(self, reranker: RerankerChoice) -> None:
        """Rerank with this reranker from now on instead of the recipe's.

        `reranker` is the hub id or folder of a cross-encoder, or a loaded `Reranker`. Raises ConfigError, ModelError
        and MachineError.
        """
        self._current._reranking.replace(reranker)

    @checked
    @_following
    def prepare_hybrid(self, progress: Progress) -> None:
        """Build BM25 of all documents for the first hybrid query, unless the cache contains it.

        Raises MachineError if bm25s or PyStemmer is not installed.
        """
        self._load_shared()
        self._ranker.hybrid(progress)

    @checked
    def search(self, query: str, options: SearchOptions | int | None = None, **fields: Any) -> Answer[Hit]:
        """Return the k documents closest to the query, or all if there are fewer, best first, ties by id.

        `options` are `SearchOptions` or a number of hits; fields of `SearchOptions` can be given by name:
        `search("whales", k=5, where="year > 2019")`. Queries, like documents, are truncated at the encoder's
        max_length. Raises ConfigError for a blank query, and for invalid options and filters.
        """
        return self.search_many([query], options, **fields)[0]

    @checked
    def search_many(
        self,
        queries: Sequence[str],
        options: SearchOptions | int | None = None,
        log: EncodeStats | None = None,
        **fields: Any,
    ) -> list[Answer[Hit]]:
        """Search for several queries in one batch. Scores equal those of `search` up to the encoder's rounding."""
        texts = require_queries(queries)
        hits, stats = self._search(texts, SearchOptions.of(options, fields))
        if log is not None:
            log.add(stats)
        return hits

    @checked
    def search_vectors(
        self,
        embeddings: npt.NDArray[np.floating],
        options: SearchOptions | int | None = None,
        texts: Sequence[str] | None = None,
        lengths: Sequence[int] | None = None,
        **fields: Any,
    ) -> list[Answer[Hit]]:
        """Search as `search_many` does, by the encoder's raw embeddings (n, d) of queries.

        `texts` (n,) are the queries, which `hybrid` needs. `lengths` (n,) are their tokens from `EncodeStats`; 0 means
        no known token, and `hybrid` then uses BM25 alone. `embeddings` may also be the `UnitVectors` that `embed` of
        this index returned for queries. Raises ConfigError for other `UnitVectors`, for arrays that are not (n, d),
        numeric and finite, and for another number of texts or lengths.
        """
        chosen = SearchOptions.of(options, fields)
        self._require_queries(embeddings, texts, lengths)
        return self._search(embeddings, chosen, texts, lengths)[0]

    @checked
    def hits(
        self, ranked: Sequence[Answer[RankedDocument]], on_read: Callable[[int], None] | None = None
    ) -> list[Answer[Hit]]:
        """Return ranked documents of the open generation with their texts and metadata.

        `on_read` is called every few documents with the bytes read so far, and may raise to stop reading. Document
        numbers differ between generations: an engine that follows (`follows`) may open another one since `rank`.
        """
        engine = self._current
        with engine._leases.lease():
            return fetch_hits(engine._index, ranked, on_read)

    @checked
    def rank(
        self,
        queries: Queries,
        options: SearchOptions | int | None = None,
        log: EncodeStats | None = None,
        texts: Sequence[str] | None = None,
        lengths: Sequence[int] | None = None,
        **fields: Any,
    ) -> list[Answer[RankedDocument]]:
        """Rank documents as `search_many` or `search_vectors` does, without reading their texts.

        Documents are numbers in `index` after the call. `texts` and `lengths` are those of embeddings. Raises the
        errors of those methods.
        """
        chosen = SearchOptions.of(options, fields)
        if isinstance(queries, np.ndarray):
            self._require_queries(queries, texts, lengths)
        else:
            queries = require_queries(queries)
        ranked, stats = self._rank(queries, chosen, texts, lengths)
        if log is not None:
            log.add(stats)
        return ranked

    @checked
    @_following
    def rank_among(
        self,
        queries: Sequence[str],
        candidates: Sequence[Collection[str]],
        options: SearchOptions | int | None = None,
        **fields: Any,
    ) -> list[Answer[RankedDocument]]:
        """Rank for each query only its `candidates`, a list of document ids; unknown ids are ignored.

        Unlike a filter, a list can have any number of ids. Raises the errors of `search_many`, and ConfigError for
        candidates that are not one list of ids per query.
        """
        texts, chosen = require_queries(queries), SearchOptions.of(options, fields)
        if len(candidates) != len(texts):
            raise ConfigError(
                f"{len(candidates):,} candidates for {len(texts):,} queries; expected one list per query."
            )
        candidates = [require_texts(ids, "candidates", "Give a list for each query.") for ids in candidates]
        allowed = self._allowed(chosen)
        numbers = self._index.ids.find({name for ids in candidates for name in ids})
        encoded, ranked = self._from_texts(texts, EncodeStats(), chosen.prompt), list[Answer[RankedDocument]]()
        for query, ids in enumerate(candidates):
            mask = np.zeros(len(self._index.documents), bool)
            mask[[numbers[name] for name in ids if name in numbers]] = True
            mask &= True if allowed is None else allowed
            ranked += self._reranked(encoded[query : query + 1], chosen, mask)
        return ranked

    @checked
    @_following
    def neighbours(self, identity: str, options: SearchOptions | int | None = None, **fields: Any) -> Answer[Hit]:
        """Return the documents closest to a stored document, without it, by its stored vectors; encodes nothing.

        Raises UnknownDocumentError, a ConfigError, for an id that the index does not contain.
        """
        return fetch_hits(self._index, [self._neighbours(identity, SearchOptions.of(options, fields))])[0]

    @checked
    @_following
    def rank_neighbours(
        self, identity: str, options: SearchOptions | int | None = None, **fields: Any
    ) -> Answer[RankedDocument]:
        """Rank documents as `neighbours` does, without reading their texts."""
        return self._neighbours(identity, SearchOptions.of(options, fields))

    @checked
    @_following
    def document(self, identity: str) -> Document:
        """Return a stored document as it was indexed. Raises UnknownDocumentError."""
        self._load_shared()
        (document,) = self._index.documents.fetch([self._number_of(identity)])
        return document

    @checked
    @_following
    def embed(self, texts: Sequence[str], role: Role = "query", log: EncodeStats | None = None) -> UnitVectors:
        """Return unit vectors (n, k) of texts by the index's encoder and transform.

        They carry a mark that tells them from raw embeddings (`UnitVectors`), which `encoder.encode` returns.
        """
        texts = require_texts(texts, "texts", "For a single text give a list with it.")
        if role not in get_args(Role):
            raise ConfigError(f'role is {role!r}; expected "query" or "document".')
        vectors = np.zeros((0, self._index.transform.dim), np.float32)
        if texts:
            vectors = self._index.transform.transform(self._opened_encoder().encode(texts, role, log), role)
        return UnitVectors(vectors, Mark(self._space, role))

    @property
    def encoder(self) -> Encoder:
        """The encoder, loaded on first use and only if it equals the index's."""
        return self._current._opened_encoder()

    def _opened_encoder(self) -> Encoder:
        with self._encoder_lock:
            if self._encoder is None:
                self._encoder = self._loading.result() if self._loading else self._load_encoder()
        if not getattr(self._of_thread, "faiss", False):
            ann.set_threads(_FAISS_THREADS)  # FAISS keeps the number for the thread that sets it
            self._of_thread.faiss = True
        return self._encoder

    def newest(self) -> "SearchEngine":
        """Return an engine of the newest generation with the settings of this one, even if it is the same generation.

        The two share an encoder if their fingerprints agree. Raises the errors of opening an index.
        """
        engine = self._current
        newest = SearchEngine(engine._index.path, self._model, self._options, recall=self._recall, shards=self._shards)
        newest.follows = self.follows
        newest._reranking.take_over(engine._reranking)
        if newest._index.manifest.fingerprint == engine._index.manifest.fingerprint:
            newest._encoder, newest._loading = engine._encoder, engine._loading
        return newest

    def _follow(self, engine: "SearchEngine") -> bool:
        """Replace `engine` by the newest generation; return False if there is no later one."""
        if not self.follows or not engine._index.is_followed:
            return False
        with self._opening_lock:
            if self._current is engine:
                self._current = self.newest()
        engine._leases.close(for_good=True)
        return True

    def _close_files(self) -> None:
        self._index.close()
        close_hosts(self._index)

    def _set_up_segments(self) -> None:
        if self._recall is not None:
            self._index.reach_recall(self._recall)
        if self._options.device not in ("auto", "cpu") and self._shards is None:
            self._index.accelerate(self._options.device)

    def _load_encoder(self) -> Encoder:
        return open_encoder(self._index.encoder_spec(self._model), self._options)

    @_following
    def _search(
        self,
        queries: Queries,
        options: SearchOptions,
        texts: Sequence[str] | None = None,
        lengths: Sequence[int] | None = None,
    ) -> tuple[list[Answer[Hit]], EncodeStats]:
        """Return the hits and the encoding statistics, both of one generation."""
        ranked, log = self._ranked(queries, options, texts, lengths)
        return fetch_hits(self._index, ranked), log

    def _ranked(
        self,
        queries: Queries,
        options: SearchOptions,
        texts: Sequence[str] | None = None,
        lengths: Sequence[int] | None = None,
    ) -> tuple[list[Answer[RankedDocument]], EncodeStats]:
        """Rank documents; `texts` and `lengths` belong to queries given as embeddings."""
        log = EncodeStats()
        if isinstance(queries, np.ndarray):
            encoded = replace(self._from_array(queries), texts=texts, lengths=lengths)
            encoded.require_for(options)
            if options.prompt is not None:
                raise ConfigError("a prompt is put before texts, but the queries are vectors. Leave out the prompt.")
            return self._reranked(encoded, options, self._allowed(options)), log
        allowed = self._allowed(options)  # raises for an invalid filter before the encoder is loaded
        if not queries:
            return [], log
        return self._reranked(self._from_texts(queries, log, options.prompt), options, allowed), log

    _rank = _following(_ranked)

    def _reranked(
        self, queries: EncodedQueries, options: SearchOptions, allowed: "Mask | None"
    ) -> list[Answer[RankedDocument]]:
        """Return ranked documents, the first `rerank_depth` in the reranker's order."""
        depth = self._reranking.depth(options.rerank_depth)
        if depth < _FEWEST_RERANKED:
            return self._ranker.rank(queries, options, allowed)
        if queries.texts is None:
            raise ConfigError(
                "reranking needs the texts of queries, not only their vectors. Fix: give `texts`, or "
                f"{spelled('rerank_depth=0', '--no-rerank')}."
            )
        ranked = self._ranker.rank(queries, replace(options, k=max(options.k, depth)), allowed)
        reranked = self._reranking.answers(self._index, queries.texts, ranked, depth)
        return [answer[: options.k] for answer in reranked]

    def _neighbours(self, identity: str, options: SearchOptions) -> Answer[RankedDocument]:
        options.require_no_text()
        allowed = self._allowed(options)
        return self._ranker.neighbours(self._number_of(identity), options, allowed)

    def _require_queries(
        self, embeddings: npt.NDArray[np.floating], texts: Sequence[str] | None, lengths: Sequence[int] | None
    ) -> None:
        if not isinstance(embeddings, UnitVectors):
            require_array(embeddings, self._dim)
        if texts is not None:
            require_queries(texts)
        for name, given in (("texts", texts), ("lengths", lengths)):
            if given is not None and len(given) != len(embeddings):
                raise ConfigError(
                    f"{len(given):,} {name} for {len(embeddings):,} embeddings; expected one per embedding."
                )

    def _from_texts(self, texts: Sequence[str], log: EncodeStats, prompt: str | None) -> EncodedQueries:
        embeddings = with_query_prompt(self._opened_encoder(), prompt).encode(texts, "query", log)
        return EncodedQueries(self._index.transform.transform(embeddings, "query"), embeddings, texts, log.lengths)

    def _from_array(self, given: npt.NDArray[np.floating]) -> EncodedQueries:
        """Return queries from raw embeddings (n, d), or from the vectors (n, k) that `embed` returned."""
        if isinstance(given, UnitVectors):
            require_mark(given, Mark(self._space, "query"), str(self._index.path))
            require_array(given, self._index.transform.dim)
            return EncodedQueries(np.asarray(given, np.float32))
        require_array(given, self._dim)
        return EncodedQueries(self._index.transform.transform(given, "query"), given)

    def _number_of(self, identity: str) -> int:
        number = self._index.ids.find(require_texts([identity], "identity", "")).get(identity)
        if number is None:
            close = self._index.documents.closest_id(identity)
            hint = f' (did you mean "{close}"?)' if close else ""
            raise UnknownDocumentError(f'{self._index.path}: contains no document with id "{identity}"{hint}.')
        return number

    def _allowed(self, options: SearchOptions) -> "Mask | None":
        """Return a mask (documents,) of the documents that may be found, None for all."""
        self._load_shared()
        self._reranking.depth(options.rerank_depth)
        return self._ranker.allowed(options)

    def _load_shared(self) -> None:
        with self._opening_lock:
            _ = self._index.transform, self._index.searched, self._index.documents, self._index.stored_embeddings
            if self._leases.closed:  # the segments were opened again
                self._set_up_segments()
                self._leases.closed = False

    @property
    def _space(self) -> str:
        manifest = self._index.manifest
        return f"{manifest.fingerprint} {manifest.files[manifest.transform['file']].sha256}"

    @property
    def _dim(self) -> int:
        return int(self._index.manifest.encoder["dim"])
