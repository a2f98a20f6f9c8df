"""The application: the service, its routes, and the guard before them."""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from fastapi import FastAPI

from indexer.errors import as_shown
from search.engine import SearchEngine
from search.server.failures import answer_failures
from search.server.generations import prepare
from search.server.guard import Guard
from search.server.metrics import ServerMetrics
from search.server.page import page_routes
from search.server.routes import health_routes, search_routes
from search.server.service import SearchService
from search.server.settings import ServerSettings


@dataclass(frozen=True)
class ServedIndex:
    """An index that is served: `guard` is the ASGI application to be run."""

    service: SearchService
    metrics: ServerMetrics
    api: FastAPI
    guard: Guard

    def drain(self) -> None:
        """Say that the server stops, and end the answers that would never."""
        self.service.draining = True
        self.guard.end_streams()


def serve_engine(
    engine: SearchEngine, settings: ServerSettings, on_change: Callable[[str], None] = lambda _: None
) -> ServedIndex:
    """An application that answers from this engine, which is closed with it. `on_change` is told of reloads.

    What the first question needs is loaded here. Raises what opening the index or its encoder raises.
    """
    prepare(engine)
    service, metrics = SearchService(engine, settings, on_change), ServerMetrics()
    service.on_batch = metrics.count_batch
    metrics.observe(lambda: gauges(service))

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.stop()

    api = FastAPI(
        title="Isotrope",
        summary="Search in one index.",
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    answer_failures(api, as_shown(str(engine.index.path)), settings.name)
    api.include_router(search_routes(service))
    api.include_router(health_routes(service, metrics))
    api.include_router(page_routes())
    return ServedIndex(service, metrics, api, Guard(api, settings, metrics))


def gauges(service: SearchService) -> dict[str, tuple[str, float]]:
    """What is looked up whenever the metrics are read."""
    generation = service.generations.current
    return {
        "isotrope_pending": ("Requests that wait or are answered now.", service.pending),
        "isotrope_waiting_to_encode": ("Pieces of requests that wait for the encoder.", len(service.encoding)),
        "isotrope_waiting_to_rank": ("Requests that wait to be ranked.", len(service.ranking)),
        "isotrope_generation": ("The generation that is served.", generation.stamp.generation),
        "isotrope_documents": ("Documents that are served.", len(generation.engine)),
        "isotrope_reloads": ("Generations that were taken up since the start.", service.generations.reloads),
    }
