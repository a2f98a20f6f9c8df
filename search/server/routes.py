"""The routes of Isotrope's own API: questions, documents, what is served, health, a new generation."""

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Response

from indexer.store.quality import Quality
from search.describe import describe_index
from search.server.failures import JsonResponse, RequestError
from search.server.generations import Generation
from search.server.messages import (
    DocumentResponse,
    ErrorResponse,
    InfoResponse,
    Name,
    SearchRequest,
    SearchResponse,
    search_answer,
)
from search.server.metrics import CONTENT_TYPE, ServerMetrics
from search.server.service import SearchService
from search.server.settings import ServerLimits, ServerSettings

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse, "description": what}
    for status, what in {
        400: "the body is no JSON",
        401: "no key, or a wrong one",
        403: "the wrong host, origin or key",
        408: "the body took too long to arrive",
        413: "the body is too long",
        422: "a field is not as described",
        429: "all places are taken",
        503: "the index cannot be read, or the server is full",
        504: "not answered in time",
    }.items()
}
NOT_FOUND: dict[int | str, dict[str, Any]] = {
    404: {"model": ErrorResponse, "description": "the index holds no document with that id"}
}


def search_routes(service: SearchService) -> APIRouter:
    """POST /v1/search, GET /v1/documents/{id}, GET /v1/info."""
    router, limits = APIRouter(prefix="/v1", responses=ERRORS, tags=["search"]), service.settings.limits

    @router.post("/search", response_model=SearchResponse, response_model_exclude_none=True, responses=NOT_FOUND)
    async def search(asked: SearchRequest) -> Response:
        """Find the documents closest to a text, or to a stored document."""
        require_within(limits, asked.queries, asked.k)
        if asked.like is not None:
            reply = await service.neighbours(asked.like, asked.options)
            return JsonResponse(search_answer(reply, [f"like {asked.like}"]))
        reply = await service.search(asked.queries, asked.options)
        return JsonResponse(search_answer(reply, asked.queries))

    @router.get("/documents", response_model=DocumentResponse, responses=NOT_FOUND)
    async def document_by_query(id: Name) -> Response:  # noqa: A002  # what the route calls it
        """One document, whose id no path could hold: "..", or one with a line break."""
        return await document(id)

    @router.get("/documents/{id:path}", response_model=DocumentResponse, responses=NOT_FOUND)
    async def document(id: str) -> Response:  # noqa: A002
        """One document as it was given."""
        found, stamp = await service.document(id)
        fields = {"id": found.id, "title": found.title, "text": found.text, "metadata": found.metadata}
        return JsonResponse(fields | {"index": vars(stamp)})

    @router.get("/info", response_model=InfoResponse)
    async def info() -> Response:
        """What is served, how it was built, what was measured of it, and what its metadata columns hold."""
        facets, _ = await service.facets()
        with service.generations.lease() as generation:
            facts = facts_of(generation, service.settings)
        return JsonResponse(facts | {"columns": [facet.to_dict() for facet in facets]})

    return router


def health_routes(service: SearchService, metrics: ServerMetrics) -> APIRouter:
    """GET /healthz, /readyz and /metrics, and POST /admin/reload."""
    router = APIRouter(responses=ERRORS, tags=["server"])

    @router.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Whether the process answers. Open to all."""
        return {"status": "ok"}

    @router.get("/readyz")
    async def readyz() -> Response:
        """Whether questions are answered: 503 while the server stops."""
        failure = service.generations.failure
        body = {"status": "stopping" if service.draining else "ready"} | ({"reload": failure} if failure else {})
        return JsonResponse(body, 503 if service.draining else 200)

    @router.get("/metrics", response_class=Response)
    async def read_metrics() -> Response:
        """Counts, in Prometheus' text format."""
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    @router.post("/admin/reload")
    async def reload() -> dict[str, Any]:
        """Serve the newest generation of the index from now on. Needs a key of --admin-key-file."""
        changed = await service.generations.reload()
        return {"reloaded": changed, "generation": service.generations.current.stamp.generation}

    return router


def require_within(limits: ServerLimits, texts: list[str], k: int) -> None:
    """Raises RequestError for more than a request may ask for."""
    if len(texts) > limits.queries:
        raise RequestError(422, f"query: {len(texts):,} texts; expected at most {limits.queries:,}.", "query")
    if k > limits.k:
        raise RequestError(422, f"k: is {k:,}; expected at most {limits.k:,}.", "k")
    if k * len(texts) > limits.hits:
        raise RequestError(
            422, f"k: {k:,} hits for {len(texts):,} queries; expected at most {limits.hits:,} hits in all.", "k"
        )
    require_short(limits, texts, "query")


def require_short(limits: ServerLimits, texts: list[str], field: str) -> None:
    """Raises RequestError for a text that is too long to be looked at."""
    for text in texts:
        if len(text) > limits.characters:
            raise RequestError(
                422, f"{field}: {len(text):,} characters; expected at most {limits.characters:,}.", field
            )


def facts_of(generation: Generation, settings: ServerSettings) -> dict[str, Any]:
    """What is said of an index that is served: JSON types. Of models and files only their names."""
    facts = describe_index(generation.engine.index)
    figures = Quality.of(facts["quality"]).first.index
    facts["config"]["encoder"]["model"] = facts["model"] = _last_name(facts["model"])
    facts["config"]["index"]["queries"] = _last_name(facts["config"]["index"]["queries"])
    facts["config"]["whitening"]["query_sample"] = _last_name(facts["config"]["whitening"]["query_sample"])
    kept = ("generation", "fingerprint", "created", "documents", "rows", "deleted", "model", "encoder", "transform")
    limits = {name: getattr(settings.limits, name) for name in ("k", "queries", "characters", "hits", "body_bytes")}
    return {
        "name": settings.name,
        **{name: facts[name] for name in kept},
        "index_type": figures.factory if figures else None,
        "recall_at_10": figures.recall_at_10 if figures else None,
        "recipe": facts["config"],
        "metadata": facts["metadata"],
        "limits": limits,
        "version": version("isotrope"),
    }


def _last_name(path: str | None) -> str | None:
    """The last part of a path, which says what it is without saying where."""
    return path.rstrip("/").rpartition("/")[2] if path and path.startswith(("/", ".", "~")) else path
