"""`isotrope migrate`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from search.cli.options import (
    PATH,
    check_output_options,
    encoder_options,
    given_flags,
    recipe_reads,
    result_options,
    run_options,
    worker_options,
)
from search.cli.review import review_options, reviewed


@click.command("migrate")
@click.argument("index", type=PATH)
@click.option("--to", "new_model", default="", metavar="MODEL", help="The new encoder: a hub id, a folder, or a file "
              "of word vectors. Default: the index's own model, with --set.")  # fmt: skip
@click.option("--set", "assignments", multiple=True, metavar="SECTION.KEY=VALUE", help="Change a setting of the "
              "recipe, such as encoder.layers=[1,-1]; repeatable.")  # fmt: skip
@click.option("--mode", type=click.Choice(["full"]), help="Change the index: encode every document by the new encoder. "
              "Default: only compare.")  # fmt: skip
@click.option("--sample", type=int, default=1500, show_default=True, help="Documents to compare on.")
@click.option("--cache", type=PATH, metavar="DIR", help="Folder that keeps the sample's embeddings between runs.")
@click.option("--allow-low-recall", is_flag=True, help="Publish although the index misses index.recall.")
@encoder_options
@worker_options
@review_options
@result_options
def command(index: Path, new_model: str, assignments: tuple[str, ...], mode: str | None, **options: Any) -> None:
    """Change the encoder of an index, after a measured comparison.

    INDEX is a path or a URL in object storage (s3://, gs:// or az://).
    Without --mode nothing changes: a sample of the documents is encoded by both encoders, and a piece of each document
    must find the rest. The tables show the price of encoding every document, and the scores of the index as it is, of
    its candidates rescored by the new encoder, of new questions mapped into the old vectors, and of the new encoder
    alone. If the new encoder is better, the last line is the command that changes the index. Rescored candidates and
    mapped questions are measured only.

    With --mode full, the stored documents are encoded by the new encoder and published as the next generation. The
    index answers as before until then. Running the same command again continues an interrupted run.

    \b
    Examples:
      isotrope migrate demo/index --to ./better-model
      isotrope migrate demo/index --set encoder.layers=[1,-1] -o comparison.json
      isotrope migrate my-index --to ./better-model --mode full
    """
    if mode == "full":
        _migrate(index, new_model, assignments, options)
    else:
        _compare(index, new_model, assignments, options)


def _compare(index: Path, model: str, assignments: tuple[str, ...], options: Mapping[str, Any]) -> None:
    from search.cli.output import print_measured, stdout_free_for
    from search.migration import MigrationOptions, compare_encoders

    if given := given_flags(["review", "fail_over", "allow_low_recall"]):
        raise click.UsageError(f"{given[0]} is for a new generation. Fix: add --mode full, or leave it out.")
    task = MigrationOptions(model, assignments, options["sample"], options["model"], options["cache"])
    check_output_options(options, index, model or None, *recipe_reads(None, index))
    run = run_options(options)
    result = print_measured(options, lambda progress: compare_encoders(index, task, run, progress))
    if not options["as_json"] and result["choice"]["command"]:
        with stdout_free_for(options["output"]):
            click.echo(f"\nuse it: {result['choice']['command']}")


def _migrate(index: Path, model: str, assignments: tuple[str, ...], options: Mapping[str, Any]) -> None:
    from search.cli.output import print_facts, print_report
    from search.cli.progress import ProgressBar
    from search.describe import index_type_in_words
    from search.formatting import number
    from search.migration import migrate_index

    if given := given_flags(["sample", "cache", "output", "force"]):
        raise click.UsageError(f"{given[0]} is for the comparison. Fix: leave it out, or leave out --mode.")
    if options["model"] and (options["review"] or options["fail_over"] is not None):
        raise click.UsageError("--review finds both models by the recipes. Fix: leave out --model.")
    with ProgressBar(options["quiet"]) as progress, reviewed(options, progress.pause):
        report = migrate_index(index, model, assignments, run_options(options), progress)
    if print_report(report, options["as_json"]):
        return
    print_facts(
        [
            ("index", f"{report.index}, generation {report.generation}"),
            ("documents", number(report.documents)),
            ("dimensions", number(report.dim)),
            ("parts", f"{report.parts_encoded:,} encoded, {report.parts_kept:,} kept"),
            ("encoder", report.backend),
            ("texts", f"{report.rows_encoded:,} encoded"),
            ("search", index_type_in_words(report.quality)),
        ]
    )
