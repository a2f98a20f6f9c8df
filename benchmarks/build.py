"""Time and peak memory of a whole build, compared with its encoder alone on the same texts.

    python -m benchmarks.build CORPUS... [--documents 10000 --documents 60000] [--rounds 3] [--threads 2] [-o FILE]
    python -m benchmarks.build CORPUS... --documents 600000 --encoder one-layer

Each measurement runs in its own process, the two sides in turns; medians are compared. Loading the model counts on both
sides and is also shown separately. Documents beyond the corpus are copies, numbered in id and text. The encoder
`one-layer` is a BERT of one layer of 384 with random weights and the tokenizer of all-MiniLM-L6-v2. It is fast enough
for large corpora, where the other steps of a build weigh most.
"""

import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import click

from benchmarks.build_runs import Measured, Run
from benchmarks.interleaved import in_fresh_process, machine, run_in_turns, save
from indexer.corpus.corpus import read_corpus
from indexer.models.hub import locate_model
from search.cli.output import print_table

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
ONE_LAYER = "one-layer"
_COLUMNS = ["documents", "build s", "encoder s", "ratio", "of it loading", "extra ms/document", "build MB", "model MB"]


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="CORPUS...")
@click.option("--documents", "sizes", multiple=True, type=int, default=(10_000, 60_000), show_default=True)
@click.option("--encoder", default=MINILM, show_default=True, help=f'A model, or "{ONE_LAYER}".')
@click.option("--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE", help="Recipe setting; repeatable.")
@click.option("--rounds", type=int, default=3, show_default=True, help="Runs of each side, in turns.")
@click.option("--threads", type=int, default=2, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path))
def main(
    sources: tuple[str, ...], sizes: tuple[int, ...], encoder: str, rounds: int, output: Path | None, **given: Any
) -> None:
    """Compare whole builds of a corpus with the encoder alone."""
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        model = str(write_one_layer(Path(scratch) / "model")) if encoder == ONE_LAYER else encoder
        for size in sizes:
            corpus = Path(scratch) / f"{size}.jsonl"
            write_corpus(sources, size, corpus)
            runs = {side: Run(side, str(corpus), model, **given) for side in ("build", "encode")}
            results.append(compare(runs, rounds) | {"encoder": encoder})
            corpus.unlink()
    print_table(_COLUMNS, [_shown(row) for row in results], f"whole builds against {encoder} alone")
    about = machine(given["threads"], ("faiss-cpu", "openvino"))
    click.echo(f"{about['processor']}, {given['threads']} threads, {about['date']}, {about['versions']}")
    if output:
        save(output, {"machine": about, "settings": list(given["settings"]), "results": results})


def compare(runs: dict[str, Run], rounds: int) -> dict[str, Any]:
    """Measure both sides in turns. Returns medians, their ratio, and every run."""
    every: dict[str, list[Measured]] = {side: [] for side in runs}

    def runner(side: str) -> None:
        every[side].append(in_child(runs[side]))

    run_in_turns({side: partial(runner, side) for side in runs}, rounds, warm_up=False)
    build, encoder = (_medians(every[side]) for side in ("build", "encode"))
    return {
        "documents": build["documents"],
        "build": build,
        "encoder alone": encoder,
        "ratio": build["seconds"] / encoder["seconds"],
        "ms a document more": 1000 * (build["seconds"] - encoder["seconds"]) / build["documents"],
        "runs": {side: [asdict(run) for run in measured] for side, measured in every.items()},
    }


def in_child(run: Run) -> Measured:
    """Measure a run in a new process."""
    return Measured(**in_fresh_process(run.what, "benchmarks.build_runs:measured", asdict(run)))


def write_corpus(sources: Sequence[str], size: int, target: Path) -> None:
    """Write `size` documents as JSON Lines: those of the sources, then copies with a number after id and text."""
    documents = list(islice(read_corpus(*sources), size))
    with target.open("w", encoding="utf-8") as file:
        numbered = ((copy, document) for copy in count() for document in documents)
        for copy, document in islice(numbered, size):
            mark = f" {copy}" if copy else ""
            line = {"id": f"{document.id}{mark}", "title": document.title, "text": f"{document.text}{mark}"}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def write_one_layer(folder: Path) -> Path:
    """Write a random one-layer BERT of hidden size 384 to the new `folder`."""
    from benchmarks.gpu import Shape, write_model

    return write_model(folder, Shape(384, 1, 12, 1536), Path(locate_model(MINILM).folder))


def _medians(measured: Sequence[Measured]) -> dict[str, Any]:
    """Return the median of each time and the maximum of each memory figure."""
    return {
        "documents": measured[0].documents,
        "seconds": statistics.median(run.seconds for run in measured),
        "loading": statistics.median(run.loading for run in measured),
        "loaded_mb": max(run.loaded_mb for run in measured),
        "peak_mb": max(run.peak_mb for run in measured),
    }


def _shown(row: dict[str, Any]) -> list[str]:
    build, encoder = row["build"], row["encoder alone"]
    return [
        f"{row['documents']:,}", f"{build['seconds']:.1f}", f"{encoder['seconds']:.1f}", f"{row['ratio']:.3f}",
        f"{build['loading']:.1f} / {encoder['loading']:.1f}", f"{row['ms a document more']:.3f}",
        f"{build['peak_mb']:,.0f}", f"{encoder['loaded_mb']:,.0f}",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
