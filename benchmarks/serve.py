"""Comparison of servers: requests a second and latency with one and many clients, and the cost of HTTP.

    python -m benchmarks.serve INDEX [--clients 30] [--requests 600] [--isa AVX2] [--infinity PROGRAM --weights FOLDER]

`isotrope serve` is compared with a server that takes a lock around `SearchEngine.search`, and with infinity-emb, which
embeds the same texts and searches nothing. All servers run at the same time, each in a process. Clients in another
process query them in turns on the same cores, so their processor time is lost to the server. `--isa` repeats both with
oneDNN limited to an instruction set (ONEDNN_MAX_CPU_ISA), to simulate other processors.
"""

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

from benchmarks.children import Child
from benchmarks.interleaved import machine, save
from benchmarks.query import drawn_queries
from benchmarks.serve_load import Drive
from benchmarks.serve_peers import Server, infinity, isotrope, locked
from indexer.corpus.query_file import read_query_file
from indexer.errors import ConfigError
from search.cli.output import print_table
from search.index import Index

_OURS, _LOCKED, _INFINITY = "isotrope serve", "FastAPI, a lock, SearchEngine.search", "infinity-emb, embeddings alone"
_ENGINE, _BATCHED = "SearchEngine.search", "SearchEngine.search_many, 64"
_BATCH = 64
_WARM_UP = 20  # requests
_QUANTILES = {"p50": 50, "p95": 95, "p99": 99}


@dataclass
class Measured:
    """Measurements of a server by number of clients: a rate a round, and in `each` the latencies of all rounds."""

    rates: dict[int, list[float]] = field(default_factory=dict)
    each: dict[int, list[float]] = field(default_factory=dict)

    def add(self, clients: int, drive: Drive) -> None:
        """Add a round."""
        self.rates.setdefault(clients, []).append(len(drive.each) / drive.whole)
        self.each.setdefault(clients, []).extend(drive.each)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types; the ratio compares the most clients with one client, round by round."""
        fewest, most = min(self.rates), max(self.rates)
        ratios = [many / single for many, single in zip(self.rates[most], self.rates[fewest], strict=True)]
        return {
            "clients": {
                str(clients): {
                    "requests_per_second": median(rates),
                    "rounds": rates,
                    "ms": _quantiles(self.each[clients]),
                }
                for clients, rates in self.rates.items()
            },
            "ratio": median(ratios),
        }


def _quantiles(seconds: list[float]) -> dict[str, float]:
    return {name: float(np.percentile(seconds, share)) * 1e3 for name, share in _QUANTILES.items()}


@click.command()
@click.argument("index", type=click.Path(path_type=Path))
@click.option("--queries", type=click.Path(path_type=Path), help="Queries, one a line. Default: from the documents.")
@click.option("-k", type=int, default=10, show_default=True)
@click.option("--clients", type=int, default=30, show_default=True)
@click.option(
    "--requests", type=int, default=600, show_default=True, help="Requests of many clients; one client sends a third."
)
@click.option("--rounds", type=int, default=5, show_default=True)
@click.option("--isa", multiple=True, metavar="NAME", help="Also with this ONEDNN_MAX_CPU_ISA (AVX2); repeatable.")
@click.option("--infinity", "program", type=click.Path(path_type=Path), help="infinity_emb in another environment.")
@click.option("--weights", type=click.Path(path_type=Path), help="Folder of the model for --infinity.")
@click.option("-o", "--output", type=click.Path(path_type=Path))
def main(index: Path, queries: Path | None, clients: int, output: Path | None, **given: Any) -> None:
    """Measure servers of an index."""
    texts = read_query_file(queries, ConfigError).texts if queries else drawn_queries(index)
    load_before, missing = os.getloadavg()[0], dict[str, str]()
    with ExitStack() as stack:
        servers = _started(stack, _openers(index, texts, given), missing)
        load = stack.enter_context(Child("benchmarks.serve_load:Load", threads=1))
        engine = stack.enter_context(Child("benchmarks.serve_peers:Engine", index, threads=os.cpu_count() or 1))
        measured, alone = _in_turns(servers, load, partial(_alone, engine, texts, given["k"]), clients, given)
    results = {
        "servers": [{"name": name} | server.to_dict() for name, server in measured.items()],
        "engine": alone,
        "http_ms": measured[_OURS].to_dict()["clients"]["1"]["ms"]["p50"] - alone[_ENGINE]["ms"]["p50"],
        "missing": missing,
    }
    show(results, clients)
    opened = Index.open(index)
    about = machine(os.cpu_count() or 1, ("fastapi", "uvicorn", "uvloop", "httptools"))
    click.echo(f"{about['processor']}, {about['date']}, load before {load_before:.1f}, {about['versions']}")
    if output:
        identity = opened.manifest.encoder["identity"]
        facts = {"documents": opened.manifest.documents, "encoder": opened.config.encoder.kind,
                 "precision": identity["precision"], "texts": len(texts), "k": given["k"]}  # fmt: skip
        command = [word.rstrip("/").rpartition("/")[2] for word in sys.argv[1:]]
        save(output, {"machine": about | {"load": load_before}, "command": command, "index": facts, **results})


def _openers(index: Path, texts: list[str], given: dict[str, Any]) -> dict[str, Callable[[], Server]]:
    """Return the function that starts each server."""
    openers: dict[str, Callable[[], Server]] = {}
    for isa in ("", *given["isa"]):
        environment, suffix = ({"ONEDNN_MAX_CPU_ISA": isa}, f", {isa}") if isa else ({}, "")
        openers[_OURS + suffix] = partial(isotrope, index, texts, given["k"], environment)
        openers[_LOCKED + suffix] = partial(locked, index, texts, given["k"], environment)
    if given["program"] and given["weights"]:
        openers[_INFINITY] = partial(infinity, given["program"], given["weights"], texts)
    return openers


def _started(stack: ExitStack, openers: dict[str, Callable[[], Server]], missing: dict[str, str]) -> dict[str, Server]:
    """Start the servers. The reasons of failures go to `missing`, except for Isotrope's, which is raised."""
    servers = {}
    for name, opener in openers.items():
        try:
            servers[name] = opener()
        except (OSError, RuntimeError) as error:
            if name == _OURS:
                raise
            missing[name] = str(error)
        else:
            stack.callback(servers[name].close)
    return servers


