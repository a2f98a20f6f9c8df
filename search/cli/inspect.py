"""`isotrope inspect`, `isotrope verify` and `isotrope report`."""

import sys
from pathlib import Path
from typing import Any

import click

from search.cli.options import (
    PATH,
    check_written,
    encoder_options,
    force_option,
    json_option,
    output_option,
    quiet_option,
    recipe_reads,
    run_options,
)


@click.command("inspect")
@click.argument("index", type=PATH)
@click.option("--latency", is_flag=True, help="Time searches on this machine too; the index stays unchanged.")
@click.option("--recipe", is_flag=True, help="Print only the recipe: the settings that differ from the defaults.")
@output_option("Write the facts to this file as JSON.")
@force_option
@json_option
def inspect(index: Path, latency: bool, recipe: bool, **options: Any) -> None:
    """Show contents, build settings and measured recall of an index.

    INDEX is a path or a URL in object storage (s3://, gs:// or az://).

    \b
    Examples, on the index of `make demo`:
      isotrope inspect demo/index
      isotrope inspect demo/index --latency
      isotrope inspect demo/index --recipe
    """
    from search.cli.output import print_facts, write_and_print
    from search.describe import describe_index, facts_in_words
    from search.index import Index

    if options["output"]:
        check_written({"-o": options["output"]}, [index], options["force"])
    opened = Index.open(index)
    if recipe:
        click.echo(opened.config.to_toml(), nl=False)
        return
    facts = describe_index(opened)
    if latency:
        from search.latency import measure_latency

        facts["timing"] = measure_latency(opened)
    write_and_print(facts, options, lambda facts: print_facts(facts_in_words(facts)))


@click.command("verify")
@click.argument("index", type=PATH, required=False)
@click.option("--erased", type=PATH, metavar="FILE", help="Proof of isotrope erase: search all files again for the "
              "erased documents. Default INDEX: the path in the proof.")  # fmt: skip
@json_option
@quiet_option
def verify(index: Path | None, erased: Path | None, as_json: bool, quiet: bool) -> None:
    """Check every byte and count of an index.

    INDEX is a path or a URL in object storage (s3://, gs:// or az://).
    Prints one problem per line, and exits with 1 if there are any.

    \b
    Examples, on the index of `make demo`:
      isotrope verify demo/index
      isotrope verify --erased erased.json
    """
    from search.cli.erase import verify_erasure
    from search.cli.output import print_json, print_line
    from search.cli.progress import ProgressBar
    from search.verify import verify_index

    if erased is not None:
        verify_erasure(erased, index, as_json, quiet)
        return
    if index is None:
        raise click.UsageError("Missing argument 'INDEX'. Expected an index, or a proof with --erased.")
    with ProgressBar(quiet) as progress:
        progress.phase("hashing files", None)
        report = verify_index(index, lambda _: progress.advance(1))
    if as_json:
        print_json(vars(report) | {"index": str(report.index), "passed": report.passed})
    elif report.passed:
        print_line(
            f"{report.index} is in order: generation {report.generation}, {report.files:,} files, "
            f"{report.documents:,} documents, {report.vectors_compared:,} vectors compared with their embeddings."
        )
    for problem in () if as_json else report.problems:
        print_line(problem)
    if not report.passed:
        sys.exit(1)


@click.command("report")
@click.argument("index", type=PATH)
@output_option("HTML file to write.", required=True)
@click.option("--results", multiple=True, type=PATH, metavar="FILE", help="Result file of isotrope evaluate, tune, "
              "diff, migrate or distill to show; repeatable.")  # fmt: skip
@click.option("--duplicates", type=PATH, metavar="FILE", help="File of isotrope dedup to show: sizes, scores, sample "
              "clusters.")  # fmt: skip
@click.option("--recall", is_flag=True, help="Measure recall@10 and latency too; this loads the encoder.")
@encoder_options
@force_option
@quiet_option
def report(index: Path, output: Path, **options: Any) -> None:
    """Write a page about an index: spectrum, scores, gates, measured quality.

    INDEX is a path or a URL in object storage (s3://, gs:// or az://).
    The page is one HTML file that needs no network. An index of more than 50,000 rows is sampled.

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
