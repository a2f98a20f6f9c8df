"""The output of `isotrope dedup`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from search.cli.output import print_facts, print_json, print_line, print_note, print_table
from search.formatting import escape, size

if TYPE_CHECKING:
    from search.dedup.findings import DedupVerifyReport
    from search.dedup.suggest import Example, Suggestion

_SIZES = ((2, 2), (3, 3), (4, 5), (6, 10), (11, 20), (21, 50), (51, 100), (101, 1000))
_REASONS = {
    "similar": "similar",
    "text": "with equal text",
    "against": "similar to the other index",
    "against-text": "with equal text in the other index",
}


def show_summary(facts: dict[str, Any], written: Mapping[str, int], as_json: bool) -> None:
    """Print counts, settings, cluster sizes, and the written files (name -> bytes)."""
    if as_json:
        print_json(facts | {"written": dict(written)})
        return
    reasons = ", ".join(f"{count:,} {_REASONS[name]}" for name, count in facts["reasons"].items())
    print_facts(
        [
            ("documents", f"{facts['documents']:,}"),
            ("kept", f"{facts['kept']:,}"),
            ("dropped", f"{facts['dropped']:,}" + (f": {reasons}" if reasons else "")),
            ("clusters", f"{facts['clusters']:,}" + (f" ({sizes_in_words(facts)})" if facts["clusters"] else "")),
            ("duplicates", _rule(facts)),
            ("pairs", _method(facts["method"])),
            *(("written", f"{name}, {size(count)}") for name, count in written.items()),
        ]
    )
    if not written:
        print_note("nothing was written; -o FILE writes the dropped documents, --kept FILE the others")


def sizes_in_words(facts: Mapping[str, Any]) -> str:
    """Return the number of clusters of each size, such as "3 of 2, 1 of 4 to 5"."""
    counts = {int(size): count for size, count in facts["cluster_sizes"].items()}
    parts = []
    for low, high in (*_SIZES, (1001, max(counts))):
        if count := sum(clusters for documents, clusters in counts.items() if low <= documents <= high):
            parts.append(f"{count:,} of {low if low == high else f'{low} to {high}'}")
    return ", ".join(parts)


def show_proof(proof: "DedupVerifyReport", path: Path, as_json: bool) -> None:
    """Print that the file is proved, or its violations."""
    if as_json:
        print_json(proof.to_dict())
        return
    for line in proof.problems:
        print_line(line)
    if proof.passed:
        click.echo(
            f"{path}: proved. {proof.dropped:,} of {proof.documents:,} documents are dropped, each with the closest "
            f"kept document named, and no two kept documents are duplicates; {proof.compared:,} pairs compared, "
            f"{proof.exact:,} of them exactly."
        )
    else:
        click.echo(f"{path}: NOT proved: {sum(proof.violations.values()):,} violations.")


def _rule(facts: Mapping[str, Any]) -> str:
    from search.dedup.settings import IDENTICAL

    threshold = facts["threshold"]
    rule = f"score {json.dumps(threshold)} or more"
    if threshold > facts["lowest"] and threshold >= IDENTICAL:
        rule = f"identical up to rounding (score {facts['lowest']:.7g} or more)"
    if facts["text_duplicates"] == "drop":
        rule += ", or have equal text"
    only = "only" if facts["only_against"] else "also"
    against = f"; {only} duplicates of {facts['against']['index']}" if facts["against"] else ""
    return f"{rule}; preferred: {facts['prefer']}{against}"


def _method(method: Mapping[str, Any]) -> str:
    if method["name"] == "exact":
        return "all found (exact)"
    found, sampled = method["found_pairs"], method["sampled_pairs"]
    share = f"{found / sampled:.2%}" if sampled else "none"
    return (
        f"approximate: found {share} of {sampled:,} pairs among {method['sampled_rows']:,} sampled documents "
        f"({method['probes']} of {method['cells']:,} cells probed)"
    )


def show_suggestion(suggestion: "Suggestion", as_json: bool) -> None:
    """Print the counts of each threshold, and example pairs."""
    if as_json:
        print_json(suggestion.to_dict())
        return
    documents, pairs = f"{suggestion.documents:,} documents", "pairs"
    if suggestion.windows is not None:
        documents, pairs = f"{documents} in {suggestion.windows:,} windows", "pairs of windows"
    print_table(
        ["threshold", "pairs", "dropped"],
        [[f"{row.threshold:g}", f"{row.pairs:,}", f"{row.dropped:,}"] for row in suggestion.candidates],
        f"{documents}; {pairs} at or above each threshold, and the documents that it drops",
    )
    for candidate in suggestion.candidates:
        click.secho(f"\nAround {candidate.threshold:g}", bold=True)
        for pair in reversed(candidate.above):
            _show_pair("above", pair)
        for pair in candidate.below:
            _show_pair("below", pair)


def _show_pair(where: str, pair: "Example") -> None:
    for side, lead in ((pair.first, f"{where} {pair.score:.4f}"), (pair.second, "")):
        click.echo(f"  {lead:<14}{escape(side.id, newlines=True)}: {escape(side.text, newlines=True)}")
