"""The plot of a retrieval sweep: its content, legibility and reproducibility."""

import itertools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.errors import ConfigError, MachineError
from search.evaluation.bootstrap import Interval
from search.evaluation.plots.drawing import check_plot, whiskers
from search.evaluation.plots.retrieval import (
    Panel,
    draw_panels,
    frame_of,
    measure_of,
    panels_of,
    plot_retrieval,
    shared_ranges,
)
from search.formatting import size
from tests.search.cli.test_cli import isotrope

Result = dict[str, Any]
Strength = float | str
STRENGTHS: tuple[Strength, ...] = ("none", 0.0, 0.25, 1.0)


def measured(value: float, width: float | None = 0.05) -> Result:
    ends = (None, None) if width is None else (value - width, value + width)
    return {"nDCG@10": {"value": value, "low": ends[0], "high": ends[1]}}


def row(strength: Strength, value: float, centre: str | None = "role", **changed: Any) -> Result:
    """A row of a result of `evaluate_retrieval`."""
    settings = {"pooling": "mean", "layers": [-1], "strength": strength, "dim": None, "shrinkage": 0.0}
    raw = strength == "none"
    return {"setting": f"{strength} {centre}", "centre": None if raw else centre, "measure": measured(value)} | (
        settings | changed
    )


def bm25(value: float = 0.5) -> Result:
    names = ("pooling", "layers", "strength", "dim", "shrinkage", "centre")
    return {"setting": "BM25", **dict.fromkeys(names), "measure": measured(value)}


def result_of(*rows: Result, task: str = "tiny") -> Result:
    protocol = {
        "task": task, "split": "test", "queries": 1200, "documents": 6000, "cutoffs": [10, 100],
        "definitions": "trec_eval", "searched": "exact", "level": 0.95,
    }  # fmt: skip
    return {"provenance": {"protocol": protocol, "encoder": {"model": "models/small-model/"}}, "results": list(rows)}


def swept(
    layers: Sequence[Sequence[int]] = ([-1], [1, -1], [1]),
    strengths: Sequence[Strength] = STRENGTHS,
    centres: Sequence[str] = ("role", "common", "none"),
    extras: Sequence[Result] = ({},),
) -> Result:
    """A product of settings; figures fall from panel to panel (.6, .4, .2) and slightly within a panel."""
    rows = []
    for place, own in enumerate(layers):
        tried = [row("none", 0.6 - 0.2 * place, layers=list(own))] * ("none" in strengths)
        numbers = [strength for strength in strengths if strength != "none"]
        for number, (strength, extra, centre) in enumerate(itertools.product(numbers, extras, centres)):
            tried.append(row(strength, 0.6 - 0.2 * place - 0.001 * number, centre, layers=list(own), **extra))
        rows += tried
    return result_of(*rows, bm25())


def small() -> Result:
    """One panel with one line, for speed."""
    return swept(layers=[[-1]], centres=["role"])


