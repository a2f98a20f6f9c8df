"""`isotrope encode-parts`."""

from pathlib import Path
from typing import Any

import click

from search.cli.options import (
    PATH,
    WORKER_NAMES,
    encoder_options,
    json_option,
    quiet_option,
    run_options,
    worker_options,
)


class PartNumbers(click.ParamType[slice]):
    """Numbers of parts from 0, as Python writes a slice."""

    name = "FIRST:END"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> slice:
        if isinstance(value, slice):
            return value
        first, colon, end = str(value).partition(":")
        if not all(number.isdecimal() or (colon and not number) for number in (first, end) if colon or number == first):
            self.fail(f'"{value}" is no range of parts; expected FIRST:END such as 0:128, or one number.', param, ctx)
        if not colon:
            return slice(int(first), int(first) + 1)
        return slice(int(first) if first else None, int(end) if end else None)


@click.command("encode-parts")
@click.argument("index", type=PATH)
@click.option("--parts", type=PartNumbers(), default=slice(None), help="Parts to encode, from 0. Default: all.")
@click.option("--cancel", is_flag=True, help="Give up the prepared build; what was encoded for it is removed.")
@encoder_options
@worker_options
@json_option
@quiet_option
def command(index: Path, parts: slice, cancel: bool, as_json: bool, quiet: bool, **options: Any) -> None:
    """Encode parts of a prepared build, on any machine.

    First, isotrope build --prepare writes the documents of INDEX and lists its parts. Then any number of these
    commands encode some parts each, in a batch queue perhaps: they need the folder, or the URL of an index in object
    storage (s3://, gs:// or az://), and the model, and nothing of each other. Last, the same isotrope build without
    --prepare finds the parts, encodes what is missing, and publishes. A part that is whole already is left alone.
    Until then no other command changes the index; --cancel gives the prepared build up.

    In the script of a SLURM array, --parts "$SLURM_ARRAY_TASK_ID" is one part a job.

    \b
    Example:
      isotrope build demo/stdlib.jsonl parts-index --prepare
      isotrope encode-parts parts-index --parts 0:128
      isotrope build demo/stdlib.jsonl parts-index
    """
    from indexer import cancel_pending, encode_pending
    from search.cli.output import print_facts, print_note, print_report
    from search.cli.progress import ProgressBar
    from search.text import number

    if cancel:
        if parts != slice(None):
            raise click.UsageError("--cancel gives up the whole of a prepared build; leave out --parts.")
        _print_cancelled(index, cancel_pending(index), as_json)
        return
    run = run_options(options, **{name: options[name] for name in WORKER_NAMES})
    with ProgressBar(quiet) as progress:
        report = encode_pending(index, parts, run, progress, options["model"])
    if print_report(report, as_json):
        return
    print_facts(
        [
            ("index", str(report.index)),
            ("parts", f"{report.parts_encoded:,} encoded, {report.parts_kept:,} were whole, {report.left:,} left"),
            *([("encoder", report.backend)] if report.backend else []),
            ("texts", f"{number(report.rows_encoded)} encoded"),
            ("tokens", number(report.tokens)),
        ]
    )
    if not report.left:
        print_note("every part is there: run the same isotrope build without --prepare to publish the index")


def _print_cancelled(index: Path, removed: int, as_json: bool) -> None:
    from search.cli.output import print_facts, print_json

    if as_json:
        print_json({"index": str(index), "parts_removed": removed})
    else:
        print_facts([("index", str(index)), ("parts", f"{removed:,} removed")])
