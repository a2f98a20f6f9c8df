"""Builds and near-duplicate joins to validate `isotrope plan`: CPU seconds of each phase, bytes of each layer.

    python -m benchmarks.builds [--only NAME] [--rounds 3] [--threads 1] [-o benchmarks/results/builds.json]

Each run is a process on one thread, measured in CPU seconds, because wall-clock time varies on shared machines. A run
that is in the file already is measured again only if it is named. Of several rounds, the round with the median CPU
seconds is kept, of two rounds the faster. bert-base has random weights: speed does not depend on the values. Vectors to
join are computed before the first join that uses them; those of 381 dimensions take about an hour.
"""

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import click

from benchmarks.interleaved import in_fresh_process, machine, save

_DATA = "../shared/data"
_TABLE = "encoder.model=../shared/models/potion-base-4m-int8"
_DEBIAN, _CACM, _SCIFACT = (f"{_DATA}/{name}" for name in ("debian/corpus.jsonl.gz", "cacm/corpus.jsonl",
                                                             "scifact/corpus.jsonl"))  # fmt: skip
_SENTENCES = f"{_DATA}/sentences"


@dataclass(frozen=True)
class Build:
    """A build of the first `documents` (0: all) of some corpora in sequence."""

    sources: tuple[str, ...]
    documents: int = 0
    recipe: str = "minilm"
    settings: tuple[str, ...] = ()
    shape: str = ""  # of a model with random weights; empty for the recipe's model


@dataclass(frozen=True)
class Join:
    """A near-duplicate join of `rows` vectors of Debian and the sentences, with planted near copies.

    The vectors come from the static table, or with `wide` from all-MiniLM-L6-v2 with texts cut after 32 tokens.
    """

    rows: int
    method: str
    threshold: float = 0.95
    wide: bool = False


