"""`isotrope train latte-mix`."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from search.cli.corpus_options import beside, config_of, corpus_of, corpus_options, remarks_on
from search.cli.running_options import run_options, threaded_encoder_options


@click.command("latte-mix")
@click.argument("sources", nargs=-1, required=True, metavar="CORPUS...")
@click.option("-o", "--output", "folder", required=True, type=click.Path(path_type=Path), help="Folder to make.")
@click.option("--documents", type=int, default=0, help="Train on so many documents, by hash of id. Default: all.")
@corpus_options
@threaded_encoder_options
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--quiet", is_flag=True, help="No progress bars.")
def command(sources: tuple[str, ...], folder: Path, documents: int, as_json: bool, quiet: bool, **options: Any) -> None:
    """Train the auto-encoder of pooling latte-mix (experimental).

    It learns, without labels, from the token vectors that the recipe's encoder gives for the corpus. Its settings are
    those of [encoder.latte_mix] in the recipe. The folder holds the weights, what is known of the training, and a
    recipe to build with: isotrope build CORPUS INDEX --config FOLDER/recipe.toml

    \b
    Examples:
      isotrope train latte-mix docs.jsonl -o mix
      isotrope train latte-mix docs.jsonl -o mix-of-layer-1 --set encoder.layers=[1]
    """
    from indexer.output_files import check_output_folder
    from indexer.pipeline.train_pooling import train_pooling
    from search.cli.output import print_facts, print_json, print_note
    from search.cli.progress import BuildProgress
    from search.text import number

    config = config_of(options)
    check_output_folder(folder, or_empty=True)
    corpus = corpus_of(sources, config, options, beside(folder, ".rejects.jsonl"))
    with BuildProgress(quiet) as progress:
        report = train_pooling(corpus, folder, config, run_options(options), progress, documents)
    for line in remarks_on(corpus.report):
        print_note(line)
    if as_json:
        print_json(asdict(report) | {"folder": str(folder)})
        return
    print_facts(
        [
            ("folder", str(folder)),
            ("documents", number(report.documents)),
            ("texts", f"{number(report.texts)}, {number(report.tokens)} tokens"),
            ("steps", number(report.steps)),
            *_losses(report.losses),
            ("build with", f"isotrope build CORPUS INDEX --config {folder / 'recipe.toml'}"),
        ]
    )


def _losses(rows: Sequence[Sequence[float]]) -> list[tuple[str, str]]:
    """Reconstruction error and KL at the beginning and at the end of training."""
    if not rows:
        return []
    first, last = rows[0], rows[-1]
    return [
        ("reconstruction", f"{first[1]:.2f} at first, {last[1]:.2f} at last"),
        ("KL", f"{first[2]:.2f} at first, {last[2]:.2f} at last"),
    ]
