"""`isotrope compact`."""

from pathlib import Path
from typing import Any

import click

from search.cli.options import PATH, change_options, run_options


@click.command("compact")
@click.argument("index", type=PATH)
@click.option("--keep", type=click.IntRange(min=1), default=2, show_default=True, help="Generations to keep.")
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=3600.0,
    show_default=True,
    help="Seconds to keep a replaced generation, for readers that have it open.",
)
@change_options
def command(index: Path, keep: int, grace: float, as_json: bool, **options: Any) -> None:
    """Merge segments, remove deleted documents from the disk, remove old generations.

    INDEX is a path or a URL in object storage (s3://, gs:// or az://).
    The result equals a fresh build of its documents with its transform. Nothing is encoded.

    \b
    Examples, on the index of `make demo`:
      isotrope compact demo/index
      isotrope compact demo/index --keep 1 --grace 0
    """
    from indexer import compact_index
    from search.cli.output import print_facts, print_note, print_report
    from search.cli.progress import ProgressBar
    from search.formatting import counted, size

    run = run_options(options, allow_low_recall=options["allow_low_recall"])
    with ProgressBar(options["quiet"]) as progress:
        report = compact_index(index, run, progress, options["model"], keep, grace)
    if print_report(report, as_json):
        return
    before = report.segments_before
    segments = "1 segment, rewritten" if before == 1 else f"{before:,} segments into one"
    merged = f"{segments}, {counted(report.dropped, 'deleted document')} removed"
    freed = f"{size(report.bytes_freed)} freed" if report.bytes_freed >= 0 else f"{size(-report.bytes_freed)} more now"
    print_facts(
        [
            ("index", f"{report.index}, generation {report.generation}"),
            ("documents", f"{report.documents:,}"),
            ("merged", merged if report.folded else "nothing to merge"),
            ("disk", f"{report.generations_removed:,} old generations removed, {freed}"),
        ]
    )
    if report.generations_kept > 1:
        print_note(
            f"{report.generations_kept - 1:,} older generations are kept for readers, with their deleted documents; "
            "--keep 1 --grace 0 removes them now"
        )
