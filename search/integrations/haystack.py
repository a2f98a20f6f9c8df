"""Indexes in Haystack (extra `haystack`): a document store, and retrievers by embedding, by words and by both.

The fields of a Haystack document are a column of JSON, so that it comes back as it was written; its metadata are also
columns of their own for filters (`search.integrations.metadata`). `meta["title"]` is the title of a document.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from indexer.corpus.document import Document as StoredDocument
from indexer.errors import ConfigError
from indexer.lazy_imports import require_extra
from search.hits import Hit
from search.integrations.metadata import NONE, Columns, all_of, as_moment
from search.integrations.stores import in_thread, open_or_create, search_by_words

require_extra("haystack", "haystack")

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy, FilterPolicy, apply_filter_policy
from haystack.errors import FilterError

_FIELDS, _NO_VECTOR = "haystack", "haystack_no_embedding"  # columns: a document without its text, embedding and id
_ORDERS = (">", ">=", "<", "<=")
_OPERATORS = ("==", "!=", *_ORDERS, "in", "not in")
_TYPES = {bool: "boolean", int: "int", float: "float"}


class IsotropeDocumentStore:
    """An index as a document store. Each write or deletion publishes one generation of the index.

    `index` is the path of an index; a path without one becomes an empty index of the embeddings that documents bring.
    Without `index` the store lies in a temporary folder. An index with an encoder of its own encodes the content of
    documents, and ignores their embeddings.

    A document without an embedding is found by words and by filters alone. `embedding_dim` is needed only if such
    documents are written before the first one with an embedding. Embeddings are stored as float32. Metadata must be
    JSON. Raises the errors of `SearchEngine`.
    """

    def __init__(self, index: str | None = None, embedding_dim: int | None = None) -> None:
        self.index, self.embedding_dim = index, embedding_dim
        self.engine = open_or_create(index)
        self.encodes = self.engine.index.config.encoder.traits.encodes_texts

    def to_dict(self) -> dict[str, Any]:
        """Return the path and the settings, without documents."""
        index = None if self.index is None else str(Path(self.index))
        return default_to_dict(self, index=index, embedding_dim=self.embedding_dim)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "IsotropeDocumentStore":
        """Return the store that `to_dict` described."""
        return default_from_dict(cls, data)

    def count_documents(self) -> int:
        """Return the number of documents."""
        return len(self.engine)

    def filter_documents(self, filters: dict[str, Any] | None = None) -> list[Document]:
        """Return the documents that match Haystack filters. Raises FilterError."""
        return [_to_haystack(each) for each in self.engine.find(self._where(filters), vectors=not self.encodes)]

    def write_documents(self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE) -> int:
        """Write documents as one generation, and return the number written; NONE is the policy FAIL.

        Raises ValueError for anything but a list of documents, DuplicateDocumentError, and as `SearchEngine.add`.
        """
        if not isinstance(documents, Iterable) or not all(isinstance(each, Document) for each in documents):
            raise ValueError(f"documents is of type {type(documents).__name__}; expected a list of Documents.")
        wanted: dict[str, Document] = {}
        known = {each.id for each in self.engine.documents([each.id for each in documents])}
        for document in documents:
            if policy == DuplicatePolicy.OVERWRITE or not (document.id in known or document.id in wanted):
                wanted[document.id] = document
            elif policy != DuplicatePolicy.SKIP:
                raise DuplicateDocumentError(f'the store already contains a document with id "{document.id}".')
        if wanted:
            self.engine.add(list(self._to_stored(list(wanted.values()))))
        return len(documents) if policy == DuplicatePolicy.OVERWRITE else len(wanted)

    def delete_documents(self, document_ids: list[str]) -> None:
        """Delete documents by id, as one generation. Unknown ids are ignored."""
        if self.engine.documents(document_ids):
            self.engine.delete(document_ids, ignore_missing=True)

    def delete_all_documents(self) -> None:
        """Delete all documents. The next embeddings may have another length."""
        self.delete_by_filter(None)

    def delete_by_filter(self, filters: dict[str, Any] | None) -> int:
        """Delete the documents that match, and return their number. Raises FilterError."""
        found = [each.id for each in self.engine.find(self._where(filters))]
        self.delete_documents(found)
        return len(found)

    def update_by_filter(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """Add `meta` to the metadata of the documents that match, and return their number. Raises FilterError."""
        found = [replace(each, meta=each.meta | meta) for each in self.filter_documents(filters)]
        return self.write_documents(found, DuplicatePolicy.OVERWRITE)

    def count_documents_by_filter(self, filters: dict[str, Any]) -> int:
        """Return the number of documents that match. Raises FilterError."""
        return self.engine.count(self._where(filters))

    def count_unique_metadata_by_filter(self, filters: dict[str, Any], metadata_fields: list[str]) -> dict[str, int]:
        """Return the number of different values of some fields in the documents that match. Raises FilterError."""
        metas = self._metas(filters)
        return {name: len(_distinct(metas, name)) for name in map(_without_prefix, metadata_fields)}

    def get_metadata_fields_info(self) -> dict[str, dict[str, str]]:
        """Return the type of each field: keyword, int, float or boolean."""
        pairs = [pair for meta in self._metas(None) for pair in meta.items() if pair[1] is not None]
        return {name: {"type": _TYPES.get(type(value), "keyword")} for name, value in pairs}

    def get_metadata_field_min_max(self, metadata_field: str) -> dict[str, Any]:
        """Return the least and the greatest value of a field, None if there is none or types are mixed."""
        values = _distinct(self._metas(None), _without_prefix(metadata_field))
        try:
            return {"min": min(values, default=None), "max": max(values, default=None)}
        except TypeError:
            return {"min": None, "max": None}

    def get_metadata_field_unique_values(
        self,
        metadata_field: str,
        search_term: str | None = None,
        from_: int = 0,
        size: int = 10,
        filters: dict[str, Any] | None = None,
    ) -> tuple[list[Any], int]:
        """Return a page of the different values of a field, sorted as text, and the number of all of them.

        Only values that contain `search_term`, in any case, if it is given. Raises FilterError.
        """
        term = (search_term or "").lower()
        values = [
            value
            for value in _distinct(self._metas(filters), _without_prefix(metadata_field))
            if term in str(value).lower()
        ]
        return sorted(values, key=lambda value: (str(value), type(value).__name__))[from_ : from_ + size], len(values)

    count_documents_async = in_thread(count_documents)
    filter_documents_async = in_thread(filter_documents)
    write_documents_async = in_thread(write_documents)
    delete_documents_async = in_thread(delete_documents)
    delete_all_documents_async = in_thread(delete_all_documents)
    delete_by_filter_async = in_thread(delete_by_filter)
    update_by_filter_async = in_thread(update_by_filter)
    count_documents_by_filter_async = in_thread(count_documents_by_filter)
    count_unique_metadata_by_filter_async = in_thread(count_unique_metadata_by_filter)
    get_metadata_fields_info_async = in_thread(get_metadata_fields_info)
    get_metadata_field_min_max_async = in_thread(get_metadata_field_min_max)
    get_metadata_field_unique_values_async = in_thread(get_metadata_field_unique_values)

    def retrieve(
        self,
        query: str | None,
        query_embedding: list[float] | None,
        filters: dict[str, Any] | None,
        return_embedding: bool = False,
        **options: Any,
    ) -> list[Document]:
        """Return the best documents for a query: by its embedding, by its words, or with `hybrid=True` by both.

        Without an embedding, hybrid search embeds the query by the encoder of the index. Other options are those of
        `SearchEngine.search`. Raises FilterError and ConfigError.
        """
        where = self._where(filters)
        if query_embedding is None and not options.get("hybrid"):
            hits = search_by_words(self.engine, query or "", where=where, **options)
            scored = [(hit, hit.parts.bm25 if hit.parts else hit.score) for hit in hits]
        else:
            where, texts = all_of(where, self._embedded), None if query is None else [query]
            if not self.engine.count(where):
                return []
            if query_embedding is None:
                hits = self.engine.search(query or "", where=where, **options)
            else:
                (hits,) = self.engine.search_vectors(query_embedding, texts=texts, where=where, **options)
            scored = [(hit, hit.score) for hit in hits]
        vectors: dict[str, Any] = {}
        if return_embedding and not self.encodes:
            stored = self.engine.documents([hit.id for hit in hits], vectors=True)
            vectors = {each.id: each.vector for each in stored}
        return [replace(_to_haystack(hit, vectors.get(hit.id)), score=score) for hit, score in scored]

    def _where(self, filters: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Return Haystack filters as a condition of the index. Raises FilterError."""
        try:
            where = _condition(filters, self._columns()) if filters else {}
            self.engine.check(where=where)
        except ConfigError as error:
            raise FilterError(str(error)) from error
        return where

    @property
    def _embedded(self) -> Mapping[str, Any]:
        """The condition that a document has an embedding."""
        return {_NO_VECTOR: None} if _NO_VECTOR in self.engine.index.documents.schema.names else {}

    def _columns(self) -> Columns:
        return Columns(self.engine.index.documents.schema, (_FIELDS, _NO_VECTOR))

    def _metas(self, filters: Mapping[str, Any] | None) -> list[dict[str, Any]]:
        return [_to_haystack(each).meta for each in self.engine.find(self._where(filters))]

    def _to_stored(self, documents: list[Document]) -> Iterator[StoredDocument]:
        """Yield documents of the index; those without an embedding have a placeholder of the right length."""
        columns = self._columns()
        stored = self.engine.index.manifest.encoder["dim"] if len(self.engine) else 0
        first = next((len(each.embedding) for each in documents if each.embedding), 0)
        if not self.encodes and first and stored not in (0, first) and not self.engine.count(self._embedded):
            raise ConfigError(
                f"an embedding has {first:,} numbers, but {stored:,} were reserved for the stored documents, none of "
                f"which has an embedding. Fix: delete_all_documents(), then write with embedding_dim={first}."
            )
        placeholder = [1.0] + [0.0] * ((stored or first or self.embedding_dim or 1) - 1)
        for document in documents:
            fields = document.to_dict(flatten=False)
            vector = np.asarray(fields.pop("embedding") or placeholder, np.float32)
            del fields["id"]
            text = fields.pop("content") if document.content else ""
            try:
                own: dict[str, Any] = {_FIELDS: json.dumps(fields)}
            except TypeError as error:
                raise ValueError(f'document "{document.id}": its meta is not JSON: {error}.') from error
            if not (document.embedding or self.encodes):
                own[_NO_VECTOR] = True
            meta = columns.of(document.meta)
            title, meta = meta.pop("title", None), meta | own
            yield StoredDocument(document.id, text, title, meta, None if self.encodes else vector)


