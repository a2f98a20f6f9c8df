"""The application: the service, its routes, and the guard before them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fastapi import FastAPI

from search.engine import SearchEngine
from search.server.generations import prepare
from search.server.http.failures import answer_failures
from search.server.http.guard import Guard
from search.server.http.routes import health_routes, search_routes
from search.server.metrics import ServerMetrics
from search.server.openai.embeddings import embedding_routes
from search.server.openai.vector_stores import vector_store_routes
from search.server.page import page_routes
from search.server.service import SearchService
from search.server.settings import ServerSettings

if TYPE_CHECKING:
    from search.server.mcp.agents import Agents
    from search.server.mcp.standard_streams import ProtocolStreams


@dataclass(frozen=True)
class ServedIndex:
    """A served index; `guard` is the ASGI application."""

    service: SearchService
    metrics: ServerMetrics
    api: FastAPI
    guard: Guard

    def drain(self) -> None:
        """Mark the server as stopping."""
        self.service.draining = True


def serve_engine(
    engine: SearchEngine, settings: ServerSettings, on_change: Callable[[str], None] = lambda _: None
) -> ServedIndex:
    """Return an application that answers from an engine and closes it. `on_change` gets a sentence on each reload.

    Loads everything that the first query needs. Serves agents if the package mcp is installed. Raises the errors of
    opening the index or its encoder.
    """
    prepare(engine)
    service = SearchService(engine, settings, on_change)
    served = _served(service, agents_of(service, page=True) if find_spec("mcp") else None)
    served.api.include_router(search_routes(service))
    for routes in (embedding_routes, vector_store_routes):
        served.api.include_router(routes(service))
    served.api.include_router(page_routes())
    return served


def serve_agents(
    engine: SearchEngine, settings: ServerSettings, on_change: Callable[[str], None] = lambda _: None
) -> ServedIndex:
    """Return an application as `serve_engine` does, for agents only."""
    prepare(engine)
    service = SearchService(engine, settings, on_change)
    return _served(service, agents_of(service))


def speak(
    engine: SearchEngine, settings: ServerSettings, streams: "ProtocolStreams", on_change: Callable[[str], None]
) -> None:
    """Answer one agent over standard input and output until the input ends, then close the engine.

    Raises the errors of `serve_engine`.
    """
    prepare(engine)

    async def answer() -> None:
        service = SearchService(engine, settings, on_change)
        await service.start()
        try:
            await agents_of(service).speak(streams)
        finally:
            await service.stop()

    asyncio.run(answer())


def agents_of(service: SearchService, page: bool = False) -> "Agents":
    """Return the server for agents, with `page` as there. Requires the package mcp."""
    from search.server.mcp.agents import Agents

    return Agents(service, page)


def _served(service: SearchService, agents: "Agents | None") -> ServedIndex:
    """Return the application with health checks, metrics, the guard, and agents at /mcp."""
    metrics, settings = ServerMetrics(), service.settings
    service.on_batch = metrics.count_batch
    metrics.observe(lambda: gauges(service))

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        try:
            async with agents.running() if agents else contextlib.nullcontext():
                yield
        finally:
            await service.stop()

    api = FastAPI(
        title="Isotrope",
        summary="Search in one index.",
        docs_url=None,  # these pages load scripts from other sites
        redoc_url=None,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # else each request looks them up
        lifespan=lifespan,
    )
    answer_failures(api, service)
    api.include_router(health_routes(service, metrics))
    if agents:
        api.router.routes.append(agents.route)
    return ServedIndex(service, metrics, api, Guard(api, settings, metrics))


def gauges(service: SearchService) -> dict[str, tuple[str, float]]:
    """Return the gauges that are read with the metrics: name -> (help, value)."""
    generation = service.generations.current
    return {
        "isotrope_pending": ("Requests that are waiting or being answered.", service.pending),
        "isotrope_waiting_to_encode": ("Pieces of requests that are waiting for the encoder.", len(service.encoding)),
        "isotrope_waiting_to_rank": ("Requests that are waiting to be ranked.", len(service.ranking)),
        "isotrope_generation": ("The served generation.", generation.stamp.generation),
        "isotrope_documents": ("Served documents.", len(generation.engine)),
        "isotrope_reloads": ("Generations loaded since the start.", service.generations.reloads),
        "isotrope_failed_reloads": ("Failed reloads since the start.", service.generations.failed_reloads),
    }
