"""`isotrope inspect`."""

from pathlib import Path
from typing import Any

import click


@click.command("inspect")
@click.argument("index", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def command(index: Path, as_json: bool) -> None:
    """Show what an index holds and how it was built.

    \b
    Example:
      isotrope inspect my-index
    """
    from search.cli.output import print_facts, print_json
    from search.opened import OpenIndex, describe_index

    facts = describe_index(OpenIndex.open(index))
    if as_json:
        print_json(facts)
        return
    print_facts(_rows(facts))


def _rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    from search.cli.output import number, size
    from search.opened import settings_in_words

    encoder, transform, quality = facts["encoder"], facts["transform"], facts["quality"]
    return [
        ("index", f"{facts['index']} (format {facts['format']}, generation {facts['generation']}, {facts['created']})"),
        ("documents", f"{facts['documents']:,} in {facts['parts']:,} parts; {facts['rows']:,} vectors"),
        *settings_in_words(facts).items(),
        ("queries", f"mean of {transform['query_texts']['texts']:,} texts ({transform['query_texts']['source']})"),
        ("segments", "; ".join(f"{entry['factory']}, {entry['rows']:,} rows" for entry in facts["segments"])),
        ("metadata", ", ".join(f"{name} {kind}" for name, kind in facts["metadata"].items()) or "none"),
        ("truncated", f"{quality['truncated']:,} of {facts['rows']:,} at {encoder['max_length']} tokens"),
        ("gates", ", ".join(f"{name} {number(gate['value'])}" for name, gate in quality.items() if _is_gate(gate))),
        ("held out", _held_out(quality.get("held_out"))),
        ("size", f"{size(facts['bytes']['total'])}: "
                 + ", ".join(f"{name} {size(count)}" for name, count in facts["bytes"].items() if name != "total")),
    ]  # fmt: skip


def _is_gate(figure: Any) -> bool:
    return isinstance(figure, dict) and "passed" in figure


def _held_out(figures: dict[str, Any] | None) -> str:
    if not figures:
        return "not measured"
    expected = "undefined" if figures["expected"] is None else f"{figures['expected']:.3f}"
    return (
        f"mean variance {figures['mean_variance']:.3f} on {figures['held_out']:,} unseen rows after a fit on "
        f"{figures['fitted']:,}; ideal Gaussian data gives {expected}"
    )
