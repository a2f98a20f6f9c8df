"""The plot of `isotrope evaluate retrieval`: the first nDCG by whitening strength.

Panels share their axes. Results without a strength, such as BM25, are horizontal lines.
"""

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from indexer.errors import spelled
from indexer.typed_arguments import checked
from search.evaluation.bootstrap import Interval
from search.evaluation.plots.drawing import Size, interval_of, model_name, whiskers, write_plot
from search.evaluation.result import check_keys
from search.evaluation.retrieval.metrics import measure_names
from search.evaluation.sweep import shortest
from search.formatting import counted, escape
from search.ranking.fusion import fusion_name

_CENTRES = {"role": "two means (role)", "common": "one mean (common)", "none": "no centring (none)"}
_LOOKS = {"role": ("#0072b2", "o"), "common": ("#d55e00", "s"), "none": ("#009e73", "^")}
_HYBRID_LOOKS = {"role": ("#cc79a7", "D"), "common": ("#e69f00", "v"), "none": ("#56b4e9", "P")}
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6a3d9a")
_MARKERS = ("o", "s", "^", "D", "v", "P")  # coprime with the number of colours: 42 distinct lines
_COMPARABLE = 0.45  # of a shared range; a panel that needs less gets its own axis
Row = Mapping[str, Any]
Kind = tuple[str, int | None, float, str]  # centre, dim, shrinkage, hybrid
Range = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """One kind of whitening: its figures by ascending strength."""

    label: str
    look: tuple[str, str]  # colour and marker
    points: Mapping[float, Interval]


@dataclass(frozen=True)
class Panel:
    """One embedding, a pooling of some layers."""

    title: str
    lines: tuple[Line, ...]
    raw: Interval | None
    baselines: Mapping[str, float]
    levels: tuple[str, ...] = ()  # the baselines that are settings without a strength

    @property
    def raw_label(self) -> str:
        """The label of raw embeddings; empty if they were not measured."""
        if self.raw is None:
            return ""
        return "raw" if self.raw.low is None or self.raw.high is None else "raw, 95 % shaded"

    @property
    def labels(self) -> list[str]:
        """The entries of the legend."""
        return [*filter(None, [self.raw_label]), *self.baselines, *(line.label for line in self.lines)]

    @property
    def range(self) -> Range:
        """The range of all figures."""
        points = [*(point for line in self.lines for point in line.points.values()), *filter(None, [self.raw])]
        ends = [end for point in points for end in (point.low, point.value, point.high) if end is not None]
        ends += self.baselines.values()
        return min(ends), max(ends)


def panels_of(result: Mapping[str, Any]) -> list[Panel]:
    """Return the panels in the order of the result; embeddings without whitened settings have none."""
    measure, rows = measure_of(result), result["results"]
    whitened = [row for row in rows if row["strength"] not in (None, "none")]
    kinds = list(dict.fromkeys(map(_kind, whitened)))
    baselines = {row["setting"]: _point(row, measure).value for row in rows if row["pooling"] is None}
    panels = []
    for embedding in dict.fromkeys(map(_embedding, whitened)):
        raw: Interval | None = None
        hybrids, levels, points = dict[str, float](), dict[str, float](), dict[Kind, dict[float, Interval]]()
        for row in rows:
            if row["pooling"] is None or _embedding(row) != embedding:
                continue
            point = _point(row, measure)
            if _is_level(row):
                levels[row["setting"]] = point.value
            elif row["strength"] != "none":
                points.setdefault(_kind(row), {})[row["strength"]] = point
            elif _hybrid(row):
                hybrids[f"{_hybrid(row)}, raw"] = point.value
            else:
                raw = point
        lines = tuple(
            Line(_label(kind, kinds), _look(kind, kinds), dict(sorted(points[kind].items())))
            for kind in kinds
            if kind in points
        )
        panels.append(Panel(_named(*embedding), lines, raw, hybrids | levels | baselines, tuple(levels)))
    return panels


