"""Tables of each kind of result, for the terminal and for reports.

Figures from 0 to 1 are shown x 100, as in papers, except recall. Rows must have passed the checks of
`result.read_result`; missing values are blank.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pkgutil import resolve_name
from typing import Any, TypeGuard

from indexer.errors import spelled
from search.evaluation.result import KINDS, Result, Row
from search.formatting import counted, number
from search.ranking.bm25 import describe_bm25
from search.ranking.fusion import describe_fusion

_LARGEST = 1e300  # JSON integers can exceed the range of floats
WITH_INTERVAL = "[95 %]"
_AVERAGE = "average"
_BEST_TUNED = 8  # settings in the table of `tune`, besides the controls
_COSTS = ["resamples won", "decided", "ms per query"]


@dataclass(frozen=True)
class Table:
    """A table of text whose first column names the rows; `remarks` are lines below it.

    `figures` is False if the other columns contain words, which are aligned left.
    """

    caption: str
    columns: list[str]
    rows: list[list[str]]
    remarks: tuple[str, ...] = ()
    figures: bool = True


def tables_of(result: Result, compare: bool = True) -> list[Table]:
    """Return the tables of a result's kind and of reranking, and with `compare` those of paired comparisons."""
    tables: list[Table] = list(resolve_name(KINDS[result.kind].tables)(result))
    return [*tables, *rerank_tables(result), *(_comparisons(result) if compare else ())]


def similarity_tables(
    result: Result, of_average: Mapping[str, Callable[[Row], str]] | None = None, remark: str = ""
) -> Iterator[Table]:
    """Yield a table for each protocol and fit, with a line for each setting and a column for each task.

    `of_average` adds columns computed from the row of the average; `remark` is a line below each table.
    """
    more = of_average or {}
    for protocol, fit in dict.fromkeys((row.get("protocol"), row.get("fit")) for row in result.results):
        lines = _lines([row for row in result.results if (row.get("protocol"), row.get("fit")) == (protocol, fit)])
        tasks = list(dict.fromkeys(task for line in lines.values() for task in line if task != _AVERAGE))
        averaged = any(_AVERAGE in line for line in lines.values())
        columns = ["setting", *tasks, *([f"average {WITH_INTERVAL}", *more] if averaged else [])]
        cells = []
        for name, line in lines.items():
            figures = [figure_text(mapping_of(line.get(task)).get("spearman")) for task in tasks]
            if not averaged:
                figures = [interval_text(line.get(task), "spearman") for task in tasks]
            average = line.get(_AVERAGE, {})
            ends = [interval_text(average, "spearman"), *(write(average) for write in more.values())]
            cells.append([name, *figures, *(ends if averaged else [])])
        caption = f"Spearman x 100, protocol {protocol}, fit {fit}"
        remarks = (remark,) if remark else ()
        yield Table(caption if averaged else f"{caption} {WITH_INTERVAL}", columns, cells, remarks)


