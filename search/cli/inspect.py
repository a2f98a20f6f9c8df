"""Look at an index: `isotrope inspect` and `isotrope verify`."""

import sys
from pathlib import Path
from typing import Any

import click

from search.cli.options import PATH, check_written, force_option, json_option, output_option, quiet_option


@click.command("inspect")
@click.argument("index", type=PATH)
@click.option("--latency", is_flag=True, help="Time searches on this machine as well; nothing of it is stored.")
@click.option("--recipe", is_flag=True, help="Print only the recipe: the settings that differ from the defaults.")
@output_option("Write the facts to this file as JSON.")
@force_option
@json_option
def inspect(index: Path, latency: bool, recipe: bool, **options: Any) -> None:
    """Show contents, build settings and measured recall of an index.

    INDEX is a folder, or the URL of one in object storage (s3://, gs:// or az://).

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

        facts["timing"] = measure_latency(opened).to_dict()
    write_and_print(facts, options, lambda facts: print_facts(facts_in_words(facts)))


@click.command("verify")
@click.argument("index", type=PATH)
@json_option
@quiet_option
def verify(index: Path, as_json: bool, quiet: bool) -> None:
    """Check every byte and count of an index.

    INDEX is a folder, or the URL of one in object storage (s3://, gs:// or az://).
    Prints what is wrong, a line each, and exits with 1 if anything is.

    \b
    Example, on the index of `make demo`:
      isotrope verify demo/index
    """
    from search.cli.output import print_json, print_line
    from search.cli.progress import ProgressBar
    from search.verify import verify_index

    with ProgressBar(quiet) as progress:
        progress.phase("hashing files", None)
        found = verify_index(index, lambda _: progress.advance(1))
    if as_json:
        print_json(vars(found) | {"index": str(found.index), "passed": found.passed})
    elif found.passed:
        print_line(
            f"{found.index} is in order: generation {found.generation}, {found.files:,} files, "
            f"{found.documents:,} documents, {found.vectors_compared:,} vectors compared with their embeddings."
        )
    else:
        for problem in found.problems:
            print_line(problem)
    if not found.passed:
        sys.exit(1)
