"""`isotrope delete`."""

from pathlib import Path

import click

from search.cli.options import PATH, json_option


@click.command("delete")
@click.argument("index", type=PATH)
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--ids-file", type=PATH, help="File with one id a line; - is standard input.")
@click.option("--where", metavar="SQL", help="Delete the documents whose metadata match this condition.")
@click.option("--ignore-missing", is_flag=True, help="Ignore ids that the index does not contain.")
@json_option
def command(
    index: Path, ids: tuple[str, ...], ids_file: Path | None, where: str | None, ignore_missing: bool, as_json: bool
) -> None:
    """Delete documents from an index.

    INDEX is a path or a URL in object storage (s3://, gs:// or az://).
    The documents disappear from search immediately; `isotrope compact` removes them from the disk. Put -- before an
    id that starts with a dash.

    \b
    Examples, on the index of `make demo`:
      isotrope delete demo/index shutil.copyfile shutil.move
      isotrope delete demo/index --ids-file old.txt
      isotrope delete demo/index --where "kind = 'method' AND line > 900"
    """
    from indexer import delete_documents
    from indexer.corpus.query_file import read_id_file
    from search.cli.output import print_line, print_report
    from search.filters.filters import delete_where

    if (where is not None) == bool(ids or ids_file):
        raise click.UsageError("Expected either ids (or --ids-file) or --where.")
    if where is not None:
        report = delete_where(index, where)
    else:
        report = delete_documents(index, [*ids, *(read_id_file(ids_file) if ids_file else [])], ignore_missing)
    if print_report(report, as_json):
        return
    missing = f" {len(report.missing):,} ids were not in the index." if report.missing else ""
    if not report.deleted:
        print_line(f"{report.index}: nothing to delete; {report.documents:,} documents.{missing}")
        return
    print_line(
        f"{report.index}: {report.deleted:,} deleted, {report.documents:,} documents left, "
        f"generation {report.generation}.{missing}"
    )
