"""`isotrope diff`."""

import sys
from pathlib import Path
from typing import Any

import click

from search.cli.options import (
    PATH,
    check_output_options,
    draw_options,
    encoder_options,
    k_option,
    query_source,
    recipe_reads,
    result_options,
    run_options,
)


@click.command("diff")
@click.argument("index", type=PATH)
@click.argument("against", type=PATH, required=False, metavar="[OTHER]")
@click.option("--generation", type=int, help="Without OTHER: the generation of INDEX to compare the newest with. "
              "Default: the one before.")  # fmt: skip
@k_option("Hits compared per question.")
@draw_options
@click.option("--hybrid", is_flag=True, help="Compare hybrid answers.")
@click.option("--fail-over", type=click.FloatRange(0, 1), metavar="SHARE", help="Exit with 1 if more than this "
              "share of the hits changed.")  # fmt: skip
@encoder_options
@result_options
def command(index: Path, against: Path | None, generation: int | None, fail_over: float | None, **options: Any) -> None:
    """Compare two indexes or generations: documents and answers that changed.

    INDEX and OTHER are paths or URLs in object storage (s3://, gs:// or az://). INDEX is the state before, OTHER the
    state after. Without OTHER, an earlier generation of INDEX is compared with its newest. Questions are drawn from
    documents that both contain, unless you name a file.

    \b
    Examples:
      isotrope diff my-index
      isotrope diff demo/index my-index --queries questions.txt
      isotrope diff old-index new-index --queries questions.txt --fail-over 0.2
    """
    from search.cli.output import print_measured, print_note
    from search.engine import SearchEngine
    from search.evaluation.diff.diff import DiffOptions, diff_indexes
    from search.evaluation.recall.drawn_queries import SAMPLE
    from search.formatting import percent
    from search.index import Index
    from search.ranking.options import SearchOptions

    if against and generation is not None:
        raise click.UsageError("--generation is for one index. Fix: leave out OTHER or --generation.")
    queries, draw, sample = query_source(options, SAMPLE)
    check_output_options(options, index, against, queries, *recipe_reads(None, index))
    before = Index.open(index) if against else Index.open(index, _earlier(index, generation))
    asked = DiffOptions(queries, draw, sample, SearchOptions(k=options["k"], hybrid=options["hybrid"]))
    run = run_options(options)
    old, new = (SearchEngine(each, options["model"], run) for each in (before, against or index))
    result = print_measured(options, lambda progress: diff_indexes(old, new, asked, progress))
    changed = result.results[0]["changed"]
    if fail_over is not None and changed > fail_over:
        print_note(f"{percent(changed)} of the hits changed; --fail-over allows {percent(fail_over)}")
        sys.exit(1)


def _earlier(index: Path, generation: int | None) -> int:
    """Return the generation before the newest one, or the requested one."""
    from indexer.errors import ConfigError
    from indexer.store.manifest import list_generations, load_manifest

    newest = load_manifest(index).generation
    if generation is not None:
        return generation
    earlier = [number for number in list_generations(index) if number < newest]
    if not earlier:
        raise ConfigError(f"{index}: has one generation, {newest:,}; expected an earlier one. Fix: name another index.")
    return earlier[-1]
