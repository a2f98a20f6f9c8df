"""Comparison of searches: latency of single queries, cold starts, and queries a second in batches.

    python -m benchmarks.query INDEX [--queries FILE] [--rounds 5] [--threads 2] [-o FILE]

`SearchEngine.search` is compared with its bare parts (the same encoder, whitening and FAISS index, without checks and
documents) and with a script of sentence-transformers and FAISS on as many vectors of the same size. All three answer
each query in turn. Cold starts are whole processes, also in turns, with the files in the page cache.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from benchmarks.children import Child
from benchmarks.interleaved import machine, run_in_turns, save
from benchmarks.query_peers import write_pieces
from indexer.corpus.document import pseudo_query
from indexer.corpus.query_file import read_query_file
from indexer.errors import ConfigError
from indexer.recipe.run_options import RunOptions
from indexer.transforms import Whitening
from search.cli.output import print_table
from search.engine import SearchEngine
from search.index import Index, LiveRows

_OURS = "isotrope"
_BARE = "tokenise, encode, whiten, FAISS"
_SCRIPT = "sentence-transformers, FAISS"
_HELP = "isotrope --help"
_BATCH = 64
_DRAWN = 200  # queries from documents, if no file is given
_WARM_UP = 10  # queries
_CLI = "from search.cli import main; main()"
_QUANTILES = {"p50": 50, "p95": 95, "p99": 99}


@click.command()
@click.argument("index", type=click.Path(path_type=Path))
@click.option("--queries", type=click.Path(path_type=Path), help="One a line. Default: drawn "
              "from the documents' titles and first sentences.")  # fmt: skip
@click.option("-k", type=int, default=10, show_default=True)
@click.option("--rounds", type=int, default=5, show_default=True, help="Cold starts, and batches, of each.")
@click.option("--threads", type=int, default=2, show_default=True)
@click.option("--backend", default="auto", show_default=True, help="Backend of Isotrope's encoder.")
@click.option("--script/--no-script", default=True, help="Include the script of sentence-transformers and FAISS.")
@click.option("-o", "--output", type=click.Path(path_type=Path))
def main(index: Path, queries: Path | None, k: int, rounds: int, output: Path | None, **given: Any) -> None:
    """Compare searches."""
    threads, backend, script = given["threads"], given["backend"], given["script"]
    texts = read_query_file(queries, ConfigError).texts if queries else drawn_queries(index)
    with TemporaryDirectory() as folder, SearchEngine(index, None, RunOptions("cpu", backend, threads=threads)) as ours:
        opened = ours.index
        model = ours.encoder.spec.folder
        warm: dict[str, Callable[[list[str]], float]] = {
            _OURS: partial(_timed, lambda batch: ours.search_many(batch, k)),
            _BARE: partial(_timed, partial(_bare, ours, k=k)),
        }
        cold = {_OURS: _command("query", str(index), texts[0], "-k", str(k), "--backend", backend)}
        if script:
            _write_pieces(Path(folder), opened)
            child = Child("benchmarks.query_peers:Script", model, folder, threads, threads=threads)
            warm[_SCRIPT] = lambda batch: float(child.call("timed", batch, k))
            arguments = [model, folder, str(threads), str(k), texts[0]]
            cold[_SCRIPT] = [sys.executable, "-m", "benchmarks.query_peers", *arguments]
        results = {
            "warm": _latencies(warm, texts),
            "batched": _batched(warm, texts, rounds),
            "cold": _cold({**cold, _HELP: _command("--help")}, rounds),
        }
        if script:
            child.close()
    show(results, opened.manifest.rows)
    about = machine(threads, ("sentence-transformers",))
    click.echo(f"{about['processor']}, {threads} threads, {about['date']}, {about['versions']}")
    if output:
        facts = {"rows": opened.manifest.rows, "encoder": opened.manifest.encoder["identity"]["precision"]}
        save(output, {"machine": about, "command": sys.argv[1:], "index": facts, **results})


def drawn_queries(index: Path) -> list[str]:
    """Return queries made from the first documents of an index."""
    opened = Index.open(index)
    texts = map(pseudo_query, opened.documents.fetch(range(min(_DRAWN, opened.manifest.documents))))
    return [text for text in texts if text.strip()]


def _bare(engine: SearchEngine, texts: list[str], k: int) -> Any:
    """Search one segment with the bare parts."""
    transform, faiss_index = engine.index.transform, engine.index.segments[0].index
    rows = engine.encoder.encode(texts, "query").astype(np.float64)
    if isinstance(transform, Whitening):
        rows = (rows - transform.query_mean) @ transform.projection
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return faiss_index.search(rows.astype(np.float32), k)


def _timed(run: Callable[[list[str]], Any], texts: list[str]) -> float:
    start = time.perf_counter()
    run(texts)
    return time.perf_counter() - start


def _latencies(ways: dict[str, Callable[[list[str]], float]], queries: list[str]) -> list[dict[str, Any]]:
    """Return quantiles of the milliseconds of single queries; the ways answer each in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number, query in enumerate([*queries[:_WARM_UP], *queries]):
        for name, way in ways.items():
            elapsed = way([query])
            if number >= _WARM_UP:
                seconds[name].append(elapsed)
    ours = median(seconds[_OURS])
    return [
        {"name": name, "queries": len(each), "ratio": median(each) / ours}
        | {key: float(np.percentile(each, share)) * 1e3 for key, share in _QUANTILES.items()}
        for name, each in seconds.items()
    ]


