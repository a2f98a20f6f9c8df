"""`isotrope refit`."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from search.cli.running_options import run_options, threaded_encoder_options


@click.command("refit")
@click.argument("index", type=click.Path(path_type=Path))
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Change a setting of whitening or index; the others stay.",
)
@click.option("--model", type=click.Path(path_type=Path), help="Folder of the model, if it has moved.")
@threaded_encoder_options
@click.option("--allow-low-recall", is_flag=True, help="Publish although the index misses index.recall.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--quiet", is_flag=True, help="No progress bars.")
def command(
    index: Path, assignments: tuple[str, ...], model: Path | None, as_json: bool, quiet: bool, **options: Any
) -> None:
    """Fit the whitening, or choose the index, anew.

    Works on the stored embeddings of the documents that are in the index now: no document is encoded again. Without
    --set the recipe stays and the whitening is fitted to what the index holds today.

    \b
    Examples:
      isotrope refit my-index
      isotrope refit my-index --set whitening.strength=0.5
      isotrope refit my-index --set index.type=HNSW32 --set index.recall=0.99
    """
    from indexer import refit_index
    from search.cli.output import print_facts, print_json, print_note
    from search.cli.progress import BuildProgress

    run = run_options(options, allow_low_recall=options["allow_low_recall"])
    with BuildProgress(quiet) as progress:
        report = refit_index(index, assignments, run, progress, model)
    for line in report.notes:
        print_note(line)
    if as_json:
        print_json(asdict(report) | {"index": str(report.index)})
        return
    print_facts(
        [
            ("index", f"{report.index}, generation {report.generation}"),
            ("documents", f"{report.documents:,}, none encoded again"),
            ("dimensions", f"{report.dim:,}"),
        ]
    )