def _in_turns(
    servers: dict[str, Server], load: Child, alone: Callable[[], dict[str, Any]], clients: int, given: dict[str, Any]
) -> tuple[dict[str, Measured], dict[str, Any]]:
    """Measure every server with one client and with many, and the engine alone, round by round."""
    measured, rounds = {name: Measured() for name in servers}, []
    for server in servers.values():
        load.call("drive", server.url, server.bodies, min(clients, 4), _WARM_UP)
    for _ in range(given["rounds"]):
        for name, server in servers.items():
            for many, requests in ((1, max(given["requests"] // 3, 1)), (clients, given["requests"])):
                measured[name].add(many, load.call("drive", server.url, server.bodies, many, requests))
        rounds.append(alone())
    singles = [seconds for each in rounds for seconds in each[_ENGINE]]
    rates = [each[_BATCHED] for each in rounds]
    return measured, {
        _ENGINE: {"queries_per_second": len(singles) / sum(singles), "ms": _quantiles(singles)},
        _BATCHED: {"queries_per_second": median(rates), "rounds": rates},
    }


def _alone(engine: Child, texts: list[str], k: int) -> dict[str, Any]:
    """Measure the engine without a server: seconds of each query, and queries a second in batches."""
    return {
        _ENGINE: engine.call("one_by_one", texts, k),
        _BATCHED: len(texts) / engine.call("batches", texts, k, _BATCH),
    }


def show(results: dict[str, Any], clients: int) -> None:
    """Print the tables."""
    for many in (1, clients):
        print_table(
            [f"{many} client{'s' * (many > 1)}", "requests/s", *(f"{name} ms" for name in _QUANTILES), "x one client"],
            [
                [row["name"], f"{figures['requests_per_second']:,.0f}"]
                + [f"{figures['ms'][name]:.1f}" for name in _QUANTILES]
                + [f"{row['ratio']:.2f}" if many == clients else "1"]
                for row in results["servers"]
                for figures in [row["clients"][str(many)]]
            ],
        )
    print_table(
        ["without a server", "queries/s", "p50 ms"],
        [
            [name, f"{row['queries_per_second']:,.0f}", f"{row['ms']['p50']:.2f}" if "ms" in row else ""]
            for name, row in results["engine"].items()
        ],
    )
    click.echo(f"cost of HTTP, one client: {results['http_ms']:.2f} ms")
    for name, why in results["missing"].items():
        click.echo(f"not measured: {name}: {why}")


if __name__ == "__main__":
    main()
