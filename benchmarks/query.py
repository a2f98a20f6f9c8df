"""Comparison of searches: latency of single queries, cold starts, and queries a second in batches.

    python -m benchmarks.query INDEX [--queries FILE] [--batch 64] [--rounds 5] [--threads 2] [-o FILE]

`SearchEngine.search` is compared with its bare parts (the same encoder, whitening and FAISS index, without checks and
documents) and with a script of sentence-transformers and FAISS on as many vectors of the same size. All three answer
each query in turn. Batches are also compared with FAISS alone, which receives vectors and has about the same recall.
Cold starts are whole processes, also in turns, with the files in the page cache.
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
from indexer import ann
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
_FAISS = "FAISS alone"
_LOOKED_AT = "isotrope, with hits made"
_SCRIPT = "sentence-transformers, FAISS"
_HELP = "isotrope --help"
_DRAWN = 200  # queries from documents, if no file is given, and as many as a batch has
_WARM_UP = 10  # queries
_CLI = "from search.cli import main; main()"
_QUANTILES = {"p50": 50, "p95": 95, "p99": 99}


@click.command()
@click.argument("index", type=click.Path(path_type=Path))
@click.option("--queries", type=click.Path(path_type=Path), help="One a line. Default: drawn "
              "from the documents' titles and first sentences.")  # fmt: skip
@click.option("-k", type=int, default=10, show_default=True)
@click.option("--batch", type=int, default=64, show_default=True, help="Queries in a batch.")
@click.option("--rounds", type=int, default=5, show_default=True, help="Cold starts, and batches, of each.")
@click.option("--threads", type=int, default=2, show_default=True)
@click.option("--backend", default="auto", show_default=True, help="Backend of Isotrope's encoder.")
@click.option("--script/--no-script", default=True, help="Include the script of sentence-transformers and FAISS.")
@click.option("-o", "--output", type=click.Path(path_type=Path))
def main(index: Path, queries: Path | None, k: int, rounds: int, output: Path | None, **given: Any) -> None:
    """Compare searches."""
    threads, backend, script, size = given["threads"], given["backend"], given["script"], given["batch"]
    texts = read_query_file(queries, ConfigError).texts if queries else drawn_queries(index, max(_DRAWN, size))
    with TemporaryDirectory() as folder, SearchEngine(index, None, RunOptions("cpu", backend, threads=threads)) as ours:
        opened = ours.index
        model = ours.encoder.spec.folder
        alone = ann.copy_of(opened.segments[0].index)
        ann.prepare_for_faiss_alone(alone)
        warm: dict[str, Callable[[list[str]], float]] = {
            _OURS: partial(_timed, lambda batch: ours.search_many(batch, k)),
            _BARE: partial(_timed, partial(_bare, ours, alone, k=k)),
        }
        cold = {_OURS: _command("query", str(index), texts[0], "-k", str(k), "--backend", backend)}
        if script:
            _write_pieces(Path(folder), opened)
            child = Child("benchmarks.query_peers:Script", model, folder, threads, threads=threads)
            warm[_SCRIPT] = lambda batch: float(child.call("timed", batch, k))
            arguments = [model, folder, str(threads), str(k), texts[0]]
            cold[_SCRIPT] = [sys.executable, "-m", "benchmarks.query_peers", *arguments]
        batch = (texts * (1 + size // len(texts)))[:size]
        results = {
            "warm": _latencies(warm, texts[:_DRAWN]),
            "batched": _batched(warm | _only_batched(ours, alone, batch, k), batch, rounds),
            "cold": _cold({**cold, _HELP: _command("--help")}, rounds),
        }
        if script:
            child.close()
    show(results, opened.manifest.rows)
    about = machine(threads, ("sentence-transformers",))
    click.echo(f"{about['processor']}, {threads} threads, {about['date']}, {about['versions']}")
    if output:
        facts = {"rows": opened.manifest.rows, "encoder": opened.manifest.encoder["identity"]["precision"]}
        command = [word.rstrip("/").rpartition("/")[2] for word in sys.argv[1:]]
        save(output, {"machine": about, "command": command, "index": facts, **results})


def drawn_queries(index: Path, count: int = _DRAWN) -> list[str]:
    """Return queries made from documents of an index, evenly spread."""
    opened = Index.open(index)
    documents = opened.manifest.documents
    texts = map(pseudo_query, opened.documents.fetch(range(0, documents, max(1, documents // count))[:count]))
    return [text for text in texts if text.strip()]


def _bare(engine: SearchEngine, alone: Any, texts: list[str], k: int) -> Any:
    """Search one segment with the bare parts; `alone` is its FAISS index."""
    transform = engine.index.transform
    rows = engine.encoder.encode(texts, "query").astype(np.float64)
    if isinstance(transform, Whitening):
        rows = (rows - transform.query_mean) @ transform.projection
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return alone.search(rows.astype(np.float32), k)


def _only_batched(
    engine: SearchEngine, alone: Any, batch: list[str], k: int
) -> dict[str, Callable[[list[str]], float]]:
    """Return FAISS alone, given vectors, and the engine with the cost of looking at every hit."""
    vectors = np.asarray(engine.embed(batch, "query"))
    return {
        _LOOKED_AT: partial(_timed, lambda texts: [list(answer) for answer in engine.search_many(texts, k)]),
        _FAISS: partial(_timed, lambda _: alone.search(vectors, k)),
    }


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


def _batched(ways: dict[str, Callable[[list[str]], float]], batch: list[str], rounds: int) -> list[dict[str, Any]]:
    timed = run_in_turns({name: partial(way, batch) for name, way in ways.items()}, rounds)
    return [
        {
            "name": name,
            "queries_per_second": len(batch) / run.median,
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
        ["in batches", "queries/s", f"x {_OURS}"],
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
