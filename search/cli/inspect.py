"""Look at an index: `isotrope inspect` and `isotrope verify`."""

from pathlib import Path

import click

from search.cli.options import json_option
from search.describe import facts_in_words


@click.command("inspect")
@click.argument("index", type=click.Path(path_type=Path))
@click.option("--measure", is_flag=True, help="Time searches on this machine as well; nothing of it is stored.")
@json_option
def inspect(index: Path, measure: bool, as_json: bool) -> None:
    """Show what an index holds, how it was built and what its search reaches.

    \b
    Examples:
      isotrope inspect my-index
      isotrope inspect my-index --measure
    """
    from search.cli.output import print_facts, print_json
    from search.describe import describe_index
    from search.index import Index

    opened = Index.open(index)
    facts = describe_index(opened)
    if measure:
        from search.latency import measure_latency

        facts["timing"] = measure_latency(opened).to_dict()
    if as_json:
        print_json(facts)
        return
    print_facts(facts_in_words(facts))


@click.command("verify")
@click.argument("index", type=click.Path(path_type=Path))
@json_option
def verify(index: Path, as_json: bool) -> None:
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
