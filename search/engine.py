"""The query side: encode and transform as the build did, search with FAISS, and read the documents."""

import math
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

import numpy as np
import numpy.typing as npt

from indexer.corpus.document import Document
from indexer.encoders.protocol import Encoder, EncodeStats
from indexer.errors import ConfigError, StoreError
from indexer.progress import Progress
from indexer.recipe.config import Role
from indexer.recipe.run_options import RunOptions
from indexer.typed_arguments import checked
from search.hits import Answer, Hit
from search.index import Index
from search.open_index import OpenIndex, Opening, Queries
from search.ranking.documents import RankedDocument
from search.ranking.fetch import fetch_hits
from search.ranking.options import SearchFields, SearchOptions, Where, require_queries, require_texts
from search.ranking.reranker import RerankerChoice
from search.shards import ShardOptions
from search.unit_vectors import UnitVectors

if TYPE_CHECKING:  # a search needs no module that writes
    from indexer.corpus.records import Records
    from indexer.pipeline.add import AddReport
    from indexer.pipeline.build import BuildReport
    from indexer.pipeline.build_inputs import BuildInputs, Recipe
    from indexer.pipeline.delete import DeleteReport
    from indexer.pipeline.sync import SyncReport
    from search.filters.facets import ColumnFacet

Result = TypeVar("Result")


