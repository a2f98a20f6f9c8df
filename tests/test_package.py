"""The package as users get it: names, versions and metadata, and other modules that are called `search`."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

import isotrope
from indexer.system.child_process import call_in_child
from tests.test_public_names import PACKAGES, exports

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BUILT = {".cache", ".git", ".venv", "build", "demo", "dist", "out", "site"}  # folders that the project's commands make
CACHE = re.compile(
    r"\.(mypy|ruff|pytest)_cache|\.hypothesis|\.schemathesis|__pycache__|.*\.egg-info|\.ipynb_checkpoints"
)


def run(script: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a script of a folder, or one command with `-m`, with this checkout behind the folder on Python's path."""
    call = [sys.executable, *(options or [script])]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(call, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def repository_files() -> list[str]:
    """Return the files of the checkout, or of an unpacked sdist, without links and build results."""
    names = []
    for folder, folders, files in os.walk(ROOT):
        top = Path(folder) == ROOT
        folders[:] = [
            name
            for name in folders
            if not CACHE.fullmatch(name) and not (top and (name in BUILT or name.startswith(".venv-")))
        ]
        paths = [Path(folder, name) for name in files if name != ".git"]  # a file in a worktree
        names += [path.relative_to(ROOT).as_posix() for path in paths if not path.is_symlink()]
    return names


def test_isotrope_hands_on_every_public_name() -> None:
    names = {name: package for package in PACKAGES for _, name in exports(package)}
    assert import_module("isotrope").__all__ == sorted(names)  # sorted: no name is in two packages
    assert {*names, "__version__", "main"} == set(dir(isotrope))
    for name, package in names.items():
        assert getattr(isotrope, name) is getattr(import_module(package), name)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        isotrope.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_the_version_is_that_of_the_metadata_and_of_the_citation() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert isotrope.__version__ == version("isotrope") == citation["version"]
    newest = re.search(r"^## (\d\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is None or newest[1] == isotrope.__version__


@pytest.mark.parametrize("line", ["import isotrope", "from isotrope import SearchClient"])
def test_an_import_loads_no_slow_library(line: str, tmp_path: Path) -> None:
    done = run("", tmp_path, "-c", f"{line}\nimport sys, json; print(json.dumps(list(sys.modules)))")
    slow = {"torch", "transformers", "faiss", "pyarrow", "duckdb", "numpy"}
    assert slow & set(json.loads(done.stdout)) == set()


@pytest.fixture
def folder_of_the_user(tmp_path: Path) -> Path:
    for name in ("search.py", "indexer.py"):
        (tmp_path / name).write_text("def helper(): ...\n")
    return tmp_path


def test_a_file_called_search_hides_nothing_from_isotrope(folder_of_the_user: Path) -> None:
    program = (
        "from isotrope import IsotropeError, SearchClient\nfrom indexer import ann\nprint(SearchClient.__module__)"
    )
    for name in ("script.py", "search.py"):  # beside such a file, and in it
        (folder_of_the_user / name).write_text(program)
        done = run(name, folder_of_the_user)
        assert done.stdout == "search.client.blocking\n", done.stderr


def test_a_child_process_loads_the_packages_of_its_parent(
    folder_of_the_user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder_of_the_user)
    assert call_in_child("json:loads", {"s": "[1]"}, "a test") == [1]


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import search\nimport isotrope", "this program has imported {own} as the module search. It hides Isotrope's"),
        ("import isotrope\nfrom search import helper", "helper is not in Isotrope's package"),
        ("import isotrope, search\nsearch.helper()", "helper is not in Isotrope's package"),
    ],
)
@pytest.mark.parametrize("own", ["search.py", "search"])
def test_two_modules_called_search_are_an_error_that_names_the_file(
    program: str, message: str, own: str, folder_of_the_user: Path
) -> None:
    path = folder_of_the_user / own
    if own == "search":
        path.mkdir()
        (folder_of_the_user / "search.py").rename(path / "__init__.py")
    (folder_of_the_user / "script.py").write_text(program)
    last = run("script.py", folder_of_the_user).stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: {message.format(own=path)}")
    assert last.endswith(f"Fix: rename {path}.")


