"""Drawing and writing of plots without pyplot and the user's style. Equal results give equal bytes."""

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from indexer.arrays import Float64Array
from indexer.errors import ConfigError, as_argument
from indexer.lazy_imports import require_extra
from indexer.store.files import make_folder
from indexer.system.output_files import check_output
from search.evaluation.bootstrap import Interval
from search.formatting import escape
from search.result_files import write_output

FORMATS = (".png", ".svg", ".pdf")
_DATE = {"svg": "Date", "pdf": "CreationDate"}
_STYLE: dict[str, Any] = {"svg.hashsalt": "isotrope", "text.parse_math": False}  # names may contain a $
_DPI = 150  # of pixel formats
Size = tuple[float, float]  # inches


def require_plots() -> None:
    """Raise MachineError with the command that installs matplotlib if it is missing."""
    require_extra("matplotlib.figure", "plots")


def check_plot(path: Path, force: bool = False) -> None:
    """Check the format, matplotlib and the folder (created if missing) before minutes of encoding.

    An existing file is overwritten only with `force`. Raises ConfigError, ExistsError, MachineError, StoreError.
    """
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(
            f'{as_argument("plot")} "{path}": unknown format; expected a file name that ends in {", ".join(FORMATS)}.'
        )
    check_output(path, as_argument("plot"), force)
    require_plots()
    make_folder(path.parent)


def write_plot(path: Path, size: Size, draw: Callable[[Any], None], force: bool = False, **saving: Any) -> None:
    """Write the figure that `draw` fills (see `render_figure`) in the path's format. Raises as `check_plot`."""
    check_plot(path, force)
    write_output(
        path, render_figure(size, draw, path.suffix.lower().removeprefix("."), **saving), as_argument("plot"), force
    )


def render_figure(
    size: Size,
    draw: Callable[[Any], None],
    kind: str,
    layout: str = "constrained",
    style: Mapping[str, Any] | None = None,
    **saving: Any,
) -> bytes:
    """Return the bytes of the figure that `draw` fills; `kind` is png, svg or pdf.

    `style` adds to matplotlib's defaults. `saving` are arguments of `Figure.savefig`; without metadata in it the file
    has no date.
    """
    matplotlib, figures = require_extra("matplotlib", "plots"), require_extra("matplotlib.figure", "plots")
    undated = {_DATE[kind]: None} if kind in _DATE else {}
    file = io.BytesIO()
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from font")  # in a name; drawn as an empty box
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**_STYLE, **(style or {})})
        figure = figures.Figure(size, dpi=_DPI, layout=layout)
        draw(figure)
        figure.savefig(file, format=kind, **{"metadata": undated, **saving})
    return file.getvalue()


def interval_of(row: Mapping[str, Any], key: str = "value") -> Interval:
    """Return a figure of a result x 100 with its interval, if it has one."""
    low, high = (None if row[end] is None else 100 * row[end] for end in ("low", "high"))
    return Interval(100 * row[key], low, high)


def whiskers(figures: Sequence[Interval]) -> Float64Array:
    """Return the lengths of error bars below and above each figure, (2, n); 0 without an interval."""
    below = [0.0 if figure.low is None else figure.value - figure.low for figure in figures]
    above = [0.0 if figure.high is None else figure.high - figure.value for figure in figures]
    return np.maximum(np.array([below, above], np.float64), 0.0)  # rounding can give negative lengths


def model_name(result: Mapping[str, Any]) -> str:
    """Return the last part of the model's name or path in the provenance of a result."""
    model: str = result["provenance"]["encoder"]["model"]
    return escape(model.rstrip("/").rpartition("/")[2])
