"""Tables of reranking: what it gains over the order that hits were found in, how surely, and what it costs."""

from collections.abc import Iterator, Mapping
from typing import Any

from search.evaluation.cells import WITH_INTERVAL, Table, interval_text, mapping_of, scale_of
from search.evaluation.result import Result
from search.text import counted

_COSTS = ["better in", "decided", "ms a query"]


def rerank_tables(result: Result) -> Iterator[Table]:
    """Those of retrieval and of tuning; none where nothing was reranked."""
    if result.kind == "retrieval":
        yield from _measured(result)
    elif found := mapping_of(result.added.get("rerank")):
        yield _advised(found, scale_of(result))


def _measured(result: Result) -> Iterator[Table]:
    """A line a reranked setting: less the same without."""
    facts = {row.get("setting"): own for row in result.results if (own := mapping_of(row.get("rerank")))}
    cells, measure = [], ""
    for pair in result.comparisons or ():
        own, found = facts.get(pair.get("setting"), {}), mapping_of(pair.get("measure"))
        if own and found and pair.get("against") == own.get("of"):
            measure = next(iter(found))
            gain = _gain(mapping_of(found[measure]), scale_of(result))
            cells.append([str(own["of"]), str(own.get("depth")), *gain, _milliseconds(own)])
    if cells:
        columns = ["setting", "reranked", f"gain in {measure} {WITH_INTERVAL}", *_COSTS]
        caption = "Reranking: x 100, less the same without, over the same resamples"
        yield Table(caption, columns, cells, _about(mapping_of(result.provenance.get("rerank"))))


def _advised(found: Mapping[str, Any], scale: float) -> Table:
    """A line a depth, and what is advised."""
    name, cells = found["measure"], []
    for row in found["depths"]:
        figure, mark = interval_text(row, scale=scale), "taken" if row["taken"] else "tied" if row["tied"] else ""
        if row["depth"]:
            cells.append([str(row["depth"]), figure, *_gain(row["gain"], scale), _milliseconds(row), mark])
        else:
            cells.append(["none", figure, "", "", "", "", mark])
    columns = ["reranked", f"{name} {WITH_INTERVAL}", f"gain {WITH_INTERVAL}", *_COSTS, ""]
    caption = f"Reranking: {name} x 100, {counted(found['questions'], 'question')}"
    return Table(caption, columns, cells, (f"advised: {found['advice']}", *_about(found["by"])))


def _gain(found: Mapping[str, Any], scale: float) -> list[str]:
    better = found.get("better")
    decided = {True: "yes", False: "no"}.get(found.get("decided", ""), "")
    said = f"{100 * better:.0f} %" if isinstance(better, float) else ""
    return [interval_text(found, form="+.2f", scale=scale), said, decided]


def _milliseconds(found: Mapping[str, Any]) -> str:
    taken = found.get("ms")
    return f"{taken:,.1f}" if isinstance(taken, int | float) else ""


def _about(by: Mapping[str, Any]) -> tuple[str, ...]:
    """What reranked."""
    if not by:
        return ()
    digest = f", sha256 {by['sha256'][:16]}..." if by.get("sha256") else ""
    cut = f"; {by['cut']:,} of {counted(by['pairs'], 'pair')} were cut" if by.get("cut") else ""
    return (f"reranked by {by['model']} ({by['backend']}{digest}){cut}",)
