"""`isotrope report`."""

from pathlib import Path
from typing import Any

import click

from search.cli.options import (
    PATH,
    check_written,
    encoder_options,
    force_option,
    output_option,
    quiet_option,
    recipe_reads,
    run_options,
)


@click.command("report")
@click.argument("index", type=PATH)
@output_option("HTML file to write.", required=True)
@click.option("--results", multiple=True, type=PATH, metavar="FILE", help="Result file of isotrope evaluate or tune to "
              "show; repeatable.")  # fmt: skip
@click.option("--duplicates", type=PATH, metavar="FILE", help="File of isotrope dedup to show: sizes, scores, sample "
              "clusters.")  # fmt: skip
@click.option("--recall", is_flag=True, help="Measure recall@10 and latency too; this loads the encoder.")
@encoder_options
@force_option
@quiet_option
def command(index: Path, output: Path, **options: Any) -> None:
    """Write a page about an index: spectrum, scores, gates, measured quality.

    INDEX is a path or a URL in object storage (s3://, gs:// or az://).
    The page is one HTML file that needs no network. More than 50,000 rows are sampled.

    \b
    Example:
      isotrope report demo/index -o report.html
    """
    from search.cli.output import stdout_free_for
    from search.cli.progress import ProgressBar
    from search.engine import SearchEngine
    from search.evaluation.report.page import ReportOptions, write_report
    from search.formatting import size

    results, duplicates, model = options["results"], options["duplicates"], options["model"]
    reads = [index, *results, duplicates, model, *recipe_reads(None, index)]
    check_written({"-o": output}, reads, options["force"])
    engine = SearchEngine(index, model, run_options(options))
    shown = ReportOptions(results, duplicates, options["recall"])
    with ProgressBar(options["quiet"]) as progress:
        page = write_report(engine, output, shown, progress, options["force"])
    with stdout_free_for(output):
        click.echo(f"{output}: {size(page.bytes)}")
