"""Every notebook runs from top to bottom, is stored without outputs, and imports only public names.

They run in `make check`: each takes half a minute or more.
"""

import ast
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
QUICKSTART, WHITENING = "quickstart.ipynb", "whitening_and_layers.ipynb"
DEDUPLICATION = "deduplication.ipynb"
PUBLIC = {"indexer", "search", "search.dedup", "search.evaluation", "search.export"}
PRINTED = {
    QUICKSTART: ("csv.", "threading.Event.wait", "random.Random.choice", "up to date: True", "Whales"),
    WHITENING: (
        "layers 0 to 6 | shape of each:",
        "even in all directions",
        "layer 1, number 1",
        "the paper's: [1, 6]",
        "layer 6, strength 1 ",
        "layer 1: largest (0, 1, 2, 3, 5, 8, 16, 32) dropped",
        "layer 1 + last, common",
        "role less (* decided)",
        "short documents in",
        "layers as well:",
        "Spearman of the two scores over its settings",
    ),
    DEDUPLICATION: (
        "threshold",
        "around 0.95",
        "documents kept: ",
        "dropped without",
        "cross a border",
        "its ends score 0.",
        "passed: True",
        "other score: passed: False\n   score: ",
        "another dropped: passed: False",
        "both are kept",
        "from the stored pairs: ",
        "prefer longest: ",
        "every fifth: ",
        "the rows as they were: True",
    ),
}
PLOTS = {QUICKSTART: 0, WHITENING: 8, DEDUPLICATION: 4}


@pytest.mark.parametrize("name", PRINTED)
def test_the_notebook_is_kept_without_outputs(name: str) -> None:
    cells = [cell for cell in _read(name).cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells)


@pytest.mark.parametrize("name", PRINTED)
def test_the_notebook_imports_only_what_is_public(name: str) -> None:
    code = "\n".join(cell.source for cell in _read(name).cells if cell.cell_type == "code")
    imported = {node.module or "" for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)}
    imported |= {
        alias.name for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Import) for alias in node.names
    }
    assert {module for module in imported if module.partition(".")[0] in ("indexer", "search")} <= PUBLIC


@pytest.mark.check
def test_the_quickstart_runs() -> None:
    _run(QUICKSTART)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ISOTROPE_DATA", "ISOTROPE_SLICE", "ISOTROPE_CACHE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.check
def test_whitening_and_layers_runs_where_the_real_sets_are_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISOTROPE_DATA", str(tmp_path))
    monkeypatch.setenv("ISOTROPE_SLICE", "14")
    printed = _run(WHITENING)
    assert "data: stand-ins" in printed
    assert "stdlib: 60 queries, 140 documents" in printed
    _assert_two_ways_agree(printed)


@pytest.mark.check
def test_whitening_and_layers_runs_on_a_slice_of_the_real_sets(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISOTROPE_DATA", str(shared / "data"))
    monkeypatch.setenv("ISOTROPE_SLICE", "12")
    printed = _run(WHITENING)
    assert "data: the real sets" in printed
    assert re.search(r"all sets as one +26 subsets +312 pairs", printed)
    assert re.search(r"cacm: [0-9]+ queries, 120 documents", printed)
    _assert_two_ways_agree(printed)


@pytest.mark.check
def test_deduplication_runs_where_the_real_sets_are_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISOTROPE_DATA", str(tmp_path))
    printed = _run(DEDUPLICATION)
    assert "data: stand-in" in printed
    assert "410 documents" in printed
    _assert_guarantees(printed)


@pytest.mark.check
def test_deduplication_runs_on_a_slice_of_the_real_set(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISOTROPE_DATA", str(shared / "data"))
    monkeypatch.setenv("ISOTROPE_SLICE", "40")
    printed = _run(DEDUPLICATION)
    assert "data: Debian's package descriptions" in printed
    assert "400 documents" in printed
    _assert_guarantees(printed)


def test_every_notebook_is_tested() -> None:
    assert sorted(path.name for path in NOTEBOOKS.glob("*.ipynb")) == sorted(PRINTED)


def _read(name: str) -> Any:
    return nbformat.read(NOTEBOOKS / name, as_version=4)  # type: ignore[no-untyped-call]


def _run(name: str) -> str:
    """Return the output of a notebook, after checking its expected words and plots."""
    notebook = _read(name)
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": NOTEBOOKS}})
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    printed = "".join(output.get("text", "") for output in outputs)
    for expected in PRINTED[name]:
        assert expected in printed
    assert sum("image/png" in output.get("data", {}) for output in outputs) == PLOTS[name]
    return printed


def _assert_two_ways_agree(printed: str) -> None:
    """The notebook also whitens in a few lines of its own; its figures equal those of `evaluate_sts`."""
    pairs = re.findall(r"strength 0\.5: ([0-9.]+) here, ([0-9.]+) by evaluate_sts", printed)
    assert len(pairs) == 2
    for here, there in pairs:
        assert float(here) == pytest.approx(float(there), abs=0.011)


def _assert_guarantees(printed: str) -> None:
    """Of the compared rules only ours keeps both promises, and the kept documents can be read back."""
    violations = dict(
        re.findall(r"^(connected components|this rule) +[0-9,]+ +([0-9]+ +[0-9]+)$", printed, re.MULTILINE)
    )
    assert violations["this rule"].split() == ["0", "0"]
    assert violations["connected components"].split()[0] != "0"
    kept, read_back = (re.search(what + " ([0-9,]+)", printed) for what in ("documents kept:", "read back:"))
    assert kept
    assert read_back
    assert kept[1] == read_back[1]
