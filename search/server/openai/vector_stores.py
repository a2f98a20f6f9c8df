"""POST /v1/vector_stores/{index}/search as in OpenAI's API, by the same engine as /v1/search.

The index is the only store, and its documents are the files. Several queries get one answer, in which a document has
its best score. Scores are those of /v1/search: inner products of unit vectors, -1 to 1, or with `hybrid_search` the
fused scores of the recipe's `[hybrid]`.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, Field, WithJsonSchema

from indexer.recipe.ranking import Fusion
from search.filters.expressions import shortened
from search.filters.facets import plain_value
from search.hits import Answer, Hit
from search.index import Index
from search.ranking.options import SearchOptions
from search.result_files import to_json
from search.server.byte_limit import RoomShare
from search.server.generations import OpenGeneration, Stamp
from search.server.http.answers import share_of, written
from search.server.http.failures import JsonResponse, RequestError
from search.server.http.messages import ErrorResponse, Finite, Request
from search.server.http.routes import ERRORS, require_few, require_within
from search.server.openai.attribute_filters import OutlinedFilter, condition_of
from search.server.openai.embeddings import TEXTS_SCHEMA, TruncatedText, notes_on_texts, require_encoder, texts_of
from search.server.service import SearchReply, SearchService

IndexName = Annotated[str, Path(description="Name of the index.")]
Cursor = Annotated[str | None, Query(description="The list is empty if this is the name of the index.")]
_RANKER = re.compile(r"none|auto|default-\d{4}-\d{2}-\d{2}")
_ERRORS = ERRORS | {
    400: {"model": ErrorResponse, "description": "the body is not JSON, or a field asks for something unsupported"},
    404: {"model": ErrorResponse, "description": "there is no such store"},
}


class HybridSearch(Request):
    """The weights of vectors and words; without both, the recipe's."""

    embedding_weight: Finite = Field(1.0, ge=0, description="Weight of the vectors.")
    text_weight: Finite = Field(1.0, ge=0, description="Weight of BM25.")


class RankingOptions(Request):
    """The ranking of documents."""

    ranker: str | None = Field(
        default=None, description='"none", "auto" or "default-2024-11-15": all use the ranking of the index.'
    )
    score_threshold: Finite | None = Field(default=None, description="The lowest score.")
    hybrid_search: HybridSearch | None = Field(default=None, description="Fuse with BM25.")


class StoreSearchRequest(Request):
    """A search in a store."""

    query: Annotated[Any, WithJsonSchema(TEXTS_SCHEMA)] = Field(
        description="A text, or a list of texts; a document has its best score over them."
    )
    max_num_results: int | None = Field(None, ge=1, le=50, description="Most documents; default: 10.")
    filters: OutlinedFilter | None = Field(None, description="A condition on metadata columns, id, title and text.")
    ranking_options: RankingOptions | None = Field(None, description="How documents are ranked.")
    rewrite_query: bool | None = Field(None, description="Must not be true: queries are never rewritten.")

    @property
    def most(self) -> int:
        """The number of requested documents."""
        return self.max_num_results or 10


class FoundText(BaseModel):
    """A text of a file."""

    type: Literal["text"]
    """Kind of object, in OpenAI's words."""
    text: str
    """The text."""


class FoundFile(BaseModel):
    """A document."""

    file_id: str
    """Id of the document."""
    filename: str
    """Its title, or its id without a title."""
    score: float
    """Its best score over the queries."""
    attributes: dict[str, str | float | bool]
    """Values of the metadata columns."""
    content: list[FoundText]
    """The text, or the window that matched if documents are chunked."""


class StoreSearchResponse(BaseModel):
    """The documents, best first. There are no further pages."""

    object: Literal["vector_store.search_results.page"]
    """Kind of object, in OpenAI's words."""
    search_query: list[str]
    """The queries."""
    data: list[FoundFile]
    """The documents, best first."""
    has_more: Literal[False]
    """Always false."""
    next_page: None
    """Always null."""
    index: Stamp
    """The `generation` that answered, and the `fingerprint` of its encoder."""
    truncated: list[TruncatedText] | None = None
    """Queries that were longer than the encoder's limit."""
    unknown: list[int] | None = None
    """Places of queries without known tokens."""


