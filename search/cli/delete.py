"""`isotrope delete`."""

from pathlib import Path

import click

from search.cli.options import PATH, json_option


@click.command("delete")
@click.argument("index", type=PATH)
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--ids-file", type=PATH, help="File with one id a line; - is standard input.")
@click.option("--where", metavar="SQL", help="Delete what this condition on the metadata matches.")
@click.option("--ignore-missing", is_flag=True, help="Ids that the index does not hold are no error.")
@json_option
def command(
    index: Path, ids: tuple[str, ...], ids_file: Path | None, where: str | None, ignore_missing: bool, as_json: bool
) -> None:
    """Take documents out of an index.

    INDEX is a folder, or the URL of one in object storage (s3://, gs:// or az://).
    The documents are not found any more at once; `isotrope compact` takes them off the disk. Put -- before an
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
    from search.filters import delete_where

    if (where is not None) == bool(ids or ids_file):
        raise click.UsageError("Give ids (or --ids-file), or --where: one of the two.")
    if where is not None:
        report = delete_where(index, where)
    else:
        report = delete_documents(index, [*ids, *(read_id_file(ids_file) if ids_file else [])], ignore_missing)
    if print_report(report, as_json):
        return
    missing = f" {len(report.missing):,} ids were not there." if report.missing else ""
    if not report.deleted:
        print_line(f"{report.index}: nothing to delete; {report.documents:,} documents.{missing}")
        return
    print_line(
        f"{report.index}: {report.deleted:,} deleted, {report.documents:,} documents left, "
        f"generation {report.generation}.{missing}"
    )
