"""The metrics that Prometheus reads at /metrics."""

from collections.abc import Callable
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector, generate_latest

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ServerMetrics:
    """Metrics of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "isotrope_requests", "Requests by route and status.", ["route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "isotrope_request_seconds", "Time from the head of a request to the end of its answer.", ["route"],
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self.batch = Histogram(
            "isotrope_batch_texts", "Texts encoded or ranked together.", ["stage"], buckets=_TEXTS,
            registry=self.registry,
        )  # fmt: skip
        self.refused = Counter(
            "isotrope_refused", "Requests refused before routing, by reason.", ["reason"],
            registry=self.registry,
        )  # fmt: skip
        self.left = Counter(
            "isotrope_clients_left", "Clients that disconnected before the answer.", registry=self.registry
        )
        Info("isotrope", "The version of Isotrope.", registry=self.registry).info({"version": version("isotrope")})
        ProcessCollector(registry=self.registry)  # memory, descriptors, processor time

    def gauge(self, name: str, about: str, read: Callable[[], float]) -> None:
        """Add a gauge that is read at each request for metrics."""
        Gauge(name, about, registry=self.registry).set_function(read)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
