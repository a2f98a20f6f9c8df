"""A measurement of `benchmarks.build`, in its own process: a build, or its encoder alone on the same texts.

`seconds` count from before the first import to the end, without reading the corpus for the encoder alone. `loading` is
the time to load the model, included in them. `loaded_mb` and `peak_mb` are the peak memory of the process after loading
the model and at the end.
"""

import json
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Run:
    """A measurement to run: `what` is "build" or "encode"."""

    what: str
    corpus: str  # JSON Lines
    model: str
    threads: int
    settings: tuple[str, ...] = ()  # of the recipe, in the form of `--set`


@dataclass(frozen=True)
class Measured:
    """Result of a run, in seconds and MB (10**6 bytes)."""

    documents: int
    seconds: float
    loading: float
    loaded_mb: float
    peak_mb: float


def measured(run: dict[str, Any]) -> dict[str, Any]:
    """Measure a run in this process; `run` and the result are JSON types."""
    return asdict(measure(Run(**run)))


def measure(run: Run) -> Measured:
    """Measure a run in this process."""
    return {"build": measure_build, "encode": measure_encoder}[run.what](run)


def measure_build(run: Run) -> Measured:
    """Measure `build_index` from the corpus to the published index, in a temporary folder."""
    start = time.perf_counter()
    from indexer import RunOptions, build_index, read_corpus
    from indexer.pipeline.steps import build_encoder as index_encoder

    where: Any = index_encoder
    loading = where.open_encoder = _Timed(where.open_encoder)
    try:
        with tempfile.TemporaryDirectory() as folder:
            corpus, options = read_corpus(run.corpus), RunOptions(threads=run.threads, device="cpu")
            report = build_index(corpus, Path(folder) / "index", recipe(run), options)
            seconds = time.perf_counter() - start
    finally:
        where.open_encoder = loading.function
    return Measured(report.documents, seconds, loading.seconds, loading.peak_mb, peak_mb())


def measure_encoder(run: Run) -> Measured:
    """Measure `load_encoder(...).encode(texts)` with all texts in memory."""
    start = time.perf_counter()
    from indexer import RunOptions
    from indexer.encoders.load import load_encoder

    config, load = recipe(run), _Timed(load_encoder)
    encoder = load(config.encoder, RunOptions(threads=run.threads, device="cpu"))
    before = time.perf_counter() - start
    texts = _texts(run, config.corpus.text)
    start = time.perf_counter()
    encoder.encode(texts, "document")
    return Measured(len(texts), before + time.perf_counter() - start, load.seconds, load.peak_mb, peak_mb())


def recipe(run: Run) -> Any:
    """Return the default recipe with the model and the settings of a run."""
    from indexer import BuildConfig

    return BuildConfig().with_overrides([f"encoder.model={json.dumps(run.model)}", *run.settings])


def peak_mb() -> float:
    """Return the peak memory of this process in MB."""
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes * 1024 / 1e6


class _Timed:
    """A function that records its time and the peak memory after each call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.seconds, self.peak_mb = function, 0.0, 0.0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        start = time.perf_counter()
        result = self.function(*arguments, **named)
        self.seconds += time.perf_counter() - start
        self.peak_mb = peak_mb()
        return result


def _texts(run: Run, columns: tuple[str, ...]) -> list[str]:
    from indexer import read_corpus
    from indexer.corpus.document import joined_text

    return [joined_text(document, columns) for document in read_corpus(run.corpus)]
