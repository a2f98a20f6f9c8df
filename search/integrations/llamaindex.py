"""Indexes in LlamaIndex (extra `llamaindex`): a vector store.

Nodes come back as they were added; their metadata are also columns for filters (`search.integrations.metadata`).
`metadata["title"]` is the title of a document.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from indexer.corpus.document import Document
from indexer.errors import ConfigError
from indexer.lazy_imports import require_extra
from search.engine import SearchEngine
from search.hits import Hit
from search.integrations.metadata import Columns, all_of
from search.integrations.stores import in_thread, open_or_create, search_by_words

require_extra("llama_index.core", "llamaindex")

from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.indices.query.embedding_utils import get_top_k_mmr_embeddings
from llama_index.core.schema import BaseNode, MetadataMode, TextNode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

_NODE = ("_node_content", "_node_type")  # columns: a node without its text, and its class
_MMR_DEPTH = 4  # times k candidates for maximal marginal relevance
_SIGNS = {FilterOperator.NIN: "not in", FilterOperator.TEXT_MATCH: "contains",
          FilterOperator.TEXT_MATCH_INSENSITIVE: "icontains"}  # fmt: skip
_OF_LISTS = (FilterOperator.IN, FilterOperator.NIN, FilterOperator.ANY, FilterOperator.ALL)
_WORDS = (VectorStoreQueryMode.SPARSE, VectorStoreQueryMode.TEXT_SEARCH)
_BY_VECTOR = (VectorStoreQueryMode.DEFAULT, VectorStoreQueryMode.HYBRID, VectorStoreQueryMode.MMR)


class IsotropeVectorStore(BasePydanticVectorStore):
    """An index as a vector store. Each call of `add`, `delete`, `delete_nodes` and `clear` writes one generation.

    `index` is the path of an index; a path without one becomes an empty index of the embeddings that nodes bring.
    Without `index` the store lies in a temporary folder.

    Queries have the modes DEFAULT; SPARSE and TEXT_SEARCH (BM25); HYBRID, whose `alpha` is the weight of the
    embeddings; and MMR. Filters have every operator, and may be nested. Raises ValueError for other modes, and the
    errors of the engine.
    """

    stores_text: bool = True
    index: str | None = None
    _engine: SearchEngine = PrivateAttr()

    def __init__(self, index: str | None = None, **fields: Any) -> None:
        super().__init__(**(fields | {"index": index}))
        self._engine = open_or_create(index)

    @classmethod
    def class_name(cls) -> str:
        """Return the name in serialised stores."""
        return "IsotropeVectorStore"

    @property
    def client(self) -> SearchEngine:
        """The engine of the index."""
        return self._engine

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Add nodes with their embeddings, and return their ids. A known id replaces its node."""
        columns = self._columns()
        documents = {node.node_id: _to_document(node, columns) for node in nodes}
        if documents:
            self._engine.add(list(documents.values()))
        return [node.node_id for node in nodes]

    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """Return the nodes of some ids that match filters, with their embeddings."""
        return [_to_node(each, each.vector) for each in self._engine.find(self._where(filters, node_ids), vectors=True)]

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Delete the nodes of a source document."""
        self._delete(self._where(None, documents=[ref_doc_id]))

    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any
    ) -> None:
        """Delete the nodes of some ids that match filters; with neither, all nodes."""
        self._delete(self._where(filters, node_ids))

    def clear(self) -> None:
        """Delete all nodes. The next embeddings may have another length."""
        self._delete({})

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Return the best nodes, with scores of which higher is better: cosines, of SPARSE BM25.

        MMR takes `mmr_threshold`, of the query or by name, and chooses among 4 times k nodes, or `mmr_prefetch_k`.
        """
        where = self._where(query.filters, query.node_ids or None, query.doc_ids)  # retrievers pass [] for all nodes
        k, mode, text = query.similarity_top_k, query.mode, query.query_str
        if mode in _WORDS:
            hits = search_by_words(self._engine, text or "", k=query.sparse_top_k or k, where=where)
            return _result([(hit, hit.parts.bm25 if hit.parts else hit.score) for hit in hits])
        if mode not in _BY_VECTOR:
            known = ", ".join(each.value for each in (*_BY_VECTOR, *_WORDS))
            raise ValueError(f"the query mode {mode.value} is unknown; expected {known}.")
        if query.query_embedding is None:
            raise ConfigError(f"the query has no query_embedding, which the mode {mode.value} needs.")
        options: dict[str, Any] = {"k": k, "where": where}
        if mode == VectorStoreQueryMode.HYBRID:
            options |= {"k": query.hybrid_top_k or k, "hybrid": True, "hybrid_weight": query.alpha}
        elif mode == VectorStoreQueryMode.MMR:
            options["k"] = max(k, kwargs.get("mmr_prefetch_k") or _MMR_DEPTH * k)
        (hits,) = self._engine.search_vectors(query.query_embedding, texts=None if text is None else [text], **options)
        if mode != VectorStoreQueryMode.MMR:
            return _result([(hit, hit.score) for hit in hits])
        threshold = kwargs.get("mmr_threshold", query.mmr_threshold)
        return _result(self._diverse(query.query_embedding, hits, k, threshold))

    # mypy takes the self of the base class.
    async_add, adelete, adelete_nodes = in_thread(add), in_thread(delete), in_thread(delete_nodes)  # type: ignore[arg-type]
    aget_nodes, aclear, aquery = in_thread(get_nodes), in_thread(clear), in_thread(query)  # type: ignore[arg-type]

    def _diverse(
        self, embedding: list[float], hits: Sequence[Hit], k: int, threshold: float | None
    ) -> list[tuple[Hit, float]]:
        """Return k of the hits by LlamaIndex's maximal marginal relevance, with its scores."""
        found = {hit.id: hit for hit in hits}
        documents = self._engine.documents(list(found), vectors=True)
        vectors: list[Any] = [document.vector for document in documents]
        ids = [document.id for document in documents]
        scores, chosen = get_top_k_mmr_embeddings(
            embedding, vectors, similarity_top_k=k, embedding_ids=ids, mmr_threshold=threshold
        )
        return [(found[identity], float(score)) for identity, score in zip(chosen, scores, strict=True)]

    def _delete(self, where: Mapping[str, Any]) -> None:
        if found := self._engine.find(where):
            self._engine.delete([document.id for document in found], ignore_missing=True)

    def _where(
        self, filters: MetadataFilters | None, ids: list[str] | None = None, documents: list[str] | None = None
    ) -> Mapping[str, Any]:
        columns = self._columns()
        return all_of(
            {} if filters is None else _condition(filters, columns),
            {} if ids is None else {"id": ids},
            {} if documents is None else columns.where("ref_doc_id", "in", documents),
        )

    def _columns(self) -> Columns:
        return Columns(self._engine.index.documents.schema, _NODE)


