"""Cost of the last of many additions of one document each, compared with the first.

    python -m benchmarks.adds TABLE CORPUS [--adds 1000] [-o benchmarks/results/adds.json]

TABLE is a model2vec folder. The first 1,000 documents of CORPUS are built into an index, and each further document is
added separately, in three ways: with `add_documents` alone; with a compaction half-way, which removes the older half of
the generations, as if these were more than an hour old; and with an encoder that was loaded once. Each `add_documents`
is timed in CPU seconds, which depend little on other programs, and in wall-clock seconds. The table compares the median
of additions 5 to 15 with the median of the last ten.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import click

from benchmarks.interleaved import machine, save
from indexer import BuildConfig, Document, RunOptions, add_documents, build_index, compact_index, read_corpus
from indexer.encoders.load import load_encoder
from indexer.encoders.protocol import Encoder
from indexer.store import layout
from indexer.store.manifest import list_generations, load_manifest
from search.cli.output import print_table

_BUILT = 1000
_EARLY, _LAST = slice(4, 15), 10  # of the additions
_OPTIONS = RunOptions(threads=1, device="cpu")


@click.command()
@click.argument("table", type=click.Path(path_type=Path))
@click.argument("corpus", nargs=-1, required=True)
@click.option("--adds", type=click.IntRange(min=15), default=1000, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path))
def main(table: Path, corpus: tuple[str, ...], adds: int, output: Path | None) -> None:
    """Compare the last of many additions with the first."""
    documents = list(islice(read_corpus(*corpus), _BUILT + adds))
    if len(documents) < _BUILT + adds:
        raise click.ClickException(f"the corpus has {len(documents):,} documents, expected {_BUILT + adds:,}")
    config = BuildConfig.load("static").with_overrides([f"encoder.model={table}"])
    ways: dict[str, dict[str, Any]] = {
        "add_documents": {},
        "compacted half-way": {"compacted": adds // 2},
        "with a loaded encoder": {"encoder": load_encoder(config, _OPTIONS)},
    }
    result = dict[str, Any]()
    for way, settings in ways.items():
        with tempfile.TemporaryDirectory() as folder:
            result[way] = measure(Path(folder) / "index", documents, config, **settings)
    rows = [
        [way, clock, f"{times['early']:.3f}", f"{times['last']:.3f}", f"{times['ratio']:.2f}", f"{times['mean']:.3f}"]
        for way, figures in result.items()
        for clock, times in figures["seconds"].items()
    ]
    heads = ["", "seconds", "additions 5 to 15", "the last ten", "ratio", "mean of all"]
    print_table(heads, rows, f"{adds:,} additions of one document")
    if output:
        save(output, {"machine": machine(1), "command": sys.argv[1:], "adds": adds} | result)


def measure(
    index: Path, documents: Sequence[Document], config: BuildConfig, compacted: int = 0, encoder: Encoder | None = None
) -> dict[str, Any]:
    """Measure the seconds of each addition and the resulting index; `compacted` additions precede a compaction."""
    build_index(documents[:_BUILT], index, config, _OPTIONS)
    cpu, wall = list[float](), list[float]()
    for document in documents[_BUILT:]:
        at = _cpu_seconds(), time.perf_counter()
        add_documents([document], index, _OPTIONS, encoder=encoder)
        cpu.append(_cpu_seconds() - at[0])
        wall.append(time.perf_counter() - at[1])
        if len(cpu) == compacted:
            _compact_older_half(index)
    manifest = load_manifest(index)
    return {
        "seconds": {"CPU": _compared(cpu), "wall clock": _compared(wall)},
        "parts": len(manifest.parts),
        "segments": len(manifest.segments),
        "generations": len(list_generations(index)),
        "manifest_files": len(manifest.files),
        "cpu_seconds": [round(seconds, 4) for seconds in cpu],
    }


def _compact_older_half(index: Path) -> None:
    """Compact an index after marking the older half of its generations as more than an hour old."""
    numbers, old = list_generations(index), time.time() - 7200
    for number in numbers[: len(numbers) // 2]:
        os.utime(index / layout.manifest_name(number), (old, old))
    compact_index(index, _OPTIONS)


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
