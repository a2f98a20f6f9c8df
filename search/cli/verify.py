"""`isotrope verify`."""

from pathlib import Path

import click


@click.command("verify")
@click.argument("index", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(index: Path, as_json: bool) -> None:
    """Check every byte and count of an index.

    Exits with 1 and names what is wrong if anything is.

    \b
    Example:
      isotrope verify my-index
    """
    from indexer.errors import CorruptIndexError
    from search.cli.output import print_json
    from search.verify import verify_index

    found = verify_index(index)
    if as_json:
        print_json(vars(found) | {"index": str(found.index), "passed": found.passed})
    elif found.passed:
        click.echo(
            f"{found.index} is in order: generation {found.generation}, {found.files:,} files, "
            f"{found.documents:,} documents, {found.vectors_compared:,} vectors compared with their embeddings."
        )
    if not found.passed:
        raise CorruptIndexError("\n".join(found.problems))
