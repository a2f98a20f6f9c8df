"""How pictures are drawn and written: without pyplot or the user's own style, and equal results give equal bytes."""

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from indexer.arrays import Float64Array
from indexer.errors import ConfigError
from indexer.lazy import require_extra
from indexer.store.files import make_folder
from indexer.system.output_files import check_output
from search.files import write_output
from search.text import escape

FORMATS = (".png", ".svg", ".pdf")
_DATE = {"svg": "Date", "pdf": "CreationDate"}
_STYLE: dict[str, Any] = {"svg.hashsalt": "isotrope", "text.parse_math": False}  # a $ in a name is no formula
_DPI = 150  # of what has pixels
Size = tuple[float, float]  # inches


def require_plots() -> None:
    """Raises MachineError with the line that installs what pictures need."""
    require_extra("matplotlib.figure", "plots")


def check_plot(path: Path, force: bool = False) -> None:
    """Before minutes of encoding: the format is known, matplotlib is there, and so is the folder, made if need be.

    A file that is there already is overwritten with `force` only. Raises ConfigError, ExistsError, MachineError,
    StoreError.
    """
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f'--plot "{path}": expected a file that ends in {", ".join(FORMATS)}.')
    check_output(path, "--plot", force)
    require_plots()
    make_folder(path.parent)


def write_plot(path: Path, size: Size, draw: Callable[[Any], None], force: bool = False, **saving: Any) -> None:
    """Let `draw` fill a figure and write it in the format that the path's ending names; more as for `rendered`.

    Raises as `check_plot`.
    """
    check_plot(path, force)
    write_output(path, render_figure(size, draw, path.suffix.lower().removeprefix("."), **saving), "--plot", force)


def render_figure(
    size: Size,
    draw: Callable[[Any], None],
    kind: str,
    layout: str = "constrained",
    style: Mapping[str, Any] | None = None,
    **saving: Any,
) -> bytes:
    """The bytes of a figure that `draw` filled: `kind` is png, svg or pdf, `style` adds to matplotlib's defaults.

    `saving` goes to `Figure.savefig`; without metadata in it the file bears no date.
    """
    matplotlib, figures = require_extra("matplotlib", "plots"), require_extra("matplotlib.figure", "plots")
    undated = {_DATE[kind]: None} if kind in _DATE else {}
    file = io.BytesIO()
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from font")  # of a name; it is drawn as an empty box
        matplotlib.rcdefaults()  # whatever the user's own style is
        matplotlib.rcParams.update({**_STYLE, **(style or {})})
        figure = figures.Figure(size, dpi=_DPI, layout=layout)
        draw(figure)
        figure.savefig(file, format=kind, **{"metadata": undated, **saving})
    return file.getvalue()


def whiskers(values: Sequence[float], low: Sequence[float | None], high: Sequence[float | None]) -> Float64Array:
    """How far each interval goes below and above its value, (2, n) as error bars are drawn; 0 where there is none."""
    below = [0.0 if end is None else value - end for value, end in zip(values, low, strict=True)]
    above = [0.0 if end is None else end - value for value, end in zip(values, high, strict=True)]
    return np.maximum(np.array([below, above], np.float64), 0.0)  # rounding must not make one negative


def model_name(result: Mapping[str, Any]) -> str:
    """The last part of the model's name or path in the provenance of a result."""
    model: str = result["provenance"]["encoder"]["model"]
    return escape(model.rstrip("/").rpartition("/")[2])
