"""The application: the service, its routes, and the guard before them."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fastapi import FastAPI

from indexer.errors import written_for
from search.engine import SearchEngine
from search.server.generations import OnChange, prepare
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


def serve_engine(engine: SearchEngine, settings: ServerSettings, on_change: OnChange = lambda *_: None) -> ServedIndex:
    """Return an application that answers from an engine and closes it.

    Loads everything that the first query needs. Serves agents if the package mcp is installed. Raises the errors of
    opening the index or its encoder.
    """
    served = _served(engine, settings, on_change, with_agents=find_spec("mcp") is not None, with_page=True)
    for routes in (search_routes, embedding_routes, vector_store_routes):
        served.api.include_router(routes(served.service))
    served.api.include_router(page_routes())
    return served


def serve_agents(engine: SearchEngine, settings: ServerSettings, on_change: OnChange = lambda *_: None) -> ServedIndex:
    """Return an application as `serve_engine` does, for agents only."""
    return _served(engine, settings, on_change, with_agents=True, with_page=False)


def speak(engine: SearchEngine, settings: ServerSettings, streams: "ProtocolStreams", on_change: OnChange) -> None:
    """Answer one agent over standard input and output until the input ends, then close the engine.

    Raises the errors of `serve_engine`.
    """
    prepare(engine)

    async def answer() -> None:
        service = SearchService(engine, settings, on_change)
        await service.start()
        try:
            with written_for("library"):  # answers name the arguments of tools
                await _agents_of(service).speak(streams)
        finally:
            await service.stop()

    asyncio.run(answer())


def _agents_of(service: SearchService, with_page: bool = False) -> "Agents":
    from search.server.mcp.agents import Agents  # here, because the package mcp may be missing

    return Agents(service, with_page)


def _served(
    engine: SearchEngine, settings: ServerSettings, on_change: OnChange, with_agents: bool, with_page: bool
) -> ServedIndex:
    """Return the application with health checks, metrics, the guard, and agents at /mcp."""
    prepare(engine)
    service, metrics = SearchService(engine, settings, on_change), ServerMetrics()
    agents = _agents_of(service, with_page) if with_agents else None
    service.on_batch = lambda stage, texts: metrics.batch.labels(stage).observe(texts)
    _add_gauges(metrics, service)

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


def _add_gauges(metrics: ServerMetrics, service: SearchService) -> None:
    generations = service.generations

    def recall() -> float:
        last = generations.current.engine.index.manifest.measured.last_recall
        return math.nan if last is None else last

    for name, about, read in (
        ("isotrope_pending", "Requests that are waiting or being answered.", lambda: service.pending),
        ("isotrope_waiting_to_encode", "Pieces of requests that wait for the encoder.", lambda: len(service.encoding)),
        ("isotrope_waiting_to_rank", "Requests that are waiting to be ranked.", lambda: len(service.ranking)),
        ("isotrope_generation", "The served generation.", lambda: generations.current.stamp.generation),
        ("isotrope_documents", "Served documents.", lambda: len(generations.current.engine)),
        ("isotrope_recall_at_10", "Recall@10 of the served index, as last measured; NaN if not.", recall),
        ("isotrope_reloads", "Generations loaded since the start.", lambda: generations.reloads),
        ("isotrope_failed_reloads", "Failed reloads since the start.", lambda: generations.failed_reloads),
    ):
        metrics.gauge(name, about, read)
