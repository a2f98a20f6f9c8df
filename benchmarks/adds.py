"""Cost of the last of many additions of one document each, compared with the first.

    python -m benchmarks.adds TABLE CORPUS [--adds 2000] [-o benchmarks/results/adds.json]

TABLE is a model2vec folder. The first 1,000 documents of CORPUS are built into an index, and each further document is
added separately. Each `add_documents` is timed in CPU seconds, which do not depend on other programs, and in wall-clock
seconds. The table compares the median of additions 5 to 15 with the median of the last ten.
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
    """Measure the seconds of each addition and the resulting index."""
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
        "cpu_seconds": [round(seconds, 4) for seconds in cpu],
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
    """Return CPU seconds of this process, its threads and its finished children."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


if __name__ == "__main__":
    main()
