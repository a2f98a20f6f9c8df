"""--review and --fail-over: compare the answers of a new generation with the published ones before publishing it."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from search.cli.options import all_of, run_options

if TYPE_CHECKING:
    from indexer.store.manifest import Manifest

review_options = all_of(
    click.option("--review", is_flag=True, help="Show which documents and answers change (as isotrope diff does), and "
                 "ask before publishing."),
    click.option("--fail-over", type=click.FloatRange(0, 1), metavar="SHARE", help="Do not publish if more than this "
                 "share of the first 10 hits changes."),
)  # fmt: skip
"""--review, --fail-over"""


@contextmanager
def reviewed(options: Mapping[str, Any], pause: Callable[[], None]) -> Iterator[None]:
    """Within the block, publish a generation only after the review that the options ask for, if any.

    `pause` ends the display of progress before anything is printed.
    """
    if not options["review"] and options["fail_over"] is None:
        yield
        return
    from indexer import reviewed_by

    def review(index: Path, manifest: "Manifest") -> bool:
        pause()
        return _accepts(index, manifest, options)

    with reviewed_by(review):
        yield


def _accepts(index: Path, manifest: "Manifest", options: Mapping[str, Any]) -> bool:
    from search.cli.output import print_note
    from search.formatting import percent

    changed, limit = _changed(index, manifest, options), options["fail_over"]
    if limit is not None and changed > limit:
        print_note(f"{percent(changed)} of the hits would change; --fail-over allows {percent(limit)}")
        return False
    if not options["review"]:
        return True
    try:
        return click.confirm("Publish this generation?", err=True)
    except click.Abort:
        if sys.stdin is not None and sys.stdin.isatty():
            raise
        print_note("--review asks a question, but standard input has ended. Without a terminal, use --fail-over SHARE")
        return False


def _changed(index: Path, manifest: "Manifest", options: Mapping[str, Any]) -> float:
    """Print the difference between the published and the new generation; return the share of hits that changed."""
    from indexer.errors import EvaluationError
    from indexer.store.manifest import list_generations
    from search.cli.output import print_note, print_tables
    from search.engine import SearchEngine
    from search.evaluation.diff.diff import diff_indexes
    from search.evaluation.tables import tables_of
    from search.index import Index

    published = Index.open(index) if list_generations(index) else None
    if published is None or not published.manifest.documents:
        print_note(f"{index}: contains no documents, so there are no answers to compare")
        return 0.0
    run = run_options(options)
    before, after = (SearchEngine(each, options["model"], run) for each in (published, Index(index, manifest)))
    try:
        result = diff_indexes(before, after)
    except EvaluationError as error:  # no document is left to draw a question from
        print_note(f"every answer changes: {error}")
        return 1.0
    with redirect_stdout(sys.stderr):  # standard output is for the report of the change
        print_tables(tables_of(result))
    for note in result.notes:
        print_note(note)
    changed: float = result.results[0]["changed"]
    return changed
