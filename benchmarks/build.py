"""A whole build against its encoder alone on the same texts: time, and peak memory.

    python -m benchmarks.build CORPUS... [--documents 10000 --documents 60000] [--rounds 3] [--threads 2] [-o FILE]
    python -m benchmarks.build CORPUS... --documents 600000 --encoder one-layer

Each measurement runs in a process of its own, the two sides in turns; medians are compared. Loading the model counts
on both sides and is shown apart. Documents beyond the corpus are copies, numbered in id and text. The encoder
`one-layer` is a BERT of one layer of 384 with random weights and the tokenizer of all-MiniLM-L6-v2: fast enough for
large corpora, where whatever else a build does weighs most.
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import click

from benchmarks.build_runs import Measured, Run
from benchmarks.interleaved import machine, run_in_turns, save
from indexer.corpus import read_corpus
from indexer.encoders.hub import locate_model
from search.cli.output import print_table

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
ONE_LAYER = "one-layer"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
_COLUMNS = ["documents", "build s", "encoder s", "ratio", "of them loading", "ms/document more", "build MB", "model MB"]


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="CORPUS...")
@click.option("--documents", "sizes", multiple=True, type=int, default=(10_000, 60_000), show_default=True)
@click.option("--encoder", default=MINILM, show_default=True, help=f'A model, or "{ONE_LAYER}".')
@click.option("--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE", help="Of the recipe; repeatable.")
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
            runs = {what: Run(what, str(corpus), model, **given) for what in ("build", "encode")}
            results.append(compare(runs, rounds) | {"encoder": encoder})
            corpus.unlink()
    print_table(_COLUMNS, [_shown(row) for row in results], f"whole builds against {encoder} alone")
    about = machine(given["threads"], ("faiss-cpu", "openvino"))
    click.echo(f"{about['processor']}, {given['threads']} threads, {about['date']}, {about['versions']}")
    if output:
        save(output, {"machine": about, "settings": list(given["settings"]), "results": results})


def compare(runs: dict[str, Run], rounds: int) -> dict[str, Any]:
    """Both sides in turns; medians, their ratio, and every run."""
    every: dict[str, list[Measured]] = {what: [] for what in runs}

    def runner(what: str) -> None:
        every[what].append(in_child(runs[what]))

    run_in_turns({what: partial(runner, what) for what in runs}, rounds, warm_up=False)
    build, encoder = (_medians(every[what]) for what in ("build", "encode"))
    return {
        "documents": build["documents"],
        "build": build,
        "encoder alone": encoder,
        "ratio": build["seconds"] / encoder["seconds"],
        "ms a document more": 1000 * (build["seconds"] - encoder["seconds"]) / build["documents"],
        "runs": {what: [asdict(one) for one in measured] for what, measured in every.items()},
    }


def in_child(run: Run) -> Measured:
    """One measurement in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.build_runs", json.dumps(asdict(run))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{run.what} failed:\n{done.stderr}")
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def write_corpus(sources: Sequence[str], size: int, target: Path) -> None:
    """`size` documents as JSON Lines: those of the sources, then copies with a number at the end of id and text."""
    documents = list(islice(read_corpus(*sources), size))
    with target.open("w", encoding="utf-8") as file:
        numbered = ((copy, document) for copy in count() for document in documents)
        for copy, document in islice(numbered, size):
            mark = f" {copy}" if copy else ""
            line = {"id": f"{document.id}{mark}", "title": document.title, "text": f"{document.text}{mark}"}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def write_one_layer(folder: Path) -> Path:
    """A random one-layer BERT of hidden size 384 in the new `folder`."""
    import torch
    from transformers import BertConfig, BertModel

    source = Path(locate_model(MINILM).folder)
    config = BertConfig(
        vocab_size=30522, hidden_size=384, num_hidden_layers=1, num_attention_heads=12, intermediate_size=1536
    )
    torch.manual_seed(0)
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    for name in _TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copy(source / name, folder / name)
    return folder


def _medians(measured: Sequence[Measured]) -> dict[str, Any]:
    """The median of each figure; of the memory the most."""
    return {
        "documents": measured[0].documents,
        "seconds": statistics.median(one.seconds for one in measured),
        "loading": statistics.median(one.loading for one in measured),
        "loaded_mb": max(one.loaded_mb for one in measured),
        "peak_mb": max(one.peak_mb for one in measured),
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
