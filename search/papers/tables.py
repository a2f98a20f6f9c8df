"""Results of the papers: the fields read from their files, and the tables of each kind."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from indexer.arrays import Float64Array
from search.evaluation.result import CheckedRow, Figure, Number, Result, Row
from search.evaluation.tables import (
    WITH_INTERVAL,
    Table,
    difference_cells,
    figure_text,
    interval_text,
    is_number,
    list_of,
    mapping_of,
    name_of,
    plain_text,
    queries_text,
    similarity_tables,
    transposed_table,
)
from search.formatting import counted, number


class PaperRow(CheckedRow):
    """The fields read from a row of a paper's result."""

    method: str | None = None
    section: str | None = None
    vectors: str | None = None
    majority: Number = None
    proven: Number = None
    standard_deviation: Number = None
    items: int | None = None
    covered: int | None = None
    best: Figure | None = None
    train: Figure | None = None
    thresholds: list[Figure] | None = None
    against_mean: Figure | None = None
    against_untrained: Figure | None = None


class PublishedRow(Struct):
    """A row of a paper's table: published figures by column, ours, and the difference."""

    method: str | None = None
    model: str | None = None
    pooling: str | None = None
    layers: str | None = None
    whitening: bool | None = None
    status: str | None = None
    figures: dict[str, Number] | None = None
    published: dict[str, Number] | None = None
    ours: dict[str, Number] | None = None
    difference: dict[str, Number] | None = None


class PublishedTable(Struct):
    """A paper's table."""

    source: str
    columns: list[str]
    baselines: list[PublishedRow]
    rows: list[PublishedRow]


class PaperFile(Struct):
    """The fields read from the result file of a paper."""

    results: list[PaperRow]
    table: PublishedTable | None = None
    published: list[PublishedRow] | None = None
    layers: list[int] | None = None
    best: list[CheckedRow] | None = None
    paper: CheckedRow | None = None


def layer_grid(result: Mapping[str, Any]) -> Float64Array:
    """Return the result's average correlations (layers, layers) of two layers, with single layers on the diagonal."""
    places = {layer: place for place, layer in enumerate(result["layers"])}
    grid = np.full((len(places), len(places)), np.nan)
    for row in result["results"]:
        layers: Sequence[int] = row.get("layers") or ()
        if 1 <= len(layers) <= 2 and set(layers) <= set(places) and is_number(row.get("spearman")):
            first, second = places[layers[0]], places[layers[-1]]
            grid[first, second] = grid[second, first] = row["spearman"]
    return grid


def methods_tables(result: Result) -> Iterator[Table]:
    """Yield the tables of similarity with spreads over seeds and differences from mean pooling; then the published."""
    seeds = result.provenance.get("seeds")
    seeds_text = f"{counted(seeds, 'seed')} for random methods" if isinstance(seeds, int) else ""

    def difference(key: str) -> Callable[[Row], str]:
        return lambda row: (
            figure_text(mapping_of(row.get(key)).get("value"), "+.2f")
            + " (undecided)" * (mapping_of(row.get(key)).get("decided") is False)
        )

    further = {
        "sd over seeds": lambda row: figure_text(row.get("standard_deviation")),
        "vs mean": difference("against_mean"),
        "vs untrained": difference("against_untrained"),
    }
    yield from similarity_tables(result, further, seeds_text)
    rows = result.added["published"]
    columns = list(dict.fromkeys(name for row in rows for name in mapping_of(row.get("figures"))))
    cells = [
        [str(row.get("method", "")), *_figures(row.get("figures"), columns), str(row.get("status", ""))] for row in rows
    ]
    yield Table("Published (WhiteningBERT, Table 1)", ["method", *columns, ""], cells)


def _figures(figures: Any, columns: Sequence[str], form: str = ".2f") -> list[str]:
    return [figure_text(mapping_of(figures).get(column), form) for column in columns]


def whiteningbert_tables(result: Result) -> Iterator[Table]:
    """Yield a table per model: each published row, and below it our own and the difference."""
    paper = result.added["table"]
    columns = paper["columns"]
    cells = [[str(row.get("method")), *_figures(row.get("published"), columns)] for row in paper["baselines"]]
    caption = f"Spearman x 100, protocol mean, fit task. Published: {paper['source']}"
    yield Table(caption, ["method", *columns], cells)
    for model in dict.fromkeys(str(row.get("model")) for row in paper["rows"]):
        cells = []
        for row in [row for row in paper["rows"] if str(row.get("model")) == model]:
            name = f"{row.get('pooling')} {row.get('layers')}{' whitened' if row.get('whitening') else ''}"
            if row.get("published"):
                cells.append([f"{name}, published", *_figures(row["published"], columns)])
            ours = f"{name}, ours" if row.get("ours") else f"  {row.get('status')}"
            cells.append([ours, *_figures(row.get("ours"), columns)])
            if row.get("difference"):
                cells.append(["  difference", *_figures(row["difference"], columns, "+.2f")])
        yield Table(model, ["", *columns], cells)


