"""Execute the notebooks and store their outputs: `make notebooks`, or `python -m tests.notebooks quickstart`.

The metadata of a notebook record how its outputs came about: the digest of the executed code cells, the versions of
Isotrope and Python, and how the machine ran the encoder.
"""

import hashlib
import html
import json
import os
import platform
import re
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import nbformat
from nbclient import NotebookClient

from search import SearchEngine, __version__

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
PICTURE = "image/png"
TOLERANCE = 0.03  # relative, and absolute for figures below 1: another processor rounds otherwise
_SECONDS = 600  # of one cell
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
_TAG = re.compile(r"<style.*?</style>|<[^>]+>", re.DOTALL)
_LAYOUT = re.compile(r"[\s─━+|-]+")  # columns are as wide as their figures


def read(name: str) -> Any:
    """Return a notebook by its file name."""
    return nbformat.read(NOTEBOOKS / name, as_version=4)  # type: ignore[no-untyped-call]


def code_cells(notebook: Any) -> list[Any]:
    """Return the code cells in order."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def origin(notebook: Any) -> dict[str, str]:
    """Return the digest of the code cells of a notebook, and the version of Isotrope."""
    sources = json.dumps([cell.source for cell in code_cells(notebook)])
    return {"sources": hashlib.sha256(sources.encode()).hexdigest(), "isotrope": __version__}


def machine() -> dict[str, str]:
    """Return what else decides the outputs: Python, whose library the notebooks read, and the encoder's backend."""
    with SearchEngine.from_texts(["a", "b"]) as engine:
        assert engine.built
        return {"python": platform.python_version(), "encoder": engine.built.backend}


def execute(notebook: Any) -> None:
    """Run a notebook from top to bottom in its folder, and replace its outputs."""
    resources = {"metadata": {"path": NOTEBOOKS}}
    # Prints arrive in any number of pieces; joined, the stored outputs are the same after every run.
    client = NotebookClient(
        notebook,
        timeout=_SECONDS,
        kernel_name="python3",
        resources=resources,
        record_timing=False,
        coalesce_streams=True,
    )
    client.execute(env=os.environ | {"PYTHONWARNINGS": "ignore:IProgress not found"})  # Jupyter brings ipywidgets
    notebook.metadata = {
        "isotrope": origin(notebook) | machine(),
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }


def text(cell: Any) -> str:
    """Return the text of the outputs of a cell, without tags."""
    data = [output.get("data", {"text/plain": output.get("text", "")}) for output in cell.outputs]
    shown = [each.get("text/html") or each["text/plain"] for each in data if PICTURE not in each]
    return html.unescape(_TAG.sub(" ", "".join(shown)))


def pictures(notebook: Any) -> int:
    """Return the number of pictures."""
    return sum(PICTURE in output.get("data", {}) for cell in code_cells(notebook) for output in cell.outputs)


def differences(stored: Any, executed: Any) -> list[str]:
    """Return the texts of cells that differ by more than layout and `TOLERANCE`."""
    cells = zip(code_cells(stored), code_cells(executed), strict=True)
    pairs = [(text(old), text(new)) for old, new in cells]
    return [f"{before}\nnow:\n{after}" for before, after in pairs if not alike(before, after)]


def alike(before: str, after: str) -> bool:
    """Return whether two texts have the same words, and figures within `TOLERANCE`."""
    if _words(before) != _words(after):
        return False
    pairs = zip(_figures(before), _figures(after), strict=True)
    return all(abs(old - new) <= TOLERANCE * max(1.0, abs(old)) for old, new in pairs)


def _words(text: str) -> str:
    return _LAYOUT.sub(" ", _NUMBER.sub("#", text)).strip()


def _figures(text: str) -> list[float]:
    return [float(figure.replace(",", "")) for figure in _NUMBER.findall(text)]


def main(names: list[str]) -> None:
    """Execute the named notebooks, by default all, and write them with their outputs."""
    for name in [f"{name}.ipynb" for name in names] or sorted(path.name for path in NOTEBOOKS.glob("*.ipynb")):
        started, notebook = perf_counter(), read(name)
        execute(notebook)
        nbformat.write(notebook, NOTEBOOKS / name)  # type: ignore[no-untyped-call]
        size = (NOTEBOOKS / name).stat().st_size
        print(f"{name}: {perf_counter() - started:.0f} s, {pictures(notebook)} pictures, {size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
