"""`isotrope report`."""

from pathlib import Path
from typing import Any

import click

from search.cli.options import check_written, encoder_options, force_option, recipe_reads, run_options


@click.command("report")
@click.argument("index", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="HTML file to write.")
@click.option(
    "--results",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Result file of isotrope evaluate to show; repeatable.",
)
@click.option(
    "--duplicates",
    type=click.Path(path_type=Path),
    help="File of isotrope dedup to show: sizes, scores, sample clusters.",
)
@click.option("--recall", is_flag=True, help="Measure recall@10 and latency too; this loads the encoder.")
@encoder_options
@force_option
@click.option("--quiet", is_flag=True, help="No progress bars.")
def command(index: Path, output: Path, results: tuple[Path, ...], duplicates: Path | None, recall: bool,
            model: Path | None, force: bool, quiet: bool, **options: Any) -> None:  # fmt: skip
    """One page about an index: spectrum, scores, gates, measured quality.

    The page is one HTML file that needs no network. More than 50,000 rows are sampled.

    \b
    Example:
      isotrope report my-index -o report.html
    """
    from search.cli.output import stdout_free_for
    from search.cli.progress import ProgressBar
    from search.engine import SearchEngine
    from search.evaluation.report.page import write_report
    from search.text import size

    reads = [index, *results, duplicates, model, *recipe_reads(None, index)]
    check_written({"-o": output}, reads, force)
    engine = SearchEngine(index, model, run_options(options))
    with ProgressBar(quiet) as progress:
        digest = write_report(engine, output, results, recall, progress, duplicates, force=force)
    with stdout_free_for(output):
        click.echo(f"{output}: {size(digest.bytes)}")
