"""Many additions of one document each: what the last ones cost beside the first.

    python -m benchmarks.adds TABLE CORPUS [--adds 2000] [-o benchmarks/results/adds.json]

TABLE is a model2vec folder. The first 1,000 documents of CORPUS are built into an index, and each of the next ones is
added on its own. Each `add_documents` is timed in CPU seconds, which other programs on the machine do not lengthen, and
in wall-clock seconds. The table compares the median of additions 5 to 15 with the median of the last ten.
"""

import os
import statistics
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import click

from benchmarks.interleaved import machine, save
from indexer import BuildConfig, RunOptions, add_documents, build_index, read_corpus
from indexer.store.manifest import list_generations, load_manifest
from search.cli.output import print_table

_BUILT = 1000
_EARLY, _LAST = slice(4, 15), 10  # of the additions


@click.command()
@click.argument("table", type=click.Path(path_type=Path))
@click.argument("corpus", nargs=-1, required=True)
@click.option("--adds", type=click.IntRange(min=15), default=2000, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path))
def main(table: Path, corpus: tuple[str, ...], adds: int, output: Path | None) -> None:
    """Compare the last of many additions with the first."""
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder) / "index", table, corpus, adds)
    rows = [
        [name, f"{times['early']:.3f}", f"{times['last']:.3f}", f"{times['ratio']:.2f}", f"{times['mean']:.3f}"]
        for name, times in result["seconds"].items()
    ]
    heads = ["seconds", "additions 5 to 15", "the last ten", "ratio", "mean of all"]
    print_table(heads, rows, f"{adds:,} additions of one document: {result['parts']} parts at the end")
    if output:
        save(output, {"machine": machine(1), "command": sys.argv[1:]} | result)


def measure(index: Path, table: Path, corpus: tuple[str, ...], adds: int) -> dict[str, Any]:
    """Seconds of each addition, and what they leave."""
    documents = list(islice(read_corpus(*corpus), _BUILT + adds))
    if len(documents) < _BUILT + adds:
        raise click.ClickException(f"the corpus has {len(documents):,} documents, expected {_BUILT + adds:,}")
    options = RunOptions(threads=1, device="cpu")
    config = BuildConfig.load("static").with_overrides([f"encoder.model={table}"])
    build_index(documents[:_BUILT], index, config, options)
    cpu, wall = list[float](), list[float]()
    for document in documents[_BUILT:]:
        at = _cpu_seconds(), time.perf_counter()
        add_documents([document], index, options)
        cpu.append(_cpu_seconds() - at[0])
        wall.append(time.perf_counter() - at[1])
    manifest = load_manifest(index)
    return {
        "adds": adds,
        "seconds": {"CPU": _compared(cpu), "wall clock": _compared(wall)},
        "parts": len(manifest.parts),
        "segments": len(manifest.segments),
        "generations": len(list_generations(index)),
        "manifest_files": len(manifest.files),
        "cpu_seconds": [round(one, 4) for one in cpu],
    }


def _compared(seconds: list[float]) -> dict[str, float]:
    early, last = statistics.median(seconds[_EARLY]), statistics.median(seconds[-_LAST:])
    return {
        "early": early,
        "last": last,
        "ratio": last / early,
        "mean": statistics.fmean(seconds),
        "longest": max(seconds),
    }


def _cpu_seconds() -> float:
    """Of this process, all its threads, and of processes that it started and that have ended."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


if __name__ == "__main__":
    main()
