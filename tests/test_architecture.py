"""The house rules, read off the syntax tree: who may import whom, what is cheap to import, who touches what."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Low to high; a module imports only from lower levels or from its own room (the same package, or itself).
LEVELS: list[set[str]] = [
    {"indexer.errors"},
    {"indexer.lazy", "indexer.progress", "indexer.regular_files", "indexer.typed_json", "indexer.versions"},
    {"indexer.hashing", "indexer.parallel", "indexer.safetensors_file"},
    {"indexer.ann", "indexer.cache", "indexer.moments", "indexer.settings", "indexer.store.layout"},
    {"indexer.store.files"},
    {"indexer.output_files"},
    {"indexer.config"},
    {"indexer.chunking", "indexer.corpus", "indexer.pooling", "indexer.transforms"},
    {"indexer.store"},
    {"indexer.encoders", "indexer.pipeline.rows"},
    {"indexer.pipeline"},
    {"search.extras", "search.files", "search.printable", "search.ranking", "search.segments", "search.unit_vectors"},
    {"search.opened"},
    {"search.divergence", "search.grouping", "search.provenance", "search.stored"},
    {"search.filters", "search.hybrid", "search.ranked", "search.request"},
    {"search.deleting", "search.finding", "search.plotting", "search.timing", "search.verification"},
    {"search.engine"},
    {"search.dedup"},
    {"search.evaluation"},
    {"search.export"},
    {"search.cli"},
]
HEAVY = {"numpy", "torch", "transformers", "faiss", "pyarrow", "duckdb", "openvino", "scipy", "ray"}
HANDING_ON = {"indexer/__init__.py", "search/__init__.py", "indexer/corpus/__init__.py", "indexer/encoders/__init__.py"}


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for package in ("indexer", "search"):
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT), ast.parse(path.read_text(encoding="utf-8"))


def imports(tree: ast.Module) -> Iterator[str]:
    """Every imported module, lazy imports and those for type checking included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, "imports are written out in full"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(name: str) -> str | None:
    """The room of LEVELS that a dotted name belongs to."""
    rooms = [room for level in LEVELS for room in level if name == room or name.startswith(f"{room}.")]
    return max(rooms, key=len, default=None)


def level(name: str) -> int:
    return next(number for number, rooms in enumerate(LEVELS) if name in rooms)


def dotted(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def test_every_module_has_a_room() -> None:
    homeless = [str(path) for path, _ in modules() if path.name != "__init__.py" and room(dotted(path)) is None]
    assert homeless == []


def test_modules_import_only_from_lower_levels() -> None:
    violations = []
    for path, tree in modules():
        if str(path) in HANDING_ON:
            continue
        here = room(dotted(path))
        for name in imports(tree):
            there = room(name)
            if here and there and there != here and level(there) >= level(here):
                violations.append(f"{path} imports {name}")
    assert violations == []


def test_the_indexer_never_imports_search() -> None:
    assert [str(path) for path, tree in modules() if path.parts[0] == "indexer" for name in imports(tree)
            if name.split(".")[0] == "search"] == []  # fmt: skip


def test_only_ann_touches_faiss() -> None:
    users = {str(path) for path, tree in modules() for name in imports(tree) if name.split(".")[0] == "faiss"}
    assert users == {"indexer/ann/faiss_index.py"}


def test_only_files_changes_an_index_directory() -> None:
    """Everything that writes in the store and the pipeline goes through the module that the fault tests break."""
    changing = {"write_bytes", "write_text", "rename", "replace", "unlink", "rmdir", "mkdir", "rmtree", "link", "touch"}
    found = []
    for path, tree in modules():
        if path.parts[1] not in ("store", "pipeline") or path.name == "files.py":
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in changing and not _is_dataclass_replace(node):
                found.append(f"{path}:{node.lineno} {node.attr}")
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
                modes = [a.value for a in node.args[1:] if isinstance(a, ast.Constant)]
                if modes != ["rb"]:
                    found.append(f"{path}:{node.lineno} open {modes}")
    assert found == []


def _is_dataclass_replace(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "dataclasses"


def test_no_thread_of_arrow_reads_a_file_of_ours() -> None:
    """One that still does when the interpreter ends aborts the process."""
    found = []
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                reads = node.func.attr == "ParquetFile" or (
                    node.func.attr == "read_table" and ast.unparse(node.func.value) == "pq"
                )
                if reads and "pre_buffer=False" not in ast.unparse(node):
                    found.append(f"{path}:{node.lineno}")
    assert found == []


CHEAP = ["indexer", "search", "search.cli", "indexer.config", "indexer.encoders.protocol", "indexer.encoders.spec"]


@pytest.mark.parametrize("module", CHEAP)
def test_cheap_imports_stay_cheap(module: str) -> None:
    assert loaded_by(f"import {module}") & HEAVY == set()


def test_what_builds_an_index_imports_no_backend_before_it_is_chosen() -> None:
    assert loaded_by("import indexer.pipeline.build") & {"torch", "transformers", "openvino", "nncf"} == set()


def test_help_stays_cheap() -> None:
    run = "import search.cli; search.cli.main()"
    code = f"import sys; sys.argv = ['isotrope', '--help']\ntry:\n    {run}\nexcept SystemExit: pass"
    assert loaded_by(code) & HEAVY == set()


def loaded_by(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after running `code`."""
    script = f"{code}\nimport sys; print('\\n' + ' '.join({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.strip().splitlines()[-1].split())


def test_public_modules_and_functions_have_docstrings() -> None:
    missing = []
    for path, tree in modules():
        if not ast.get_docstring(tree) and path.name != "py.typed":
            missing.append(str(path))
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not ast.get_docstring(node):
                missing.append(f"{path}:{node.name}")
    assert missing == []


def test_no_room_is_too_long() -> None:
    assert [str(path) for path, _ in modules() if len((ROOT / path).read_text().splitlines()) > 500] == []
