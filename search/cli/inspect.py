"""`isotrope inspect`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from search.describe import facts_in_words

if TYPE_CHECKING:
    pass


@click.command("inspect")
@click.argument("index", type=click.Path(path_type=Path))
@click.option("--measure", is_flag=True, help="Time searches on this machine as well; nothing of it is stored.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def command(index: Path, measure: bool, as_json: bool) -> None:
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
