"""`isotrope delete`."""

from pathlib import Path

import click


@click.command("delete")
@click.argument("index", type=click.Path(path_type=Path))
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--ids-file", type=click.Path(path_type=Path), help="File with one id a line; - is standard input.")
@click.option("--where", metavar="SQL", help="Delete what this condition on the metadata matches.")
@click.option("--ignore-missing", is_flag=True, help="Ids that the index does not hold are no error.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(
    index: Path, ids: tuple[str, ...], ids_file: Path | None, where: str | None, ignore_missing: bool, as_json: bool
) -> None:
    """Take documents out of an index.

    They are not found any more at once; `isotrope compact` takes them off the disk. Put -- before an id that starts
    with a dash.

    \b
    Examples:
      isotrope delete my-index doc17 doc18
      isotrope delete my-index --ids-file old.txt
      isotrope delete my-index --where "lang = 'la'"
    """
    from indexer import delete_documents
    from indexer.corpus.query_file import read_id_file
    from search.cli.output import print_report
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
        click.echo(f"{report.index}: nothing to delete; {report.documents:,} documents.{missing}")
        return
    click.echo(
        f"{report.index}: {report.deleted:,} deleted, {report.documents:,} documents left, "
        f"generation {report.generation}.{missing}"
    )