def _condition(filters: MetadataFilter | MetadataFilters, columns: Columns) -> Mapping[str, Any]:
    """Return filters as a condition of `search.filters.conditions`; NOT excludes documents that match any filter."""
    if isinstance(filters, MetadataFilter):
        return _comparison(filters.key, filters.operator, filters.value, columns)
    inner = [_condition(each, columns) for each in filters.filters]
    word = filters.condition.value if filters.condition and inner else "and"
    return {"not": {"or": inner}} if word == "not" else {word: inner}


def _comparison(key: str, operator: FilterOperator, value: Any, columns: Columns) -> Mapping[str, Any]:
    if operator == FilterOperator.IS_EMPTY:
        return columns.empty(key)
    if operator in _OF_LISTS and not isinstance(value, list):
        raise ConfigError(f'the filter of "{key}" has the operator {operator.value} and {value!r}; expected a list.')
    if operator in (FilterOperator.ANY, FilterOperator.ALL):
        contained = [columns.where(key, "contains", each) for each in value]
        return {"or" if operator == FilterOperator.ANY else "and": contained}
    return columns.where(key, _SIGNS.get(operator, operator.value), value)


def _to_document(node: BaseNode, columns: Columns) -> Document:
    metadata = node_to_metadata_dict(node, remove_text=True)
    own = {name: metadata.pop(name) for name in _NODE}
    fields = columns.of(metadata)
    text, vector = node.get_content(metadata_mode=MetadataMode.NONE), np.asarray(node.get_embedding(), np.float32)
    return Document(node.node_id, text, fields.pop("title", None), fields | own, vector)


def _to_node(found: Hit | Document, vector: Any = None) -> BaseNode:
    if _NODE[0] in found.metadata:
        node = metadata_dict_to_node(found.metadata, found.text or None)
    else:  # of an index that LlamaIndex has not written
        node = TextNode(id_=found.id, text=found.text, metadata=found.metadata)
    node.embedding = None if vector is None else vector.tolist()
    return node


def _result(scored: Sequence[tuple[Hit, float]]) -> VectorStoreQueryResult:
    return VectorStoreQueryResult(
        [_to_node(hit) for hit, _ in scored], [score for _, score in scored], [hit.id for hit, _ in scored]
    )
