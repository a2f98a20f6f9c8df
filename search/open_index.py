"""One open generation of an index that answers queries: its files, encoder, ranker and reranker."""

import threading
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np
import numpy.typing as npt

from indexer import ann
from indexer.corpus.document import Document
from indexer.encoders.load import open_encoder
from indexer.encoders.protocol import Encoder, EncodeStats, with_query_prompt
from indexer.errors import ConfigError, UnknownDocumentError, spelled
from indexer.lazy_imports import LOADER
from indexer.models.query_encoder_spec import QueryEncoderSpec, resolve_query_encoder
from indexer.recipe.config import Role
from indexer.recipe.run_options import RunOptions
from search.hits import Answer
from search.index import Index
from search.leases import Leases
from search.query_encoder import QueryEncoder, open_query_encoder
from search.ranking.documents import RankedDocument
from search.ranking.options import SearchOptions, Where, require_queries, require_texts
from search.ranking.ranker import DocumentRanker, EncodedQueries
from search.ranking.reranker import Reranking
from search.shards import ShardOptions, close_hosts, hosted
from search.unit_vectors import Mark, UnitVectors, require_array, require_mark

if TYPE_CHECKING:
    from indexer.arrays import Mask

_FEWEST_RERANKED = 2  # a single hit has no order
_FAISS_THREADS = 1  # faster than many for one query on a flat index

Queries = Sequence[str] | npt.NDArray[np.floating]
"""Texts, raw embeddings (n, d), or the `UnitVectors` (n, k) that `embed` returns for queries."""


@dataclass(frozen=True)
class Opening:
    """How an index is opened; see `SearchEngine`."""

    model: str | Path | None = None
    options: RunOptions = field(default_factory=RunOptions)
    recall: float | None = None
    shards: ShardOptions | None = None
    query_encoder: str | Path | None = None

    def __post_init__(self) -> None:
        if self.shards is not None and not isinstance(self.shards, ShardOptions):
            raise ConfigError(f'shards is "{self.shards}"; expected "ray", ShardOptions or None.')
        if self.recall is not None and not 0 < self.recall <= 1:
            raise ConfigError(f"recall is {self.recall:g}; expected more than 0 and at most 1.")


