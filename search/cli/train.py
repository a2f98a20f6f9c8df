"""`isotrope train`: what an encoder needs beside its model, fitted beforehand instead of while an index is built."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from search.cli.corpus_options import config_of, corpus_of, corpus_options, remarks_on
from search.cli.running_options import run_options, threaded_encoder_options


@click.group(
    "train",
    help="Train what a pooling needs, without labels.\n\nExample:\n\n  isotrope train latte-mix docs.jsonl -o mix",
)
def command() -> None:
    """The group; one command a method."""


@command.command("latte-mix")
@click.argument("sources", nargs=-1, required=True, metavar="CORPUS...")
@click.option("-o", "--output", "folder", required=True, type=click.Path(path_type=Path), help="Folder to make.")
@click.option("--documents", type=int, default=0, help="Train on so many documents, by hash of id. Default: all.")
@corpus_options
@threaded_encoder_options
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--quiet", is_flag=True, help="No progress bars.")
def latte_mix(
    sources: tuple[str, ...], folder: Path, documents: int, as_json: bool, quiet: bool, **options: Any
) -> None:
    """Train the auto-encoder of pooling "latte-mix" on a corpus (experimental).

    Its settings are those of [encoder.latte_mix] in a recipe. The folder holds the weights, what is known of the
    training, and a recipe to build with: isotrope build CORPUS INDEX --config FOLDER/recipe.toml

    \b
    Examples:
      isotrope train latte-mix docs.jsonl -o mix
      isotrope train latte-mix docs.jsonl -o mix --set encoder.layers=[1] --set encoder.latte_mix.epochs=2
    """
    from indexer.pipeline.training import train_pooling
    from search.cli.output import number, print_facts, print_json, print_note
    from search.cli.progress import BuildProgress

    config = config_of(options)
    corpus = corpus_of(sources, config, options, folder.with_name(f"{folder.name}.rejects.jsonl"))
    with BuildProgress(quiet) as progress:
        report = train_pooling(corpus, folder, config, run_options(options), progress, documents)
    for line in remarks_on(corpus.report):
        print_note(line)
    if as_json:
        print_json(asdict(report) | {"folder": str(folder)})
        return
    first, last = report.losses[0] if report.losses else None, report.losses[-1] if report.losses else None
    print_facts(
        [
            ("folder", str(folder)),
            (
                "texts",
                f"{number(report.texts)} of {number(report.documents)} documents, {number(report.tokens)} tokens",
            ),
            ("steps", number(report.steps)),
            *([("reconstruction", f"{first[1]:.2f} at first, {last[1]:.2f} at last")] if first and last else []),
            *([("KL", f"{first[2]:.2f} at first, {last[2]:.2f} at last")] if first and last else []),
            ("build with", f"isotrope build CORPUS INDEX --config {folder / 'recipe.toml'}"),
        ]
    )