class FileCounts(BaseModel):
    """The numbers of documents."""

    in_progress: int
    """Always 0."""
    completed: int
    """Live documents."""
    failed: int
    """Always 0."""
    cancelled: int
    """Always 0."""
    total: int
    """Live documents."""


class StoreResponse(BaseModel):
    """The index as a store."""

    id: str
    """Name of the index."""
    object: Literal["vector_store"]
    """Kind of object, in OpenAI's words."""
    created_at: int
    """Time of publication of the index, in seconds since 1970."""
    name: str
    """Name of the index."""
    status: Literal["completed"]
    """Always "completed"."""
    usage_bytes: int
    """Bytes of the files of the index."""
    file_counts: FileCounts
    """Numbers of documents."""
    metadata: dict[str, str]
    """Number of the generation, and fingerprint of the encoder."""


class StoresResponse(BaseModel):
    """All stores: the index."""

    object: Literal["list"]
    """Kind of object, in OpenAI's words."""
    data: list[StoreResponse]
    """The index; empty with its name as `after` or `before`."""
    first_id: str | None
    """Name of the index."""
    last_id: str | None
    """Name of the index."""
    has_more: Literal[False]
    """Always false."""


def vector_store_routes(service: SearchService) -> APIRouter:
    """Return POST /v1/vector_stores/{index}/search, GET /v1/vector_stores and /v1/vector_stores/{index}."""
    router = APIRouter(prefix="/v1/vector_stores", responses=_ERRORS, tags=["openai"])
    name, shares = service.settings.name, share_of(service.room)

    @router.post("/{index:path}/search", response_model=StoreSearchResponse, response_model_exclude_none=True)
    async def search(index: IndexName, request: StoreSearchRequest, share: RoomShare = shares) -> Response:
        """Find the documents closest to a text, in OpenAI's format."""
        _require_store(index, name)
        limits = service.settings.limits
        if isinstance(request.query, list):
            require_few(limits, request.query)  # before each is checked
        queries = texts_of(request.query, "query", limits)
        require_within(limits, queries, request.most)
        return await written(_pieces(queries, request.most, await _search(service, queries, request, share)), share)

    @router.get("", response_model=StoresResponse)
    async def stores(after: Cursor = None, before: Cursor = None) -> Response:
        """List the stores: the index."""
        with service.generations.lease() as generation:
            data = [] if name in (after, before) else [_facts(generation, name)]
        ends = dict.fromkeys(("first_id", "last_id"), name if data else None)
        return JsonResponse({"object": "list", "data": data, **ends, "has_more": False})

    @router.get("/{index:path}", response_model=StoreResponse)
    async def store(index: IndexName) -> Response:
        """Describe the index as a store."""
        _require_store(index, name)
        with service.generations.lease() as generation:
            return JsonResponse(_facts(generation, name))

    return router


def options_of(request: StoreSearchRequest, index: Index) -> SearchOptions:
    """Return the options of a request. Raises RequestError for unsupported options, ConfigError for a bad filter."""
    if request.rewrite_query:
        raise RequestError.of_field("rewrite_query", "queries are never rewritten; leave it out.")
    ranking = request.ranking_options or RankingOptions()
    if ranking.ranker is not None and not _RANKER.fullmatch(ranking.ranker):
        fault = 'expected "none", "auto" or "default-2024-11-15"; there is no reranking here.'
        raise RequestError.of_field("ranking_options.ranker", fault)
    hybrid, weight = _weighed(ranking.hybrid_search, index.config.hybrid.fusion)
    least = ranking.score_threshold
    if hybrid and least is not None and least <= 0:
        least = None  # some clients always send 0, which would drop no hit found by its words
    where = None if request.filters is None else condition_of(request.filters, index.documents.schema)
    # Answers are merged by score, which is not the order of reranked hits.
    return SearchOptions(
        request.most, where=where, min_score=least, hybrid=hybrid, hybrid_weight=weight, rerank_depth=0
    )