def layers_tables(result: Result) -> Iterator[Table]:
    """Yield the lower half of the grid of two layers, and the best combination of each size."""
    paper = result.added["paper"]
    names, grid = [str(layer) for layer in result.added["layers"]], layer_grid(result)
    cells = [
        [name, *(f"{100 * value:.2f}" if value == value else "" for value in grid[row, : row + 1])]
        + [""] * (len(names) - row - 1)
        for row, name in enumerate(names)
    ]
    strength = paper.get("strength")
    whitening = "no whitening" if strength == "none" else f"strength {plain_text(strength)}, fit {paper.get('fit')}"
    title = f"Spearman x 100 of two layers averaged ({paper.get('pooling')}, {whitening}, protocol "
    yield Table(f"{title}{paper.get('protocol')})", ["layer", *names], cells)
    differences = {row.get("setting"): row for row in result.comparisons or ()}
    cells = [
        ["+".join(map(str, list_of(row.get("layers")))), interval_text(row, "spearman"),
         *difference_cells(differences.get(row.get("setting"), {}))]
        for row in result.added["best"]
    ]  # fmt: skip
    choice = "+".join(map(str, list_of(paper.get("layers"))))
    paper_figure = figure_text(paper.get("spearman"))
    caption = f"Best of n layers, and difference from the paper's choice ({choice}: {paper_figure})"
    yield Table(caption, ["layers", f"average {WITH_INTERVAL}", f"difference {WITH_INTERVAL}", "decided"], cells)


def rte_tables(result: Result) -> Iterator[Table]:
    """Yield the accuracies at thresholds chosen on other pairs and on these, then at the given thresholds."""
    rows = result.results
    chosen = {"train": "threshold chosen on other pairs", "best": "threshold chosen on these pairs (optimistic)"}
    shown = [key for key in chosen if any(row.get(key) for row in rows)]
    cells = [[name_of(row), *(_accuracy(row.get(key)) for key in shown)] for row in rows]
    first = rows[0]
    fit = mapping_of(result.provenance.get("fit")).get("name", first.get("fit", ""))
    caption = f"RTE accuracy x 100 {WITH_INTERVAL}, {number(first.get('pairs'))} pairs, fit {fit}"
    majority = f"always the more common label: {figure_text(first.get('majority'))}"
    yield Table(caption, ["setting", *(chosen[key] for key in shown)], cells, (majority,))
    thresholds = [mapping_of(entry).get("threshold") for entry in list_of(first.get("thresholds"))]
    if thresholds:
        cells = []
        for row in rows:
            entries = list_of(row.get("thresholds"))
            figures = [figure_text(mapping_of(entry).get("accuracy")) for entry in entries]
            cells.append([name_of(row), *figures])
        yield Table("accuracy x 100 at a threshold of", ["setting", *map(plain_text, thresholds)], _squared(cells))


def _accuracy(figure: Any) -> str:
    accuracy = interval_text(figure, "accuracy")
    return f"{accuracy} at {figure_text(mapping_of(figure).get('threshold'), '.3f', 1)}" if accuracy else ""


def words_tables(result: Result) -> Iterator[Table]:
    """Yield a table for each source of vectors: a line per set, and below it its sections."""
    for label in dict.fromkeys(row.get("vectors") for row in result.results):
        cells = [
            [
                str(row.get("task")) if row.get("section") == "all" else f"  {row.get('section')}",
                str(row.get("measure", "")),
                interval_text(row),
                f"{number(row.get('covered'))} of {number(row.get('items'))}",
            ]
            for row in result.results
            if row.get("vectors") == label
        ]
        yield Table(f"Word vectors: {label}", ["set", "measure", f"x 100 {WITH_INTERVAL}", "items"], cells)


def _squared(rows: list[list[str]]) -> list[list[str]]:
    """Return rows cut or padded to the length of the first."""
    return [[*row[: len(rows[0])], *[""] * (len(rows[0]) - len(row))] for row in rows]


def divergence_tables(result: Result) -> Iterator[Table]:
    """Yield a table with a column per measurement of the ranking by divergence."""
    yield transposed_table(
        result,
        {
            f"recall {WITH_INTERVAL}": lambda row: interval_text(row, "recall", ".4f", 1),
            "proved": lambda row: f"{figure_text(row.get('proven'), '.1f')} % of the queries",
            "queries": queries_text,
            "candidates": lambda row: (
                f"{number(row.get('candidates'))} of {number(row.get('rows'))} rows, by {row.get('transform')}"
            ),
        },
    )
