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
    """An index that is served: `guard` is the ASGI application to be run."""

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
    """Return an application that answers from this engine, which it closes. `on_change` gets a sentence on reloads.

    Loads everything that the first question needs. Agents are answered if the SDK of their protocol is installed.
    Raises the errors of opening the index or its encoder.
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
    """Return an application as `serve_engine` does, for agents alone."""
    prepare(engine)
    service = SearchService(engine, settings, on_change)
    return _served(service, agents_of(service))


def speak(
    engine: SearchEngine, settings: ServerSettings, streams: "ProtocolStreams", on_change: Callable[[str], None]
) -> None:
    """Answer one agent over standard input and output, until it closes the input; then the engine is closed.

    Raises as `serve_engine` does.
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
    """Return the server of agents; `page` as there. The SDK of their protocol must be installed."""
    from search.server.mcp.agents import Agents

    return Agents(service, page)


def _served(service: SearchService, agents: "Agents | None") -> ServedIndex:
    """The application with what every server has: health, metrics and the guard; and agents at /mcp."""
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
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # looked for at every request
        lifespan=lifespan,
    )
    answer_failures(api, service)
    api.include_router(health_routes(service, metrics))
    if agents:
        api.router.routes.append(agents.route)
    return ServedIndex(service, metrics, api, Guard(api, settings, metrics))


def gauges(service: SearchService) -> dict[str, tuple[str, float]]:
    """Return the values that are looked up whenever the metrics are read."""
    generation = service.generations.current
    return {
        "isotrope_pending": ("Requests that wait or are answered now.", service.pending),
        "isotrope_waiting_to_encode": ("Pieces of requests that wait for the encoder.", len(service.encoding)),
        "isotrope_waiting_to_rank": ("Requests that wait to be ranked.", len(service.ranking)),
        "isotrope_generation": ("The generation that is served.", generation.stamp.generation),
        "isotrope_documents": ("Documents that are served.", len(generation.engine)),
        "isotrope_reloads": ("Generations that were taken up since the start.", service.generations.reloads),
        "isotrope_failed_reloads": (
            "Attempts since the start to take up a generation that failed.",
            service.generations.failed_reloads,
        ),
    }
