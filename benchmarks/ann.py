"""Comparison of approximate indexes: recall, queries a second, bytes a vector and build time.

    python -m benchmarks.ann INDEX... [--rows 200000 --rows 1000000] [--autofaiss PYTHON] [-o FILE]

ScaNN, SVS, DiskANN and turbovec are included if they are on the path (see `benchmarks.ann_libraries`).

The vectors are the distinct vectors of all indexes (of one encoder) by the first index's transform, in a fixed random
order; queries are held-out vectors. Rows beyond the number of vectors are perturbed copies, and labelled so. Isotrope's
index is the one that `index.type = "auto"` chooses for these vectors. The peers use common settings: hnswlib and
usearch M 16 and ef_construction 200, autofaiss the memory of Isotrope's index at the first recall (its Python needs
faiss-cpu 1.7.4 and numpy 1).
"""

import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from scipy.stats import spearmanr

from benchmarks import ann_peers as peers
from benchmarks.ann_libraries import LIBRARIES
from benchmarks.ann_peers import AnnData, load, recall
from benchmarks.interleaved import machine, run_in_turns, save
from indexer import BuildConfig, RunOptions, ann, build_index, read_corpus
from search.cli.output import print_table
from search.index import Index

OURS = "isotrope"
_TARGETS = (0.95, 0.99, 0.995)
_LIBRARIES = ("hnswlib", "usearch", "scann", "scalable-vs", "diskannpy", "turbovec")
_CURVE_ROUNDS = 2  # for each point of a curve; the compared settings get --rounds


@dataclass(frozen=True)
class Options:
    """The indexes to build, and how to measure them."""

    recalls: tuple[float, ...]
    rounds: int
    threads: int
    python: Path | None
    only: tuple[str, ...]

    def wants(self, name: str) -> bool:
        return not self.only or name in self.only


@dataclass(frozen=True)
class Built:
    """An index with its build time and its description."""

    peer: peers.Peer
    seconds: float
    what: str


