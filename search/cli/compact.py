"""`isotrope compact`."""

from pathlib import Path
from typing import Any

import click

from search.cli.options import PATH, change_options, run_options


@click.command("compact")
@click.argument("index", type=PATH)
@click.option("--keep", type=click.IntRange(min=1), default=2, show_default=True, help="Generations that stay.")
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=3600.0,
    show_default=True,
    help="Seconds that an older generation stays after it was followed by another, for readers that have it open.",
)
@change_options
def command(index: Path, keep: int, grace: float, as_json: bool, **options: Any) -> None:
    """Fold segments, drop deleted documents from the disk, forget old generations.

    INDEX is a folder, or the URL of one in object storage (s3://, gs:// or az://).
    It then is as a build of its documents with its transform would make it. Nothing is encoded.

    \b
    Examples, on the index of `make demo`:
      isotrope compact demo/index
      isotrope compact demo/index --keep 1 --grace 0
    """
    from indexer import compact_index
    from search.cli.output import print_facts, print_note, print_report
    from search.cli.progress import ProgressBar
    from search.text import counted, size

    run = run_options(options, allow_low_recall=options["allow_low_recall"])
    with ProgressBar(options["quiet"]) as progress:
        report = compact_index(index, run, progress, options["model"], keep, grace)
    if print_report(report, as_json):
        return
    before = report.segments_before
    segments = "1 segment, written anew" if before == 1 else f"{before:,} segments into one"
    folded = f"{segments}, {counted(report.dropped, 'deleted document')} dropped"
    freed = f"{size(report.bytes_freed)} freed" if report.bytes_freed >= 0 else f"{size(-report.bytes_freed)} more now"
    print_facts(
        [
            ("index", f"{report.index}, generation {report.generation}"),
            ("documents", f"{report.documents:,}"),
            ("folded", folded if report.folded else "nothing to fold"),
            ("disk", f"{report.generations_removed:,} old generations removed, {freed}"),
        ]
    )
    if report.generations_kept > 1:
        print_note(
            f"{report.generations_kept - 1:,} older generations stay for readers, deleted documents in them included; "
            "--keep 1 --grace 0 removes them now"
        )
