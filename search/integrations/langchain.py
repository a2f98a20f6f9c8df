"""Indexes in LangChain (extra `langchain`): a vector store, a retriever and embeddings.

Metadata are columns of the index, and `metadata["title"]` is a document's title. As no column can be called "id" or
"text", metadata with these names are stored as "metadata_id" and "metadata_text", and have their names in results.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.corpus.document import Document
from indexer.corpus.ids import content_id
from indexer.corpus.records import documents_of
from indexer.errors import ConfigError, MismatchError
from indexer.lazy_imports import require_extra
from search.engine import SearchEngine
from search.hits import Answer, Hit
from search.integrations.stores import open_or_create
from search.ranking.options import SEARCH_OPTIONS, Similarity, Where
from search.unit_vectors import UnitVectors

require_extra("langchain_core", "langchain")

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document as LangChainDocument
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import run_in_executor
from langchain_core.vectorstores import VectorStore
from langchain_core.vectorstores.utils import maximal_marginal_relevance
from pydantic import ConfigDict, PrivateAttr

_PREFIX = "metadata_"
_RENAMED = re.compile(rf"({_PREFIX})*(id|text)")  # any number of prefixes, so that every name can be restored
_OPERATORS = {"$eq": "=", "$ne": "!=", "$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<=", "$in": "in",
              "$nin": "not in", "$like": "like", "$ilike": "ilike", "$contains": "contains",
              "$and": "and", "$or": "or", "$not": "not"}  # fmt: skip
_MODEL_NAMES = ("model_name", "model", "model_id")  # attributes of LangChain's embeddings


class IsotropeEmbeddings(Embeddings):
    """The encoder and the transform of an index as embeddings: unit vectors, with the prompts and means of both roles.

    `index` is a path or an engine. Raises the errors of `SearchEngine`.
    """

    def __init__(self, index: SearchEngine | str | Path) -> None:
        self.engine = _opened(index)

    @property
    def model_name(self) -> str:
        """The hashes of the encoder and the transform. Vectors of the same name can be compared."""
        mark = self.engine.embed([]).mark
        return mark.space if mark else ""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return unit vectors of documents."""
        vectors: list[list[float]] = self.engine.embed(texts, "document").tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """Return the unit vector of a query."""
        vector: list[float] = self.engine.embed([text], "query")[0].tolist()
        return vector


class IsotropeRetriever(BaseRetriever):
    """Retrieves the documents that `SearchEngine.search` finds; every search option is a field.

    `index` is a path or an engine with an encoder. An index of given vectors needs
    `IsotropeVectorStore(index, embedding).as_retriever()`. With `windows` a document of an index with windows has the
    text of the window that matched. `invoke` and `ainvoke` take other options by name. Raises ConfigError.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    index: SearchEngine | str | Path
    windows: bool = False
    k: int = 4
    where: Where | None = None
    group_by: str | None = None
    min_score: float | None = None
    prompt: str | None = None
    exact: bool = False
    hybrid: bool = False
    similarity: Similarity = "cosine"
    partial: bool = False
    fold: float | None = None
    hybrid_weight: float | None = None
    rerank_depth: int | None = None
    _engine: SearchEngine = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Open the index."""
        self._engine = _opened(self.index)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **options: Any
    ) -> list[LangChainDocument]:
        return self._find(query, **options)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **options: Any
    ) -> list[LangChainDocument]:
        return await run_in_executor(None, self._find, query, **options)

    def _find(self, query: str, **options: Any) -> list[LangChainDocument]:
        fields: dict[str, Any] = {option.name: getattr(self, option.name) for option in SEARCH_OPTIONS} | options
        hits = self._engine.search(query, **fields)
        if self.windows:
            hits = Answer([replace(hit, text=hit.window.text) if hit.window else hit for hit in hits])
        return [_to_langchain(hit) for hit in hits]


