"""The picture of `chance`: documents found for one that was foretold, against how few were foretold."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from search.evaluation.plots.drawing import write_plot

_LINES: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {  # method -> colour, marker, what the legend calls it
        "pooled": ("#56b4e9", "o", "titles, scores pooled"),
        "standardised": ("#0072b2", "s", "titles, standardised by question"),
        "standardised, pieces": ("#cc79a7", "D", "sentences, standardised by question"),
        "exponential tail": ("#e69f00", "^", "exponential tail of the question"),
        "Pareto tail, highest 4 %": ("#d55e00", "v", "Pareto tail of the question"),
        "the questions, unjudged": ("#555555", "P", "the questions themselves, unjudged (bound)"),
        "half the questions, judged": ("#000000", "X", "the other half's judgements (bound)"),
    }
)
_LOWEST, _HIGHEST = 0.03, 30.0
_PANEL = (3.1, 2.9)  # inches
_FACTOR = 2.0


def draw_chance(results: Sequence[Mapping[str, Any]], picture: Path) -> None:
    """A row of panels for each result, a panel for each collection that has questions of its own."""
    names = [list(dict.fromkeys(row["collection"] for row in _judged(result))) for result in results]
    columns = max(map(len, names))

    def fill(figure: Any) -> None:
        axes = figure.subplots(len(results), columns, sharex=True, sharey=True, squeeze=False)
        for place, (result, collections) in enumerate(zip(results, names, strict=True)):
            for panel, name in zip(axes[place], collections, strict=False):
                _panel(panel, [row for row in _judged(result) if row["collection"] == name])
                panel.set_title(f"{name}, {result['encoder']}", fontsize=9)
            axes[place][0].set_ylabel("found for one foretold", fontsize=9)
        for panel in axes[-1]:
            panel.set_xlabel("foretold documents a question", fontsize=9)
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8, frameon=False)

    size = (_PANEL[0] * columns, _PANEL[1] * len(results) + 1)
    write_plot(picture, size, fill, force=True)


def _judged(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in result["results"] if "levels" in row]


def _panel(panel: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    panel.axhspan(1 / _FACTOR, _FACTOR, color="#dddddd", linewidth=0)
    panel.axhline(1, color="#999999", linewidth=0.8)
    by_name = {row["method"]: row for row in rows}
    for name, (colour, marker, label) in _LINES.items():
        levels = by_name[name]["levels"]
        foretold = np.array([level["foretold"] for level in levels])
        found = np.clip([level["ratio"] for level in levels], _LOWEST, _HIGHEST)  # none found: on the edge
        bound = by_name[name]["null"] == "questions"
        style = "--" if bound else "-"
        panel.plot(
            foretold, found, style, color=colour, marker=marker, markersize=4, linewidth=1.2, label=label, clip_on=False
        )
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlim(150, 0.07)  # rarer to the right
    panel.set_ylim(_LOWEST, _HIGHEST)
    panel.set_xticks([100, 10, 1, 0.1], ["100", "10", "1", "0.1"])
    panel.set_yticks([_LOWEST, 0.1, 0.5, 1, 2, 10], ["none", "0.1", "0.5", "1", "2", "10"])
    panel.minorticks_off()
    panel.tick_params(labelsize=8)