def test_an_attribute_that_nobody_defines_is_an_attribute_error(folder_of_the_user: Path) -> None:
    import search

    assert not hasattr(search, "nothing")
    (folder_of_the_user / "script.py").write_text("import isotrope, search; print(hasattr(search, '__wrapped__'))")
    assert run("script.py", folder_of_the_user).stdout == "False\n"


def extras_named() -> Iterator[tuple[str, str]]:
    """Yield each extra that a text or a call names, with its file."""
    for name in repository_files():
        if name.endswith((".py", ".md", ".toml", ".txt", ".ipynb", ".yaml", "Dockerfile", "Makefile")):
            text = (ROOT / name).read_text(encoding="utf-8")
            for names in re.findall(r"isotrope\[([\w,-]+)\]", text):
                yield from ((name, extra) for extra in names.split(","))
        if name.startswith(("indexer/", "search/")) and name.endswith(".py"):
            yield from ((name, extra) for extra in extras_of_calls(ast.parse(text)))


def extras_of_calls(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            arguments: list[ast.expr] = {"install_line": node.args[:1], "require_extra": node.args[1:2]}.get(
                node.func.id, []
            )
            yield from (
                each.value for each in arguments if isinstance(each, ast.Constant) and isinstance(each.value, str)
            )


def test_every_extra_that_a_message_or_a_page_names_exists() -> None:
    named = set(extras_named())
    assert len({extra for _, extra in named}) > 15
    assert {extra for _, extra in named} - set(PROJECT["optional-dependencies"]) == set(), named


def test_the_citation_has_what_its_schema_requires() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["license"] == PROJECT["license"]
    assert citation["repository-code"] == PROJECT["urls"]["Source"]
    [paper] = citation["references"]
    assert {"type", "title", "authors", "year"} <= paper.keys()


def test_the_list_of_licences_names_every_dependency() -> None:
    page = (ROOT / "docs/reference/licences.md").read_text(encoding="utf-8")
    listed = {name.lower().replace("_", "-") for name in re.findall(r"^\| ([\w.-]+) \|", page, re.MULTILINE)}
    for extra in ("", "cpu", "demo", "eval", "fast", "files", "hybrid", "mcp", "serve"):
        required = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
        names = {re.split(r"[<>=;\[ ]", line)[0].lower() for line in required} - {"isotrope"}
        assert names - listed == set(), extra


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[str, Any]]:
    """Return the names in an sdist of this repository, and the files of the wheel that is built from the sdist."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("archives")
    for name in repository_files():
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / "source" / name)
    if not (folder / "source/indexer/recipe/configs").exists():  # a link, except in an sdist
        (folder / "source/indexer/recipe/configs").symlink_to("../../configs")
    build = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
    subprocess.run([sys.executable, "-c", build, "build_sdist", folder], cwd=folder / "source", check=True)
    [sdist] = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as tar:
        tar.extractall(folder, filter="data")
        names = [name.partition("/")[2] for name in tar.getnames()]
    unpacked = folder / sdist.name.removesuffix(".tar.gz")
    subprocess.run([sys.executable, "-c", build, "build_wheel", folder], cwd=unpacked, check=True)
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        return names, {name: files.read(name) for name in files.namelist()}


@pytest.mark.check
def test_the_sdist_is_the_whole_repository(archives: tuple[list[str], dict[str, Any]]) -> None:
    missing = set(repository_files()) - set(archives[0]) - {"setup.cfg", "PKG-INFO"}
    assert sorted(missing) == []


@pytest.mark.check
def test_the_wheel_holds_the_packages_with_their_data(archives: tuple[list[str], dict[str, Any]]) -> None:
    files = archives[1]
    ours = {name for name in repository_files() if name.startswith(("indexer/", "isotrope/", "search/"))}
    tests = {name for name in files if not name.startswith(("indexer/", "isotrope/", "search/", "isotrope-"))}
    assert tests == set()
    assert sorted(ours - set(files)) == []
    for recipe in (ROOT / "configs").glob("*.toml"):
        assert files[f"indexer/recipe/configs/{recipe.name}"] == recipe.read_bytes()
