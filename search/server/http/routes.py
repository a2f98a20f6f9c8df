"""The routes of Isotrope's API: search, documents, the index, health, reload."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response

from indexer.errors import UnknownDocumentError
from search.hits import bytes_of
from search.result_files import to_json
from search.server.byte_limit import RoomShare
from search.server.http.answers import search_pieces, share_of, written
from search.server.http.direct_route import direct_route
from search.server.http.failures import JsonResponse, RequestError
from search.server.http.messages import (
    DocumentResponse,
    ErrorResponse,
    FacetsRequest,
    FacetsResponse,
    InfoResponse,
    Name,
    SearchRequest,
    SearchResponse,
)
from search.server.metrics import CONTENT_TYPE, ServerMetrics
from search.server.service import SearchService
from search.server.settings import ServerLimits

_FAULTS = {
    400: "the body is not UTF-8, or lists are nested too deeply",
    401: "the key is missing or wrong",
    403: "the wrong host, origin or key",
    408: "the body took too long to arrive",
    413: "the body is too long",
    422: "a field is invalid",
    429: "the server is busy",
    503: "the index cannot be read, or the server is full",
    504: "the deadline has passed",
}


def _faults(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorResponse, "description": _FAULTS[status]} for status in statuses}


ERRORS = _faults(*_FAULTS)
_READING = _faults(401, 403, 429, 503, 504)
_ADMIN = _faults(401, 403, 408, 413, 503)
NOT_FOUND: dict[int | str, dict[str, Any]] = {
    404: {"model": ErrorResponse, "description": "the index contains no document with this id"}
}


def search_routes(service: SearchService) -> APIRouter:
    """Return POST /v1/search and /v1/facets, GET /v1/documents/{id} and /v1/info."""
    router, limits = APIRouter(prefix="/v1", responses=ERRORS, tags=["search"]), service.settings.limits
    shares, link = share_of(service.room), service.settings.link

    async def answer(request: SearchRequest, share: RoomShare) -> Response:
        options = request.options
        require_within(limits, request.queries, options.k)
        if request.like is not None:
            reply = await service.neighbours(request.like, options, share)
            return await written(search_pieces(reply, [f"like {request.like}"], link), share)
        require_rerankable(service, request.queries, options.rerank_depth)
        reply = await service.search(request.queries, options, share)
        return await written(search_pieces(reply, request.queries, link), share)

    async def search(request: SearchRequest, share: RoomShare = shares) -> Response:
        """Find the documents closest to a text or to a stored document."""
        return await answer(request, share)

    router.add_api_route(
        "/search",
        search,
        methods=["POST"],
        response_model=SearchResponse,
        response_model_exclude_none=True,
        responses=NOT_FOUND,
        route_class_override=direct_route(SearchRequest, answer, service.room),
    )

    @router.post("/facets", response_model=FacetsResponse)
    async def facets(request: FacetsRequest) -> Response:
        """Count the values of metadata columns and find their range over the documents that meet a condition."""
        columns, stamp = await service.facets(request.where, request.columns)
        return JsonResponse({"columns": [column.to_dict() for column in columns], "index": vars(stamp)})

    @router.get("/documents", response_model=DocumentResponse | None, responses=NOT_FOUND)
    async def document_by_query(
        id: Annotated[Name, Query(description="Id of the document.")],  # noqa: A002
        optional: Annotated[bool, Query(description="Answer null instead of 404 for an unknown id.")] = False,
        share: RoomShare = shares,
    ) -> Response:
        """Return one document, even by an id that a path cannot contain, such as ".." or one with a line break.

        With `optional`, the answer is null instead of a 404 if there is no such document.
        """
        try:
            return await document(id, share)
        except UnknownDocumentError:
            if not optional:
                raise
            return JsonResponse(None)

    @router.get("/documents/{id:path}", response_model=DocumentResponse, responses=NOT_FOUND)
    async def document(
        id: Annotated[str, Path(description="Id of the document.")],  # noqa: A002
        share: RoomShare = shares,
    ) -> Response:
        """Return one document as it was indexed."""
        stored, stamp = await service.document(id)
        fields = {"id": stored.id, "title": stored.title, "text": stored.text, "metadata": stored.metadata}
        share.reach(bytes_of(fields))
        if link and (address := link.address(stored.id, stored.metadata)):
            fields["link"] = address
        return await written(map(to_json, [fields | {"index": vars(stamp)}]), share)

    @router.get("/info", response_model=InfoResponse)
    async def info() -> Response:
        """Describe the index: its build, measured quality, and the values of its metadata columns."""
        return JsonResponse(await service.info())

    return router


def health_routes(service: SearchService, metrics: ServerMetrics) -> APIRouter:
    """Return GET /healthz, /readyz and /metrics, and POST /admin/reload."""
    router = APIRouter(tags=["server"])

    @router.head("/healthz", include_in_schema=False)
    @router.get("/healthz", responses=_faults(403))
    async def healthz() -> dict[str, str]:
        """Return ok if the process answers. Needs no key."""
        return {"status": "ok"}

    @router.get("/readyz", responses=_READING)
    async def readyz() -> Response:
        """Return 200 if queries are answered; 503 if the server is stopping, the last query could not read the index,
        or BM25 for hybrid search cannot be built."""
        failed = {"reload": "failed"} if service.generations.failure else {}  # the log has the reason
        states = {
            "stopping": service.draining,
            "index unreadable": service.generations.unreadable,
            "hybrid search unavailable": service.generations.current.words_failure,
        }
        status = next((name for name, applies in states.items() if applies), "ready")
        return JsonResponse({"status": status} | failed, 200 if status == "ready" else 503)

    @router.get("/metrics", response_class=Response, responses=_READING)
    async def read_metrics() -> Response:
        """Return metrics in Prometheus' text format."""
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    @router.post("/admin/reload", responses=_ADMIN)
    async def reload() -> dict[str, Any]:
        """Switch to the newest generation of the index. Needs a key of --admin-key-file."""
        changed = await service.generations.reload()
        return {"reloaded": changed, "generation": service.generations.current.stamp.generation}

    return router


