"""How each kind of result is laid out as tables: once, for the terminal and the page alike.

Figures from 0 to 1 stand here times 100, as papers print them; recall alone stays from 0 to 1. Rows are read as
`result.read_result` has checked them, and what a row lacks is left blank.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from indexer.arrays import Float64Array
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
from search.evaluation.rerank_table import rerank_tables
from search.evaluation.result import Kind, Result, Row
from search.evaluation.retrieval_tables import divergence_tables, recall_tables, retrieval_tables, tune_tables
from search.text import counted, number

_AVERAGE = "average"


def heading_of(result: Result) -> str:
    """What was measured, for a heading."""
    return _KINDS[result.kind][0]


def tables_of(result: Result, compare: bool = True) -> list[Table]:
    """The results of a kind and what reranking makes of them, then, with `compare`, paired comparisons."""
    return [*_KINDS[result.kind][1](result), *rerank_tables(result), *(_comparisons(result) if compare else ())]


def layer_grid(result: Mapping[str, Any]) -> Float64Array:
    """Average correlations (layers, layers) of pairs of layers, single ones on the diagonal, as the result has them."""
    places = {layer: place for place, layer in enumerate(result["layers"])}
    grid = np.full((len(places), len(places)), np.nan)
    for row in result["results"]:
        layers: Sequence[int] = row.get("layers") or ()
        if 1 <= len(layers) <= 2 and set(layers) <= set(places) and is_number(row.get("spearman")):
            first, second = places[layers[0]], places[layers[-1]]
            grid[first, second] = grid[second, first] = row["spearman"]
    return grid


# Similarity: a line a setting, a column a task, a table for each protocol and fit.


def _similarity(
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


def _methods(result: Result) -> Iterator[Table]:
    """The same with the spread over seeds and the differences from mean pooling; then the published figures."""
    scale, seeds = scale_of(result), result.provenance.get("seeds")
    drawn = f"{counted(seeds, 'seed')} where any are drawn" if isinstance(seeds, int) else ""

    def less(key: str) -> Callable[[Row], str]:
        return lambda row: (
            figure_text(mapping_of(row.get(key)).get("value"), scale, "+.2f")
            + " (undecided)" * (mapping_of(row.get(key)).get("decided") is False)
        )

    yield from _similarity(
        result,
        {
            "sd over seeds": lambda row: figure_text(row.get("standard_deviation"), scale),
            "less mean": less("against_mean"),
            "less untrained": less("against_untrained"),
        },
        drawn,
    )
    rows = result.added["published"]
    columns = list(dict.fromkeys(name for row in rows for name in mapping_of(row.get("figures"))))
    cells = [
        [str(row.get("method", "")), *_figures(row.get("figures"), columns, scale), str(row.get("status", ""))]
        for row in rows
    ]
    yield Table("Published (WhiteningBERT, Table 1)", ["method", *columns, ""], cells)


def _figures(found: Any, columns: Sequence[str], scale: float, form: str = ".2f") -> list[str]:
    return [figure_text(mapping_of(found).get(column), scale, form) for column in columns]


def _whiteningbert(result: Result) -> Iterator[Table]:
    """Each published row, below it our own and the difference; a table a model."""
    scale, paper = scale_of(result), result.added["table"]
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
    scale, paper = scale_of(result), result.added["paper"]
    names, grid = [str(layer) for layer in result.added["layers"]], layer_grid(result)
    cells = [
        [name, *(f"{scale * value:.2f}" if value == value else "" for value in grid[row, : row + 1])]
        + [""] * (len(names) - row - 1)
        for row, name in enumerate(names)
    ]
    strength = paper.get("strength")
    whitening = "no whitening" if strength == "none" else f"strength {plain_text(strength)}, fit {paper.get('fit')}"
    title = f"Spearman x 100 of two layers averaged ({paper.get('pooling')}, {whitening}, protocol "
    yield Table(f"{title}{paper.get('protocol')})", ["layer", *names], cells)
    less = {row.get("setting"): row for row in result.comparisons or ()}
    cells = [
        ["+".join(map(str, list_of(row.get("layers")))), interval_text(row, "spearman", scale=scale),
         *_difference(less.get(row.get("setting"), {}), scale)]
        for row in result.added["best"]
    ]  # fmt: skip
    choice = "+".join(map(str, list_of(paper.get("layers"))))
    caption = f"Best of n layers, and less the paper's choice ({choice}: {figure_text(paper.get('spearman'), scale)})"
    yield Table(caption, ["layers", f"average {WITH_INTERVAL}", f"difference {WITH_INTERVAL}", "decided"], cells)


# Entailment, and words.


def _rte(result: Result) -> Iterator[Table]:
    """The accuracy at thresholds that were chosen on other pairs and on these, and at those that were given."""
    scale, rows = scale_of(result), result.results
    chosen = {"train": "threshold chosen on other pairs", "best": "on these pairs (optimistic)"}
    shown = [key for key in chosen if any(row.get(key) for row in rows)]
    cells = [[name_of(row), *(_accuracy(row.get(key), scale) for key in shown)] for row in rows]
    first = rows[0]
    fit = mapping_of(result.provenance.get("fit")).get("name", first.get("fit", ""))
    caption = f"RTE accuracy x 100 {WITH_INTERVAL}, {number(first.get('pairs'))} pairs, fit {fit}"
    majority = f"always the commoner label: {figure_text(first.get('majority'), scale)}"
    yield Table(caption, ["setting", *(chosen[key] for key in shown)], cells, (majority,))
    thresholds = [mapping_of(entry).get("threshold") for entry in list_of(first.get("thresholds"))]
    if thresholds:
        cells = [
            [
                name_of(row),
                *(figure_text(mapping_of(entry).get("accuracy"), scale) for entry in list_of(row.get("thresholds"))),
            ]
            for row in rows
        ]
        yield Table("accuracy x 100 at a threshold of", ["setting", *map(plain_text, thresholds)], _squared(cells))


def _accuracy(found: Any, scale: float) -> str:
    said, threshold = (
        interval_text(found, "accuracy", scale=scale),
        figure_text(mapping_of(found).get("threshold"), 1, ".3f"),
    )
    return f"{said} at {threshold}" if said else ""


def _words(result: Result) -> Iterator[Table]:
    """A table for each source of vectors: a line a set, and below it its sections."""
    scale = scale_of(result)
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
        yield Table(f"Word vectors: {label}", ["set", "measure", f"x 100 {WITH_INTERVAL}", "items"], cells)


# Whatever else, and comparisons.


def _other(result: Result) -> Iterator[Table]:
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
        cells.append([name_of(row), str(row.get("against", "")), *more, *_difference(found, scale), *counts])
    columns = ["setting", "less", *(["protocol"] if len(protocols) > 1 else [])]
    columns += [f"difference{f' in {first}' if first else ''} {WITH_INTERVAL}", "decided"]
    yield Table("Paired differences x 100, over the same resamples", columns + ["won/tied/lost"] * bool(first), cells)


def _difference(found: Any, scale: float) -> list[str]:
    """The difference with its interval, and whether that leaves out 0."""
    found = mapping_of(found)
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
    "retrieval": ("Retrieval", retrieval_tables),
    "recall": ("Recall against exact search", recall_tables),
    "divergence": ("Ranking by divergence", divergence_tables),
    "rte": ("Entailment (RTE)", _rte),
    "words": ("Word vectors", _words),
    "tune": ("Tuning", tune_tables),
    "other": ("Results", _other),
}
