"""Plots of a report: inline SVG in the text colour of the page."""

import html
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from search.evaluation.plots.drawing import render_figure
from search.evaluation.report.statistics import IndexStatistics

_INK = "#010203"  # placeholder for the text colour of the page
_BEFORE, _AFTER = "#e08214", "#4f8ff7"
_SIZE = (4.4, 2.8)  # inches; about the width of a phone
_BINS = 60
_LOGARITHMIC = 100  # largest ratio of counts on a linear axis
_WIDENING = 1.3  # ratio of successive bins on a logarithmic axis
_TICKS = [first * 10**zeros for zeros in range(10) for first in (1, 2, 5)][1:]
_VISIBLE = 1e-12  # of the variance; smaller values are rounding errors
_STYLE = {
    "svg.fonttype": "none",
    "font.size": 10,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    **dict.fromkeys(["text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"], _INK),
}
_NO_METADATA = dict.fromkeys(["Date", "Creator", "Format", "Type"])
Values = npt.NDArray[Any]


def spectrum(figures: IndexStatistics) -> str | None:
    """Plot the share of variance by direction on a logarithmic axis; None for fewer than two directions."""
    if max(np.count_nonzero(cloud.spectrum > _VISIBLE) for cloud, _, _ in _sides(figures)) < 2:
        return None

    def draw(axes: Any) -> None:
        for cloud, colour, name in _sides(figures):
            shares = cloud.spectrum[cloud.spectrum > _VISIBLE]
            marker = "o" if len(shares) < 20 else None
            axes.plot(np.arange(1, len(shares) + 1), shares, color=colour, label=name, marker=marker)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
        axes.yaxis.set_minor_formatter(lambda value, _: "")
        axes.set_xlabel("principal direction")
        axes.set_ylabel("share of variance")
        axes.legend()

    return _picture("spectrum", "Share of the variance in each principal direction, before and after", draw)


def cosines(figures: IndexStatistics) -> str | None:
    """Plot the distribution of the cosines of random pairs; None without pairs."""
    both = np.concatenate([figures.before.cosines, figures.after.cosines])
    if not len(both):
        return None

    def draw(axes: Any) -> None:
        bins = _bins(both)
        for cloud, colour, name in _sides(figures):
            _shares(axes, cloud.cosines, bins, colour, name)
            axes.axvline(cloud.cosines.mean(), color=colour, linestyle="--", linewidth=1)
        axes.set_xlabel(f"cosine of two random {figures.noun}s")
        axes.legend()

    return _picture("cosines", f"Cosines of random pairs of {figures.noun}s, before and after", draw)


def norms(figures: IndexStatistics) -> str:
    """Plot the distribution of the norms of raw embeddings."""

    def draw(axes: Any) -> None:
        _shares(axes, figures.norms, _bins(figures.norms), _BEFORE)
        axes.set_xlabel("norm of the raw embedding")

    return _picture("norms", "Norms of the raw embeddings", draw)


def lengths(figures: IndexStatistics) -> str:
    """Plot the distribution of tokens per row with the limit, on a logarithmic axis if a few rows are very long."""

    def draw(axes: Any) -> None:
        values, limit = figures.lengths, figures.max_length or 0
        skewed = values.max() > 8 * max(1.0, float(np.median(values)))
        bins = np.geomspace(max(1, values.min()), values.max() + 1, _BINS) if skewed else _bins(values)
        _shares(axes, values, bins, _AFTER)
        if skewed:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.xaxis.set_minor_formatter(lambda value, _: "")
        if limit <= 1.5 * values.max():
            axes.axvline(limit, color=_INK, linestyle="--", linewidth=1)
            right = limit > axes.get_xlim()[1] / 2  # the label is left of a limit near the end
            place = {"xytext": (-4 if right else 4, 0), "ha": "right" if right else "left", "va": "top"}
            data = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
            axes.set_ylim(top=1.1 * axes.get_ylim()[1])
            axes.annotate(f"cut at {limit:,}", (limit, 1), **place, **data)
        axes.set_xlabel(f"tokens per {figures.noun}")

    return _picture("lengths", f"Tokens per {figures.noun}", draw)


