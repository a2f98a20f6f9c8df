"""Every notebook runs from top to bottom, and uses only what the packages offer in public."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_the_notebook_runs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    assert not any(cell.get("outputs") for cell in notebook.cells), "committed without outputs"
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": path.parent}})
    client.execute()
    printed = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))
    for expected in ("csv.", "threading.Thread.join", "random.Random.choice", "up to date: True", "Whales"):
        assert expected in printed


def test_there_are_notebooks() -> None:
    assert [path.name for path in NOTEBOOKS] == ["quickstart.ipynb"]