def shared_ranges(panels: Sequence[Panel]) -> list[Range]:
    """Return the range of each panel's axis. Neighbours share a range unless it would squeeze one of them."""
    groups: list[list[Range]] = []
    for panel in panels:
        joined = [*(groups[-1] if groups else ()), panel.range]
        low, high = _union(joined)
        if groups and min(top - bottom for bottom, top in joined) >= _COMPARABLE * (high - low):
            groups[-1] = joined
        else:
            groups.append([panel.range])
    return [_union(group) for group in groups for _ in group]


def measure_of(result: Mapping[str, Any]) -> str:
    """Return the plotted measure: nDCG at the first cutoff."""
    return measure_names(result["provenance"]["protocol"]["cutoffs"])[0]


def _embedding(row: Row) -> tuple[str, tuple[int, ...]]:
    return row["pooling"], tuple(row["layers"])


def _kind(row: Row) -> Kind:
    return row["centre"], row["dim"], row["shrinkage"], _hybrid(row)


def _is_level(row: Row) -> bool:
    """Return whether a setting has no strength: another kind, or only removed directions."""
    return bool(row.get("kind") or (row["strength"] == "none" and row.get("removed")))


def _hybrid(row: Row) -> str:
    return f"hybrid {fusion_name(row['hybrid'])}" if row.get("hybrid") else ""


def _point(row: Row, measure: str) -> Interval:
    return interval_of(row["measure"][measure])


def _look(kind: Kind, kinds: Sequence[Kind]) -> tuple[str, str]:
    """Return the look of a kind, the same in all panels; that of a centre alone is the same in all plots."""
    number = kinds.index(kind)
    if len({other[1:3] for other in kinds}) == 1 and len({other[3] for other in kinds if other[3]}) <= 1:
        return (_HYBRID_LOOKS if kind[3] else _LOOKS)[kind[0]]
    return _COLOURS[number % len(_COLOURS)], _MARKERS[number % len(_MARKERS)]


def _label(kind: Kind, kinds: Sequence[Kind]) -> str:
    """Return the centre, with dimensions and shrinkage if any line has non-default values."""
    centre, dim, shrinkage, hybrid = kind
    words = [f"{hybrid}, {_CENTRES[centre]}" if hybrid else _CENTRES[centre]]
    if any(other[1] for other in kinds):
        words.append(f"{dim} dimensions" if dim else "all dimensions")
    if any(other[2] for other in kinds):
        words.append(f"shrinkage {shortest(shrinkage)}")
    return ", ".join(words)


def _named(pooling: str, layers: tuple[int, ...]) -> str:
    if not layers:
        return "embeddings from the corpus" if pooling == "given" else f"static table, {pooling} pooling"
    names = " + ".join("last" if layer == -1 else str(layer) for layer in layers)
    return f"{'last layer' if names == 'last' else f'layer {names}'}, {pooling} pooling"


def _union(ranges: Sequence[Range]) -> Range:
    lows, highs = zip(*ranges, strict=True)
    return min(lows), max(highs)


_RAW, _BASELINE = "#555555", "black"
_WIDTHS = {1: 5.4, 2: 7.4, 3: 9.4}  # inches by panels in a row; the widest is 900 px at 96 dpi
_HEIGHT = 3.1  # of a row of panels
_LINE = 0.2  # of a line of the title or the legend
_CROWD = 4  # lines per panel that widen a plot of few panels, because the legend would be long
_POINTS = 72  # per inch
_TEXT, _TITLE = 9, 10.5  # points
_LETTER = 0.56  # mean width of a letter relative to its height
_HANDLE = 40  # points of a legend entry without its label
_STEPS = [1, 2, 5, 10]  # between ticks: most ticks are whole numbers
_MARGIN = 0.05  # of the range
_USED = 0.75  # of a panel's width, between the smallest and largest strength


@dataclass(frozen=True)
class Frame:
    """The title, the grid of panels, and the size of the plot."""

    title: str
    rows: int  # of panels
    columns: int
    legend_columns: int
    size: Size


