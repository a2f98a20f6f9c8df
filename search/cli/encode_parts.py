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
    """Numbers of parts, counted from 0, in Python's slice notation."""

    name = "FIRST:END"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> slice:
        if isinstance(value, slice):
            return value
        first, colon, end = str(value).partition(":")
        if not all(number.isdecimal() or (colon and not number) for number in (first, end) if colon or number == first):
            self.fail(f'"{value}" is not a range of parts; expected FIRST:END such as 0:128, or a number.', param, ctx)
        if not colon:
            return slice(int(first), int(first) + 1)
        return slice(int(first) if first else None, int(end) if end else None)


@click.command("encode-parts")
@click.argument("index", type=PATH)
@click.option("--parts", type=PartNumbers(), default=slice(None), help="Parts to encode, from 0. Default: all.")
@click.option("--cancel", is_flag=True, help="Cancel the prepared build and remove its encoded parts.")
@encoder_options
@worker_options
@json_option
@quiet_option
def command(index: Path, parts: slice, cancel: bool, as_json: bool, quiet: bool, **options: Any) -> None:
    """Encode parts of a prepared build, on any machine.

    First, isotrope build --prepare writes the documents of INDEX and lists its parts. Then any number of these
    commands encode some parts each, for example in a batch queue. They need only the model and INDEX: a shared folder
    or a URL in object storage (s3://, gs:// or az://). Last, the same isotrope build without --prepare reads the parts,
    encodes missing ones, and publishes the index. Complete parts are skipped. Until then no other command changes the
    index; --cancel cancels the prepared build.

    In the script of a SLURM array, --parts "$SLURM_ARRAY_TASK_ID" encodes one part a job.

    \b
    Example:
      isotrope build demo/stdlib.jsonl parts-index --prepare
      isotrope encode-parts parts-index --parts 0:128
      isotrope build demo/stdlib.jsonl parts-index
    """
    from indexer import cancel_pending, encode_pending
    from search.cli.output import print_facts, print_note, print_report
    from search.cli.progress import ProgressBar
    from search.formatting import number

    if cancel:
        if parts != slice(None):
            raise click.UsageError("--cancel cancels the whole prepared build. Fix: leave out --parts.")
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
            ("parts", f"{report.parts_encoded:,} encoded, {report.parts_kept:,} kept, {report.left:,} left"),
            ("encoder", report.backend),
            ("texts", f"{number(report.rows_encoded)} encoded"),
            ("tokens", number(report.tokens)),
        ]
    )
    if not report.left:
        print_note("all parts are encoded: run the same isotrope build without --prepare to publish the index")


def _print_cancelled(index: Path, removed: int, as_json: bool) -> None:
    from search.cli.output import print_facts, print_json

    if as_json:
        print_json({"index": str(index), "parts_removed": removed})
    else:
        print_facts([("index", str(index)), ("parts", f"{removed:,} removed")])