@click.command()
@click.argument("indexes", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--rows", multiple=True, type=int, default=(200_000,), show_default=True, help="Vectors; repeatable.")
@click.option("--queries", type=int, default=1000, show_default=True, help="Held-out queries.")
@click.option("--recall", "recalls", multiple=True, type=float, default=(0.95, 0.995), show_default=True,
              help="index.recall of an Isotrope index; repeatable.")  # fmt: skip
@click.option("--rounds", type=int, default=5, show_default=True, help="Runs of each, in turns.")
@click.option("--threads", type=int, default=2, show_default=True)
@click.option("--autofaiss", "python", type=click.Path(path_type=Path), help="A Python with autofaiss.")
@click.option("--only", multiple=True, help="Peers to run, by their name in the table; repeatable.")
@click.option("--keep", type=click.Path(path_type=Path), help="Folder in which to keep the indexes.")
@click.option("-o", "--output", type=click.Path(path_type=Path))
def main(
    indexes: tuple[Path, ...], rows: tuple[int, ...], queries: int, keep: Path | None, output: Path | None, **given: Any
) -> None:
    """Compare indexes on the vectors of some Isotrope indexes."""
    options, results = Options(**given), list[dict[str, Any]]()
    for count in rows:
        data = load(indexes, count, queries)
        with tempfile.TemporaryDirectory(prefix="isotrope-ann-") as temporary:
            folder = keep / str(count) if keep else Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            results.append(measure(data, folder, options))
        show(results[-1])
        if output:
            save(output, {"machine": machine(options.threads, _LIBRARIES), "results": results})


def measure(data: AnnData, folder: Path, options: Options) -> dict[str, Any]:
    """Build all indexes, measure every point of their curves, and compare those that reach each target, in turns."""
    built = build_all(data, folder, options)
    curves = {name: curve(index, data) for name, index in built.items()}
    compared = {f"{target:g}": compare(built, curves, target, data, options.rounds) for target in _TARGETS}
    for index in built.values():
        if isinstance(index.peer, peers.Autofaiss):
            index.peer.close()
    rows = len(data.vectors)
    return {
        "rows": rows,
        "real": data.real,
        "dim": data.vectors.shape[1],
        "queries": len(data.queries),
        "indexes": {
            name: {"what": index.what, "build_seconds": index.seconds, "bytes_per_vector": index.peer.bytes / rows}
            for name, index in built.items()
        },
        "curves": curves,
        "order_of_cost": {name: order_of_cost(index, curves[name]) for name, index in built.items() if OURS in name},
        "compared": compared,
    }  # fmt: skip


def build_all(data: AnnData, folder: Path, options: Options) -> dict[str, Built]:
    """Build every index in sequence."""
    threads = options.threads
    np.save(folder / "vectors.npy", data.vectors)
    (folder / "vectors.ids.txt").write_text("".join(f"{row}\n" for row in range(len(data.vectors))))
    built: dict[str, Built] = {}
    for target in options.recalls:
        ours = timed(partial(build_ours, folder, target, threads), "")
        assert isinstance(ours.peer, peers.Ours)
        built[f"{OURS} {target:g}"] = Built(ours.peer, ours.seconds, ours.peer.what)
        print(f"{OURS} {target:g}: {ours.peer.what}, {ours.seconds:.0f} s", flush=True)
    memory = next(iter(built.values())).peer.bytes
    makers: dict[str, Callable[[], Built]] = {
        "faiss flat": lambda: timed(lambda: peers.Flat(data.vectors, threads), "Flat"),
        "hnswlib": lambda: timed(lambda: peers.Hnswlib(data.vectors, threads), "M 16"),
        "usearch": lambda: timed(lambda: peers.Usearch(data.vectors, threads), "f32, M 16"),
        "usearch i8": lambda: timed(lambda: peers.Usearch(data.vectors, threads, "i8"), "i8, M 16"),
    }
    for name, (what, make_peer) in LIBRARIES.items():
        makers[name] = partial(timed, partial(make_peer, data.vectors, threads), what)
    if (python := options.python) is not None:
        makers["autofaiss"] = lambda: build_autofaiss(data, folder, python, memory, threads)
    for name, make in makers.items():
        if options.wants(name):
            try:
                built[name] = make()
            except (RuntimeError, ImportError, ValueError, OSError) as error:  # the others are still measured
                print(f"{name}: not measured: {error}", flush=True)
                continue
            print(f"{name}: {built[name].seconds:.0f} s", flush=True)
    return built


def build_ours(folder: Path, target: float, threads: int) -> peers.Ours:
    """Build an Isotrope index of the vectors without whitening, and return its segment."""
    config = BuildConfig().with_overrides(
        ["encoder.kind=vectors", "whitening.strength=none", "index.type=auto", f"index.recall={target}"]
    )
    index = folder / f"{OURS}-{target:g}"
    build_index(read_corpus(folder / "vectors.npy", config=config.corpus), index, config, RunOptions(threads=threads))
    opened = Index.open(index)
    (segment,) = opened.segments
    made = peers.Ours(
        segment.index,
        opened.manifest.measured.recall_curve,
        opened.manifest.files[segment.entry.file].bytes,
        threads,
    )
    made.what = segment.entry.factory
    return made


def build_autofaiss(data: AnnData, folder: Path, python: Path, memory: int, threads: int) -> Built:
    """Build with autofaiss within the memory of Isotrope's index."""
    (folder / "vectors").mkdir()
    with suppress(OSError):
        (folder / "vectors/vectors.npy").hardlink_to(folder / "vectors.npy")
    np.save(folder / "queries.npy", data.queries)
    made = peers.Autofaiss(python, folder, memory, threads)
    return Built(made, made.seconds, made.chosen)


def timed(make: Callable[[], peers.Peer], what: str) -> Built:
    started = time.perf_counter()
    made = make()
    return Built(made, time.perf_counter() - started, what)


def curve(index: Built, data: AnnData) -> list[dict[str, Any]]:
    """Measure recall and queries a second at each setting, batched, until recall no longer grows."""
    points: list[dict[str, Any]] = []
    for setting in index.peer.settings:
        index.peer.set(setting)
        seconds = []
        for _ in range(_CURVE_ROUNDS):
            started = time.perf_counter()
            rows = index.peer.search(data.queries)
            seconds.append(_seconds(index.peer, time.perf_counter() - started))
        points.append(
            {"setting": setting, "recall": recall(rows, data.best), "queries_per_second": len(rows) / min(seconds)}
        )
        if points[-1]["recall"] >= 0.9995:
            break
    return points


def order_of_cost(index: Built, points: list[dict[str, Any]]) -> float:
    """Return the rank correlation of the counted cost (`ann.query_cost`) and the measured time of each setting."""
    assert isinstance(index.peer, peers.Ours)
    costs = [ann.query_cost(index.peer.index, peers.DEPTH, parameters=point["setting"]).cost for point in points]
    times = [1 / point["queries_per_second"] for point in points]
    return float(spearmanr(costs, times).statistic)


def compare(
    built: dict[str, Built], curves: dict[str, list[dict[str, Any]]], target: float, data: AnnData, rounds: int
) -> dict[str, Any]:
    """Measure queries a second of each index's fastest setting that reaches the target, in turns."""
    chosen = {}
    for name, points in curves.items():
        reaching = [point for point in points if point["recall"] >= target]
        if reaching:
            chosen[name] = max(reaching, key=lambda point: float(point["queries_per_second"]))
    searched: dict[str, list[float]] = {name: [] for name in chosen}

    def run(name: str) -> Callable[[], None]:
        def search() -> None:
            peer = built[name].peer
            peer.set(chosen[name]["setting"])
            started = time.perf_counter()
            peer.search(data.queries)
            searched[name].append(_seconds(peer, time.perf_counter() - started))

        return search

    run_in_turns({name: run(name) for name in chosen}, rounds)
    return {
        name: {
            "setting": chosen[name]["setting"],
            "recall": chosen[name]["recall"],
            "queries_per_second": len(data.queries) / float(np.median(searched[name][1:])),
        }
        for name in chosen
    }


def _seconds(peer: peers.Peer, measured: float) -> float:
    return peer.searched if isinstance(peer, peers.Autofaiss) else measured


def show(result: dict[str, Any]) -> None:
    """Print a table for each target."""
    copies = result["rows"] - result["real"]
    title = f"{result['rows']:,} vectors of {result['dim']} dimensions, {copies:,} of them perturbed copies"
    for target, compared in result["compared"].items():
        rates = {name: index["queries_per_second"] for name, index in compared.items()}
        ours = max((rate for name, rate in rates.items() if name.startswith(OURS)), default=0)
        rows = []
        for name, index in compared.items():
            about = result["indexes"][name]
            ratio = f"{ours / rates[name]:.2f}" if ours else "-"
            rows.append(
                [name, about["what"], f"{index['recall']:.4f}", f"{rates[name]:,.0f}", ratio,
                 f"{about['bytes_per_vector']:,.0f}", f"{about['build_seconds']:,.0f}"]
            )  # fmt: skip
        columns = ["index", "kind", "recall@10", "queries/s", f"{OURS} / index", "bytes/vector", "build s"]
        print_table(columns, rows, f"{title}: recall@10 of at least {target}")
    for name, correlation in result["order_of_cost"].items():
        print(f"{name}: rank correlation of counted cost and measured time {correlation:.3f}")


if __name__ == "__main__":
    main()