def drawn(result: Result, *, laid_out: bool = False) -> Any:
    """A figure with the panels, with the layout of the written file, which is slow."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = panels_of(result)
    frame = frame_of(panels, result)
    figure = Figure(frame.size, layout="constrained")
    FigureCanvasAgg(figure)
    with rc_context({"font.size": 9, "text.parse_math": False}):
        draw_panels(figure, panels, frame, measure_of(result))
        if laid_out:
            figure.draw_without_rendering()
    return figure


# --- what is drawn


def test_a_panel_for_each_embedding_and_a_line_for_each_centre() -> None:
    panels = panels_of(swept())
    assert [panel.title for panel in panels] == [
        "last layer, mean pooling", "layer 1 + last, mean pooling", "layer 1, mean pooling",
    ]  # fmt: skip
    for panel in panels:
        assert [line.label for line in panel.lines] == ["two means (role)", "one mean (common)", "no centring (none)"]
        assert [list(line.points) for line in panel.lines] == [[0.0, 0.25, 1.0]] * 3
        assert panel.baselines == {"BM25": 50.0}
    assert [panel.raw and panel.raw.value for panel in panels] == pytest.approx([60, 40, 20])


def test_figures_are_of_the_first_measure_times_100() -> None:
    (panel,) = panels_of(result_of(row(0.5, 0.25)))
    point = panel.lines[0].points[0.5]
    assert (point.value, point.low, point.high) == pytest.approx((25, 20, 30))
    assert panel.range == pytest.approx((20, 30))
    assert (panel.raw, panel.baselines) == (None, {})


def test_strengths_ascend_in_whatever_order_they_were_measured() -> None:
    (panel,) = panels_of(result_of(row(1.0, 0.3), row(0.0, 0.1), row("none", 0.4), row(0.5, 0.2)))
    assert [(strength, round(point.value)) for strength, point in panel.lines[0].points.items()] == [
        (0.0, 10), (0.5, 20), (1.0, 30),
    ]  # fmt: skip


def test_dimensions_and_shrinkages_have_a_line_each_and_say_so() -> None:
    extras = [{"dim": dim, "shrinkage": shrinkage} for dim in (None, 64) for shrinkage in (0.0, 0.5)]
    (panel,) = panels_of(swept(layers=[[-1]], centres=["role"], extras=extras))
    assert [line.label for line in panel.lines] == [
        "two means (role), all dimensions, shrinkage 0",
        "two means (role), all dimensions, shrinkage 0.5",
        "two means (role), 64 dimensions, shrinkage 0",
        "two means (role), 64 dimensions, shrinkage 0.5",
    ]
    (panel,) = panels_of(swept(layers=[[-1]], centres=["role"], extras=[{"dim": 64}]))
    assert [line.label for line in panel.lines] == ["two means (role), 64 dimensions"]


def test_no_two_lines_look_the_same_and_a_centre_looks_the_same_everywhere() -> None:
    looks = [line.look for line in panels_of(swept(extras=[{"dim": dim} for dim in range(1, 14)]))[0].lines]
    assert len(looks) == len(set(looks)) == 39
    both, alone = panels_of(swept())[0], panels_of(swept(centres=["none"]))[0]
    assert both.lines[2].look == alone.lines[0].look


# --- axes


def panel_over(low: float, high: float) -> Panel:
    return Panel("", (), Interval((low + high) / 2, low, high), {})


def test_neighbours_share_an_axis_unless_it_would_squeeze_one() -> None:
    last, both, first = panel_over(55, 70), panel_over(40, 70), panel_over(3, 70)
    assert shared_ranges([last, both, first]) == [(40, 70), (40, 70), (3, 70)]
    assert shared_ranges([first, last, both]) == [(3, 70), (40, 70), (40, 70)]
    assert shared_ranges([last, first, both]) == [(55, 70), (3, 70), (40, 70)]
    assert shared_ranges([last]) == [(55, 70)]


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)).map(sorted), min_size=1, max_size=9))
def test_an_axis_holds_its_panel_and_leaves_it_nearly_half_the_height(ends: list[list[float]]) -> None:
    panels = [panel_over(low, high) for low, high in ends]
    for panel, (low, high) in zip(panels, shared_ranges(panels), strict=True):
        bottom, top = panel.range
        assert low <= bottom <= top <= high
        assert top - bottom >= 0.449 * (high - low)


@pytest.mark.check
def test_panels_that_share_an_axis_name_it_once_and_another_scale_is_said() -> None:
    rows = [row("none", 0.6), row(0.5, 0.61), row("none", 0.55, layers=[1, -1]), row(0.5, 0.57, layers=[1, -1])]
    far = [row("none", 0.05, layers=[1]), row(0.5, 0.1, layers=[1])]
    first, second, third = drawn(result_of(*rows, *far)).axes
    assert first.get_ylim() == second.get_ylim() != third.get_ylim()
    labels = [axes.get_ylabel() for axes in (first, second, third)]
    assert labels == ["nDCG@10 x100", "", "nDCG@10 x100, another scale"]
    shown = [any(label.get_visible() for label in axes.get_yticklabels()) for axes in (first, second, third)]
    assert shown == [True, False, True]


def test_everything_measured_lies_inside_its_axes() -> None:
    result = swept()
    for axes, panel in zip(drawn(result).axes, panels_of(result), strict=True):
        low, high = axes.get_ylim()
        assert low < panel.range[0] < panel.range[1] < high
        left, right = axes.get_xlim()
        for bars in axes.containers:
            xs = bars.lines[0].get_xdata()
            assert left < min(xs) < max(xs) < right


@pytest.mark.check
def test_error_bars_stand_beside_each_other_in_order_of_strength() -> None:
    for strengths in (STRENGTHS, (0.5,), (0.5, 0.51, 1.0), tuple(n / 20 for n in range(21))):
        result = swept(layers=[[-1]], strengths=strengths)
        places = sorted(
            (x, strength)
            for bars in drawn(result).axes[0].containers
            for x, strength in zip(bars.lines[0].get_xdata(), [s for s in strengths if s != "none"], strict=True)
        )
        assert np.diff([x for x, _ in places]).min() > 0.001
        assert [strength for _, strength in places] == sorted(strength for _, strength in places)


def test_raw_is_dashed_with_its_interval_shaded_and_bm25_dotted() -> None:
    (axes,) = drawn(swept(layers=[[-1]])).axes
    lines = {line.get_label(): (line.get_linestyle(), line.get_ydata()[0]) for line in axes.lines}
    assert lines["raw, 95 % shaded"] == ("--", 60)
    assert lines["BM25"] == (":", 50)
    (band,) = axes.patches
    assert (band.get_y(), band.get_y() + band.get_height()) == pytest.approx((55, 65))


def test_rankings_without_a_strength_are_told_apart() -> None:
    result = swept(layers=[[-1]], strengths=["none", 0.5])
    for number, fusion in enumerate(({"constant": 60}, {"weight": 0.3}, {"weight": 0.5})):
        result["results"].append(row("none", 0.52 + 0.01 * number, hybrid=fusion))
    (axes,) = drawn(result).axes
    level = [line for line in axes.lines if len(set(line.get_ydata())) == 1 and "hybrid" in str(line.get_label())]
    assert len(level) == 3
    assert len({line.get_color() for line in level}) == 3
    assert len({line._unscaled_dash_pattern for line in level}) == 3


@pytest.mark.parametrize(("strengths", "ticks"), [([0.5], 0), ([0.25, 0.5], 2)])
def test_a_lone_strength_is_told_in_words(strengths: list[float], ticks: int) -> None:
    (axes,) = drawn(swept(layers=[[-1]], strengths=strengths)).axes
    assert len(axes.get_xticks()) == ticks
    assert axes.get_xlabel() == ("whitening strength" if ticks else "all at whitening strength 0.5")


# --- words


def test_the_title_names_collection_queries_model_and_protocol() -> None:
    assert drawn(swept()).get_suptitle().split("\n") == [
        "tiny, test: 1,200 queries, 6,000 documents, small-model",
        "whitening fitted on the corpus, exact search, trec_eval measures, 95 % bootstrap intervals",
    ]
    asked = swept(layers=[[-1]])
    asked["provenance"]["protocol"]["searched"] = "index"
    assert "the index as it is, trec_eval measures" in drawn(asked).get_suptitle()


def test_there_is_one_legend_with_each_line_once() -> None:
    figure = drawn(swept())
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "raw, 95 % shaded", "BM25", "two means (role)", "one mean (common)", "no centring (none)",
    ]  # fmt: skip
    assert not any(axes.get_legend() for axes in figure.axes)


@pytest.mark.parametrize(
    "result",
    [
        swept(),
        pytest.param(swept(layers=[[-1]]), marks=pytest.mark.check),
        pytest.param(swept(layers=[[1], [2], [3], [4], [5]]), marks=pytest.mark.check),
        swept(layers=[[-1]], extras=[{"dim": dim, "shrinkage": 0.5} for dim in (None, 128, 64, 32)]),
        pytest.param(swept(layers=[[-1], [1]], strengths=[n / 40 for n in range(41)]), marks=pytest.mark.check),
        swept(layers=[[-1]], strengths=[0.5]),
    ],
    ids=["three panels", "one", "five", "many lines", "many strengths", "one strength"],
)
def test_no_words_touch_each_other_or_leave_the_picture(result: Result) -> None:
    figure = drawn(result, laid_out=True)
    whole = figure.bbox.padded(1)
    for axes in figure.axes:
        boxes = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
        assert boxes or not len(axes.get_xticks())
        assert all(before.x1 < after.x0 for before, after in itertools.pairwise(boxes))
    blocks = [figure.legends[0].get_window_extent(), figure._suptitle.get_window_extent()]
    blocks += [axes.get_tightbbox() for axes in figure.axes]
    assert all(whole.x0 <= box.x0 and box.x1 <= whole.x1 for box in blocks)
    assert all(whole.y0 <= box.y0 and box.y1 <= whole.y1 for box in blocks)
    assert not any(first.overlaps(second) for first, second in itertools.combinations(blocks, 2))
    assert all(axes.get_window_extent().height > 130 for axes in figure.axes)


# --- files


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("new/a.PDF", b"%PDF")])
def test_a_picture_is_drawn_without_pyplot(
    name: str, start: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it would fail
    assert plot_retrieval(small(), tmp_path / name) == ""
    assert (tmp_path / name).read_bytes().startswith(start)


@pytest.mark.parametrize("kind", ["svg", *(pytest.param(kind, marks=pytest.mark.check) for kind in ("png", "pdf"))])
def test_the_same_result_gives_the_same_bytes_whatever_the_users_style(kind: str, tmp_path: Path) -> None:
    import matplotlib

    plot_retrieval(small(), tmp_path / f"a.{kind}")
    with matplotlib.rc_context({"axes.linewidth": 5, "font.size": 30, "figure.facecolor": "black"}):
        plot_retrieval(small(), tmp_path / f"b.{kind}")
        assert matplotlib.rcParams["font.size"] == 30
    plot_retrieval(swept(layers=[[1]], centres=["role"]), tmp_path / f"c.{kind}")
    first, second, other = ((tmp_path / f"{name}.{kind}").read_bytes() for name in "abc")
    assert first == second != other


@pytest.mark.check
def test_an_svg_has_no_date_a_white_ground_and_letters_as_paths(tmp_path: Path) -> None:
    plot_retrieval(swept(), tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "dc:date" not in text
    assert text.index("fill: #ffffff") < text.index('id="axes_1"')
    assert "<text" not in text
    assert 'width="676.8pt"' in text  # 902 px
    assert len(text) < 150_000


@pytest.mark.check
def test_without_intervals_there_are_dots_and_lines(tmp_path: Path) -> None:
    result = small()
    for one in result["results"]:
        one["measure"] = measured(one["measure"]["nDCG@10"]["value"], None)
    assert plot_retrieval(result, tmp_path / "a.png") == ""
    assert not any(list(axes.patches) for axes in drawn(result).axes)
    assert panels_of(result)[0].range == pytest.approx((50, 60))
    (legend,) = drawn(result).legends
    assert legend.get_texts()[0].get_text() == "raw"


def test_only_raw_is_a_note_and_no_picture(tmp_path: Path) -> None:
    note = plot_retrieval(swept(strengths=["none"]), tmp_path / "a.svg")
    assert note.startswith(f"{tmp_path / 'a.svg'} was not written: no setting has a whitening strength")
    assert not (tmp_path / "a.svg").exists()


NAMES = ["a$b^{c$", "名前", "two\nlines", "<&>", "x" * 255]


@pytest.mark.parametrize("name", ["a.svg", pytest.param("a.png", marks=pytest.mark.check)])
@pytest.mark.parametrize("task", ["half\udcff", *(pytest.param(name, marks=pytest.mark.check) for name in NAMES)])
def test_any_name_of_a_collection_can_be_drawn(task: str, name: str, tmp_path: Path) -> None:
    plot_retrieval(small() | {"provenance": result_of(task=task)["provenance"]}, tmp_path / name)
    assert (tmp_path / name).stat().st_size > 1000


def test_whiskers_reach_to_the_ends_and_never_backwards() -> None:
    figures = [Interval(5, 4, 7), Interval(5, None, None), Interval(5, 5 + 1e-12, 5)]
    assert whiskers(figures).tolist() == [[1, 0, 0], [2, 0, 0]]


def test_what_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"expected a file name that ends in \.png, \.svg, \.pdf"):
        check_plot(tmp_path / "a.jpg")
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(ConfigError, match="is a folder; expected a file"):
        check_plot(tmp_path / "folder.svg")
    check_plot(tmp_path / "new/a.svg")
    assert (tmp_path / "new").is_dir()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MachineError, match=r"pip install '.*isotrope\[plots\]"):
        check_plot(tmp_path / "a.svg")


# --- the command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A collection of six documents and three queries."""
    path, words = tmp_path / "beir", ["whale song", "deep sea", "steel bridge", "rye bread", "star light", "bee dance"]
    (path / "qrels").mkdir(parents=True)
    documents = [{"_id": f"d{n}", "title": text, "text": f"about {text}"} for n, text in enumerate(words)]
    queries = [{"_id": f"q{n}", "text": words[n]} for n in range(3)]
    for name, rows in (("corpus", documents), ("queries", queries)):
        (path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = ["query-id\tcorpus-id\tscore", *(f"q{n}\td{n}\t1" for n in range(3))]
    (path / "qrels/test.tsv").write_text("\n".join(lines) + "\n")
    return path


def test_the_command_draws_what_it_measured(folder: Path, tmp_path: Path, tiny_model: Callable[[str], Path]) -> None:
    model = ["--set", f"encoder.model={tiny_model('bert')}", "--set", "encoder.max_length=32"]
    sweep = [word for strength in STRENGTHS for word in ("--strength", str(strength))]
    plot, output = tmp_path / "pictures/p.svg", tmp_path / "r.json"
    done = isotrope("evaluate", "retrieval", folder, *model, *sweep, "--plot", plot, "-o", output)
    assert done.returncode == 0, done.stderr
    written = [f"written  {path}, {size(path.stat().st_size)}" for path in (output, plot)]
    assert done.stdout.splitlines()[-2:] == written
    again = tmp_path / "again.svg"
    plot_retrieval(json.loads(output.read_text()), again)
    assert plot.read_bytes() == again.read_bytes()


def test_the_command_says_when_there_is_nothing_to_draw(
    folder: Path, tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    model = ["--set", f"encoder.model={tiny_model('bert')}", "--set", "encoder.max_length=32"]
    plot = tmp_path / "p.svg"
    done = isotrope("evaluate", "retrieval", folder, *model, "--strength", "none", "--plot", plot)
    assert done.returncode == 0, done.stderr
    assert f"note: {plot} was not written: no setting has a whitening strength" in done.stderr
    assert not plot.exists()


def test_another_format_is_one_line_before_the_collection_is_read(tmp_path: Path) -> None:
    done = isotrope("evaluate", "retrieval", tmp_path / "absent", "--plot", tmp_path / "a.gif")
    assert done.returncode == 1
    assert done.stderr.startswith("error: --plot ")
    assert done.stderr.count("\n") == 1
