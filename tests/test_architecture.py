"""The house rules, checked on the syntax tree: allowed imports, cheap imports, and access to shared code.

LEVELS names folders, and the modules next to them: a new file in a folder needs no entry.
"""

import ast
import gc
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Low to high; a module imports only from lower levels or from its own room (the same folder, or itself).
LEVELS: list[set[str]] = [
    {"indexer.errors"},
    {
        "indexer.arrays",
        "indexer.lazy_imports",
        "indexer.progress",
        "indexer.system",
        "indexer.typed_arguments",
        "indexer.typed_json",
    },
    {"indexer.hashing", "indexer.store.layout", "indexer.system.safetensors_file"},
    {"indexer.system.cache"},
    {"indexer.system.urls"},
    {
        "indexer.ann",
        "indexer.executors",
        "indexer.moments",
        "indexer.system.blob_cache",
        "indexer.system.http",
        "indexer.store.bucket",
        "indexer.store.files",
    },
    {"indexer.recipe", "indexer.system.output_files"},
    {"indexer.corpus", "indexer.encoders.windows", "indexer.encoders.pooling", "indexer.transforms"},
    {"indexer.store"},
    {"indexer.models"},
    {"indexer.encoders"},
    {"indexer.papers"},
    {"indexer.pipeline"},
    {"search.formatting"},
    {
        "search.abandonment",
        "search.result_files",
        "search.hits",
        "search.leases",
        "search.unit_vectors",
    },
    {"search.query_encoder", "search.segments"},
    {"search.index"},
    {
        "search.dedup",
        "search.describe",
        "search.filters",
        "search.latency",
        "search.plan",
        "search.queries",
        "search.shards",
        "search.verify",
    },
    {"search.ranking"},
    {"search.erasure", "search.open_index", "search.updates"},
    {"search.engine"},
    {"search.export", "search.server"},
    {
        "search.client",
        "search.evaluation.bootstrap",
        "search.evaluation.result",
        "search.evaluation.sweep",
        "search.integrations",
        "search.mteb",
    },
    {"search.evaluation.embeddings"},
    {"search.evaluation.tables"},
    {"search.evaluation.target"},
    {"search.evaluation.recall", "search.evaluation.retrieval", "search.evaluation.sts"},
    {"search.evaluation.diff", "search.evaluation.plots", "search.evaluation.tune"},
    {"search.distill", "search.evaluation.report", "search.migration"},
    {"search.cli"},
    {"search.papers"},
]
HEAVY = {"numpy", "torch", "transformers", "faiss", "pyarrow", "duckdb", "openvino", "scipy", "ray", "obstore"}
ALL = ("indexer", "search", "benchmarks")
MOST_LINES = 500
MOST_ARGUMENTS = 6
Function = ast.FunctionDef | ast.AsyncFunctionDef


def files(*packages: str) -> list[Path]:
    """Return the files of packages; by default of the two installed packages."""
    paths = (path for package in packages or ("indexer", "search") for path in sorted((ROOT / package).rglob("*.py")))
    return [path.relative_to(ROOT) for path in paths]


def modules(*packages: str) -> list[tuple[Path, ast.Module]]:
    """Return the files with their syntax trees."""
    gc.disable()  # nothing of a syntax tree is garbage
    try:
        return [(path, parsed(path)) for path in files(*packages)]
    finally:
        gc.enable()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


@cache
def walk(tree: ast.Module) -> list[ast.AST]:
    """Return every node."""
    return list(ast.walk(tree))


@cache
def imports(tree: ast.Module) -> list[str]:
    """Return every imported module, including lazy imports and imports for type checking."""
    return list(_imports(tree))


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, "imports are written out in full"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(name: str) -> str | None:
    """Return the room of LEVELS that contains a dotted name."""
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
        here = room(dotted(path))
        for name in imports(tree):
            there = room(name)
            if here and there and there != here and level(there) >= level(here):
                violations.append(f"{path} imports {name}")
    assert violations == []


def test_no_files_import_each_other_in_a_circle() -> None:
    """Every import counts: at the top, inside a function, for type checking. An import of a name that a package's
    `__init__.py` re-exports counts for the package and for the module that defines the name."""
    trees = {dotted(path): tree for path, tree in modules()}
    graph = {name: {file for imported in imports(tree) for file in meant(imported, trees)} - {name}
             for name, tree in trees.items()}  # fmt: skip
    circle = find_circle(graph)
    assert circle is None, "files import each other in a circle: " + " -> ".join(circle or [])


def meant(imported: str, trees: dict[str, ast.Module]) -> set[str]:
    """Return the files of an import in the form of `imports`: package.module, or package.module.name."""
    if imported in trees:
        return {imported}
    module, _, name = imported.rpartition(".")
    if module not in trees:
        return set()
    handed_on = names_handed_on(trees[module])
    return {module} | (meant(handed_on[name], trees) if name in handed_on else set())


@cache
def names_handed_on(tree: ast.Module) -> dict[str, str]:
    """Return the names that a file imports, and their origins."""
    return {alias.asname or alias.name: f"{node.module}.{alias.name}" for node in walk(tree)
            if isinstance(node, ast.ImportFrom) for alias in node.names}  # fmt: skip