class _Retriever:
    """The settings that all retrievers have. `top_k` is the number of documents, `filters` are of Haystack."""

    def __init__(
        self,
        document_store: IsotropeDocumentStore,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        return_embedding: bool = False,
        filter_policy: FilterPolicy | str = FilterPolicy.REPLACE,
    ) -> None:
        if not isinstance(document_store, IsotropeDocumentStore):
            raise ValueError(f"document_store is a {type(document_store).__name__}; expected an IsotropeDocumentStore.")
        self.document_store, self.filters, self.top_k = document_store, filters, top_k
        self.return_embedding = return_embedding
        self.filter_policy = FilterPolicy.from_str(filter_policy) if isinstance(filter_policy, str) else filter_policy

    def to_dict(self) -> dict[str, Any]:
        """Return the settings, with those of the store."""
        settings = vars(self) | {"filter_policy": self.filter_policy.value}
        return default_to_dict(self, **{name: value for name, value in settings.items() if name[0] != "_"})

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Any:
        """Return the retriever that `to_dict` described."""
        settings = data["init_parameters"]
        store = IsotropeDocumentStore.from_dict(settings["document_store"])
        return default_from_dict(cls, data | {"init_parameters": settings | {"document_store": store}})

    def _found(
        self,
        query: str | None,
        query_embedding: list[float] | None,
        filters: dict[str, Any] | None,
        top_k: int | None,
        **options: Any,
    ) -> dict[str, list[Document]]:
        chosen = apply_filter_policy(self.filter_policy, self.filters, filters)
        k = self.top_k if top_k is None else top_k
        store = self.document_store
        return {"documents": store.retrieve(query, query_embedding, chosen, self.return_embedding, k=k, **options)}


