"""The metrics that Prometheus reads at /metrics."""

from collections.abc import Callable, Iterator
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Histogram, Info, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

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

    def count_batch(self, stage: str, texts: int) -> None:
        """Count a batch of `texts` texts that was encoded or ranked."""
        self.batch.labels(stage).observe(texts)

    def observe(self, gauges: Callable[[], dict[str, tuple[str, float]]]) -> None:
        """Add gauges that are read at each request for metrics: name -> (help, value)."""
        self.registry.register(_Gauges(gauges))

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class _Gauges(Collector):
    def __init__(self, values: Callable[[], dict[str, tuple[str, float]]]) -> None:
        self._values = values

    def collect(self) -> Iterator[Metric]:
        for name, (help_text, value) in self._values().items():
            yield GaugeMetricFamily(name, help_text, value)