def _batched(ways: dict[str, Callable[[list[str]], float]], queries: list[str], rounds: int) -> list[dict[str, Any]]:
    batch = (queries * (1 + _BATCH // len(queries)))[:_BATCH]
    timed = run_in_turns({name: partial(way, batch) for name, way in ways.items()}, rounds)
    return [
        {
            "name": name,
            "queries_per_second": _BATCH / run.median,
            "ratio": run.median / timed[_OURS].median,
            "seconds": run.seconds,
        }
        for name, run in timed.items()
    ]


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", _CLI, *arguments]


def _cold(commands: dict[str, list[str]], rounds: int) -> list[dict[str, Any]]:
    """Return seconds of whole processes."""
    runners = {
        name: partial(subprocess.run, command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for name, command in commands.items()
    }
    timed = run_in_turns(runners, rounds)
    ours = timed[_OURS].median
    return [
        {"name": name, "median": run.median, "fastest": min(run.seconds), "ratio": run.median / ours}
        | {"seconds": run.seconds}
        for name, run in timed.items()
    ]


def _write_pieces(folder: Path, index: Index) -> None:
    """Write the same vectors as one flat index, and the texts."""
    blocks: list[npt.NDArray[np.float32]] = [block for _, block in LiveRows(index).vector_blocks()]
    write_pieces(folder, np.concatenate(blocks), [document.text for document in index.documents.all_documents()])


def show(results: dict[str, Any], rows: int) -> None:
    """Print the tables."""
    print_table(
        ["ms a query, warm", *_QUANTILES, f"x {_OURS}"],
        [[row["name"], *(f"{row[key]:.2f}" for key in _QUANTILES), f"{row['ratio']:.2f}"] for row in results["warm"]],
        f"{rows:,} vectors, {results['warm'][0]['queries']:,} queries",
    )
    print_table(
        [f"batches of {_BATCH}", "queries/s", f"x {_OURS}"],
        [[row["name"], f"{row['queries_per_second']:,.0f}", f"{row['ratio']:.2f}"] for row in results["batched"]],
    )
    print_table(
        ["s, cold", "median", "fastest", f"x {_OURS}"],
        [
            [row["name"], f"{row['median']:.2f}", f"{row['fastest']:.2f}", f"{row['ratio']:.2f}"]
            for row in results["cold"]
        ],
    )


if __name__ == "__main__":
    main()
