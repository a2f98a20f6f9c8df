"""The picture of `isotrope evaluate retrieval`: the first nDCG against whitening strength."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from search.evaluation.retrieval.panels import HYBRID_RAW, Line, Panel, Point, measure_of, panels_of, shared_ranges
from search.plotting import Size, model_name, whiskers, write_plot
from search.printable import counted, printable

_RAW, _BASELINE = "#555555", "black"
_WIDTHS = {1: 5.4, 2: 7.4, 3: 9.4}  # inches by panels in a row; the widest is 900 px where 96 are an inch
_HEIGHT = 3.1  # of a row of panels
_LINE = 0.2  # of a line of the title or the legend
_CROWD = 4  # lines, above which a picture of few panels is made wider, as its legend would else be long
_POINTS = 72  # an inch
_TEXT, _TITLE = 9, 10.5  # points
_LETTER = 0.56  # width of a letter on average, of its height
_HANDLE = 40  # points that a line in the legend takes beside its label
_STEPS = [1, 2, 5, 10]  # between ticks, so that most are whole numbers
_MARGIN = 0.05  # of the range
_USED = 0.75  # of a panel's width that lies between the smallest and largest strength


@dataclass(frozen=True)
class Frame:
    """What stands around the panels, and the size that all of it needs."""

    title: str
    rows: int  # of panels
    columns: int
    legend_columns: int
    size: Size


_LEVEL_STYLE = (0, (6, 1.5, 1, 1.5, 1, 1.5))  # dash, dot, dot


def plot_retrieval(result: Mapping[str, Any], path: Path, force: bool = False) -> str:
    """Draw a result of `evaluate_retrieval` into a file; the same result gives the same bytes. Raises as `check_plot`.

    Returns a note, and writes nothing, where no setting has a strength to draw against; else "".
    """
    panels = panels_of(result)
    if not panels:
        return f"{path} is not written: nothing was whitened, so there is no strength to draw against; add --strength"
    frame = frame_of(panels, result)
    write_plot(
        path, frame.size, lambda figure: draw_panels(figure, panels, frame, measure_of(result)),
        force, style={"font.size": _TEXT},
    )  # fmt: skip
    return ""


def frame_of(panels: Sequence[Panel], result: Mapping[str, Any]) -> Frame:
    """Panels stand in rows of up to three; a long title or legend makes the picture higher."""
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
    """Fill a matplotlib figure with the panels, a title that names what was measured, and one legend."""
    ranges = shared_ranges(panels)
    places = figure.subplots(frame.rows, frame.columns, squeeze=False).ravel()
    for axes in places[len(panels) :]:
        axes.remove()
    for number, (axes, panel) in enumerate(zip(places, panels, strict=False)):
        _draw(axes, panel, _USED * _POINTS * frame.size[0] / frame.columns)
        low, high = ranges[number]
        margin = _MARGIN * (high - low) or 1.0
        axes.set_ylim(low - margin, high + margin)
        if number % frame.columns and ranges[number] == ranges[number - 1]:
            axes.tick_params(labelleft=False)  # it has the axis of its left neighbour
        else:
            other = ", another scale" if ranges[number] != ranges[0] else ""
            axes.set_ylabel(f"{measure} x100{other}")
    figure.suptitle(frame.title, fontsize=_TITLE)
    _legend(figure, places[: len(panels)], frame.legend_columns)
    figure.draw_without_rendering()  # ticks follow the height that the layout gives, and their labels need its width


def _draw(axes: Any, panel: Panel, width: float) -> None:
    """One panel; `width` is the points that its strengths take."""
    strengths = sorted({strength for line in panel.lines for strength in line.points})
    span = strengths[-1] - strengths[0] or 0.4
    gap = min((after - before for before, after in pairwise(strengths)), default=span)
    step = min(0.03 * span, 0.7 * gap / len(panel.lines))  # from line to line, so that their intervals stand apart
    if panel.raw:
        _draw_raw(axes, panel.raw, panel.raw_label)
    for name, value in panel.baselines.items():
        style = _LEVEL_STYLE if name in panel.levels else "-." if name == HYBRID_RAW else ":"
        axes.axhline(value, color=_BASELINE, linestyle=style, linewidth=1.4, label=name, zorder=1.5)
    for number, line in enumerate(panel.lines):
        _draw_line(axes, line, step * (number - (len(panel.lines) - 1) / 2))
    room = 0.08 * span + step * len(panel.lines) / 2
    axes.set_xlim(strengths[0] - room, strengths[-1] + room)
    axes.set_xticks(strengths, _tick_labels(strengths, width / span))
    axes.yaxis.get_major_locator().set_params(steps=_STEPS)
    axes.set_xlabel("whitening strength")
    axes.set_title(panel.title, fontsize=_TEXT + 0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.7)
    axes.set_axisbelow(True)


def _draw_raw(axes: Any, raw: Point, label: str) -> None:
    if raw.low is not None and raw.high is not None:
        axes.axhspan(raw.low, raw.high, color=_RAW, alpha=0.13, linewidth=0, zorder=0.6)
    axes.axhline(raw.value, color=_RAW, linestyle="--", linewidth=1.4, label=label, zorder=1.5)


def _draw_line(axes: Any, line: Line, shift: float) -> None:
    points = list(line.points.values())
    values = [point.value for point in points]
    reach = whiskers(values, [point.low for point in points], [point.high for point in points])
    colour, marker = line.look
    axes.errorbar([strength + shift for strength in line.points], values, yerr=reach, label=line.label, color=colour,
                  marker=marker, markersize=4.5, linewidth=1.5, elinewidth=1, capsize=2)  # fmt: skip


def _tick_labels(strengths: Sequence[float], scale: float) -> list[str]:
    """A label for each strength, empty where it would touch the one before; `scale` is points a unit of strength."""
    labels, free = [], float("-inf")
    for strength in strengths:
        label = f"{strength:g}"
        half = (len(label) * _LETTER * _TEXT + 4) / 2 / scale
        fits = strength - half >= free
        labels.append(label if fits else "")
        free = strength + half if fits else free
    return labels


def _legend(figure: Any, places: Sequence[Any], columns: int) -> None:
    """One for all panels."""
    found = [axes.get_legend_handles_labels() for axes in places]
    entries = {label: handle for pair in found for handle, label in zip(*pair, strict=True)}
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns, frameon=False)


def _title(result: Mapping[str, Any], letters: int) -> str:
    """Collection, queries, model and protocol, in lines of at most so many letters."""
    protocol = result["provenance"]["protocol"]
    searched = "the index as it is"
    if protocol["searched"] == "exact":
        searched = "whitening fitted on the corpus, exact search"
    lines = (
        f"{printable(protocol['task'])}, {protocol['split']}: {counted(protocol['queries'], 'query', 'queries')}, "
        f"{counted(protocol['documents'], 'document', 'documents')}, {model_name(result)}",
        f"{searched}, {protocol['definitions']} measures, {100 * protocol['level']:g} % bootstrap intervals",
    )
    return "\n".join(textwrap.fill(line, letters) for line in lines)
