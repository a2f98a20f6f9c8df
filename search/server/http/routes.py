"""The routes of Isotrope's own API: questions, documents, the index, health, reloading."""

from typing import Any

from fastapi import APIRouter, Response

from indexer.errors import UnknownDocumentError
from search.files import to_json
from search.hits import bytes_of
from search.server.http.answers import search_pieces, share_of, written
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
from search.server.room import RoomShare
from search.server.service import SearchService
from search.server.settings import ServerLimits

_FAULTS = {
    400: "the body is no text in UTF-8, or lists are nested too deeply",
    401: "no key, or a wrong one",
    403: "the wrong host, origin or key",
    408: "the body took too long to arrive",
    413: "the body is too long",
    422: "a field is not as described",
    429: "all places are taken",
    503: "the index cannot be read, or the server is full",
    504: "not answered in time",
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
    """POST /v1/search, POST /v1/facets, GET /v1/documents/{id}, GET /v1/info."""
    router, limits = APIRouter(prefix="/v1", responses=ERRORS, tags=["search"]), service.settings.limits
    shares = share_of(service.room)

    @router.post("/search", response_model=SearchResponse, response_model_exclude_none=True, responses=NOT_FOUND)
    async def search(asked: SearchRequest, share: RoomShare = shares) -> Response:
        """Find the documents closest to a text, or to a stored document."""
        options = asked.options
        require_within(limits, asked.queries, options.k)
        if asked.like is not None:
            reply = await service.neighbours(asked.like, options, share)
            return await written(search_pieces(reply, [f"like {asked.like}"]), share)
        require_rerankable(service, asked.queries, options.rerank_depth)
        reply = await service.search(asked.queries, options, share)
        return await written(search_pieces(reply, asked.queries), share)

    @router.post("/facets", response_model=FacetsResponse)
    async def facets(asked: FacetsRequest) -> Response:
        """Count the values of metadata columns, and find their range, over the documents that meet a condition."""
        found, stamp = await service.facets(asked.where, asked.columns)
        return JsonResponse({"columns": [one.to_dict() for one in found], "index": vars(stamp)})

    @router.get("/documents", response_model=DocumentResponse | None, responses=NOT_FOUND)
    async def document_by_query(
        id: Name,  # noqa: A002  # as the route has it
        optional: bool = False,
        share: RoomShare = shares,
    ) -> Response:
        """One document, whose id no path could hold: "..", or one with a line break.

        With `optional`, the answer is null if the index contains no document with this id, instead of a 404.
        """
        try:
            return await document(id, share)
        except UnknownDocumentError:
            if not optional:
                raise
            return JsonResponse(None)

    @router.get("/documents/{id:path}", response_model=DocumentResponse, responses=NOT_FOUND)
    async def document(id: str, share: RoomShare = shares) -> Response:  # noqa: A002
        """One document as it was given."""
        found, stamp = await service.document(id)
        fields = {"id": found.id, "title": found.title, "text": found.text, "metadata": found.metadata}
        share.reach(bytes_of(fields))
        return await written((to_json(one) for one in [fields | {"index": vars(stamp)}]), share)

    @router.get("/info", response_model=InfoResponse)
    async def info() -> Response:
        """The index, how it was built, its measured quality, and the values of its metadata columns."""
        return JsonResponse(await service.info())

    return router


def health_routes(service: SearchService, metrics: ServerMetrics) -> APIRouter:
    """GET /healthz, /readyz and /metrics, and POST /admin/reload."""
    router = APIRouter(tags=["server"])

    @router.head("/healthz", include_in_schema=False)
    @router.get("/healthz", responses=_faults(403))
    async def healthz() -> dict[str, str]:
        """Whether the process answers. Open to all."""
        return {"status": "ok"}

    @router.get("/readyz", responses=_READING)
    async def readyz() -> Response:
        """Whether questions are answered: 503 while the server stops, when the last one met files it cannot read, and
        while BM25, which hybrid questions need, cannot be made."""
        failed = {"reload": "failed"} if service.generations.failure else {}  # the log has the reason, and paths
        states = {
            "stopping": service.draining,
            "index unreadable": service.generations.unreadable,
            "hybrid search unavailable": service.generations.current.words_failure,
        }
        status = next((name for name, holds in states.items() if holds), "ready")
        return JsonResponse({"status": status} | failed, 200 if status == "ready" else 503)

    @router.get("/metrics", response_class=Response, responses=_READING)
    async def read_metrics() -> Response:
        """Counts, in Prometheus' text format."""
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    @router.post("/admin/reload", responses=_ADMIN)
    async def reload() -> dict[str, Any]:
        """Serve the newest generation of the index from now on. Needs a key of --admin-key-file."""
        changed = await service.generations.reload()
        return {"reloaded": changed, "generation": service.generations.current.stamp.generation}

    return router


def require_within(limits: ServerLimits, texts: list[str], k: int) -> None:
    """Raises RequestError for a request beyond the limits."""
    if len(texts) > limits.queries:
        raise RequestError(422, f"query: {len(texts):,} texts; expected at most {limits.queries:,}.", "query")
    if k > limits.k:
        raise RequestError(422, f"k: is {k:,}; expected at most {limits.k:,}.", "k")
    if k * len(texts) > limits.hits:
        raise RequestError(
            422, f"k: {k:,} hits for {len(texts):,} queries; expected at most {limits.hits:,} hits in all.", "k"
        )
    for text in texts:
        if len(text) > limits.characters:
            raise RequestError(
                422, f"query: {len(text):,} characters; expected at most {limits.characters:,}.", "query"
            )


def require_rerankable(service: SearchService, texts: list[str], asked: int | None) -> None:
    """Raises RequestError for more hits than a request may have reranked; `asked` None: as many as the recipe says."""
    limits, recipe = service.settings.limits, service.generations.current.engine.index.config.rerank
    depth = asked if asked is not None else recipe.depth if recipe.model else 0
    if asked is not None and asked > limits.rerank_depth:
        raise RequestError(
            422, f"rerank_depth: is {asked:,}; expected at most {limits.rerank_depth:,}.", "rerank_depth"
        )
    if len(texts) > 1 and depth * len(texts) > limits.reranked:
        raise RequestError(
            422,
            f"query: {len(texts):,} texts, of which {depth:,} hits each would be reranked; expected at most "
            f"{limits.reranked:,} in all. Send fewer, or less rerank_depth.",
            "query",
        )
