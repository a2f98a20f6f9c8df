"""Gain of more workers: documents encoded and pairs compared a second, with one thread for each worker.

    python -m benchmarks.scale CORPUS [--documents 4000] [--rows 100000] [--set SECTION.KEY=VALUE] [-o FILE]

The same parts are encoded, and the same vectors joined, by one and by several workers, as processes and as Ray actors,
in turns. The table shows medians of the rates and of each turn's ratio. Time counts from the first result on, because
starting workers takes seconds, which do not matter in a long build. All outputs must be equal byte for byte.
"""

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.interleaved import machine, save
from indexer import BuildConfig, RunOptions, encode_pending, prepare_parts, read_corpus
from indexer.executors import Executor
from indexer.progress import NoProgress
from search.cli.output import print_table
from search.dedup.join.distributed import DistributedJoin
from search.dedup.join.exact import ExactJoin
from search.dedup.settings import JoinOptions

_EXECUTORS: tuple[Executor, ...] = ("processes", "ray")
_NOISE = 0.1  # of a planted copy


@dataclass(frozen=True)
class Way:
    """Workers of one thread each."""

    executor: Executor
    workers: int

    @property
    def options(self) -> RunOptions:
        """The run options for these workers."""
        return RunOptions(device="cpu", executor=self.executor, workers=self.workers, threads=self.workers)

    def __str__(self) -> str:
        return f"{self.executor}, {self.workers}"


class Pace(NoProgress):
    """The rate of results after the first."""

    def __init__(self) -> None:
        self._results: list[tuple[float, int]] = []

    def advance(self, rows: int, tokens: int = 0) -> None:
        """See `Progress`."""
        self._results.append((time.perf_counter(), rows))

    @property
    def per_second(self) -> float:
        """Rows a second, without those of the first result."""
        (first, _), (last, _) = self._results[0], self._results[-1]
        return sum(rows for _, rows in self._results[1:]) / (last - first)


@click.command()
@click.argument("corpus", nargs=-1, required=True)
@click.option("--documents", type=int, default=4000, show_default=True, help="Documents to encode; 0: no encoding.")
@click.option("--rows", type=int, default=100_000, show_default=True, help="Vectors to join; 0: no join.")
@click.option("--dim", type=int, default=384, show_default=True, help="Dimensions of the vectors.")
@click.option("--workers", type=int, default=2, show_default=True, help="Workers to compare with one.")
@click.option("--rounds", type=int, default=3, show_default=True)
@click.option("--set", "assignments", multiple=True, metavar="SECTION.KEY=VALUE", help="Settings of the recipe.")
@click.option("-o", "--output", type=click.Path(path_type=Path))
def main(corpus: tuple[str, ...], output: Path | None, **given: Any) -> None:
    """Compare one worker with several."""
    ways = [Way(executor, workers) for executor in _EXECUTORS for workers in (1, given["workers"])]
    results = []
    with tempfile.TemporaryDirectory(prefix="isotrope-scale-") as folder:
        if given["documents"]:
            config = BuildConfig().with_overrides(["store.part_documents=32", *given["assignments"]])
            results += encoding(Path(folder), corpus, config, given["documents"], ways, given["rounds"])
        if given["rows"]:
            results += joining(Path(folder), given["rows"], given["dim"], ways, given["rounds"])
    about = machine(1, ("ray",))
    click.echo(f"{about['processor']}, {about['cores']} cores, {about['date']}, {about['versions']}")
    if output:
        save(output, {"machine": about, "command": sys.argv[1:], "results": results})


def encoding(
    folder: Path, corpus: Sequence[str], config: BuildConfig, documents: int, ways: Sequence[Way], rounds: int
) -> list[dict[str, Any]]:
    """Measure documents encoded a second."""
    prepare_parts(islice(read_corpus(*corpus), documents), folder / "prepared", config)

    def run(way: Way, pace: Pace) -> str:
        shutil.rmtree(folder / "index", ignore_errors=True)
        shutil.copytree(folder / "prepared", folder / "index")
        encode_pending(folder / "index", options=way.options, progress=pace)
        return "".join(path.read_text() for path in sorted((folder / "index").rglob("part.json")))

    return _compared("documents encoded", 1, {way: partial(run, way) for way in ways}, rounds)


def joining(folder: Path, rows: int, dim: int, ways: Sequence[Way], rounds: int) -> list[dict[str, Any]]:
    """Measure pairs compared a second."""
    np.save(folder / "vectors.npy", _clouds(rows, dim))
    join = ExactJoin(np.load(folder / "vectors.npy", mmap_mode="r"), np.float32(0.95), folder, JoinOptions("cpu"))

    def run(way: Way, pace: Pace) -> str:
        join.progress = pace
        batches = list(DistributedJoin(join, folder, way.options.pool).within(np.arange(rows)))
        pairs = np.concatenate([np.stack([batch.left, batch.right], axis=1) for batch in batches])
        return pairs[np.lexsort(pairs.T)].tobytes().hex()

    return _compared("pairs compared", (rows - 1) / 2, {way: partial(run, way) for way in ways}, rounds)


def _clouds(rows: int, dim: int) -> Any:
    """Return unit vectors (rows, dim), a tenth of them near copies of others."""
    draw = np.random.default_rng(0)
    vectors = draw.standard_normal((rows, dim), np.float32)
    copies = draw.integers(0, rows, rows // 10)
    vectors[: len(copies)] = vectors[copies] + _NOISE * draw.standard_normal((len(copies), dim), np.float32)
    exact = vectors.astype(np.float64)
    return (exact / np.linalg.norm(exact, axis=1, keepdims=True)).astype(np.float32)


def _compared(what: str, weight: float, runners: dict[Way, Callable[[Pace], str]], rounds: int) -> list[dict[str, Any]]:
    """Measure the ways in turns; a row counts as `weight` units."""
    rates: dict[Way, list[float]] = {way: [] for way in runners}
    outputs = set[str]()
    for _ in range(rounds):
        for way, run in runners.items():
            pace = Pace()
            outputs.add(run(pace))
            rates[way].append(weight * pace.per_second)
    if len(outputs) != 1:
        raise click.ClickException(f"{what}: the outputs of several workers differ from those of one worker")
    median = {way: statistics.median(each) for way, each in rates.items()}
    alone = {way.executor: rates[way] for way in runners if way.workers == 1}
    rows = [
        {
            "what": what,
            "executor": way.executor,
            "workers": way.workers,
            "runs": rates[way],
            "per_second": median[way],
            "per_second_and_worker": median[way] / way.workers,
            "times_one_worker": statistics.median(
                several / one for several, one in zip(rates[way], alone[way.executor], strict=True)
            ),
        }
        for way in runners
    ]
    print_table(
        ["executor", "workers", "a second", "a second and worker", "x one worker"],
        [
            [
                str(row["executor"]),
                str(row["workers"]),
                f"{row['per_second']:,.0f}",
                f"{row['per_second_and_worker']:,.0f}",
                f"{row['times_one_worker']:.2f}",
            ]
            for row in rows
        ],
        what,
    )
    return rows


if __name__ == "__main__":
    main()
