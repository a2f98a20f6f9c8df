"""`isotrope erase`, and the check of its proof for `isotrope verify --erased`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from search.cli.options import PATH, encoder_options, json_option, quiet_option, run_options

if TYPE_CHECKING:
    from search.erasure.proof import ErasedReport


@click.command("erase")
@click.argument("index", type=PATH)
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--ids-file", type=PATH, help="File with one id per line; - is standard input.")
@click.option("--proof", type=PATH, metavar="FILE", required=True, help="JSON file for the proof, outside INDEX.")
@encoder_options
@json_option
@quiet_option
def command(
    index: Path, ids: tuple[str, ...], ids_file: Path | None, proof: Path, as_json: bool, **options: Any
) -> None:
    """Remove documents from every file of an index, and prove it.

    INDEX is a path or a URL in object storage (s3://, gs:// or az://). All older generations are removed, the transform
    is fitted again without the documents, and the index files are written again. Then every file is searched for
    traces. The cached word indexes of all indexes are removed. An interrupted erasure blocks other changes until the
    same command, or one without ids, finishes it.

    \b
    Examples, on the index of `make demo`:
      isotrope erase demo/index shutil.copyfile --proof erased.json
      isotrope verify --erased erased.json
    """
    from indexer.corpus.query_file import read_id_file
    from search.cli.progress import ProgressBar
    from search.erasure.proof import erase_documents

    given = [*ids, *(read_id_file(ids_file) if ids_file else [])]
    run = run_options(options)
    with ProgressBar(options["quiet"]) as progress:
        report = erase_documents(index, given, proof, run, progress, options["model"])
    _print(report, as_json)


def verify_erasure(proof: Path, index: Path | None, as_json: bool, quiet: bool) -> None:
    """Search an index again for the documents of a proof; exit with 1 if a trace is found."""
    from search.cli.progress import ProgressBar
    from search.erasure.proof import verify_erased

    with ProgressBar(quiet) as progress:
        progress.phase("searching files", None)
        report = verify_erased(proof, index, lambda: progress.advance(1))
    _print(report, as_json)
    if not report.passed:
        sys.exit(1)


def _print(report: "ErasedReport", as_json: bool) -> None:
    from msgspec import to_builtins

    from search.cli.output import print_json, print_line, print_note
    from search.formatting import counted

    if as_json:
        print_json(to_builtins(report, enc_hook=str) | {"passed": report.passed})
        return
    for problem in report.problems:
        print_line(problem)
    if report.passed:
        print_line(
            f"{report.index}: {counted(report.erased, 'document')} erased, {report.documents:,} left, generation "
            f"{report.generation}; no trace in {counted(report.files, 'file')}."
        )
    if report.changed:
        more = f" and {len(report.changed) - 5:,} more" * (len(report.changed) > 5)
        print_note(
            f"{counted(len(report.changed), 'file')} changed since the proof: {', '.join(report.changed[:5])}{more}"
        )
    for note in report.notes:
        print_note(note)
