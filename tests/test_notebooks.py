"""Every notebook is stored with the outputs of its present code, imports public names only, and runs.

Runs are part of `make check`: each takes a minute or more.
"""

import ast
import copy
import json
import re
from typing import Any

import pytest

from tests.notebooks import NOTEBOOKS, alike, code_cells, differences, execute, origin, pictures, read, text

MOST_BYTES = 600_000
PUBLIC = {"isotrope"}
PICTURES = {"quickstart.ipynb": 0, "whitening.ipynb": 4, "near_duplicates.ipynb": 2, "measure_and_tune.ipynb": 1}
MACHINE = re.compile(r"/(?:home|root|work|Users)/|/tmp/tmp|site-packages")
notebooks = pytest.mark.parametrize("name", PICTURES)


def test_every_notebook_is_tested() -> None:
    assert {path.name for path in NOTEBOOKS.glob("*.ipynb")} == set(PICTURES)


@notebooks
def test_the_outputs_are_those_of_the_stored_code(name: str) -> None:
    notebook = read(name)
    recorded, present = notebook.metadata["isotrope"], origin(notebook)
    fix = f"Fix: make notebooks NOTEBOOK={name.removesuffix('.ipynb')}"
    assert recorded["sources"] == present["sources"], f"{name}: its code has changed since it was executed. {fix}"
    assert recorded["isotrope"] == present["isotrope"], f"{name}: executed with another version. {fix}"
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))


@notebooks
def test_every_cell_that_ends_in_a_value_or_prints_has_an_output(name: str) -> None:
    silent = [cell.source for cell in code_cells(read(name)) if shows(cell.source) and not cell.outputs]
    assert silent == []


def shows(source: str) -> bool:
    """Return whether a cell prints, shows a plot, or ends in an expression other than a call that writes a file."""
    tree = ast.parse(source)
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    last = tree.body[-1]
    ends_in_value = isinstance(last, ast.Expr) and not re.match(r"os\.|write", ast.unparse(last))
    return ends_in_value or bool(calls & {"print", "plt.show"})


def test_a_cell_that_shows_something_is_known() -> None:
    assert shows("for x in a:\n    print(x)")
    assert shows("x = 1\nx")
    assert shows("engine.search('a')")
    assert not shows("def f():\n    return 1")
    assert not shows("import os\nos.makedirs('a')")


@notebooks
def test_the_outputs_are_small_and_hold_no_error_and_no_path(name: str) -> None:
    notebook = read(name)
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    assert [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"] == []
    for output in outputs:
        shown = {kind: data for kind, data in output.get("data", {}).items() if not kind.startswith("image/")}
        assert not MACHINE.search(json.dumps(shown) + output.get("text", ""))
    assert pictures(notebook) == PICTURES[name]
    assert (NOTEBOOKS / name).stat().st_size < MOST_BYTES


@notebooks
def test_the_code_imports_only_what_is_public(name: str) -> None:
    tree = ast.parse("\n".join(cell.source for cell in code_cells(read(name))))
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {module for module in imported if module.partition(".")[0] in ("indexer", "isotrope", "search")} <= PUBLIC


@notebooks
def test_cells_are_short(name: str) -> None:
    """Imports do not count. One cell of a notebook can list data."""
    *others, longest = sorted(length(cell.source) for cell in code_cells(read(name)))
    assert max(others) <= 12
    assert longest <= 32


def length(source: str) -> int:
    """Return the lines of a cell without its imports."""
    imports = [node for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom)]
    return len(source.splitlines()) - sum((node.end_lineno or 0) - node.lineno + 1 for node in imports)


def test_outputs_are_compared_with_a_tolerance_for_figures() -> None:
    assert alike("score 0.512 of 1,290", "score  0.515 of 1,291")
    assert not alike("score 0.512", "score 0.6")
    assert not alike("3 hits: os.walk", "3 hits: os.fwalk")
    assert not alike("1 2", "1")
    stored = read("quickstart.ipynb")
    changed: Any = copy.deepcopy(stored)
    assert differences(stored, changed) == []
    (cell, *_) = (cell for cell in code_cells(changed) if text(cell))
    pieces = copy.deepcopy(changed)
    (printing,) = (cell for cell in code_cells(pieces) if "facet.distinct" in cell.source)
    (whole,) = printing.outputs
    printing.outputs = [whole | {"text": part} for part in whole.text.splitlines(keepends=True)]
    assert differences(stored, pieces) == []
    cell.outputs = []
    assert len(differences(stored, changed)) == 1


@pytest.mark.check
@notebooks
def test_the_notebook_runs_and_prints_what_is_stored(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another Python has another standard library, and another processor other roundings: there it only runs."""
    for setting in ("ISOTROPE_BACKEND", "OMP_NUM_THREADS"):  # of `conftest`
        monkeypatch.delenv(setting, raising=False)
    stored, executed = read(name), read(name)
    execute(executed)
    assert pictures(executed) == PICTURES[name]
    if stored.metadata["isotrope"] == executed.metadata["isotrope"]:
        assert differences(stored, executed) == []