def _lines(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """Return rows by setting and task, with a line for each encoder of a setting and for each repetition of a row."""
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


def retrieval_tables(result: Result) -> Iterator[Table]:
    """Yield a table with a line for each setting and a column for each measure, the first with its interval."""
    protocol = mapping_of(result.provenance.get("protocol"))
    names = list(dict.fromkeys(name for row in result.results for name in mapping_of(row.get("measure"))))
    first, *others = names or [""]
    cells = []
    for row in result.results:
        figures = mapping_of(row.get("measure"))
        plain = [figure_text(mapping_of(figures.get(name)).get("value")) for name in others]
        cells.append([name_of(row), interval_text(figures.get(first)), *plain])
    columns = ["setting", f"{first} {WITH_INTERVAL}", *others]
    yield Table(_searched(protocol) or "x 100, means over queries", columns, cells, tuple(_methods(result.provenance)))


def _searched(protocol: Mapping[str, Any]) -> str:
    queries, documents, depth = (protocol.get(name) for name in ("queries", "documents", "depth"))
    if not (isinstance(queries, int) and isinstance(documents, int) and isinstance(depth, int)):
        return ""
    return (
        f"{protocol.get('task')}, {protocol.get('split')}: x 100, means over {counted(queries, 'query', 'queries')}; "
        f"{counted(documents, 'document')}, {counted(depth, 'hit')} per query"
    )


def _methods(provenance: Mapping[str, Any]) -> Iterator[str]:
    """Yield descriptions of BM25 and of the hybrids, one for all weights of a hybrid."""
    if bm25 := mapping_of(provenance.get("bm25")):
        yield f"{describe_bm25(bm25)}."
    stored = provenance.get("hybrid")
    hybrids = [mapping_of(hybrid) for hybrid in (stored if isinstance(stored, list) else [stored] if stored else [])]
    for kind in dict.fromkeys((hybrid.get("method"), hybrid.get("scaling")) for hybrid in hybrids):
        alike = [hybrid for hybrid in hybrids if (hybrid.get("method"), hybrid.get("scaling")) == kind]
        weights = ", ".join(plain_text(hybrid["weight"]) for hybrid in alike if "weight" in hybrid)
        yield f"{describe_fusion({**alike[0], **({'weight': weights} if weights else {})})}."


def recall_tables(result: Result) -> Iterator[Table]:
    """Yield a table with a column for each measurement and its latencies. An index of given vectors encodes nothing."""
    lines: dict[str, Callable[[Row], str]] = {
        f"recall {WITH_INTERVAL}": lambda row: (
            "1 by construction: the index is exact, and returned the exact answers"
            if row.get("exact")
            else interval_text(row, "recall", ".4f", 1)
        ),
        "queries": queries_text,
        "index": _index,
        "size": _size,
        "search, ms p50 / p90 / p99": lambda row: _latency(row, "search"),
    }
    if any(_latency(row, "with_encoding") for row in result.results):
        lines["encoding and search, ms"] = lambda row: _latency(row, "with_encoding")
    yield transposed_table(result, lines)


def transposed_table(result: Result, lines: Mapping[str, Callable[[Row], str]]) -> Table:
    columns = ["measured", *(f"recall@{row.get('k')}" for row in result.results)]
    return Table("", columns, [[name, *map(write, result.results)] for name, write in lines.items()])


def queries_text(row: Row) -> str:
    origin = row.get("origin")
    if origin == "documents":
        return f"{number(row.get('queries'))} embeddings of documents"
    return f"{number(row.get('queries'))} from {'the file' if origin == 'file' else f'documents: {origin}'}"


def _index(row: Row) -> str:
    listed = [
        f"{name} {value}" for each in list_of(row.get("search_parameters")) for name, value in mapping_of(each).items()
    ]
    return ", ".join([str(row.get("index_type", "")), *listed])


def _size(row: Row) -> str:
    rows, dim, bytes_each = row.get("rows"), row.get("dim"), figure_text(row.get("bytes_per_vector"), ",.1f", 1)
    if isinstance(rows, int) and isinstance(dim, int):
        return f"{counted(rows, 'vector')} of {counted(dim, 'dimension')}, {bytes_each} bytes each"
    return f"{bytes_each} bytes per vector" if bytes_each else ""


def _latency(row: Row, key: str) -> str:
    timed = mapping_of(mapping_of(row.get("latency_ms")).get(key))
    return " / ".join(number(timed.get(p), 3) for p in ("p50", "p90", "p99")) if timed else ""


def tune_tables(result: Result) -> Iterator[Table]:
    """Yield tables: the recipe against raw embeddings, the best settings, the frontier, and the weights for hybrids."""
    protocol = mapping_of(result.provenance.get("protocol"))
    name = str(protocol.get("measure", "score"))
    yield from _as_is(mapping_of(result.added.get("as_is")), name)
    figure = f"{name} {WITH_INTERVAL}"
    cells = [
        [*_setting(row), interval_text(row), number(row.get("dimensions")), _mark(row)]
        for row in _shown(result.results)
    ]
    caption = f"{name} x 100, {number(protocol.get('questions'))} {protocol.get('kind', 'questions')}"
    columns = ["layers", "pooling", "strength", "centre", "shrinkage", figure, "dimensions", ""]
    tied = (
        "tied: not significantly worse, question by question, than the highest score among the settings that tune may "
        "choose"
    )
    yield Table(caption, columns, cells, (tied,) if any("tied" in row[-1] for row in cells) else ())
    cells = []
    for row in result.added["frontier"]:
        layers, _, strength, centre, _ = _setting(row)
        sizes = [number(row.get("bytes")), number(row.get("dimensions"))]
        cells.append([*sizes, layers, strength, centre, interval_text(row), _mark(row)])
    columns = ["bytes", "dimensions", "layers", "strength", "centre", figure, ""]
    yield Table(f"Frontier: {name} x 100 by bytes per vector", columns, cells, _chosen(result.added["choice"]))
    yield from _weights(mapping_of(result.added.get("hybrid")), name)


def _as_is(compared: Mapping[str, Any], measure: str) -> Iterator[Table]:
    """Yield a table of the recipe's setting against the model as it is, whose caption says which is better."""
    difference = mapping_of(compared.get("difference"))
    value, decided = difference.get("value"), bool(difference.get("decided"))
    if not is_number(value):
        return
    worse, better = ("is worse than", "is better than") if decided else ("scores lower than", "scores higher than")
    answer = (
        f"{better if value > 0 else worse} the model as it is" if value else "scores the same as the model as it is"
    )
    gain = f"{measure} {interval_text(difference, form='+.2f')}, {'decided' if decided else 'not decided'}"
    sides = [mapping_of(compared.get(side)) for side in ("raw", "recipe")]
    cells = [[str(side.get("setting")), interval_text(side)] for side in sides]
    yield Table(f"The recipe's whitening {answer}: {gain}", ["setting", f"{measure} {WITH_INTERVAL}"], cells)


def _weights(hybrid: Mapping[str, Any], measure: str) -> Iterator[Table]:
    """Yield a table of the scores by weight in steps of a tenth, with all weights that won, and the chosen one."""
    rows = [mapping_of(row) for row in list_of(hybrid.get("weights"))]
    shown = [
        row for place, row in enumerate(rows)
        if place % 2 == 0 or row.get("taken") or row.get("highest") or row.get("weight") == hybrid.get("best")
    ]  # fmt: skip
    alone = {0.0: "BM25 alone", 1.0: "vectors alone"}
    cells = []
    for row in shown:
        highest = f"{100 * row['highest']:.0f} %" if is_number(row.get("highest")) else ""
        marks = ", ".join(filter(None, [alone.get(row.get("weight", -1), ""), "chosen" if row.get("taken") else ""]))
        cells.append([plain_text(row.get("weight")), interval_text(row), highest, marks])
    if cells:
        remark = f"chosen: hybrid.weight={plain_text(hybrid.get('weight'))}, because {hybrid.get('reason')}"
        caption = f"Hybrid: {measure} x 100 by weight of the vectors"
        yield Table(caption, ["weight", f"{measure} {WITH_INTERVAL}", "resamples won", ""], cells, (remark,))


def _shown(rows: Sequence[Row]) -> list[Row]:
    """Return the best rows with all dimensions, the controls, the present and the chosen setting."""
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
    present = ["present"] * bool(row.get("present"))
    return ", ".join([*filter(None, [_choice_mark(row)]), *present])


def _choice_mark(row: Mapping[str, Any]) -> str:
    return "chosen" if row.get("taken") else "tied" if row.get("tied") else ""


def _chosen(choice: Mapping[str, Any]) -> tuple[str, ...]:
    lines = [f"chosen: {choice['setting']}, because {choice['reason']}"]
    optimistic = "; slightly optimistic, because the same questions chose the setting"
    for name, key, remark in (("raw", "gain", optimistic), ("the recipe's own", "over_present", "")):
        gain = mapping_of(choice.get(key))
        if gain.get("value"):
            decided = "decided" if gain.get("decided") else "not decided"
            lines.append(f"over {name}: {interval_text(gain, form='+.2f')}, {decided}{remark}")
    if enough := choice.get("enough"):
        softer = "" if enough.get("strength") is None else f" at strength {plain_text(enough['strength'])}"
        size = f"{number(enough['dim'])} dimensions ({number(enough['bytes'])} bytes){softer}"
        lines.append(f"{size} are not significantly worse")
    return tuple(lines)


def rerank_tables(result: Result) -> Iterator[Table]:
    """Yield the tables of reranking of a retrieval or tuning result, if anything was reranked."""
    if result.kind == "retrieval":
        yield from _measured(result)
    elif advice := mapping_of(result.added.get("rerank")):
        yield _advised(advice)


def _measured(result: Result) -> Iterator[Table]:
    """Yield a table with a line for each reranked setting: its gain over the same setting without reranking."""
    facts = {str(row.get("setting")): rerank for row in result.results if (rerank := mapping_of(row.get("rerank")))}
    cells, measure = [], ""
    for pair in result.comparisons or ():
        rerank, measures = facts.get(str(pair.get("setting")), {}), mapping_of(pair.get("measure"))
        if rerank and measures and pair.get("against") == rerank.get("of"):
            measure = next(iter(measures))
            gain = _gain(mapping_of(measures[measure]), rerank)
            cells.append([str(rerank.get("of", "")), str(rerank.get("depth", "")), *gain])
    if cells:
        columns = ["setting", "reranked", f"gain in {measure} {WITH_INTERVAL}", *_COSTS]
        caption = "Reranking: gain x 100 over the same setting without reranking, over the same resamples"
        yield Table(caption, columns, cells, _reranker(mapping_of(result.provenance.get("rerank"))))


def _of_hybrids() -> str:
    measure = spelled(
        "evaluate_retrieval with RetrievalOptions(hybrid=True, rerank=RerankTask(MODEL))",
        "isotrope evaluate retrieval --hybrid --rerank MODEL",
    )
    return f"this does not apply to hybrid search; measure it: {measure}"


def _advised(advice: Mapping[str, Any]) -> Table:
    """Return a table with a line for each depth, and the advice."""
    name, cells = str(advice.get("measure", "")), []
    for row in map(mapping_of, list_of(advice.get("depths"))):
        gain = _gain(mapping_of(row.get("gain")), row) if row.get("depth") else [""] * 4
        cells.append([str(row.get("depth") or "none"), interval_text(row), *gain, _choice_mark(row)])
    columns = ["reranked", f"{name} {WITH_INTERVAL}", f"gain {WITH_INTERVAL}", *_COSTS, ""]
    caption = f"Reranking the hits of the vectors: {name} x 100, {number(advice.get('questions'))} questions"
    remarks = (f"advised: {advice.get('advice')}", *_reranker(mapping_of(advice.get("by"))), _of_hybrids())
    return Table(caption, columns, cells, remarks)


def _gain(gain: Mapping[str, Any], timed: Mapping[str, Any]) -> list[str]:
    (difference, decided), better = difference_cells(gain), gain.get("better")
    won = f"{100 * better:.0f} %" if is_number(better) else ""
    return [difference, won, decided, figure_text(timed.get("ms"), ",.1f", 1)]


def _reranker(by: Mapping[str, Any]) -> tuple[str, ...]:
    if not by:
        return ()
    digest = f", sha256 {str(by['sha256'])[:16]}..." if by.get("sha256") else ""
    cut = f"; {number(by['cut'])} of {number(by.get('pairs'))} pairs were truncated" if by.get("cut") else ""
    return (f"reranked by {by.get('model')} ({by.get('backend')}{digest}){cut}",)


def other_tables(result: Result) -> Iterator[Table]:
    """Yield a table with a column for each key whose values are plain."""
    keys = list(dict.fromkeys(key for row in result.results for key in row))
    keys = [key for key in keys if any(isinstance(row.get(key), str | int | float) for row in result.results)]
    cells = [[plain_text(row.get(key)) for key in keys] for row in result.results]
    if keys:
        yield Table("", keys, cells)


def _comparisons(result: Result) -> Iterator[Table]:
    """Yield a table of paired differences; the tables of layers have their own."""
    rows = result.comparisons or ()
    if not rows or result.kind == "layers":
        return
    protocols = list(dict.fromkeys(row.get("protocol") for row in rows))
    first = next(iter(mapping_of(rows[0].get("measure"))), "")
    cells = []
    for row in rows:
        difference = mapping_of(mapping_of(row.get("measure")).get(first) if first else row)
        more = [str(row.get("protocol"))] if len(protocols) > 1 else []
        counts = [difference.get(name) for name in ("won", "tied", "lost")] if first else []
        won = ["/".join(map(str, counts)) if None not in counts else ""] * bool(first)
        cells.append([name_of(row), str(row.get("against", "")), *more, *difference_cells(difference), *won])
    columns = ["setting", "compared with", *(["protocol"] if len(protocols) > 1 else [])]
    columns += [f"difference{f' in {first}' if first else ''} {WITH_INTERVAL}", "decided"]
    yield Table("Paired differences x 100, over the same resamples", columns + ["won/tied/lost"] * bool(first), cells)


def difference_cells(difference: Any) -> list[str]:
    """Return a difference with its interval, and whether the interval excludes 0."""
    difference = mapping_of(difference)
    text = interval_text(difference, "difference" if "difference" in difference else "value", "+.2f")
    decided = difference.get("decided")
    return [text, ("yes" if decided else "no") if isinstance(decided, bool) else ""]


def interval_text(interval: Any, key: str = "value", form: str = ".2f", scale: float = 100) -> str:
    """Return a figure with its interval, if it has one: "82.03 [79.69, 84.05]".

    `interval` holds the figure under `key`, "low" and "high", as `bootstrap.Interval.to_dict` returns it.
    """
    if not isinstance(interval, Mapping) or key not in interval:
        return ""
    value, low, high = interval[key], interval.get("low"), interval.get("high")
    if not is_number(value):
        return "undefined"
    ends = f" [{scale * low:{form}}, {scale * high:{form}}]" if is_number(low) and is_number(high) else ""
    return f"{scale * value:{form}}{ends}"


def figure_text(value: Any, form: str = ".2f", scale: float = 100) -> str:
    return f"{scale * value:{form}}" if is_number(value) else ""


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST


def mapping_of(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def list_of(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def name_of(row: Row) -> str:
    model = f"{row['model']}: " if row.get("model") else ""
    return f"{model}{row.get('setting', '')}"


def plain_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if isinstance(value, str | int) else ""
