"""How each kind of result is laid out as tables: once, for the terminal and the page alike.

Figures from 0 to 1 stand here times 100, as papers print them; recall alone stays from 0 to 1. Rows are read as
`result.read_result` has checked them, and what a row lacks is left blank.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pkgutil import resolve_name
from typing import Any

from search.evaluation.cells import (
    WITH_INTERVAL,
    Table,
    figure_text,
    interval_text,
    is_number,
    list_of,
    mapping_of,
    name_of,
    plain_text,
    scale_of,
)
from search.evaluation.result import KINDS, Result, Row
from search.ranking.bm25 import describe_bm25
from search.ranking.fusion import describe_fusion
from search.text import counted, number

_AVERAGE = "average"
_BEST_TUNED = 8  # settings of `tune` in its table, beside the controls
_OF_HYBRIDS = "of hybrid answers this says nothing; measure them: isotrope evaluate retrieval --hybrid --rerank MODEL"
_COSTS = ["better in", "decided", "ms a query"]


def heading_of(result: Result) -> str:
    """What was measured, for a heading."""
    return KINDS[result.kind].heading


def tables_of(result: Result, compare: bool = True) -> list[Table]:
    """The results of a kind and what reranking makes of them, then, with `compare`, paired comparisons."""
    own: list[Table] = list(resolve_name(KINDS[result.kind].tables)(result))
    return [*own, *rerank_tables(result), *(_comparisons(result) if compare else ())]


# Similarity: a line a setting, a column a task, a table for each protocol and fit.


def similarity_tables(
    result: Result, of_average: Mapping[str, Callable[[Row], str]] | None = None, remark: str = ""
) -> Iterator[Table]:
    """`of_average` are further columns, made of the row of the average; `remark` stands below each table."""
    scale, more = scale_of(result), of_average or {}
    kinds = dict.fromkeys((row.get("protocol"), row.get("fit")) for row in result.results)
    for protocol, fit in kinds:
        rows = [row for row in result.results if (row.get("protocol"), row.get("fit")) == (protocol, fit)]
        lines = _lines(rows)
        tasks = list(dict.fromkeys(task for line in lines.values() for task in line if task != _AVERAGE))
        averaged = any(_AVERAGE in line for line in lines.values())
        columns = ["setting", *tasks, *([f"average {WITH_INTERVAL}", *more] if averaged else [])]
        cells = []
        for name, line in lines.items():
            own = [figure_text(mapping_of(line.get(task)).get("spearman"), scale) for task in tasks]
            if not averaged:
                own = [interval_text(line.get(task), "spearman", scale=scale) for task in tasks]
            average = line.get(_AVERAGE, {})
            ends = [interval_text(average, "spearman", scale=scale), *(write(average) for write in more.values())]
            cells.append([name, *own, *(ends if averaged else [])])
        caption = f"Spearman x 100, protocol {protocol}, fit {fit}"
        remarks = (remark,) if remark else ()
        yield Table(caption if averaged else f"{caption} {WITH_INTERVAL}", columns, cells, remarks)


def _lines(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """Rows by setting and task. A setting of several encoders stands once for each, and what is there twice twice."""
    lines: dict[tuple[str, str, int], dict[str, Row]] = {}
    for row in rows:
        name, encoder, task = name_of(row), str(row.get("encoder")), str(row.get("task"))
        times = next(n for n in count() if task not in lines.get((name, encoder, n), {}))
        lines.setdefault((name, encoder, times), {})[task] = row
    encoders: dict[str, set[str]] = {}
    for name, encoder, _ in lines:
        encoders.setdefault(name, set()).add(encoder)
    return {
        name + f", encoder {encoder[:12]}…" * (len(encoders[name]) > 1) + f" ({times + 1})" * (times > 0): line
        for (name, encoder, times), line in lines.items()
    }


# Retrieval, recall and tuning.


def retrieval_tables(result: Result) -> Iterator[Table]:
    """A line a setting, a column a measure; the first one with its interval."""
    protocol, scale = mapping_of(result.provenance.get("protocol")), scale_of(result)
    names = list(dict.fromkeys(name for row in result.results for name in mapping_of(row.get("measure"))))
    first, *others = names or [""]
    cells = []
    for row in result.results:
        found = mapping_of(row.get("measure"))
        plain = [figure_text(mapping_of(found.get(name)).get("value"), scale) for name in others]
        cells.append([name_of(row), interval_text(found.get(first), scale=scale), *plain])
    yield Table(
        _searched(protocol) or "x 100, means over queries",
        ["setting", f"{first} {WITH_INTERVAL}", *others],
        cells,
        tuple(_beside(result.provenance)),
    )


def _searched(protocol: Mapping[str, Any]) -> str:
    queries, documents, depth = (protocol.get(name) for name in ("queries", "documents", "depth"))
    if not (isinstance(queries, int) and isinstance(documents, int) and isinstance(depth, int)):
        return ""
    return (
        f"{protocol.get('task')}, {protocol.get('split')}: x 100, means over {counted(queries, 'query', 'queries')}; "
        f"{counted(documents, 'document')}, {counted(depth, 'hit')} a query judged"
    )


def _beside(provenance: Mapping[str, Any]) -> Iterator[str]:
    """What BM25 and hybrids are; those that differ in their weight alone in one line."""
    if bm25 := mapping_of(provenance.get("bm25")):
        yield f"{describe_bm25(bm25)}."
    hybrids = provenance.get("hybrid")
    found = [mapping_of(one) for one in (hybrids if isinstance(hybrids, list) else [hybrids] if hybrids else [])]
    for kind in dict.fromkeys((one.get("method"), one.get("scaling")) for one in found):
        alike = [one for one in found if (one.get("method"), one.get("scaling")) == kind]
        weights = ", ".join(plain_text(one["weight"]) for one in alike if "weight" in one)
        yield f"{describe_fusion({**alike[0], **({'weight': weights} if weights else {})})}."


def recall_tables(result: Result) -> Iterator[Table]:
    """A column a measurement, with its latencies."""
    yield transposed_table(
        result,
        {
            f"recall {WITH_INTERVAL}": lambda row: (
                "1 by construction: the index is exact, and gave the exact answers"
                if row.get("exact")
                else interval_text(row, "recall", ".4f", 1)
            ),
            "queries": queries_text,
            "index": _index,
            "size": _size,
            "search, ms p50 / p90 / p99": lambda row: _latency(row, "search"),
            "encoding and search, ms": lambda row: _latency(row, "with_encoding"),
        },
    )


def transposed_table(result: Result, lines: Mapping[str, Callable[[Row], str]]) -> Table:
    columns = ["measured", *(f"recall@{row.get('k')}" for row in result.results)]
    return Table("", columns, [[name, *map(write, result.results)] for name, write in lines.items()])


def queries_text(row: Row) -> str:
    origin = row.get("origin")
    return f"{number(row.get('queries'))} from {'the file' if origin == 'file' else f'documents: {origin}'}"


def _index(row: Row) -> str:
    listed = [
        f"{name} {value}" for each in list_of(row.get("search_parameters")) for name, value in mapping_of(each).items()
    ]
    return ", ".join([str(row.get("index_type", "")), *listed])


def _size(row: Row) -> str:
    rows, dim, bytes_each = row.get("rows"), row.get("dim"), figure_text(row.get("bytes_per_vector"), 1, ",.1f")
    if isinstance(rows, int) and isinstance(dim, int):
        return f"{counted(rows, 'vector')} of {counted(dim, 'dimension')}, {bytes_each} bytes each"
    return f"{bytes_each} bytes a vector" if bytes_each else ""


def _latency(row: Row, key: str) -> str:
    timed = mapping_of(mapping_of(row.get("latency_ms")).get(key))
    return " / ".join(number(timed.get(p), 3) for p in ("p50", "p90", "p99")) if timed else ""


def tune_tables(result: Result) -> Iterator[Table]:
    """The best settings and the controls, the frontier, and what was taken."""
    protocol = mapping_of(result.provenance.get("protocol"))
    name, scale = str(protocol.get("measure", "score")), scale_of(result)
    figure = f"{name} {WITH_INTERVAL}"
    cells = [
        [*_setting(row), interval_text(row, scale=scale), number(row.get("dimensions")), _mark(row)]
        for row in _shown(result.results)
    ]
    caption = f"{name} x 100, {number(protocol.get('questions'))} {protocol.get('kind', 'questions')}"
    columns = ["layers", "pooling", "strength", "centre", "shrinkage", figure, "dimensions", ""]
    tied = "tied: cannot be told from the highest, compared question by question"
    yield Table(caption, columns, cells, (tied,) if any("tied" in row[-1] for row in cells) else ())
    cells = []
    for row in result.added["frontier"]:
        layers, _, strength, centre, _ = _setting(row)
        sizes = [number(row.get("bytes")), number(row.get("dimensions"))]
        cells.append([*sizes, layers, strength, centre, interval_text(row, scale=scale), _mark(row)])
    columns = ["bytes", "dimensions", "layers", "strength", "centre", figure, ""]
    yield Table(f"Frontier: {name} x 100 by bytes a vector", columns, cells, _taken(result.added["choice"], scale))
    yield from _weights(mapping_of(result.added.get("hybrid")), name, scale)


def _weights(hybrid: Mapping[str, Any], measure: str, scale: float) -> Iterator[Table]:
    """What each tenth of the weight scored, the best, and what was taken."""
    rows = [mapping_of(row) for row in list_of(hybrid.get("weights"))]
    shown = [
        row for place, row in enumerate(rows)
        if place % 2 == 0 or row.get("taken") or row.get("weight") == hybrid.get("best")
    ]  # fmt: skip
    alone = {0.0: "BM25 alone", 1.0: "vectors alone"}
    cells = []
    for row in shown:
        highest = f"{100 * row['highest']:.0f} %" if is_number(row.get("highest")) else ""
        marks = ", ".join(filter(None, [alone.get(row.get("weight", -1), ""), "taken" if row.get("taken") else ""]))
        cells.append([plain_text(row.get("weight")), interval_text(row, scale=scale), highest, marks])
    if cells:
        remark = f"taken: hybrid.weight={plain_text(hybrid.get('weight'))}, because {hybrid.get('reason')}"
        caption = f"Hybrid: {measure} x 100 by weight of the vectors"
        yield Table(caption, ["weight", f"{measure} {WITH_INTERVAL}", "highest in", ""], cells, (remark,))


def _shown(rows: Sequence[Row]) -> list[Row]:
    """Return the best rows with all dimensions, the controls, the present setting and the one that was taken."""
    ranked = sorted(rows, key=lambda row: -row["value"] if is_number(row.get("value")) else float("inf"))
    wide = [row for row in ranked if row.get("dim") is None]
    shown = [
        row
        for place, row in enumerate(wide)
        if place < _BEST_TUNED
        or row.get("strength") in ("none", 0.0)
        or any(row.get(mark) for mark in ("taken", "present"))
    ]
    return shown + [row for row in ranked if row.get("taken") and row.get("dim") is not None]


def _setting(row: Row) -> list[str]:
    layers = ",".join(map(str, list_of(row.get("layers"))))
    if row.get("strength") == "none":
        return [layers, str(row.get("pooling")), "raw", "", ""]
    named = [plain_text(row.get("strength")), str(row.get("centre")), plain_text(row.get("shrinkage"))]
    return [layers, str(row.get("pooling")), *named]


def _mark(row: Row) -> str:
    marks = ["taken" if row.get("taken") else "tied" if row.get("tied") else ""]
    marks += ["present"] * bool(row.get("present"))
    return ", ".join(filter(None, marks))


def _taken(choice: Mapping[str, Any], scale: float) -> tuple[str, ...]:
    lines = [f"taken: {choice['setting']}, because {choice['reason']}"]
    flattered = "; flattered a little by having been chosen on it"
    for name, key, remark in (("raw", "gain", flattered), ("the recipe's own", "over_present", "")):
        gain = mapping_of(choice.get(key))
        if gain.get("value"):
            decided = "decided" if gain.get("decided") else "not decided"
            lines.append(f"over {name}: {interval_text(gain, form='+.2f', scale=scale)}, {decided}{remark}")
    if enough := choice.get("enough"):
        softer = "" if enough.get("strength") is None else f" at strength {plain_text(enough['strength'])}"
        does = f"{number(enough['dim'])} dimensions ({number(enough['bytes'])} bytes){softer} do as well"
        lines.append(f"as far as the questions can tell, {does}")
    return tuple(lines)


# Reranking.


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
    (over, decided), better = difference_cells(found, scale), found.get("better")
    return [over, f"{100 * better:.0f} %" if is_number(better) else "", decided]


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


# Whatever else, and comparisons.


def other_tables(result: Result) -> Iterator[Table]:
    """A column for each key whose values are plain."""
    keys = list(dict.fromkeys(key for row in result.results for key in row))
    keys = [key for key in keys if any(isinstance(row.get(key), str | int | float) for row in result.results)]
    cells = [[plain_text(row.get(key)) for key in keys] for row in result.results]
    if keys:
        yield Table("", keys, cells)


def _comparisons(result: Result) -> Iterator[Table]:
    """Paired differences; those of layers stand beside the best of n."""
    rows, scale = result.comparisons or (), scale_of(result)
    if not rows or result.kind == "layers":
        return
    protocols = list(dict.fromkeys(row.get("protocol") for row in rows))
    first = next(iter(mapping_of(rows[0].get("measure"))), "")
    cells = []
    for row in rows:
        found = mapping_of(row.get("measure")).get(first) if first else row
        more = [str(row.get("protocol"))] if len(protocols) > 1 else []
        counts = [_outcomes(mapping_of(found))] if first else []
        cells.append([name_of(row), str(row.get("against", "")), *more, *difference_cells(found, scale), *counts])
    columns = ["setting", "less", *(["protocol"] if len(protocols) > 1 else [])]
    columns += [f"difference{f' in {first}' if first else ''} {WITH_INTERVAL}", "decided"]
    yield Table("Paired differences x 100, over the same resamples", columns + ["won/tied/lost"] * bool(first), cells)


def difference_cells(found: Any, scale: float) -> list[str]:
    """The difference with its interval, and whether that leaves out 0."""
    found = mapping_of(found)
    said = interval_text(found, "difference" if "difference" in found else "value", "+.2f", scale)
    decided = found.get("decided")
    return [said, ("yes" if decided else "no") if isinstance(decided, bool) else ""]


def _outcomes(found: Mapping[str, Any]) -> str:
    counts = [found.get(name) for name in ("won", "tied", "lost")]
    return "/".join(map(str, counts)) if None not in counts else ""