_LEVEL_STYLE = (6, 1.5, 1, 1.5, 1, 1.5)  # dash, dot, dot
_HYBRID_STYLE = (6.4, 1.6, 1, 1.6)
_BASELINE_COLOURS = (_BASELINE, "#6a3d9a", "#a6761d", "#1b7837")


@checked
def plot_retrieval(result: Mapping[str, Any], path: Path, force: bool = False) -> str:
    """Plot a result of `evaluate_retrieval` to a file; equal results give equal bytes.

    Returns "", or a note if no setting has a strength; then nothing is written. Raises EvaluationError for a result
    of another function, and the errors of `check_plot`.
    """
    check_keys(result, "evaluate_retrieval", "provenance", "results")
    panels = panels_of(result)
    if not panels:
        strengths = spelled("strengths", "--strength")
        return f"{path} was not written: no setting has a whitening strength to plot; add {strengths}"
    frame = frame_of(panels, result)
    write_plot(
        path, frame.size, lambda figure: draw_panels(figure, panels, frame, measure_of(result)),
        force, style={"font.size": _TEXT},
    )  # fmt: skip
    return ""


def frame_of(panels: Sequence[Panel], result: Mapping[str, Any]) -> Frame:
    """Return the frame: rows of up to three panels; a long title or legend increases the height."""
    columns, widest = min(len(panels), max(_WIDTHS)), max(_WIDTHS)
    rows = -(-len(panels) // columns)
    width = _WIDTHS[max(columns, min(widest, -(-max(len(panel.lines) for panel in panels) // _CROWD)))]
    labels = {label for panel in panels for label in panel.labels}
    room = max(map(len, labels)) * _LETTER * _TEXT + _HANDLE
    legend_columns = max(1, min(len(labels), int(_POINTS * width / room)))
    title = _title(result, int(_POINTS * width / (_LETTER * _TITLE)))
    text_lines = title.count("\n") + 1 - (-len(labels) // legend_columns)
    return Frame(title, rows, columns, legend_columns, (width, _HEIGHT * rows + _LINE * (text_lines + 1)))


def draw_panels(figure: Any, panels: Sequence[Panel], frame: Frame, measure: str) -> None:
    """Fill a matplotlib figure with the panels, a title and one legend."""
    ranges = shared_ranges(panels)
    places = figure.subplots(frame.rows, frame.columns, squeeze=False).ravel()
    for axes in places[len(panels) :]:
        axes.remove()
    styles = _baseline_styles(panels)
    for number, (axes, panel) in enumerate(zip(places, panels, strict=False)):
        _draw(axes, panel, styles, _USED * _POINTS * frame.size[0] / frame.columns)
        low, high = ranges[number]
        margin = _MARGIN * (high - low) or 1.0
        axes.set_ylim(low - margin, high + margin)
        if number % frame.columns and ranges[number] == ranges[number - 1]:
            axes.tick_params(labelleft=False)  # same axis as its left neighbour
        else:
            other = ", another scale" if ranges[number] != ranges[0] else ""
            axes.set_ylabel(f"{measure} x100{other}")
    figure.suptitle(frame.title, fontsize=_TITLE)
    _legend(figure, places[: len(panels)], frame.legend_columns)
    figure.draw_without_rendering()  # ticks depend on the height of the layout, and their labels on its width


def _baseline_styles(panels: Sequence[Panel]) -> dict[str, dict[str, Any]]:
    """Return the style of each baseline, the same in all panels. Lines of one sort differ in colour and dash length."""
    styles: dict[str, dict[str, Any]] = {}
    sorts = Counter[tuple[float, ...]]()
    levels = {name for panel in panels for name in panel.levels}
    for name in dict.fromkeys(name for panel in panels for name in panel.baselines):
        dashes = _LEVEL_STYLE if name in levels else _HYBRID_STYLE if name.startswith("hybrid") else ()
        number, sorts[dashes] = sorts[dashes], sorts[dashes] + 1
        longer = tuple(length * (1 + number) for length in dashes)
        colour = _BASELINE_COLOURS[number % len(_BASELINE_COLOURS)]
        styles[name] = {"color": colour, "linestyle": (0, longer) if longer else ":"}
    return styles


def _draw(axes: Any, panel: Panel, styles: Mapping[str, Mapping[str, Any]], width: float) -> None:
    """Draw one panel. `styles` are of baselines by name; `width` is the width of the strengths in points."""
    strengths = sorted({strength for line in panel.lines for strength in line.points})
    span = strengths[-1] - strengths[0] or 0.4
    gap = min((after - before for before, after in pairwise(strengths)), default=span)
    step = min(0.03 * span, 0.7 * gap / len(panel.lines))  # between lines: intervals do not overlap
    if panel.raw:
        _draw_raw(axes, panel.raw, panel.raw_label)
    for name, value in panel.baselines.items():
        axes.axhline(value, **styles[name], linewidth=1.4, label=name, zorder=1.5)
    for number, line in enumerate(panel.lines):
        _draw_line(axes, line, step * (number - (len(panel.lines) - 1) / 2))
    room = 0.08 * span + step * len(panel.lines) / 2
    axes.set_xlim(strengths[0] - room, strengths[-1] + room)
    several = len(strengths) > 1  # a single tick would seem to belong to one line
    axes.set_xticks(strengths if several else [], _tick_labels(strengths, width / span) if several else [])
    axes.yaxis.get_major_locator().set_params(steps=_STEPS)
    axes.set_xlabel("whitening strength" if several else f"all at whitening strength {strengths[0]:g}")
    axes.set_title(panel.title, fontsize=_TEXT + 0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.7)
    axes.set_axisbelow(True)


def _draw_raw(axes: Any, raw: Interval, label: str) -> None:
    if raw.low is not None and raw.high is not None:
        axes.axhspan(raw.low, raw.high, color=_RAW, alpha=0.13, linewidth=0, zorder=0.6)
    axes.axhline(raw.value, color=_RAW, linestyle="--", linewidth=1.4, label=label, zorder=1.5)


def _draw_line(axes: Any, line: Line, shift: float) -> None:
    points = list(line.points.values())
    strengths, values = [strength + shift for strength in line.points], [point.value for point in points]
    colour, marker = line.look
    axes.errorbar(strengths, values, yerr=whiskers(points), label=line.label, color=colour,
                  marker=marker, markersize=4.5, linewidth=1.5, elinewidth=1, capsize=2)  # fmt: skip


def _tick_labels(strengths: Sequence[float], scale: float) -> list[str]:
    """Return a label for each strength, empty if it would overlap; `scale` is points per unit of strength."""
    labels, free = [], float("-inf")
    for strength in strengths:
        label = f"{strength:g}"
        half = (len(label) * _LETTER * _TEXT + 4) / 2 / scale
        fits = strength - half >= free
        labels.append(label if fits else "")
        free = strength + half if fits else free
    return labels


def _legend(figure: Any, places: Sequence[Any], columns: int) -> None:
    drawn = [axes.get_legend_handles_labels() for axes in places]
    entries = {label: handle for pair in drawn for handle, label in zip(*pair, strict=True)}
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns, frameon=False)


def _title(result: Mapping[str, Any], letters: int) -> str:
    """Return the collection, queries, model and protocol in lines of at most `letters` letters."""
    protocol = result["provenance"]["protocol"]
    exact = protocol["searched"] == "exact"
    searched = "whitening fitted on the corpus, exact search" if exact else "the index as it is"
    lines = (
        f"{escape(protocol['task'])}, {protocol['split']}: {counted(protocol['queries'], 'query', 'queries')}, "
        f"{counted(protocol['documents'], 'document')}, {model_name(result)}",
        f"{searched}, {protocol['definitions']} measures, {100 * protocol['level']:g} % bootstrap intervals",
    )
    return "\n".join(textwrap.fill(line, letters) for line in lines)
