"""`isotrope inspect`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from indexer.store.quality import HeldOut, IndexFigures, SegmentFigures


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
    from search.opened import OpenIndex, describe_index

    opened = OpenIndex.open(index)
    facts = describe_index(opened)
    if measure:
        from search.timing import time_searches

        facts["timing"] = time_searches(opened).to_dict()
    if as_json:
        print_json(facts)
        return
    print_facts(_rows(facts))


def _rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    from indexer.encoders.identity import UNLIMITED
    from indexer.store.quality import Quality
    from search.cli.add import drift_in_words
    from search.cli.output import number, size
    from search.opened import settings_in_words

    encoder, transform, quality = facts["encoder"], facts["transform"], Quality.of(facts["quality"])
    return [
        ("index", f"{facts['index']} (format {facts['format']}, generation {facts['generation']}, {facts['created']})"),
        ("documents", f"{facts['documents']:,} in {facts['parts']:,} parts; {facts['rows']:,} vectors"),
        *([("deleted", f"{facts['deleted']:,} still on disk, until isotrope compact")] if facts["deleted"] else []),
        *([("drift", drift_in_words(quality.drift))] if quality.drift else []),
        *settings_in_words(facts).items(),
        ("queries", f"mean of {transform['query_texts']['texts']:,} texts ({transform['query_texts']['source']})"),
        ("segments", "; ".join(map(_segment, facts["segments"]))),
        *_search(quality.first.index, facts.get("timing")),
        *_added(facts["segments"], quality.segments),
        ("metadata", ", ".join(f"{name} {kind}" for name, kind in facts["metadata"].items()) or "none"),
        *([("truncated", f"{quality.truncated:,} of {_stored_rows(facts):,} at {encoder['max_length']} tokens")]
          if encoder.get("max_length", UNLIMITED) < UNLIMITED else []),
        *([("unknown", f"{quality.without_tokens:,} texts without a token that the table knows")]
          if quality.without_tokens else []),
        ("gates", ", ".join(f"{name} {number(gate.value)}" for name, gate in quality.gates.items())),
        ("held out", _held_out(quality.held_out)),
        ("size", f"{size(facts['bytes']['total'])}: "
                 + ", ".join(f"{name} {size(count)}" for name, count in facts["bytes"].items() if name != "total")),
    ]  # fmt: skip


def _stored_rows(facts: dict[str, Any]) -> int:
    """Rows on disk, deleted ones included: those that were encoded."""
    return sum(entry["rows"] for entry in facts["segments"])


def _segment(entry: dict[str, Any]) -> str:
    parameters = "".join(f", {name} {value}" for name, value in entry["search_parameters"].items())
    return f"{entry['factory']}, {entry['rows']:,} rows{parameters}"


def _search(about: "IndexFigures | None", timing: dict[str, Any] | None) -> list[tuple[str, str]]:
    """What kind of index was built and why, what it reaches, and how fast it is here."""
    rows = []
    if about:
        by = f", by {about.queries:,} queries ({about.query_origin})" if about.queries else ""
        rows = [
            ("index type", f"{about.factory}: {about.why}"),
            ("recall", f"recall@10 {about.recall_at_10:.4f}{by}; {about.bytes_per_vector:,.0f} bytes a vector"),
        ]
    if timing:
        latency = ", ".join(f"{name} {value:.2f} ms" for name, value in timing["single_ms"].items())
        batch = ", ".join(f"{rate:,.0f} on {threads}" for threads, rate in timing["batch_per_second"].items())
        rows += [
            ("one by one", f"{timing['single_per_second']:,.0f} queries a second on one thread; {latency}"),
            ("in batches", f"of {timing['batch']}, queries a second by threads: {batch}"),
        ]
    return rows


def _added(segments: list[dict[str, Any]], measured: "Mapping[str, SegmentFigures]") -> list[tuple[str, str]]:
    """The recall of segments that were added, where they are not exact."""
    found = ((entry["factory"], measured[entry["file"]].index) for entry in segments if entry["file"] in measured)
    return [
        ("added recall", f"{factory}: recall@10 {about.recall_at_10:.4f}; {about.bytes_per_vector:,.0f} bytes a vector")
        for factory, about in found
        if about and about.queries
    ]


def _held_out(figures: "HeldOut | None") -> str:
    if not figures:
        return "not measured"
    expected = "undefined" if figures.expected is None else f"{figures.expected:.3f}"
    return (
        f"mean variance {figures.mean_variance:.3f} on {figures.held_out:,} unseen rows after a fit on "
        f"{figures.fitted:,}; ideal Gaussian data gives {expected}"
    )