class OpenIndex:
    """The newest generation of an index when it was opened. Safe to share between threads.

    With `ahead` the index is loaded now and the encoder meanwhile, in its own thread.
    """

    def __init__(self, path: str | Path | Index, opening: Opening, ahead: bool = False) -> None:
        self.opening = opening
        self._encoder: Encoder | None = None
        self._query_encoder: QueryEncoder | None = None
        self._loading: Future[object] | None = None
        self._encoder_lock, self._opening_lock = threading.Lock(), threading.Lock()
        self._of_thread = threading.local()
        self.leases = Leases(self._close_files)
        here = opening.shards is None
        if isinstance(path, Index):
            self.index = path
        else:
            self.index = Index.unchecked(path) if ahead and here else Index.open(path)
        if ahead:
            loader = ThreadPoolExecutor(1, thread_name_prefix=LOADER)
            self._loading = loader.submit(self._load_of_queries)  # half of it is hashing, which needs no GIL
            loader.shutdown(wait=False)
        if opening.shards is not None:
            self.index = hosted(self.index, opening.shards)
        elif ahead:
            self.index = self.index.load()
        self._set_up_segments()
        self.ranker = DocumentRanker(self.index)
        self.reranking = Reranking(self.index.config.rerank, opening.options)

    def newest(self) -> "OpenIndex":
        """Open the newest generation in the same way. It shares the encoders if their hashes agree."""
        if self._loading is not None:
            self._loading.exception()  # it ends, so that what it loads is shared
        newest = OpenIndex(self.index.path, self.opening)
        newest.reranking.take_over(self.reranking)
        if newest.index.manifest.fingerprint == self.index.manifest.fingerprint:
            newest._encoder = self._encoder
            if newest._answers_as(self):
                newest._query_encoder = self._query_encoder
        return newest

    def search(
        self,
        queries: Queries,
        options: SearchOptions,
        texts: Sequence[str] | None = None,
        lengths: Sequence[int] | None = None,
    ) -> tuple[list[Answer[RankedDocument]], EncodeStats]:
        """Return ranked documents and the encoding statistics; `texts` and `lengths` are of queries as embeddings."""
        log = EncodeStats()
        if not isinstance(queries, Sequence):
            self._require_queries(queries, texts, lengths)
            encoded = replace(self._from_array(queries), texts=texts, lengths=lengths)
            encoded.require_for(options)
            if options.prompt is not None:
                raise ConfigError("a prompt is put before texts, but the queries are vectors. Fix: leave it out.")
            return self._reranked(encoded, options, self.allowed(options)), log
        allowed = self.allowed(options)  # raises for an invalid filter before the encoder is loaded
        if not queries:
            return [], log
        return self._reranked(self._from_texts(queries, log, options.prompt), options, allowed), log

    def rank_among(
        self, queries: Sequence[str], candidates: Sequence[Collection[str]], options: SearchOptions
    ) -> list[Answer[RankedDocument]]:
        """Rank for each query only its `candidates`; see `SearchEngine.rank_among`."""
        texts = require_queries(queries)
        if len(candidates) != len(texts):
            raise ConfigError(
                f"{len(candidates):,} candidates for {len(texts):,} queries; expected one list per query."
            )
        candidates = [require_texts(ids, "candidates", "Fix: pass one list per query.") for ids in candidates]
        allowed = self.allowed(options)
        numbers = self.index.ids.find({name for ids in candidates for name in ids})
        encoded, ranked = self._from_texts(texts, EncodeStats(), options.prompt), list[Answer[RankedDocument]]()
        for query, ids in enumerate(candidates):
            mask = np.zeros(len(self.index.documents), bool)
            mask[[numbers[name] for name in ids if name in numbers]] = True
            mask &= True if allowed is None else allowed
            ranked += self._reranked(encoded[query : query + 1], options, mask)
        return ranked

    def neighbours(self, identity: str, options: SearchOptions) -> Answer[RankedDocument]:
        """Rank the documents closest to a stored document, without it."""
        options.require_no_text()
        allowed = self.allowed(options)
        return self.ranker.neighbours(self._number_of(identity), options, allowed)

    def document(self, identity: str) -> Document:
        """Return a stored document. Raises UnknownDocumentError."""
        self.load()
        (document,) = self.index.documents.fetch([self._number_of(identity)])
        return document

    def documents(self, ids: Sequence[str], vectors: bool = False) -> list[Document]:
        """Return the stored documents of some ids, in their order, without unknown ids; see `fetch`."""
        self.load()
        numbers = self.index.ids.find(ids)
        return self.fetch([numbers[identity] for identity in ids if identity in numbers], vectors)

    def numbers(self, where: Where | None) -> Sequence[int]:
        """Return the ascending numbers of the documents that meet a condition."""
        allowed = self.allowed(SearchOptions(where=where))
        if allowed is None:
            return range(self.index.manifest.documents)
        numbers: list[int] = np.flatnonzero(allowed).tolist()
        return numbers

    def fetch(self, numbers: Sequence[int], vectors: bool = False) -> list[Document]:
        """Return the documents of some numbers, in their order, with `vectors` with their stored embeddings."""
        found = self.index.documents.fetch(numbers) if numbers else []
        if not vectors or not found:
            return found
        if not self.index.numbering.one_to_one:
            raise ConfigError(f"{self.index.path}: documents have windows, each with a vector. Fix: leave out vectors.")
        embeddings = self.index.embeddings(np.array(numbers, np.int64))
        return [replace(document, vector=row) for document, row in zip(found, embeddings, strict=True)]

    def embed(self, texts: Sequence[str], role: Role, log: EncodeStats | None) -> UnitVectors:
        """Return marked unit vectors (n, k) of texts, of queries by the query encoder if there is one."""
        texts = require_texts(texts, "texts", "Fix: pass a single text in a list.")
        if role not in get_args(Role):
            raise ConfigError(f'role is {role!r}; expected "query" or "document".')
        mark = Mark(self.index.manifest.space, role)
        if not texts:
            return UnitVectors(np.zeros((0, self.index.transform.dim), np.float32), mark)
        return self.unit_vectors(self.encode(texts, role, log), role)

    def encode(
        self, texts: Sequence[str], role: Role, log: EncodeStats | None = None, prompt: str | None = None
    ) -> npt.NDArray[np.float32]:
        """Return raw embeddings (n, d), or `UnitVectors` (n, k) of queries if there is a query encoder."""
        if role == "query" and (encoder := self.query_encoder):
            return encoder.vectors(texts, log, prompt)
        return with_query_prompt(self.encoder, prompt).encode(texts, role, log)

    def unit_vectors(self, encoded: npt.NDArray[np.float32], role: Role) -> UnitVectors:
        """Return marked unit vectors of what `encode` returned."""
        if isinstance(encoded, UnitVectors):
            return encoded
        return UnitVectors(self.index.transform.transform(encoded, role), Mark(self.index.manifest.space, role))

    @property
    def encoder(self) -> Encoder:
        """The index's own encoder, loaded on first use."""
        with self._encoder_lock:
            self._await_loading()
            if self._encoder is None:
                self._encoder = self._load_encoder()
        self._limit_faiss()
        return self._encoder

    @property
    def query_encoder(self) -> QueryEncoder | None:
        """The encoder of queries if it is not the index's own, loaded on first use."""
        with self._encoder_lock:
            if (spec := self.query_encoder_spec) is None:  # read here, because `encode_queries_by` replaces it
                return None
            self._await_loading()
            if self._query_encoder is None:
                self._query_encoder = open_query_encoder(spec, self.opening.options)
        self._limit_faiss()
        return self._query_encoder

    def encode_queries_by(self, folder: str | Path) -> None:
        """Replace the encoder of queries. Raises as `resolve_query_encoder`."""
        spec = resolve_query_encoder(folder, self.index.manifest) if str(folder) else None
        with self._encoder_lock:
            if self._loading is not None:  # it ends first, and would set the encoder before
                self._loading.exception()
            self._loading, self.opening = None, replace(self.opening, query_encoder=folder)
            self._query_encoder, self.query_encoder_spec = None, spec

    @cached_property
    def query_encoder_spec(self) -> QueryEncoderSpec | None:
        """The chosen or recorded query encoder, None for the index's own. Raises as `resolve_query_encoder`."""
        chosen, recorded = self.opening.query_encoder, self.index.config.queries
        if chosen is not None:
            return resolve_query_encoder(chosen, self.index.manifest) if str(chosen) else None
        return (
            resolve_query_encoder(recorded.encoder, self.index.manifest, recorded.sha256) if recorded.encoder else None
        )

    @property
    def longest_query(self) -> int:
        """Tokens of a query that its encoder reads."""
        spec = self.query_encoder_spec
        return spec.encoder.identity.max_length if spec else self.index.encoder.max_length

    @property
    def loaded_encoder(self) -> Encoder | None:
        """The encoder, if it is loaded."""
        return self._encoder

    def allowed(self, options: SearchOptions) -> "Mask | None":
        """Return a mask (documents,) of the documents that may be found, None for all."""
        self.load()
        self.reranking.depth(options.rerank_depth)
        return self.ranker.allowed(options)

    def load(self) -> None:
        """Read the files that calls share, again if they were closed."""
        with self._opening_lock:
            _ = self.index.transform, self.index.searched, self.index.documents, self.index.stored_embeddings
            if self.leases.closed:  # the segments were opened again
                self._set_up_segments()
                self.leases.closed = False

    def _require_queries(
        self, embeddings: npt.NDArray[np.floating], texts: Sequence[str] | None, lengths: Sequence[int] | None
    ) -> None:
        """Raise ConfigError for embeddings that are no queries of this index, and for texts that do not fit them."""
        if not isinstance(embeddings, UnitVectors):
            require_array(embeddings, self._dim)
        if texts is not None:
            require_queries(texts)
        for name, given in (("texts", texts), ("lengths", lengths)):
            if given is not None and len(given) != len(embeddings):
                raise ConfigError(
                    f"{len(given):,} {name} for {len(embeddings):,} embeddings; expected one per embedding."
                )

    def _close_files(self) -> None:
        self.index.close()
        close_hosts(self.index)

    def _set_up_segments(self) -> None:
        if self.opening.recall is not None:
            self.index.reach_recall(self.opening.recall)
        if self.opening.options.device not in ("auto", "cpu") and self.opening.shards is None:
            self.index.accelerate(self.opening.options.device)

    def _answers_as(self, other: "OpenIndex") -> bool:
        """Return whether the same encoder encodes the queries of another generation."""
        return (self.index.manifest.space, self.index.config.queries) == (
            other.index.manifest.space,
            other.index.config.queries,
        )

    def _load_of_queries(self) -> None:
        """Load the encoder of queries, before one arrives."""
        spec = self.query_encoder_spec
        if spec is None:
            self._encoder = self._load_encoder()
        else:
            self._query_encoder = open_query_encoder(spec, self.opening.options)

    def _await_loading(self) -> None:
        if self._loading is not None:
            self._loading.result()

    def _limit_faiss(self) -> None:
        if not getattr(self._of_thread, "faiss", False):
            ann.set_threads(_FAISS_THREADS)  # FAISS keeps the number for the thread that sets it
            self._of_thread.faiss = True

    def _load_encoder(self) -> Encoder:
        return open_encoder(self.index.encoder_spec(self.opening.model), self.opening.options)

    def _reranked(
        self, queries: EncodedQueries, options: SearchOptions, allowed: "Mask | None"
    ) -> list[Answer[RankedDocument]]:
        """Return ranked documents, the first `rerank_depth` in the reranker's order."""
        depth = self.reranking.depth(options.rerank_depth)
        if depth < _FEWEST_RERANKED:
            return self.ranker.rank(queries, options, allowed)
        if queries.texts is None:
            raise ConfigError(
                "reranking needs the texts of queries, not only their vectors. Fix: give `texts`, or "
                f"{spelled('rerank_depth=0', '--no-rerank')}."
            )
        ranked = self.ranker.rank(queries, replace(options, k=max(options.k, depth)), allowed)
        reranked = self.reranking.answers(self.index, queries.texts, ranked, depth)
        return [answer[: options.k] for answer in reranked]

    def _from_texts(self, texts: Sequence[str], log: EncodeStats, prompt: str | None) -> EncodedQueries:
        encoded = self.encode(texts, "query", log, prompt)
        embeddings = None if isinstance(encoded, UnitVectors) else encoded
        return EncodedQueries(np.asarray(self.unit_vectors(encoded, "query")), embeddings, texts, log.lengths)

    def _from_array(self, given: npt.NDArray[np.floating]) -> EncodedQueries:
        """Return queries from raw embeddings (n, d), or from the vectors (n, k) that `embed` returned."""
        if isinstance(given, UnitVectors):
            require_mark(given, Mark(self.index.manifest.space, "query"), str(self.index.path))
            require_array(given, self.index.transform.dim)
            return EncodedQueries(np.asarray(given, np.float32))
        require_array(given, self._dim)
        return EncodedQueries(self.index.transform.transform(given, "query"), given)

    def _number_of(self, identity: str) -> int:
        number = self.index.ids.find(require_texts([identity], "identity", "")).get(identity)
        if number is None:
            close = self.index.documents.closest_id(identity)
            hint = f' (did you mean "{close}"?)' if close else ""
            raise UnknownDocumentError(f'{self.index.path}: contains no document with id "{identity}"{hint}.')
        return number

    @property
    def _dim(self) -> int:
        return int(self.index.manifest.encoder["dim"])
