"""An index of any size on one machine: time and memory of each step, and of a build that is killed and continued.

    python -m benchmarks.recombined [--documents 1000000 --documents 10000000] [--folder DIR] [-o FILE]

A document is three random sentences of `../shared/data/sentences`, drawn by a seed, with a year for filters. A static
table encodes it. Each step is a process of the command line with its seconds and peak memory: a build that is
killed with 40 % of its parts, the same build continued, a question, a question with a filter, and a join of
near-duplicates. Peak memory includes the pages of files that a process has mapped.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.interleaved import machine, save
from indexer.recipe.index_config import StoreConfig
from indexer.store.layout import EMBEDDINGS
from search.cli.output import print_table

_SENTENCES = Path("../shared/data/sentences")
_RECIPE = ("--config", "static", "--set", "encoder.model=../shared/models/potion-base-4m-int8")
_CLI = "from isotrope import main; main()"
_QUESTION = "the ship sank in the storm and nobody was saved"
_EACH = 3  # sentences in a document
_BLOCK = 100_000  # documents written at a time
_KILLED_AT = 0.4  # of its parts


@click.command()
@click.option("--documents", type=int, multiple=True, default=(1_000_000, 10_000_000), show_default=True)
@click.option(
    "--folder", type=click.Path(path_type=Path), required=True, help="For corpora and indexes: 2 KB a document."
)
@click.option("--set", "settings", multiple=True, help="A setting of the recipe; repeatable.")
@click.option("-o", "--output", type=click.Path(path_type=Path))
def main(documents: tuple[int, ...], folder: Path, settings: tuple[str, ...], output: Path | None) -> None:
    """Measure indexes of these sizes, one after the other."""
    folder.mkdir(exist_ok=True)
    sizes = {count: list(_steps(count, folder, settings)) for count in documents}
    for count, steps in sizes.items():
        rows = [[step["name"], f"{step['seconds']:,.1f}", f"{step['peak_mb']:,.0f}"] for step in steps]
        print_table(["step", "s", "peak MB"], rows, f"{count:,} documents")
    if output:
        command = [word.rpartition("/")[2] for word in sys.argv[1:]]
        save(output, {"machine": machine(os.cpu_count() or 1), "command": command, "sizes": sizes})


def _steps(count: int, folder: Path, settings: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    corpus, index = folder / f"{count}.jsonl", folder / f"{count}-index"
    if not corpus.exists():
        _write(corpus, count)
    shutil.rmtree(index, ignore_errors=True)
    build = [
        "build",
        str(corpus),
        str(index),
        "--quiet",
        *_RECIPE,
        *(part for one in settings for part in ("--set", one)),
    ]
    yield _killed(build, index, count) | {"name": "build, until it is killed"}
    yield _measured(build) | {
        "name": "build, continued",
        "bytes": {path.name: _bytes(path) for path in index.iterdir() if path.is_dir()},
    }
    yield _measured(["query", str(index), _QUESTION]) | {"name": "a question"}
    yield _measured(["query", str(index), "--where", "year > 2020", _QUESTION]) | {"name": "a question with a filter"}
    yield _measured(["dedup", str(index), "--threshold", "0.95", "--method", "ann", "--json"]) | {
        "name": "near-duplicates"
    }


def _write(path: Path, count: int) -> None:
    """Write random combinations of the sentences."""
    sentences = [
        line for file in sorted(_SENTENCES.glob("*.txt")) for line in file.read_text("utf-8").splitlines() if line
    ]
    draw, unfinished = np.random.default_rng(count), path.with_suffix(".part")
    with unfinished.open("w", encoding="utf-8") as file:
        for first in range(0, count, _BLOCK):
            drawn = draw.integers(0, len(sentences), (min(_BLOCK, count - first), _EACH)).tolist()
            for number, places in enumerate(drawn, start=first):
                text = " ".join(sentences[place] for place in places)
                file.write(json.dumps({"id": f"d{number}", "text": text, "year": 1950 + number % 77}) + "\n")
    unfinished.rename(path)


def _measured(arguments: list[str]) -> dict[str, Any]:
    """Return seconds and peak memory of a command, and for a build its parts."""
    return _ended(_started(arguments))


def _killed(arguments: list[str], index: Path, count: int) -> dict[str, Any]:
    """Kill a build after some of its parts."""
    process, began = _started(arguments)
    parts, wanted = index / "parts", max(1, int(_KILLED_AT * count / StoreConfig().part_documents))
    while len(list(parts.glob(f"*/{EMBEDDINGS}"))) < wanted:
        time.sleep(1)
        if process.poll() is not None:
            raise click.ClickException("the build ended before it could be killed; expected more documents.")
    process.kill()
    return _ended((process, began), killed=True)


def _started(arguments: list[str]) -> tuple["subprocess.Popen[str]", float]:
    command = [sys.executable, "-c", _CLI, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True), time.perf_counter()


def _ended(started: tuple["subprocess.Popen[str]", float], killed: bool = False) -> dict[str, Any]:
    process, began = started
    printed = process.stdout.read() if process.stdout else ""
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    if status and not killed:
        raise click.ClickException(
            f"{process.args!r}: exit code {os.waitstatus_to_exitcode(status)}: {printed[-2000:]}"
        )
    kept = next((line.split(maxsplit=1)[1].strip() for line in printed.splitlines() if line.startswith("parts")), "")
    return {"seconds": seconds, "peak_mb": usage.ru_maxrss / 1000, "parts": kept}


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    main()