RUNS: dict[str, Build | Join] = {
    "minilm-debian": Build((_DEBIAN,), 1500),
    "minilm-cacm": Build((_CACM,), 1200),
    "minilm-scifact": Build((_SCIFACT,), 300),
    "bert-base-debian": Build((_DEBIAN,), 150, shape="bert-base"),
    "bert-base-scifact": Build((_SCIFACT,), 60, shape="bert-base", settings=("store.embeddings=float16",)),
    "static-debian": Build((_DEBIAN,), 0, "static", (_TABLE, "index.type=flat")),
    "static-scifact": Build((_SCIFACT,), 0, "static", (_TABLE,)),
    "static-debian-20k": Build((_DEBIAN,), 20_000, "static", (_TABLE, "store.embeddings=float16")),
    "static-flat": Build((_DEBIAN, _SENTENCES), 0, "static", (_TABLE, "index.type=flat")),
    "static-auto": Build((_DEBIAN, _SENTENCES), 0, "static", (_TABLE,)),
    "static-auto-150k": Build((_DEBIAN, _SENTENCES), 150_000, "static", (_TABLE,)),
    **{f"join-{method}-{rows // 1000}k": Join(rows, method) for method in ("exact", "ann")
       for rows in (50_000, 100_000, 200_000, 1_000_000)},
    **{f"join-{method}-{rows // 1000}k-wide": Join(rows, method, wide=True) for method in ("exact", "ann")
       for rows in (50_000, 100_000, 200_000, 1_000_000)},
}  # fmt: skip
# The indexes that provide the vectors of the wide joins.
_WIDE = tuple(Build((source,), settings=("encoder.max_length=32", "index.type=flat"))
              for source in (_DEBIAN, _SENTENCES))  # fmt: skip


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(RUNS)), help="Runs to measure; repeatable.")
@click.option("--rounds", type=int, default=3, show_default=True)
@click.option("--threads", type=int, default=1, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("benchmarks/results/builds.json"))
def main(only: tuple[str, ...], rounds: int, threads: int, output: Path) -> None:
    """Measure runs and save the results after each run."""
    runs = json.loads(output.read_text(encoding="utf-8"))["runs"] if output.exists() else {}
    for name in only or [name for name in RUNS if name not in runs]:
        results = [in_fresh_process(name, "benchmarks.builds:measure", name, threads) for _ in range(rounds)]
        results.sort(key=lambda run: float(run["cpu_seconds"]))
        rounds_cpu = [round(float(run["cpu_seconds"]), 2) for run in results]
        runs[name] = {**results[(len(results) - 1) // 2], "rounds": rounds_cpu, "machine": machine(threads)}
        click.echo(f"{name}: {rounds_cpu} CPU seconds")
        save(output, {"command": "python -m benchmarks.builds", "runs": runs})


class Phases:
    """A `Progress` that records CPU and wall-clock seconds of each phase; the time before the first phase is `opening`.

    The seconds of a repeated phase are added up.
    """

    def __init__(self) -> None:
        self.cpu, self.wall = dict[str, float](), dict[str, float]()
        self._name, self._at = "opening", (time.process_time(), time.perf_counter())

    def phase(self, name: str, total: int | None) -> None:
        """Record the end of the previous phase."""
        now = time.process_time(), time.perf_counter()
        self.cpu[self._name] = self.cpu.get(self._name, 0.0) + now[0] - self._at[0]
        self.wall[self._name] = self.wall.get(self._name, 0.0) + now[1] - self._at[1]
        self._name, self._at = name, now

    def advance(self, texts: int, tokens: int = 0) -> None:
        """Ignore the progress within a phase."""


def measure(name: str, threads: int) -> dict[str, Any]:
    """Measure a run in this process."""
    run = RUNS[name]
    with tempfile.TemporaryDirectory() as folder:
        return _build(run, threads, Path(folder)) if isinstance(run, Build) else _join(run, threads)


def _build(run: Build, threads: int, folder: Path) -> dict[str, Any]:
    from indexer import BuildConfig, RunOptions, build_index, read_corpus
    from indexer.store.layout import manifest_name
    from indexer.store.manifest import load_manifest

    settings = [*run.settings, *([f"encoder.model={_random_model(run.shape, folder)}"] if run.shape else [])]
    config = BuildConfig.load(run.recipe).with_overrides(settings)
    corpus = read_corpus(*([_first(run, folder)] if run.documents else run.sources))
    progress = Phases()
    report = build_index(corpus, folder / "index", config, RunOptions(threads=threads, device="cpu"), progress)
    progress.phase("end", None)
    manifest = load_manifest(folder / "index")
    sizes = {file: digest.bytes for file, digest in manifest.files.items()}
    sizes["manifest.json"] = (folder / "index" / manifest_name(1)).stat().st_size
    return {
        "what": "build",
        "asked": {name: value for name, value in asdict(run).items() if value},
        "documents": report.documents,
        "rows": report.rows,
        "dim": report.dim,
        "tokens": report.tokens,
        "encoded_tokens": _encoded_tokens(folder / "index", [part.name for part in manifest.parts], config),
        "text_bytes": _text_bytes(config, corpus),
        "parts": len(manifest.parts),
        "factory": manifest.segments[0].factory,
        "backend": report.backend,
        "shape": run.shape or ("all-MiniLM-L6-v2" if run.recipe == "minilm" else "static"),
        "embeddings": config.store.embeddings,
        "cpu_seconds": sum(progress.cpu.values()),
        "phases": {name: [progress.cpu[name], progress.wall[name]] for name in progress.cpu},
        "bytes": _layers(sizes),
    }


def _layers(sizes: dict[str, int]) -> dict[str, int]:
    """Return bytes by kind of file, summed over parts and generations."""
    layers = dict[str, int]()
    for file, size in sizes.items():
        top, name = file.split("/")[0], file.split("/")[-1]
        layer = name if top == "parts" else top
        layers[layer] = layers.get(layer, 0) + size
    return layers


def _first(run: Build, folder: Path) -> str:
    """Write the first documents of a run's sources as JSON Lines. Returns the file."""
    from indexer import read_corpus

    path = folder / "corpus.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for document in islice(read_corpus(*run.sources), run.documents):
            row = {"id": document.id, "title": document.title, "text": document.text}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return str(path)


def _text_bytes(config: Any, corpus: Any) -> int:
    from indexer.corpus.document import joined_text

    return sum(len(joined_text(document, config.corpus.text).encode()) for document in corpus)


def _encoded_tokens(index: Path, parts: list[str], config: Any) -> int:
    """Return the number of encoded tokens of all rows, without tokens that a transformer cuts off."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    longest = config.encoder.max_length if config.encoder.kind == "transformer" else 1 << 30
    files = [pq.ParquetFile(index / part / "windows.parquet", pre_buffer=False) for part in parts]
    return sum(int(pc.sum(pc.min_element_wise(file.read()["tokens"], longest)).as_py()) for file in files)


def _random_model(shape: str, folder: Path) -> Path:
    from benchmarks.gpu import SHAPES, write_model
    from indexer.models.hub import locate_model

    return write_model(folder / shape, SHAPES[shape], locate_model("sentence-transformers/all-MiniLM-L6-v2").folder)


def _join(run: Join, threads: int) -> dict[str, Any]:
    from benchmarks.dedup_peers import isotrope_ann, isotrope_exact

    vectors = _vectors(run)
    join: Callable[..., Any] = {"exact": isotrope_exact, "ann": isotrope_ann}[run.method]
    at = time.process_time(), time.perf_counter()
    outcome = join(vectors, run.threshold, threads)
    cpu, wall = time.process_time() - at[0], time.perf_counter() - at[1]
    figures = {"dim": vectors.shape[1], "cpu_seconds": cpu, "seconds": wall, "pairs": len(outcome.pairs)}
    return {"what": "join", **asdict(run), **figures}


def _vectors(run: Join) -> Any:
    """Return vectors (rows, 128 or 381), which are computed once and kept in the folder for temporary files."""
    import numpy as np

    from benchmarks.dedup import corpus

    kind = "wide" if run.wide else "static-flat"
    place = Path(tempfile.gettempdir())
    kept = place / f"isotrope-builds-{kind}-{run.rows}.npy"
    if not kept.exists():
        builds = _WIDE if run.wide else (RUNS["static-flat"],)
        indexes = tuple(place / f"isotrope-builds-{kind}-{number}" for number in range(len(builds)))
        for build, index in zip(builds, indexes, strict=True):
            assert isinstance(build, Build)
            _kept_index(build, index)
        np.save(kept, corpus(indexes, run.rows))
    return np.load(kept)


def _kept_index(build: Build, index: Path) -> None:
    from indexer import BuildConfig, RunOptions, build_index, read_corpus

    if not index.exists():
        config = BuildConfig.load(build.recipe).with_overrides(build.settings)
        build_index(read_corpus(*build.sources), index, config, RunOptions(device="cpu"))


if __name__ == "__main__":
    main()