class IsotropeVectorStore(VectorStore):
    """An index as a vector store.

    `index` is a path or an engine; without it the store lies in a temporary folder. With `embedding` the index holds
    the vectors of these embeddings, and a path without an index becomes an empty one. Without `embedding`, or with
    `IsotropeEmbeddings` of the index, the index encodes texts by its own model.

    Searches take the options of `SearchEngine.search` by name, and return its scores: higher is better. `filter` is an
    SQL condition, or a dict of `search.filters.conditions` with names of metadata, and with "$gt" for ">" and so on.
    Each call of `add_texts`, `add_documents` and `delete` writes one generation of the index.

    Raises ConfigError for embeddings that the index does not need, or lacks; MismatchError if its vectors come from
    another class of embeddings or another model; and the errors of the engine.
    """

    def __init__(self, index: SearchEngine | str | Path | None = None, embedding: Embeddings | None = None) -> None:
        self.engine = _opened_or_new(index, embedding)
        _require_same(self.engine, embedding)
        self._encodes = self.engine.index.config.encoder.traits.encodes_texts
        self._embedding = IsotropeEmbeddings(self.engine) if self._encodes or embedding is None else embedding

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        index: SearchEngine | str | Path | None = None,
        **inputs: Any,
    ) -> "IsotropeVectorStore":
        """Return a store with the texts, in the index of a path or an engine, or in a temporary folder.

        Without `embedding`, a new index is built by its own model, and `inputs` are those of `SearchEngine.from_texts`,
        such as `model="BAAI/bge-small-en-v1.5"`. Raises ExistsError if the path contains an index already.
        """
        if embedding is None and not isinstance(index, SearchEngine):
            index = SearchEngine.from_texts([], index, **inputs)
        elif inputs:
            raise ConfigError(f"{', '.join(inputs)}: these apply only to a new index with its own encoder.")
        store = cls(index, embedding)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    @classmethod
    def from_documents(
        cls, documents: list[LangChainDocument], embedding: Embeddings | None = None, **kwargs: Any
    ) -> "IsotropeVectorStore":
        """Return a store with the documents; the other arguments are those of `from_texts`."""
        texts, metadatas = [each.page_content for each in documents], [each.metadata for each in documents]
        ids = [each.id for each in documents]
        store = cls.from_texts([], embedding, **kwargs)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    @property
    def embeddings(self) -> Embeddings:
        """The embeddings of texts and queries."""
        return self._embedding

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Add texts as one generation, and return their ids. A known id replaces its document.

        A text without an id gets the hash of its content, so a repeated text with the same metadata is stored once.
        Other arguments are ignored. Raises ConfigError for other numbers of metadata or ids, and as `SearchEngine.add`.
        """
        texts = list(texts)
        for name, given in (("metadatas", metadatas), ("ids", ids)):
            if given and len(given) != len(texts):
                raise ConfigError(f"{len(given):,} {name} for {len(texts):,} texts; expected one for each.")
        if not texts:
            return []
        vectors = None if self._encodes else np.asarray(self.embeddings.embed_documents(texts))
        columns = [_to_columns(metadata) for metadata in metadatas or [{}] * len(texts)]
        drafts = (Document(f"text {number}", text, *columns[number - 1]) for number, text in enumerate(texts, start=1))
        documents = list(documents_of(drafts, self.engine.index.config.corpus, vectors))
        known = ids or [None] * len(texts)
        names = [name or content_id(replace(doc, vector=None)) for name, doc in zip(known, documents, strict=True)]
        last = {name: replace(doc, id=name) for name, doc in zip(names, documents, strict=True)}
        self.engine.add(last.values())
        return names

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Delete documents by id, or all if `ids` is None, as one generation. Unknown ids are ignored."""
        names = [document.id for document in self.engine.find()] if ids is None else ids
        self.engine.delete(names, ignore_missing=True)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[LangChainDocument]:
        """Return the stored documents of some ids, in their order, without unknown ones."""
        return [_to_langchain(document) for document in self.engine.documents(ids)]

    def similarity_search(
        self, query: str, k: int = 4, filter: Where | None = None, **options: Any
    ) -> list[LangChainDocument]:
        """Return the documents closest to a query, best first."""
        return [document for document, _ in self.similarity_search_with_score(query, k, filter, **options)]

    def similarity_search_with_score(
        self, query: str, k: int = 4, filter: Where | None = None, **options: Any
    ) -> list[tuple[LangChainDocument, float]]:
        """Return (document, score), best first."""
        options = {"k": k, "where": _to_where(filter)} | options
        if self._encodes:
            hits = self.engine.search(query, **options)
        else:
            vector = self._query_row(self.embeddings.embed_query(query))
            (hits,) = self.engine.search_vectors(vector, texts=[query], **options)
        return [(_to_langchain(hit), hit.score) for hit in hits]

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, filter: Where | None = None, **options: Any
    ) -> list[LangChainDocument]:
        """Return the documents closest to a vector that `embeddings.embed_query` returned."""
        (hits,) = self.engine.search_vectors(self._query_row(embedding), k=k, where=_to_where(filter), **options)
        return [_to_langchain(hit) for hit in hits]

    def max_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **options: Any
    ) -> list[LangChainDocument]:
        """Return k of the `fetch_k` closest documents that differ from each other, by maximal marginal relevance."""
        vector = self.embeddings.embed_query(query)
        return self.max_marginal_relevance_search_by_vector(vector, k, fetch_k, lambda_mult, **options)

    def max_marginal_relevance_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Where | None = None,
        **options: Any,
    ) -> list[LangChainDocument]:
        """Return documents as `max_marginal_relevance_search` does, by the vectors of the index."""
        query = self._query_row(embedding)
        (ranked,) = self.engine.rank(query, k=max(k, fetch_k), where=_to_where(filter), **options)
        index = self.engine.index
        vectors = index.vectors(np.array([hit.row for hit in ranked], np.int64))
        unit = query if isinstance(query, UnitVectors) else index.transform.transform(query, "query")
        chosen = maximal_marginal_relevance(np.asarray(unit), list(vectors), lambda_mult, k)
        (hits,) = self.engine.hits([Answer([ranked[place] for place in chosen])])
        return [_to_langchain(hit) for hit in hits]

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        """Return the function from cosines, -1 to 1, to LangChain's relevance, 0 to 1."""
        return lambda score: min(1.0, max(0.0, (1.0 + score) / 2.0))  # rounding can exceed 1

    def _query_row(self, vector: Sequence[float]) -> npt.NDArray[np.float32]:
        """Return a query's vector (1, d) for the engine, marked as a unit vector of the index if it is one."""
        row = np.asarray(vector, np.float32)[None]
        mark = self.engine.embed([]).mark if self._encodes else None
        return UnitVectors(row, mark) if mark else row


