"""The plot of `isotrope evaluate layers`: the grid of two layers, and the best combination of each size."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from indexer.arrays import Float64Array
from search.evaluation.plots.drawing import interval_of, model_name, whiskers, write_plot
from search.papers.tables import layer_grid

_COLOURS = "viridis"
_WITH_FIGURES = 16  # most layers for figures in the cells
_BEST = "#d62728"
_BEHIND_TEXT = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85}
_DARK = 0.6  # of the colour scale; text is white below it


def plot_layers(result: Mapping[str, Any], path: Path, force: bool = False) -> None:
    """Draw a result of `evaluate_layers` into a file; the same result gives the same bytes. Raises as `check_plot`."""

    def draw(figure: Any) -> None:
        grid, sizes = figure.subplots(1, 2, width_ratios=(1.15, 1))
        _draw_grid(figure, grid, result)
        _draw_sizes(sizes, result)
        figure.suptitle(_title(result), fontsize=11)

    side = max(4.5, 0.5 * min(len(result["layers"]), _WITH_FIGURES))
    size = 2 * side + 1.6, side + 1.1
    write_plot(path, size, draw, force, layout="compressed", bbox_inches="tight", pad_inches=0.1)


def _draw_grid(figure: Any, axes: Any, result: Mapping[str, Any]) -> None:
    layers, grid = result["layers"], 100 * layer_grid(result)
    lower = np.where(np.tri(len(layers), dtype=bool), grid, np.nan)
    image = axes.imshow(lower, cmap=_COLOURS, origin="upper")
    figure.colorbar(image, ax=axes, shrink=0.8, label="Spearman x100")
    axes.set_xticks(range(len(layers)), layers)
    axes.set_yticks(range(len(layers)), layers)
    axes.set(xlabel="layer", ylabel="layer", title="Two layers averaged; the diagonal is one layer")
    axes.spines[:].set_visible(False)
    if len(layers) <= _WITH_FIGURES:
        _write_figures(axes, lower)
    best = max((row for row in result["results"] if len(row["layers"]) <= 2), key=lambda row: row["spearman"])
    for row, colour, width in ((best, _BEST, 3.0), (result["paper"], "black", 1.6)):
        first, second = layers.index(row["layers"][0]), layers.index(row["layers"][-1])
        _frame(axes, first, second, colour, width)
    names = [(f"best: {_named(best)}", _BEST), (f"the paper's choice: {_named(result['paper'])}", "black")]
    for number, (name, colour) in enumerate(names):
        axes.text(0.98, 0.97 - 0.06 * number, name, color=colour, ha="right", va="top", transform=axes.transAxes,
                  fontsize=9)  # fmt: skip


def _write_figures(axes: Any, lower: Float64Array) -> None:
    low, high = float(np.nanmin(lower)), float(np.nanmax(lower))
    for row, column in zip(*np.nonzero(np.isfinite(lower)), strict=True):
        value = float(lower[row, column])
        dark = (value - low) < _DARK * (high - low)
        axes.text(column, row, f"{value:.1f}", ha="center", va="center", fontsize=8, color="white" if dark else "black")


def _frame(axes: Any, column: int, row: int, colour: str, width: float) -> None:
    x, y = [column - 0.5, column + 0.5], [row - 0.5, row + 0.5]
    corners = [x[0], x[1], x[1], x[0], x[0]], [y[0], y[0], y[1], y[1], y[0]]
    axes.plot(*corners, color=colour, linewidth=width, clip_on=False)


def _draw_sizes(axes: Any, result: Mapping[str, Any]) -> None:
    best, paper = result["best"], result["paper"]
    sizes, values = [row["size"] for row in best], 100 * np.array([row["spearman"] for row in best])
    reach = whiskers([interval_of(row, "spearman") for row in best])
    low, high = values - reach[0], values + reach[1]
    level = 100 * paper["spearman"]
    axes.axhline(level, color="black", linestyle="--", linewidth=1,
                 label=f"the paper's choice: {_named(paper)}")  # fmt: skip
    axes.errorbar(sizes, values, yerr=reach, marker="o", capsize=3, color="#1f77b4")
    top = int(values.argmax())
    axes.plot(sizes[top], values[top], marker="o", markersize=11, markerfacecolor="none", markeredgewidth=2,
              linestyle="none", color=_BEST, label=f"best: {_named(best[top])}")  # fmt: skip
    for row, end in zip(best, high, strict=True):
        axes.annotate(_named(row), (row["size"], end), xytext=(0, 5), textcoords="offset points", ha="center",
                      va="bottom", fontsize=8, rotation=90, bbox=_BEHIND_TEXT)  # fmt: skip
    span = high.max() - low.min() or 1.0
    axes.set_ylim(min(low.min(), level) - 0.1 * span, max(high.max(), level) + 0.4 * span)
    axes.set_xticks(sizes)
    axes.margins(x=0.12)
    axes.legend(loc="upper right", fontsize=9)
    axes.set(xlabel="number of layers", ylabel="Spearman x100", title="Best combination of n layers, 95 % interval")


def _named(row: Mapping[str, Any]) -> str:
    return "+".join(map(str, row["layers"]))


def _title(result: Mapping[str, Any]) -> str:
    row = result["paper"]
    whitening = "no whitening" if row["strength"] == "none" else f"whitening {row['strength']:g}, fit {row['fit']}"
    tasks = f"average of {len(row['tasks'])} tasks" if len(row["tasks"]) > 1 else next(iter(row["tasks"]))
    return f"{model_name(result)}, {row['pooling']} pooling, {whitening}: {tasks}, protocol {row['protocol']}"