def find_circle(graph: dict[str, set[str]]) -> list[str] | None:
    """Return a path from a file back to itself, None if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle
    return None


def test_the_indexer_never_imports_search() -> None:
    assert [str(path) for path, tree in modules() if path.parts[0] == "indexer" for name in imports(tree)
            if name.split(".")[0] == "search"] == []  # fmt: skip


PAPERS = ("indexer.papers", "search.papers")


def test_the_core_imports_no_paper() -> None:
    """A paper's method is imported by its name when a recipe names it."""
    assert [f"{path} imports {name}" for path, tree in modules() if not dotted(path).startswith(PAPERS)
            for name in imports(tree) if name.startswith(PAPERS)] == []  # fmt: skip


def test_the_core_builds_and_answers_without_the_papers(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path

class NoPapers:
    def find_spec(self, name, path=None, target=None):
        if name.startswith({PAPERS!r}):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, NoPapers())
from indexer import BuildConfig, Document, build_index
from indexer.errors import ConfigError
from indexer.transforms import whitening
whitening.ROWS_PER_DIRECTION = 0
folder = Path({str(tmp_path)!r})
(folder / "words.txt").write_text("whale 1 0 2\\nbridge 0 1 1\\nsteel 1 1 0\\nsea 2 1 0\\n")
config = BuildConfig().with_overrides(["encoder.kind=static", f"encoder.model={{folder / 'words.txt'}}"])
documents = [Document(f"d{{number}}", text) for number, text in enumerate(["whale sea", "steel bridge", "sea bridge"])]
build_index(documents, folder / "index", config)
from search import SearchEngine
with SearchEngine(folder / "index") as engine:
    assert engine.search("whale sea", 1)[0].id == "d0"
from search.ranking.similarities import ranking_by
flow = config.with_overrides(["whitening.kind=flow"])
for module, act in (
    ("indexer.papers.flow", lambda: build_index(documents, folder / "flow", flow)),
    ("search.papers.divergence", lambda: ranking_by("js")),
):
    try:
        act()
    except ConfigError as error:
        assert f"needs {{module}}" in str(error)
    else:
        raise AssertionError(module)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_only_ann_touches_faiss() -> None:
    users = {str(path) for path, tree in modules() for name in imports(tree) if name.split(".")[0] == "faiss"}
    assert users == {"indexer/ann/faiss_index.py"}


def test_only_files_changes_an_index_directory() -> None:
    """All writes of the store and the pipeline go through the module that the fault tests break."""
    changing = {"write_bytes", "write_text", "rename", "replace", "unlink", "rmdir", "mkdir", "rmtree", "link", "touch"}
    found = []
    for path, tree in modules():
        if path.parts[1] not in ("store", "pipeline") or str(path) == "indexer/store/files.py":
            continue
        for node in walk(tree):
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
    """A thread that still runs it when the interpreter ends aborts the process."""
    found = []
    for path, tree in modules():
        for node in walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                reads = node.func.attr == "ParquetFile" or (
                    node.func.attr == "read_table" and ast.unparse(node.func.value) == "pq"
                )
                if reads and "pre_buffer=False" not in ast.unparse(node):
                    found.append(f"{path}:{node.lineno}")
    assert found == []


CHEAP = [
    "indexer",
    "search",
    "search.cli",
    "search.client.asynchronous",
    "search.client.blocking",
    "search.hits",
    "indexer.recipe.config",
    "indexer.encoders.protocol",
    "indexer.models.resolution",
]


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
    """Return the top-level modules of a fresh interpreter after running `code`."""
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


def test_no_file_is_too_long() -> None:
    long = [path for path in files(*ALL, "tests") if len((ROOT / path).read_text().splitlines()) > MOST_LINES]
    assert [str(path) for path in long] == []


def test_no_function_takes_too_many_arguments() -> None:
    functions = [(path, node) for path, tree in modules(*ALL) for node in walk(tree) if isinstance(node, Function)]
    found = {f"{path}:{node.name}" for path, node in functions if len(arguments(node)) > MOST_ARGUMENTS}
    assert sorted(found) == []


def arguments(function: Function) -> list[str]:
    """Return the names of a function's arguments, except `self` and `cls`."""
    given = function.args
    rest = [argument for argument in (given.vararg, given.kwarg) if argument]
    names = [argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs, *rest)]
    return [name for name in names if name not in ("self", "cls")]


PROOF = {"search.dedup.brute_force", "search.dedup.findings", "search.dedup.verify"}
SHARED_WITH_PROOF = {f"search.dedup.{name}" for name in
                     ("duplicates_file", "pairs", "priority", "provenance", "settings", "vectors")}  # fmt: skip


def test_the_proof_of_duplicates_shares_little_with_what_it_proves() -> None:
    """It shares the code that reads the file, the order and the vectors, and scores pairs, but decides by itself."""
    trees = {dotted(path): tree for path, tree in modules()}
    used = {name for proof in PROOF for name in imports(trees[proof]) if name.startswith("search.dedup.")}
    strange = {name for name in used if not any(name.startswith(f"{one}.") for one in PROOF | SHARED_WITH_PROOF)}
    assert strange == set()