def _opened(index: SearchEngine | str | Path) -> SearchEngine:
    return index if isinstance(index, SearchEngine) else SearchEngine(index)


def _opened_or_new(index: SearchEngine | str | Path | None, embedding: Embeddings | None) -> SearchEngine:
    """Return the engine of an index, or with an embedding or without a path, of a new index without documents."""
    if isinstance(index, SearchEngine):
        return index
    if embedding is not None:
        return open_or_create(index, _names(embedding)[0])
    return SearchEngine(index) if index else SearchEngine.from_texts([])


def _names(embedding: Embeddings) -> tuple[str, str]:
    """Return the name of embeddings in recipes, their class and model, and the name of the model alone."""
    embedding = getattr(embedding, "underlying_embeddings", embedding)  # of a cache
    names = [getattr(embedding, name, None) for name in _MODEL_NAMES]
    model = next((name for name in names if isinstance(name, str)), "")
    return f"{type(embedding).__name__} {model}".strip(), model


def _require_same(engine: SearchEngine, embedding: Embeddings | None) -> None:
    """Raise ConfigError or MismatchError unless an index holds the vectors of these embeddings."""
    path, encoder = engine.index.path, engine.index.config.encoder
    if encoder.traits.encodes_texts:
        own = IsotropeEmbeddings(engine).model_name
        if embedding is None or (isinstance(embedding, IsotropeEmbeddings) and embedding.model_name == own):
            return
        raise ConfigError(
            f"{path}: encodes texts with its own model, {encoder.model}; expected no embedding, not "
            f"{_names(embedding)[0]}. Fix: leave embedding out, or use another index for these embeddings."
        )
    if embedding is None:
        of = f' of "{encoder.model}"' if encoder.model else ""
        raise ConfigError(f"{path}: contains vectors{of}; expected the embedding that computes them. Fix: pass it.")
    if encoder.model not in ("", *_names(embedding)):
        raise MismatchError(
            f'{path}: contains vectors of "{encoder.model}"; expected an embedding of that class and model, not '
            f'"{_names(embedding)[0]}". Fix: pass that embedding, or use another index for this one.'
        )


def _to_columns(metadata: Mapping[Any, Any]) -> tuple[Any, dict[Any, Any]]:
    """Return the title and the metadata columns of an index."""
    columns = {_column(name): value for name, value in metadata.items()}
    return columns.pop("title", None), columns


def _column(name: Any) -> Any:
    return f"{_PREFIX}{name}" if isinstance(name, str) and _RENAMED.fullmatch(name) else name


def _to_where(given: Any) -> Any:
    """Return a filter of LangChain programs as the engine's; conditions in SQL stay."""
    if isinstance(given, Mapping):
        return {_OPERATORS.get(key) or _column(key): _to_where(value) for key, value in given.items()}
    return [_to_where(each) for each in given] if isinstance(given, list | tuple) else given


def _to_langchain(found: Hit | Document) -> LangChainDocument:
    renamed = {name: name.removeprefix(_PREFIX) for name in found.metadata if _RENAMED.fullmatch(name)}
    metadata = {renamed.get(name, name): value for name, value in found.metadata.items()}
    title = {} if found.title is None else {"title": found.title}
    return LangChainDocument(found.text, id=found.id, metadata=title | metadata)