def cluster_sizes(sizes: Values) -> str:
    """Plot the number of clusters by size, on logarithmic axes if a few are very large or most are small."""
    largest = int(sizes.max())
    wide = largest > _BINS
    steps = int(np.ceil(np.log(largest / 2) / np.log(_WIDENING))) + 1
    whole = np.unique(np.geomspace(2, largest + 1, steps + 1).round()) if wide else np.arange(2, max(largest, 6) + 2)
    bins = whole - 0.5

    def draw(axes: Any) -> None:
        _histogram(axes, sizes, bins, _AFTER)
        if wide:
            axes.set_xscale("log")
            landmarks = [tick for tick in _TICKS if largest < 1000 or tick == 2 or str(tick).startswith("1")]
            axes.set_xticks([tick for tick in landmarks if tick <= largest])
            axes.xaxis.set_major_formatter(lambda value, _: _short(value))
            axes.xaxis.set_minor_formatter(lambda value, _: "")
        else:
            axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("documents in a cluster")
        axes.set_ylabel("clusters")
        _count_axis(axes, np.histogram(sizes, bins)[0])

    return _picture("cluster-sizes", "Clusters by their number of documents", draw)


def scores(values: Values, by_text: Values, lowest: float) -> str | None:
    """Plot the distribution of the scores of dropped documents with the threshold, equal texts apart; None without."""
    finite = np.isfinite(values)
    if not finite.any():
        return None
    bins = _bins(values[finite])

    def draw(axes: Any) -> None:
        sides = [(values[finite & ~by_text], _BEFORE, "similar"), (values[finite & by_text], _AFTER, "equal text")]
        for side, colour, name in sides:
            if len(side):
                _histogram(axes, side, bins, colour, name)
        if bins[0] - (bins[1] - bins[0]) <= lowest <= bins[-1]:
            axes.axvline(lowest, color=_INK, linestyle="--", linewidth=1)
        axes.set_xlabel("score of a dropped document")
        axes.set_ylabel("documents")
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
        _count_axis(axes, np.concatenate([np.histogram(side, bins)[0] for side, _, _ in sides]))

    return _picture("scores", "Scores of dropped documents with the kept ones", draw)


def _count_axis(axes: Any, counts: Values) -> None:
    """Show whole numbers, on a logarithmic axis if small counts would be invisible."""
    if counts.max() > _LOGARITHMIC * counts[counts > 0].min():
        axes.set_yscale("log")
        axes.set_ylim(bottom=0.5)
        axes.yaxis.set_minor_formatter(lambda value, _: "")
    else:
        axes.yaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.15g}")


def _short(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:,g}M"
    return f"{value / 1e3:g}k" if value >= 1e4 else f"{value:,g}"


def _sides(figures: IndexStatistics) -> list[tuple[Any, str, str]]:
    if figures.unchanged:
        return [(figures.before, _BEFORE, "before = after")]
    return [(figures.before, _BEFORE, "before"), (figures.after, _AFTER, "after")]


def _bins(values: Values) -> Values:
    low, high = float(values.min()), float(values.max())
    if np.issubdtype(values.dtype, np.integer):
        step = max(1, int(np.ceil((high - low + 1) / _BINS)))
        return np.arange(low, high + step + 1, step) - 0.5
    if high - low < 1e-6 * max(abs(high), 1.0):
        low, high = low - 0.01, high + 0.01
    return np.linspace(low, high, _BINS + 1)


def _shares(axes: Any, values: Values, bins: Values, colour: str, name: str = "") -> None:
    _histogram(axes, values, bins, colour, name, np.full(len(values), 1 / len(values)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")


def _histogram(
    axes: Any, values: Values, bins: Values, colour: str, name: str = "", weights: Values | None = None
) -> None:
    axes.hist(values, bins, weights=weights, histtype="stepfilled", alpha=0.35, color=colour, label=name or None)
    axes.hist(values, bins, weights=weights, histtype="step", color=colour)


def _picture(name: str, label: str, draw: Callable[[Any], None]) -> str:
    svg = render_figure(_SIZE, lambda figure: draw(figure.subplots()), "svg", style=_STYLE, transparent=True,
                   metadata=_NO_METADATA)  # fmt: skip
    return _inline(svg.decode(), name, label)


def _inline(svg: str, name: str, label: str) -> str:
    """Return an SVG without prolog and size, with unique ids and the colour and font of the page."""
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    svg = re.sub(r"\s*<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(
        r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', rf'\1 role="img" aria-label="{html.escape(label)}"', svg, count=1
    )
    svg = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    return re.sub(r"font-family: [^;\"]*", "font-family: inherit", svg)
