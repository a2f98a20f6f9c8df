"""How each kind of result is laid out as tables: once, for the terminal and the page alike.

Figures from 0 to 1 stand here times 100, as papers print them; recall alone stays from 0 to 1. Rows are read as
`result.read_result` has checked them, and what a row lacks is left blank.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeGuard

import numpy as np

from indexer.arrays import Float64Array
from search.evaluation.result import Kind, Result, Row
from search.ranking.bm25 import describe_bm25
from search.ranking.fusion import describe_fusion
from search.text import counted, number

_LARGEST = 1e300  # a whole number of JSON may be larger than any float
_AVERAGE = "average"
_BEST_TUNED = 8  # settings of `tune` in its table, beside the controls
_WITH_INTERVAL = "[95 %]"


@dataclass(frozen=True)
class Table:
    """A table of text, the first column naming the rows; `remarks` are lines below it."""

    caption: str
    columns: list[str]
    rows: list[list[str]]
    remarks: tuple[str, ...] = ()


def heading_of(result: Result) -> str:
    """What was measured, for a heading."""
    return _KINDS[result.kind][0]


def tables_of(result: Result, compare: bool = True) -> list[Table]:
    """The results of a kind, then, with `compare`, paired comparisons."""
    return [*_KINDS[result.kind][1](result), *(_comparisons(result) if compare else ())]


def interval_text(found: Any, key: str = "value", form: str = ".2f", scale: float = 100) -> str:
    """A figure with the ends of its interval, where it has them: "82.03 [79.69, 84.05]".

    `found` holds the figure under `key`, and "low" and "high", as `bootstrap.Interval` is written.
    """
    if not isinstance(found, Mapping) or key not in found:
        return ""
    value, low, high = found[key], found.get("low"), found.get("high")
    if not _is_number(value):
        return "undefined"
    ends = f" [{scale * low:{form}}, {scale * high:{form}}]" if _is_number(low) and _is_number(high) else ""
    return f"{scale * value:{form}}{ends}"


def layer_grid(result: Mapping[str, Any]) -> Float64Array:
    """Average correlations (layers, layers) of pairs of layers, single ones on the diagonal, as the result has them."""
    places = {layer: place for place, layer in enumerate(result["layers"])}
    grid = np.full((len(places), len(places)), np.nan)
    for row in result["results"]:
        layers: Sequence[int] = row.get("layers") or ()
        if 1 <= len(layers) <= 2 and set(layers) <= set(places) and _is_number(row.get("spearman")):
            first, second = places[layers[0]], places[layers[-1]]
            grid[first, second] = grid[second, first] = row["spearman"]
    return grid


def _scale(result: Result) -> float:
    """What a figure is multiplied with to stand times 100."""
    return 100 if result.unit == "fraction" else 1


def _figure(value: Any, scale: float, form: str = ".2f") -> str:
    return f"{scale * value:{form}}" if _is_number(value) else ""


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


# Similarity: a line a setting, a column a task, a table for each protocol and fit.


def _similarity(
    result: Result, of_average: Mapping[str, Callable[[Row], str]] | None = None, remark: str = ""
) -> Iterator[Table]:
    """`of_average` are further columns, made of the row of the average; `remark` stands below each table."""
    scale, more = _scale(result), of_average or {}
    kinds = dict.fromkeys((row.get("protocol"), row.get("fit")) for row in result.results)
    for protocol, fit in kinds:
        rows = [row for row in result.results if (row.get("protocol"), row.get("fit")) == (protocol, fit)]
        lines = _lines(rows)
        tasks = list(dict.fromkeys(task for line in lines.values() for task in line if task != _AVERAGE))
        averaged = any(_AVERAGE in line for line in lines.values())
        columns = ["setting", *tasks, *([f"average {_WITH_INTERVAL}", *more] if averaged else [])]
        cells = []
        for name, line in lines.items():
            own = [_figure(_mapping(line.get(task)).get("spearman"), scale) for task in tasks]
            if not averaged:
                own = [interval_text(line.get(task), "spearman", scale=scale) for task in tasks]
            average = line.get(_AVERAGE, {})
            ends = [interval_text(average, "spearman", scale=scale), *(write(average) for write in more.values())]
            cells.append([name, *own, *(ends if averaged else [])])
        caption = f"Spearman x 100, protocol {protocol}, fit {fit}"
        remarks = (remark,) if remark else ()
        yield Table(caption if averaged else f"{caption} {_WITH_INTERVAL}", columns, cells, remarks)


def _lines(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """Rows by setting and task. A setting of several encoders stands once for each, and what is there twice twice."""
    lines: dict[tuple[str, str, int], dict[str, Row]] = {}
    for row in rows:
        name, encoder, task = _named(row), str(row.get("encoder")), str(row.get("task"))
        times = next(n for n in count() if task not in lines.get((name, encoder, n), {}))
        lines.setdefault((name, encoder, times), {})[task] = row
    encoders: dict[str, set[str]] = {}
    for name, encoder, _ in lines:
        encoders.setdefault(name, set()).add(encoder)
    return {
        name + f", encoder {encoder[:12]}…" * (len(encoders[name]) > 1) + f" ({times + 1})" * (times > 0): line
        for (name, encoder, times), line in lines.items()
    }


def _named(row: Row) -> str:
    model = f"{row['model']}: " if row.get("model") else ""
    return f"{model}{row.get('setting', '')}"


def _methods(result: Result) -> Iterator[Table]:
    """The same with the spread over seeds and the differences from mean pooling; then the published figures."""
    scale, seeds = _scale(result), result.provenance.get("seeds")
    drawn = f"{counted(seeds, 'seed')} where any are drawn" if isinstance(seeds, int) else ""

    def less(key: str) -> Callable[[Row], str]:
        return lambda row: (
            _figure(_mapping(row.get(key)).get("value"), scale, "+.2f")
            + " (undecided)" * (_mapping(row.get(key)).get("decided") is False)
        )

    yield from _similarity(
        result,
        {
            "sd over seeds": lambda row: _figure(row.get("standard_deviation"), scale),
            "less mean": less("against_mean"),
            "less untrained": less("against_untrained"),
        },
        drawn,
    )
    rows = result.added["published"]
    columns = list(dict.fromkeys(name for row in rows for name in _mapping(row.get("figures"))))
    cells = [
        [str(row.get("method", "")), *_figures(row.get("figures"), columns, scale), str(row.get("status", ""))]
        for row in rows
    ]
    yield Table("Published (WhiteningBERT, Table 1)", ["method", *columns, ""], cells)


def _figures(found: Any, columns: Sequence[str], scale: float, form: str = ".2f") -> list[str]:
    return [_figure(_mapping(found).get(column), scale, form) for column in columns]


def _whiteningbert(result: Result) -> Iterator[Table]:
    """Each published row, below it our own and the difference; a table a model."""
    scale, paper = _scale(result), result.added["table"]
    columns = paper["columns"]
    cells = [[str(row.get("method")), *_figures(row.get("published"), columns, scale)] for row in paper["baselines"]]
    caption = f"Spearman x 100, protocol mean, fit task. Published: {paper['source']}"
    yield Table(caption, ["method", *columns], cells)
    for model in dict.fromkeys(str(row.get("model")) for row in paper["rows"]):
        cells = []
        for row in [row for row in paper["rows"] if str(row.get("model")) == model]:
            name = f"{row.get('pooling')} {row.get('layers')}{' whitened' if row.get('whitening') else ''}"
            if row.get("published"):
                cells.append([f"{name}, published", *_figures(row["published"], columns, scale)])
            ours = f"{name}, ours" if row.get("ours") else f"  {row.get('status')}"
            cells.append([ours, *_figures(row.get("ours"), columns, scale)])
            if row.get("difference"):
                cells.append(["  difference", *_figures(row["difference"], columns, scale, "+.2f")])
        yield Table(model, ["", *columns], cells)


def _layers(result: Result) -> Iterator[Table]:
    """The lower half of the grid of two layers, and the best combination of each size."""
    scale, paper = _scale(result), result.added["paper"]
    names, grid = [str(layer) for layer in result.added["layers"]], layer_grid(result)
    cells = [
        [name, *(f"{scale * value:.2f}" if value == value else "" for value in grid[row, : row + 1])]
        + [""] * (len(names) - row - 1)
        for row, name in enumerate(names)
    ]
    strength = paper.get("strength")
    whitening = "no whitening" if strength == "none" else f"strength {_plain(strength)}, fit {paper.get('fit')}"
    title = f"Spearman x 100 of two layers averaged ({paper.get('pooling')}, {whitening}, protocol "
    yield Table(f"{title}{paper.get('protocol')})", ["layer", *names], cells)
    less = {row.get("setting"): row for row in result.comparisons or ()}
    cells = [
        ["+".join(map(str, _list(row.get("layers")))), interval_text(row, "spearman", scale=scale),
         *_difference(less.get(row.get("setting"), {}), scale)]
        for row in result.added["best"]
    ]  # fmt: skip
    choice = "+".join(map(str, _list(paper.get("layers"))))
    caption = f"Best of n layers, and less the paper's choice ({choice}: {_figure(paper.get('spearman'), scale)})"
    yield Table(caption, ["layers", f"average {_WITH_INTERVAL}", f"difference {_WITH_INTERVAL}", "decided"], cells)


# Retrieval, and an index against exact search.


def _retrieval(result: Result) -> Iterator[Table]:
    """A line a setting, a column a measure; the first one with its interval."""
    protocol, scale = _mapping(result.provenance.get("protocol")), _scale(result)
    names = list(dict.fromkeys(name for row in result.results for name in _mapping(row.get("measure"))))
    first, *others = names or [""]
    cells = []
    for row in result.results:
        found = _mapping(row.get("measure"))
        plain = [_figure(_mapping(found.get(name)).get("value"), scale) for name in others]
        cells.append([_named(row), interval_text(found.get(first), scale=scale), *plain])
    yield Table(
        _searched(protocol) or "x 100, means over queries",
        ["setting", f"{first} {_WITH_INTERVAL}", *others],
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
    """What BM25 and hybrids are."""
    if found := _mapping(provenance.get("bm25")):
        yield f"{describe_bm25(found)}."
    hybrids = provenance.get("hybrid")
    for found in hybrids if isinstance(hybrids, list) else [hybrids] if hybrids else []:
        yield f"{describe_fusion(_mapping(found))}."


def _recall(result: Result) -> Iterator[Table]:
    """A column a measurement, with its latencies."""
    yield _transposed(
        result,
        {
            f"recall {_WITH_INTERVAL}": lambda row: (
                "1 by construction: the index is exact, and gave the exact answers"
                if row.get("exact")
                else interval_text(row, "recall", ".4f", 1)
            ),
            "queries": _queries,
            "index": _index,
            "size": _size,
            "search, ms p50 / p90 / p99": lambda row: _latency(row, "search"),
            "encoding and search, ms": lambda row: _latency(row, "with_encoding"),
        },
    )


def _divergence(result: Result) -> Iterator[Table]:
    """A column a measurement of the ranking by divergence."""
    yield _transposed(
        result,
        {
            f"recall {_WITH_INTERVAL}": lambda row: interval_text(row, "recall", ".4f", 1),
            "proved": lambda row: f"{_figure(row.get('proven'), 100, '.1f')} % of the queries",
            "queries": _queries,
            "candidates": lambda row: (
                f"{number(row.get('candidates'))} of {number(row.get('rows'))} rows, by {row.get('transform')}"
            ),
        },
    )


def _transposed(result: Result, lines: Mapping[str, Callable[[Row], str]]) -> Table:
    columns = ["measured", *(f"recall@{row.get('k')}" for row in result.results)]
    return Table("", columns, [[name, *map(write, result.results)] for name, write in lines.items()])


def _queries(row: Row) -> str:
    origin = row.get("origin")
    return f"{number(row.get('queries'))} from {'the file' if origin == 'file' else f'documents: {origin}'}"


def _index(row: Row) -> str:
    listed = [
        f"{name} {value}" for each in _list(row.get("search_parameters")) for name, value in _mapping(each).items()
    ]
    return ", ".join([str(row.get("index_type", "")), *listed])


def _size(row: Row) -> str:
    rows, dim, bytes_each = row.get("rows"), row.get("dim"), _figure(row.get("bytes_per_vector"), 1, ",.1f")
    if isinstance(rows, int) and isinstance(dim, int):
        return f"{counted(rows, 'vector')} of {counted(dim, 'dimension')}, {bytes_each} bytes each"
    return f"{bytes_each} bytes a vector" if bytes_each else ""


def _latency(row: Row, key: str) -> str:
    timed = _mapping(_mapping(row.get("latency_ms")).get(key))
    return " / ".join(number(timed.get(p), 3) for p in ("p50", "p90", "p99")) if timed else ""


# Entailment, and words.


def _rte(result: Result) -> Iterator[Table]:
    """The accuracy at thresholds that were chosen on other pairs and on these, and at those that were given."""
    scale, rows = _scale(result), result.results
    chosen = {"train": "threshold chosen on other pairs", "best": "on these pairs (optimistic)"}
    shown = [key for key in chosen if any(row.get(key) for row in rows)]
    cells = [[_named(row), *(_accuracy(row.get(key), scale) for key in shown)] for row in rows]
    first = rows[0]
    fit = _mapping(result.provenance.get("fit")).get("name", first.get("fit", ""))
    caption = f"RTE accuracy x 100 {_WITH_INTERVAL}, {number(first.get('pairs'))} pairs, fit {fit}"
    majority = f"always the commoner label: {_figure(first.get('majority'), scale)}"
    yield Table(caption, ["setting", *(chosen[key] for key in shown)], cells, (majority,))
    thresholds = [_mapping(entry).get("threshold") for entry in _list(first.get("thresholds"))]
    if thresholds:
        cells = [
            [_named(row), *(_figure(_mapping(entry).get("accuracy"), scale) for entry in _list(row.get("thresholds")))]
            for row in rows
        ]
        yield Table("accuracy x 100 at a threshold of", ["setting", *map(_plain, thresholds)], _squared(cells))


def _accuracy(found: Any, scale: float) -> str:
    said, threshold = interval_text(found, "accuracy", scale=scale), _figure(_mapping(found).get("threshold"), 1, ".3f")
    return f"{said} at {threshold}" if said else ""


def _words(result: Result) -> Iterator[Table]:
    """A table for each source of vectors: a line a set, and below it its sections."""
    scale = _scale(result)
    for label in dict.fromkeys(row.get("vectors") for row in result.results):
        cells = [
            [
                str(row.get("task")) if row.get("section") == "all" else f"  {row.get('section')}",
                str(row.get("measure", "")),
                interval_text(row, scale=scale),
                f"{number(row.get('covered'))} of {number(row.get('items'))}",
            ]
            for row in result.results
            if row.get("vectors") == label
        ]
        yield Table(f"Word vectors: {label}", ["set", "measure", f"x 100 {_WITH_INTERVAL}", "items"], cells)


# Tuning.


def _tune(result: Result) -> Iterator[Table]:
    """The best settings and the controls, the frontier, and what was taken."""
    protocol = _mapping(result.provenance.get("protocol"))
    name, scale = str(protocol.get("measure", "score")), _scale(result)
    figure = f"{name} {_WITH_INTERVAL}"
    cells = [
        [*_setting(row), interval_text(row, scale=scale), number(row.get("dimensions")), _mark(row)]
        for row in _shown(result.results)
    ]
    caption = f"{name} x 100, {number(protocol.get('questions'))} {protocol.get('kind', 'questions')}"
    yield Table(caption, ["layers", "pooling", "strength", "centre", "shrinkage", figure, "dimensions", ""], cells)
    cells = []
    for row in result.added["frontier"]:
        layers, _, strength, centre, _ = _setting(row)
        sizes = [number(row.get("bytes")), number(row.get("dimensions"))]
        cells.append([*sizes, layers, strength, centre, interval_text(row, scale=scale)])
    columns = ["bytes", "dimensions", "layers", "strength", "centre", figure]
    yield Table(f"Frontier: {name} x 100 by bytes a vector", columns, cells, _taken(result.added["choice"], scale))


def _shown(rows: Sequence[Row]) -> list[Row]:
    """The best with all dimensions, the controls and what was taken."""
    ranked = sorted(rows, key=lambda row: -row["value"] if _is_number(row.get("value")) else float("inf"))
    wide = [row for row in ranked if row.get("dim") is None]
    shown = [
        row
        for place, row in enumerate(wide)
        if place < _BEST_TUNED or row.get("strength") in ("none", 0.0) or row.get("taken")
    ]
    return shown + [row for row in ranked if row.get("taken") and row.get("dim") is not None]


def _setting(row: Row) -> list[str]:
    layers = ",".join(map(str, _list(row.get("layers"))))
    if row.get("strength") == "none":
        return [layers, str(row.get("pooling")), "raw", "", ""]
    named = [_plain(row.get("strength")), str(row.get("centre")), _plain(row.get("shrinkage"))]
    return [layers, str(row.get("pooling")), *named]


def _mark(row: Row) -> str:
    return "taken" if row.get("taken") else "tied" if row.get("tied") else ""


def _taken(choice: Mapping[str, Any], scale: float) -> tuple[str, ...]:
    lines = [f"taken: {choice['setting']}, because {choice['reason']}"]
    gain, enough = choice["gain"], choice.get("enough")
    if gain.get("value"):
        decided = "decided" if gain.get("decided") else "not decided"
        over = interval_text(gain, form="+.2f", scale=scale)
        lines.append(f"over raw: {over}, {decided}; flattered a little by having been chosen on it")
    if enough:
        does = f"{number(enough['dim'])} dimensions ({number(enough['bytes'])} bytes) do as well"
        lines.append(f"as far as the questions can tell, {does}")
    return tuple(lines)


# Whatever else, and comparisons.


def _other(result: Result) -> Iterator[Table]:
    """A column for each key whose values are plain."""
    keys = list(dict.fromkeys(key for row in result.results for key in row))
    keys = [key for key in keys if any(isinstance(row.get(key), str | int | float) for row in result.results)]
    cells = [[_plain(row.get(key)) for key in keys] for row in result.results]
    if keys:
        yield Table("", keys, cells)


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if isinstance(value, str | int) else ""


def _comparisons(result: Result) -> Iterator[Table]:
    """Paired differences; those of layers stand beside the best of n."""
    rows, scale = result.comparisons or (), _scale(result)
    if not rows or result.kind == "layers":
        return
    protocols = list(dict.fromkeys(row.get("protocol") for row in rows))
    first = next(iter(_mapping(rows[0].get("measure"))), "")
    cells = []
    for row in rows:
        found = _mapping(row.get("measure")).get(first) if first else row
        more = [str(row.get("protocol"))] if len(protocols) > 1 else []
        counts = [_outcomes(_mapping(found))] if first else []
        cells.append([_named(row), str(row.get("against", "")), *more, *_difference(found, scale), *counts])
    columns = ["setting", "less", *(["protocol"] if len(protocols) > 1 else [])]
    columns += [f"difference{f' in {first}' if first else ''} {_WITH_INTERVAL}", "decided"]
    yield Table("Paired differences x 100, over the same resamples", columns + ["won/tied/lost"] * bool(first), cells)


def _difference(found: Any, scale: float) -> list[str]:
    """The difference with its interval, and whether that leaves out 0."""
    found = _mapping(found)
    said = interval_text(found, "difference" if "difference" in found else "value", "+.2f", scale)
    return [said, {True: "yes", False: "no"}.get(found.get("decided", ""), "")]


def _outcomes(found: Mapping[str, Any]) -> str:
    counts = [found.get(name) for name in ("won", "tied", "lost")]
    return "/".join(map(str, counts)) if None not in counts else ""


def _squared(rows: list[list[str]]) -> list[list[str]]:
    """Rows as long as the first, whose columns name what stands in all."""
    return [[*row[: len(rows[0])], *[""] * (len(rows[0]) - len(row))] for row in rows]


_KINDS: dict[Kind, tuple[str, Callable[[Result], Iterator[Table]]]] = {
    "sts": ("Similarity (STS)", _similarity),
    "layers": ("Layers on similarity (STS)", _layers),
    "methods": ("Methods on similarity (STS)", _methods),
    "whiteningbert": ("WhiteningBERT, Table 1", _whiteningbert),
    "retrieval": ("Retrieval", _retrieval),
    "recall": ("Recall against exact search", _recall),
    "divergence": ("Ranking by divergence", _divergence),
    "rte": ("Entailment (RTE)", _rte),
    "words": ("Word vectors", _words),
    "tune": ("Tuning", _tune),
    "other": ("Results", _other),
}