def best_of(answers: Sequence[Answer[Hit]], most: int) -> list[Hit]:
    """Return the best documents over several queries, each with its best score, ties by id.

    Answers of `most` hits suffice: each of the best documents is among the hits of the query where it scores best.
    """
    best: dict[str, Hit] = {}
    for hit in (hit for answer in answers for hit in answer):
        if hit.id not in best or hit.score > best[hit.id].score:
            best[hit.id] = hit
    return sorted(best.values(), key=lambda hit: (-hit.score, hit.id))[:most]


def attributes_of(metadata: dict[str, Any]) -> dict[str, str | float | bool]:
    """Return metadata as attributes: text, numbers and booleans unchanged, dates as ISO 8601, the rest as JSON."""
    attributes: dict[str, str | float | bool] = {}
    for name, value in metadata.items():
        if value is not None:
            plain = plain_value(value)
            attributes[name] = plain if isinstance(plain, str | int | float) else to_json(value)
    return attributes


async def _search(
    service: SearchService, queries: list[str], request: StoreSearchRequest, share: RoomShare
) -> SearchReply:
    """Return an answer of the same generation as the columns and the recipe of its filter and weights."""
    while True:
        with service.generations.lease() as generation:
            require_encoder(generation, service.settings.name)
            options, stamp = options_of(request, generation.engine.index), generation.stamp
        reply = await service.search(queries, options, share)
        if reply.stamp == stamp or (options.where is None and not options.hybrid):
            return reply


def _pieces(queries: list[str], most: int, reply: SearchReply) -> Iterator[str]:
    body: dict[str, Any] = {
        "object": "vector_store.search_results.page",
        "search_query": queries,
        "has_more": False,
        "next_page": None,
        "index": vars(reply.stamp),
    }
    body |= notes_on_texts(reply.lengths, reply.max_length)
    yield f'{to_json(body)[:-1]}, "data": ['
    for place, hit in enumerate(best_of(reply.answers, most)):
        yield f"{', ' if place else ''}{to_json(_file(hit))}"
    yield "]}"


def _file(hit: Hit) -> dict[str, Any]:
    return {
        "file_id": hit.id,
        "filename": hit.title or hit.id,
        "score": hit.score,
        "attributes": attributes_of(hit.metadata),
        "content": [{"type": "text", "text": hit.window.text if hit.window else hit.text}],
    }


def _weighed(weights: HybridSearch | None, fusion: Fusion) -> tuple[bool, float | None]:
    """Return whether to search hybrid, and the share of the vectors, None for the recipe's. Raises RequestError.

    Reciprocal ranks have no share: equal weights are the default, and the engine refuses others.
    """
    if weights is None:
        return False, None
    if not weights.model_fields_set & {"embedding_weight", "text_weight"}:
        return True, None
    near, words = weights.embedding_weight, weights.text_weight
    most = max(near, words)
    if not most:
        fault = "embedding_weight and text_weight are both 0; expected one above 0."
        raise RequestError.of_field("ranking_options.hybrid_search", fault)
    if not words:
        return False, None
    if near == words and fusion == "rrf":
        return True, None
    return True, near / most / (near / most + words / most)  # the sum of both can be infinite


def _require_store(index: str, name: str) -> None:
    if index != name:
        fault = f'unknown vector store "{shortened(index)}"; expected "{name}": POST /v1/vector_stores/{name}/search.'
        raise RequestError(404, fault, "vector_store_id")


def _facts(generation: OpenGeneration, name: str) -> dict[str, Any]:
    manifest = generation.engine.index.manifest
    documents = manifest.documents
    counts = {"in_progress": 0, "completed": documents, "failed": 0, "cancelled": 0, "total": documents}
    return {
        "id": name,
        "object": "vector_store",
        "created_at": int(datetime.fromisoformat(manifest.created).timestamp()),
        "name": name,
        "status": "completed",
        "usage_bytes": sum(digest.bytes for digest in manifest.files.values()),
        "file_counts": counts,
        "metadata": {"generation": str(generation.stamp.generation), "fingerprint": generation.stamp.fingerprint},
    }
