"""Tables of reranking: what it gains over the order that hits were found in, how surely, and what it costs."""

from collections.abc import Iterator, Mapping
from typing import Any

from search.evaluation.cells import WITH_INTERVAL, Table, interval_text, is_number, list_of, mapping_of, scale_of
from search.evaluation.result import Result
from search.text import number

_OF_HYBRIDS = "of hybrid answers this says nothing; measure them: isotrope evaluate retrieval --hybrid --rerank MODEL"
_COSTS = ["better in", "decided", "ms a query"]


def rerank_tables(result: Result) -> Iterator[Table]:
    """Those of retrieval and of tuning; none where nothing was reranked."""
    if result.kind == "retrieval":
        yield from _measured(result)
    elif found := mapping_of(result.added.get("rerank")):
        yield _advised(found, scale_of(result))


def _measured(result: Result) -> Iterator[Table]:
    """A line a reranked setting: less the same without."""
    facts = {str(row.get("setting")): own for row in result.results if (own := mapping_of(row.get("rerank")))}
    cells, measure = [], ""
    for pair in result.comparisons or ():
        own, found = facts.get(str(pair.get("setting")), {}), mapping_of(pair.get("measure"))
        if own and found and pair.get("against") == own.get("of"):
            measure = next(iter(found))
            gain = _gain(mapping_of(found[measure]), scale_of(result))
            cells.append([str(own.get("of", "")), str(own.get("depth", "")), *gain, _milliseconds(own)])
    if cells:
        columns = ["setting", "reranked", f"gain in {measure} {WITH_INTERVAL}", *_COSTS]
        caption = "Reranking: x 100, less the same without, over the same resamples"
        yield Table(caption, columns, cells, _about(mapping_of(result.provenance.get("rerank"))))


def _advised(found: Mapping[str, Any], scale: float) -> Table:
    """A line a depth, and what is advised."""
    name, cells = str(found.get("measure", "")), []
    for row in map(mapping_of, list_of(found.get("depths"))):
        mark = "taken" if row.get("taken") else "tied" if row.get("tied") else ""
        gain = [*_gain(mapping_of(row.get("gain")), scale), _milliseconds(row)] if row.get("depth") else [""] * 4
        cells.append([str(row.get("depth") or "none"), interval_text(row, scale=scale), *gain, mark])
    columns = ["reranked", f"{name} {WITH_INTERVAL}", f"gain {WITH_INTERVAL}", *_COSTS, ""]
    caption = f"Reranking what the vectors find: {name} x 100, {number(found.get('questions'))} questions"
    remarks = (f"advised: {found.get('advice')}", *_about(mapping_of(found.get("by"))), _OF_HYBRIDS)
    return Table(caption, columns, cells, remarks)


def _gain(found: Mapping[str, Any], scale: float) -> list[str]:
    better, decided = found.get("better"), found.get("decided")
    said = {True: "yes", False: "no"}.get(decided, "") if isinstance(decided, bool) else ""
    return [interval_text(found, form="+.2f", scale=scale), f"{100 * better:.0f} %" if is_number(better) else "", said]


def _milliseconds(found: Mapping[str, Any]) -> str:
    taken = found.get("ms")
    return f"{taken:,.1f}" if is_number(taken) else ""


def _about(by: Mapping[str, Any]) -> tuple[str, ...]:
    """What reranked."""
    if not by:
        return ()
    digest = f", sha256 {str(by['sha256'])[:16]}..." if by.get("sha256") else ""
    cut = f"; {number(by['cut'])} of {number(by.get('pairs'))} pairs were cut" if by.get("cut") else ""
    return (f"reranked by {by.get('model')} ({by.get('backend')}{digest}){cut}",)