def require_within(limits: ServerLimits, texts: list[str], k: int) -> None:
    """Raise RequestError for a request beyond the limits."""
    require_few(limits, texts)
    if k > limits.k:
        raise RequestError.of_field("k", f"is {k:,}; expected at most {limits.k:,}.", 422)
    if k * len(texts) > limits.hits:
        fault = f"{k:,} hits for {len(texts):,} queries; expected at most {limits.hits:,} hits in all."
        raise RequestError.of_field("k", fault, 422)
    for text in texts:
        if len(text) > limits.characters:
            fault = f"{len(text):,} characters; expected at most {limits.characters:,}."
            raise RequestError.of_field("query", fault, 422)


def require_few(limits: ServerLimits, texts: list[Any]) -> None:
    """Raise RequestError for more queries than the limit."""
    if len(texts) > limits.queries:
        raise RequestError.of_field("query", f"{len(texts):,} texts; expected at most {limits.queries:,}.", 422)


def require_rerankable(service: SearchService, texts: list[str], depth: int | None) -> None:
    """Raise RequestError for more reranked hits than the limits; `depth` None is the recipe's depth."""
    limits, recipe = service.settings.limits, service.generations.current.engine.index.config.rerank
    if depth is None:
        depth = recipe.depth if recipe.model else 0
    elif depth > limits.rerank_depth:
        fault = f"is {depth:,}; expected at most {limits.rerank_depth:,}."
        raise RequestError.of_field("rerank_depth", fault, 422)
    if len(texts) > 1 and depth * len(texts) > limits.reranked:
        fault = f"{len(texts):,} texts with {depth:,} reranked hits each; expected {limits.reranked:,} in all. "
        raise RequestError.of_field("query", f"{fault}Send fewer texts, or a lower rerank_depth.", 422)
