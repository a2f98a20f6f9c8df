"""What `isotrope dedup` prints."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from search.cli.output import print_facts, print_json, print_line, print_note, print_table
from search.text import escape, size

if TYPE_CHECKING:
    from search.dedup.findings import DedupVerifyReport
    from search.dedup.suggest import Example, Suggestion

_SIZES = ((2, 2), (3, 3), (4, 5), (6, 10), (11, 20), (21, 50), (51, 100), (101, 1000))
_REASONS = {
    "similar": "similar",
    "text": "with equal text",
    "against": "similar to one of the other index",
    "against-text": "with the text of one of the other index",
}


def show_summary(facts: dict[str, Any], written: Mapping[str, int], as_json: bool) -> None:
    """Counts, settings, cluster sizes, and the files that were written (name -> bytes)."""
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
        print_note("nothing was written; -o FILE lists the dropped documents, --kept FILE holds the others")


def sizes_in_words(facts: Mapping[str, Any]) -> str:
    """How many clusters have which size."""
    counted = {int(size): count for size, count in facts["cluster_sizes"].items()}
    found = []
    for low, high in (*_SIZES, (1001, max(counted))):
        count = sum(many for documents, many in counted.items() if low <= documents <= high)
        if count:
            found.append(f"{count:,} of {low if low == high else f'{low} to {high}'}")
    return ", ".join(found)


def show_proof(proof: "DedupVerifyReport", path: Path, as_json: bool) -> None:
    """What was proved, or what is wrong."""
    if as_json:
        print_json(proof.to_dict())
        return
    for line in proof.problems:
        print_line(line)
    if proof.passed:
        click.echo(
            f"{path}: proved. {proof.dropped:,} of {proof.documents:,} documents are dropped, each with the best kept "
            f"one named, and no two kept ones are duplicates; {proof.compared:,} pairs compared, {proof.exact:,} of "
            "them exactly."
        )
    else:
        total = sum(proof.violations.values())
        click.echo(f"{path}: NOT proved: {total:,} violations.")


def _rule(facts: Mapping[str, Any]) -> str:
    from search.dedup.settings import IDENTICAL

    threshold = facts["threshold"]
    meant = f"score {json.dumps(threshold)} or more"
    if threshold > facts["lowest"] and threshold >= IDENTICAL:
        meant = f"identical up to rounding (score {facts['lowest']:.7g} or more)"
    if facts["text_duplicates"] == "drop":
        meant += ", or have equal text"
    where = f"; {facts['against']['index']} comes first" if facts["against"] else ""
    alone = " and alone" if facts["only_against"] else ""
    return f"{meant}; preferred: {facts['prefer']}{where}{alone}"


def _method(method: Mapping[str, Any]) -> str:
    if method["name"] == "exact":
        return "all found (exact)"
    found, sampled = method["found_pairs"], method["sampled_pairs"]
    share = f"{found / sampled:.2%}" if sampled else "none to measure"
    return (
        f"approximate: found {share} of the {sampled:,} that {method['sampled_rows']:,} sampled documents have "
        f"({method['probes']} of {method['cells']:,} cells visited)"
    )


def show_suggestion(found: "Suggestion", as_json: bool) -> None:
    """Print the counts of each threshold, and pairs to read."""
    if as_json:
        print_json(found.to_dict())
        return
    documents, pairs = f"{found.documents:,} documents", "pairs"
    if found.windows is not None:
        documents, pairs = f"{documents} in {found.windows:,} windows", "pairs of windows"
    print_table(
        ["threshold", "pairs", "dropped"],
        [[f"{one.threshold:g}", f"{one.pairs:,}", f"{one.dropped:,}"] for one in found.candidates],
        f"{documents}; {pairs} at or above each threshold, and the documents that it drops",
    )
    for candidate in found.candidates:
        click.secho(f"\nAround {candidate.threshold:g}", bold=True)
        for pair in reversed(candidate.above):
            _show_pair("above", pair)
        for pair in candidate.below:
            _show_pair("below", pair)


def _show_pair(where: str, pair: "Example") -> None:
    for side, lead in ((pair.first, f"{where} {pair.score:.4f}"), (pair.second, "")):
        click.echo(f"  {lead:<14}{escape(side.id, newlines=True)}: {escape(side.text, newlines=True)}")