@component
class IsotropeEmbeddingRetriever(_Retriever):
    """Retrieves the documents whose embeddings are closest to that of a query, by their cosine."""

    @component.output_types(documents=list[Document])
    def run(
        self, query_embedding: list[float], filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Return `documents`, best first."""
        return self._found(None, query_embedding, filters, top_k)

    run_async = component.output_types(documents=list[Document])(in_thread(run))


@component
class IsotropeBM25Retriever(_Retriever):
    """Retrieves the documents that contain words of a query, ranked by BM25."""

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Return `documents`, best first."""
        return self._found(query, None, filters, top_k)

    run_async = component.output_types(documents=list[Document])(in_thread(run))


@component
class IsotropeHybridRetriever(_Retriever):
    """Retrieves documents by embedding and by words, and fuses both rankings.

    `weight` is the weight of the embeddings, 0 to 1; None is that of the index.
    """

    def __init__(
        self,
        document_store: IsotropeDocumentStore,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        return_embedding: bool = False,
        filter_policy: FilterPolicy | str = FilterPolicy.REPLACE,
        weight: float | None = None,
    ) -> None:
        # `component` makes another class of this one, for which super() fails.
        _Retriever.__init__(self, document_store, filters, top_k, return_embedding, filter_policy)
        self.weight = weight

    @component.output_types(documents=list[Document])
    def run(
        self,
        query: str,
        query_embedding: list[float] | None = None,
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
    ) -> dict[str, list[Document]]:
        """Return `documents`, best first. An index with an encoder of its own needs no `query_embedding`."""
        return self._found(query, query_embedding, filters, top_k, hybrid=True, hybrid_weight=self.weight)

    run_async = component.output_types(documents=list[Document])(in_thread(run))


def _condition(filters: Mapping[str, Any], columns: Columns) -> Mapping[str, Any]:
    """Return Haystack filters as a condition of `search.filters.conditions`. Raises FilterError and ConfigError."""
    needed = ("operator", "value") if "field" in filters else ("operator", "conditions")
    if missing := [name for name in needed if name not in filters]:
        raise FilterError(f'the filter {filters} has no "{missing[0]}".')
    sign = filters["operator"]
    if "field" in filters:
        return _comparison(filters["field"], sign, filters["value"], columns)
    if sign not in ("AND", "OR", "NOT"):
        raise FilterError(f"the operator {sign!r} is unknown; expected AND, OR or NOT.")
    inner = [_condition(each, columns) for each in filters["conditions"]]
    return {"not": {"and": inner}} if sign == "NOT" else {sign.lower(): inner}


def _comparison(field: str, sign: str, value: Any, columns: Columns) -> Mapping[str, Any]:
    if sign not in _OPERATORS:
        raise FilterError(f"the operator {sign!r} is unknown; expected {', '.join(_OPERATORS)}.")
    if sign in ("in", "not in") and not isinstance(value, list):
        raise FilterError(f'"{field}" {sign} {value!r}: expected a list.')
    if sign in _ORDERS:
        if value is None:
            return NONE
        value = as_moment(value) if isinstance(value, str) else value
        if value is None or isinstance(value, list):
            raise FilterError(f'"{field}" {sign}: expected a number or an ISO date, not a list or another text.')
    if field == "id":
        return {"id": {sign: value}}
    if field == "content":
        return {"text": {sign: "" if value is None else value}}
    return columns.where(_without_prefix(field), sign, value)


def _without_prefix(field: str) -> str:
    return field.removeprefix("meta.")


def _to_haystack(found: Hit | StoredDocument, vector: Any = None) -> Document:
    fields = json.loads(found.metadata.get(_FIELDS, "{}"))
    title = {} if found.title is None else {"title": found.title}
    meta = fields.pop("meta", title | found.metadata)
    if isinstance(found, StoredDocument):
        vector = found.vector
    embedding = None if vector is None or _NO_VECTOR in found.metadata else vector.tolist()
    return Document.from_dict({"content": found.text} | fields | {"id": found.id, "meta": meta, "embedding": embedding})


def _distinct(metas: Iterable[Mapping[str, Any]], name: str) -> list[Any]:
    """Return the different values of a field that are not null; 1, 1.0, "1" and True differ."""
    values = [meta[name] for meta in metas if meta.get(name) is not None]
    return list({json.dumps(value, sort_keys=True): value for value in values}.values())