class SearchEngine:
    """An open index that answers queries. It opens the newest generation and stays with it. If `compact` removes the
    files of that generation, the engine continues with the newest one, or raises StoreError if `follows` was set to
    False. `newest` returns an engine of a later generation. An open `Index`, such as
    `Index.open(path, generation=3)`, is searched instead of the newest generation, and not followed.

    `model` is the model's folder if it has moved; its hashes must equal the index's. The encoder and the transform come
    from the index. `recall` sets another recall@10 than the recipe's, by the search parameters that the build measured.
    With `ahead` the index is loaded now and the encoder meanwhile, in its own thread, so the first answer comes sooner.
    With `shards` each segment is opened and searched by its own process, on this machine or others (`search.shards`),
    with the same answers. Raises NotAnIndexError, CorruptIndexError, StoreError, ConfigError for an unreachable recall,
    and on first use of the encoder ModelError or MismatchError. A lost process raises ShardLostError, unless
    `SearchOptions.partial` is set.

    Safe to share between threads: every method, including `close`, may be called from any thread at any time, with the
    same answers. Searches run concurrently; reading documents, evaluating a filter, torch and writes run one at a
    time.
    """

    built: "BuildReport | None" = None
    """The report of the build, for engines from `from_texts`."""
    _folder: "TemporaryFolder | None" = None

    @checked
    def __init__(
        self,
        index: str | Path | Index,
        model: str | Path | None = None,
        options: RunOptions | None = None,
        ahead: bool = False,
        recall: float | None = None,
        shards: ShardOptions | Literal["ray"] | None = None,
    ) -> None:
        hosts = ShardOptions() if shards == "ray" else shards
        self._open = OpenIndex(index, Opening(model, options or RunOptions(), recall, hosts), ahead)
        self.follows = not isinstance(index, Index)
        self._following, self._writing = threading.Lock(), threading.RLock()

    @classmethod
    @checked
    def from_texts(
        cls,
        texts: "Records",
        index: str | Path | None = None,
        config: "Recipe | None" = None,
        options: RunOptions | None = None,
        **inputs: "Unpack[BuildInputs]",
    ) -> "SearchEngine":
        """Build an index of texts, and return an engine of it.

        `texts` are strings, dicts, `Document`s, an Arrow table, a pandas or polars frame, an iterable of these, or the
        `Path` of a corpus. The other arguments are those of `indexer.build_index`, whose errors are raised. Without
        `index` the index is in a temporary folder, which is removed with its last engine. `built` has the report of the
        build.
        """
        from indexer.corpus.sources import COMPRESSIONS, FORMATS
        from indexer.pipeline.build import build_index

        if isinstance(texts, str):
            expected = f'a list of texts, such as ["{texts[:20]}"]'
            is_path = Path(texts).suffix.lower() in {*FORMATS, *COMPRESSIONS} or os.path.exists(texts)  # noqa: PTH110
            if is_path:
                expected = f'texts, or the path of a corpus. Fix: pass Path("{texts}")'
            raise ConfigError(f"texts is one string; expected {expected}.")
        folder = None
        if index is None:
            folder = TemporaryFolder()
            index = folder.path
        report = build_index(texts, index, config, options, **inputs)
        engine = cls(index, options=options)
        engine.built, engine._folder = report, folder
        return engine

    def __len__(self) -> int:
        """Number of documents."""
        return self.index.manifest.documents

    def __repr__(self) -> str:
        return f"SearchEngine({self.index!r})"

    def _repr_html_(self) -> str:
        return self.index._repr_html_()

    def __enter__(self) -> "SearchEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the index's files once no call uses them; a later search opens them again."""
        self._open.leases.close()

    @property
    def index(self) -> Index:
        """The index files behind this engine."""
        return self._open.index

    @property
    def encoder(self) -> Encoder:
        """The index's own encoder, loaded on first use and only if it equals the index's."""
        return self._open.encoder

    @property
    def longest_query(self) -> int:
        """Tokens of a query that its encoder reads: the query encoder if there is one, else the index's own."""
        return self._open.longest_query

    @checked
    def encode(
        self, texts: Sequence[str], role: Role = "query", log: EncodeStats | None = None, prompt: str | None = None
    ) -> npt.NDArray[np.float32]:
        """Return raw embeddings (n, d) of texts, or `UnitVectors` (n, k) of queries if there is a query encoder.

        `search_vectors` takes both. `prompt` is put before queries, as that of `SearchOptions`.
        """
        return self._open.encode(require_texts(texts, "texts", "Fix: pass a single text in a list."), role, log, prompt)

    @checked
    def check(self, options: SearchOptions | int | None = None, **fields: Unpack[SearchFields]) -> None:
        """Raise ConfigError for options, filters or columns that a search would refuse."""
        chosen = SearchOptions.of(options, fields)
        self._with(lambda index: index.allowed(chosen))

    @checked
    def facets(
        self, where: Where | None = None, columns: Collection[str] = (), seconds: float = math.inf
    ) -> "list[ColumnFacet]":
        """Return facets of metadata columns over the documents that meet a condition (see `column_facets`)."""
        from search.filters.facets import column_facets

        options = SearchOptions(where=where)
        return self._with(
            lambda open_: column_facets(open_.index, among=open_.allowed(options), names=columns, seconds=seconds)
        )

    @checked
    def encode_queries_by(self, folder: str | Path) -> None:
        """Encode queries by this query encoder from now on instead of the recipe's, or by the index's own for "".

        `folder` is from `distill_index` or `map_index`. Raises ModelError for another folder, and MismatchError for a
        query encoder of other vectors.
        """
        with self._following:  # the next generation, opened meanwhile, would keep the one before
            self._open.encode_queries_by(folder)

    @checked
    def rerank_by(self, reranker: RerankerChoice) -> None:
        """Rerank with this reranker from now on instead of the recipe's.

        `reranker` is the hub id or folder of a cross-encoder, or a loaded `Reranker`. Raises ConfigError, ModelError
        and MachineError.
        """
        self._open.reranking.replace(reranker)

    @checked
    def prepare_hybrid(self, progress: Progress) -> None:
        """Build BM25 of all documents for the first hybrid query, unless the cache contains it.

        Raises MachineError if bm25s or PyStemmer is not installed.
        """

        def prepare(index: OpenIndex) -> None:
            index.load()
            index.ranker.hybrid(progress)

        self._with(prepare)

    @checked
    def search(
        self, query: str, options: SearchOptions | int | None = None, **fields: Unpack[SearchFields]
    ) -> Answer[Hit]:
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
        **fields: Unpack[SearchFields],
    ) -> list[Answer[Hit]]:
        """Search for several queries in one batch. Scores equal those of `search` up to the encoder's rounding."""
        return self._search(require_queries(queries), SearchOptions.of(options, fields), log)

    @checked
    def search_vectors(
        self,
        embeddings: npt.ArrayLike,
        options: SearchOptions | int | None = None,
        texts: Sequence[str] | None = None,
        lengths: Sequence[int] | None = None,
        **fields: Unpack[SearchFields],
    ) -> list[Answer[Hit]]:
        """Search as `search_many` does, by the encoder's raw embeddings (n, d) of queries, or by one (d,).

        `texts` (n,) are the queries, which `hybrid` needs. `lengths` (n,) are their tokens from `EncodeStats`; 0 means
        no known token, and `hybrid` then uses BM25 alone. `embeddings` may also be the `UnitVectors` that `embed` of
        this index returned for queries. Raises ConfigError for other `UnitVectors`, for arrays that are not (n, d),
        numeric and finite, and for another number of texts or lengths.
        """
        chosen = SearchOptions.of(options, fields)
        return self._search(_rows(embeddings), chosen, None, texts, lengths)

    @checked
    def hits(
        self, ranked: Sequence[Answer[RankedDocument]], on_read: Callable[[int], None] | None = None
    ) -> list[Answer[Hit]]:
        """Return ranked documents of the open generation with their texts and metadata.

        `on_read` is called every few documents with the bytes read so far, and may raise to stop reading. Document
        numbers differ between generations: an engine that follows (`follows`) may have opened another since `rank`.
        """
        opened = self._open
        with opened.leases.lease():
            return fetch_hits(opened.index, ranked, on_read)

    @checked
    def rank(
        self,
        queries: Queries,
        options: SearchOptions | int | None = None,
        log: EncodeStats | None = None,
        texts: Sequence[str] | None = None,
        lengths: Sequence[int] | None = None,
        **fields: Unpack[SearchFields],
    ) -> list[Answer[RankedDocument]]:
        """Rank documents as `search_many` or `search_vectors` does, without reading their texts.

        Documents are numbers in `index` after the call. `texts` and `lengths` are those of embeddings. Raises the
        errors of those methods.
        """
        chosen = SearchOptions.of(options, fields)
        given = _rows(queries) if isinstance(queries, np.ndarray) else require_queries(queries)
        ranked, stats = self._with(lambda index: index.search(given, chosen, texts, lengths))
        if log is not None:
            log.add(stats)
        return ranked

    @checked
    def rank_among(
        self,
        queries: Sequence[str],
        candidates: Sequence[Collection[str]],
        options: SearchOptions | int | None = None,
        **fields: Unpack[SearchFields],
    ) -> list[Answer[RankedDocument]]:
        """Rank for each query only its `candidates`, a list of document ids; unknown ids are ignored.

        Unlike a filter, a list can have any number of ids. Raises the errors of `search_many`, and ConfigError for
        candidates that are not one list of ids per query.
        """
        chosen = SearchOptions.of(options, fields)
        return self._with(lambda index: index.rank_among(queries, candidates, chosen))

    @checked
    def neighbours(
        self, identity: str, options: SearchOptions | int | None = None, **fields: Unpack[SearchFields]
    ) -> Answer[Hit]:
        """Return the documents closest to a stored document, without it, by its stored vectors; encodes nothing.

        Raises UnknownDocumentError, a ConfigError, for an id that the index does not contain.
        """
        chosen = SearchOptions.of(options, fields)
        return self._with(lambda open_: fetch_hits(open_.index, [open_.neighbours(identity, chosen)])[0])

    @checked
    def rank_neighbours(
        self, identity: str, options: SearchOptions | int | None = None, **fields: Unpack[SearchFields]
    ) -> Answer[RankedDocument]:
        """Rank documents as `neighbours` does, without reading their texts."""
        chosen = SearchOptions.of(options, fields)
        return self._with(lambda index: index.neighbours(identity, chosen))

    @checked
    def document(self, identity: str) -> Document:
        """Return a stored document as it was indexed. Raises UnknownDocumentError."""
        return self._with(lambda index: index.document(identity))

    @checked
    def documents(self, ids: Sequence[str], vectors: bool = False) -> list[Document]:
        """Return the stored documents of some ids, in their order. Ids that the index does not contain are left out.

        With `vectors` each has its stored embedding as `vector`. Raises ConfigError for `vectors` of an index with
        windows, whose documents have several.
        """
        names = require_texts(ids, "ids", "Fix: for a single document, call document.")
        return self._with(lambda index: index.documents(names, vectors))

    @checked
    def find(self, where: Where | None = None, limit: int | None = None, vectors: bool = False) -> list[Document]:
        """Return the stored documents that meet a condition, all or the first `limit`, in the order of the index.

        `vectors` is that of `documents`. Raises ConfigError for an invalid condition.
        """
        return self._with(lambda index: index.fetch(index.numbers(where)[:limit], vectors))

    @checked
    def count(self, where: Where | None = None) -> int:
        """Return the number of documents that meet a condition. Raises ConfigError for an invalid one."""
        return self._with(lambda index: len(index.numbers(where)))

    @checked
    def embed(self, texts: Sequence[str], role: Role = "query", log: EncodeStats | None = None) -> UnitVectors:
        """Return unit vectors (n, k) of texts by the index's encoder and transform.

        They carry a mark that distinguishes them from raw embeddings (`UnitVectors`), which `encoder.encode` returns.
        """
        return self._with(lambda index: index.embed(texts, role, log))

    def newest(self) -> "SearchEngine":
        """Return an engine of the newest generation with the settings of this one, even if it is the same generation.

        The two share an encoder if their fingerprints agree. Raises the errors of opening an index.
        """
        newest = object.__new__(SearchEngine)
        newest._open, newest.follows = self._open.newest(), self.follows
        newest._following, newest._writing = threading.Lock(), threading.RLock()
        newest.built, newest._folder = self.built, self._folder
        return newest

    @checked
    def add(self, documents: "Records", vectors: npt.ArrayLike | None = None) -> "AddReport":
        """Add documents, or replace those with a known id, and answer from the changed index.

        The arguments and errors are those of `indexer.add_documents`. Add many documents in one call: each call writes
        a generation of the index.
        """
        from indexer.pipeline.add import add_documents

        with self._writing:
            opened = self._open
            model, encoder = opened.opening.model, opened.loaded_encoder
            report = add_documents(
                documents, opened.index.path, opened.opening.options, model=model, vectors=vectors, encoder=encoder
            )
            self._take_over()
        return report

    @checked
    def update(self, changes: Iterable[Mapping[str, Any]]) -> "AddReport":
        """Change columns of stored documents, and answer from the changed index.

        Each change is a dict with the id and the columns to change: `{"id": "a17", "year": 2024}`. None removes a
        value. Texts that stay the same are not encoded again. Raises UnknownDocumentError, and as `add`.
        """
        from search.updates import updated_documents

        with self._writing:
            if self.index.is_followed:
                self._take_over()  # columns that another program has changed must not go back
            return self.add(self._with(lambda open_: list(updated_documents(open_.index, changes))))

    @checked
    def delete(self, ids: Sequence[str], ignore_missing: bool = False) -> "DeleteReport":
        """Delete documents by id, and answer from the changed index. Raises as `indexer.delete_documents`."""
        from indexer.pipeline.delete import delete_documents

        with self._writing:
            report = delete_documents(self.index.path, ids, ignore_missing)
            self._take_over()
        return report

    @checked
    def sync(self, documents: "Records", force: bool = False) -> "SyncReport":
        """Make the index equal to these documents, and answer from it: add, replace and delete in one generation.

        The arguments and errors are those of `indexer.sync_index`.
        """
        from indexer.pipeline.sync import sync_index

        with self._writing:
            opened = self._open
            path, options, model = opened.index.path, opened.opening.options, opened.opening.model
            report = sync_index(
                documents, path, options=options, force=force, model=model, encoder=opened.loaded_encoder
            )
            self._take_over()
        return report

    def _take_over(self) -> None:
        """Open the generation that this engine has published; calls that run keep theirs."""
        with self._following:
            opened, self._open = self._open, self._open.newest()
        opened.leases.close(for_good=True)

    def _search(
        self,
        queries: Queries,
        options: SearchOptions,
        log: EncodeStats | None,
        texts: Sequence[str] | None = None,
        lengths: Sequence[int] | None = None,
    ) -> list[Answer[Hit]]:
        """Return the hits, ranked and read in one generation."""

        def answer(open_: OpenIndex) -> tuple[list[Answer[Hit]], EncodeStats]:
            ranked, stats = open_.search(queries, options, texts, lengths)
            return fetch_hits(open_.index, ranked), stats

        hits, stats = self._with(answer)
        if log is not None:
            log.add(stats)
        return hits

    def _with(self, answer: Callable[[OpenIndex], Result]) -> Result:
        """Return an answer of the open generation, or of the next one if `compact` has removed files of this one."""
        while True:
            opened = self._open
            try:
                with opened.leases.lease():
                    return answer(opened)
            except StoreError:
                if not self._follow(opened):
                    raise

    def _follow(self, opened: OpenIndex) -> bool:
        """Replace `opened` by the newest generation; return False if there is no later one."""
        if not self.follows or not opened.index.is_followed:
            return False
        with self._following:
            if self._open is opened:
                self._open = opened.newest()
        opened.leases.close(for_good=True)
        return True


class TemporaryFolder:
    """A folder that is removed with this object, or at the end of the program."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="isotrope-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def _rows(vectors: npt.ArrayLike) -> npt.NDArray[np.floating]:
    """Return vectors as an array (n, d); one vector (d,) is one row."""
    try:
        array = vectors if isinstance(vectors, np.ndarray) else np.asarray(vectors)
    except ValueError as error:
        raise ConfigError("query vectors have different lengths; expected an array (n, d).") from error
    return array[None] if array.ndim == 1 else array
