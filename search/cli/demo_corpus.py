"""A demonstration corpus from every machine's Python: the docstrings of its standard library."""

import ast
import inspect
import json
import os
import sysconfig
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from indexer.errors import CorpusError
from indexer.system.output_files import open_output
from indexer.system.regular_files import read_regular

_LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def stdlib_documents() -> Iterator[dict[str, Any]]:
    """Yield one dict for each docstring of a public module, class, function or method, sorted by file and line.

    A private module that a public one imports whole, such as that of datetime since Python 3.12, counts as the public
    one. Keys: id (dotted name; a later document of the same name gets ":line" appended), text, module, kind (module,
    class, function, method), line. Files are parsed, never imported; files that do not parse are left out.
    Raises CorpusError if the library has no source files.
    """
    root = Path(sysconfig.get_path("stdlib"))
    taken: set[str] = set()
    for path in _source_files(root):
        tree = _parsed(path)
        module = _module_name(path.relative_to(root))
        if tree is None or _is_private(module):
            continue
        for document in _documents(tree, module):
            while document["id"] in taken:
                document["id"] += f":{document['line']}"
            taken.add(document["id"])
            yield document
        for document in _reexported(tree, module, root):
            if document["id"] not in taken:
                taken.add(document["id"])
                yield document
    if not taken:
        raise CorpusError(f"{root}: this Python has no source files of its standard library.")


def write_stdlib_corpus(path: str | Path, force: bool = False) -> int:
    """Write the documents as JSON Lines and return their number. Replaces a file only with `force`.

    The file appears when it is complete. Raises ConfigError, ExistsError and StoreError as `open_output`, and
    CorpusError.
    """
    count = 0
    with open_output(Path(path), "-o", force) as file:
        for document in stdlib_documents():
            file.write((json.dumps(document, ensure_ascii=False) + "\n").encode())
            count += 1
    return count


def _source_files(root: Path) -> list[Path]:
    paths = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        paths += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted(paths, key=lambda path: path.relative_to(root).parts)


def _parsed(path: Path) -> ast.Module | None:
    with warnings.catch_warnings(), suppress(SyntaxError, ValueError):
        warnings.simplefilter("ignore")  # about the library's code, such as invalid escapes
        return ast.parse(read_regular(path))
    return None


def _module_name(relative: Path) -> str:
    parts = relative.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _documents(tree: ast.Module, module: str) -> Iterator[dict[str, Any]]:
    for node, name, kind in _walk(tree, module, "module"):
        text = inspect.cleandoc(ast.get_docstring(node, clean=False) or "")
        if text.strip() and _storable(text) and not _is_private(name):
            line = getattr(node, "lineno", 1)
            yield {"id": name, "text": text, "module": module, "kind": kind, "line": line}


def _reexported(tree: ast.Module, module: str, root: Path) -> Iterator[dict[str, Any]]:
    """Yield the documents of private modules that a public module imports whole, under the public name."""
    for name in _private_sources(tree):
        source = root.joinpath(*name.split(".")).with_suffix(".py")
        private = _parsed(source) if source.is_file() else None
        if private is not None:
            yield from _documents(private, module)


def _private_sources(tree: ast.Module) -> Iterator[str]:
    """Yield the private modules that a module imports whole, or replaces itself with."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(name), names=[ast.alias(name="*")], level=0) if _is_private(name):
                yield name  # from _pydatetime import *
            case ast.Assign(targets=[ast.Subscript(value=ast.Attribute(attr="modules"))], value=ast.Name(id=name)) if (
                _is_private(name)
            ):
                yield name  # sys.modules[__name__] = _pydecimal


def _walk(node: ast.AST, name: str, kind: str) -> Iterator[tuple[_Documented, str, str]]:
    """Yield the node and everything in it that can have a docstring, also under if, try and with, in source order."""
    if isinstance(node, _Documented):
        yield node, name, kind
    inner = "method" if kind == "class" else "function"
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _walk(child, f"{name}.{child.name}", "class")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _walk(child, f"{name}.{child.name}", inner)
        elif isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _walk(child, name, kind)


def _is_private(name: str) -> bool:
    """Return whether any part of a dotted name is private, such as `_bootstrap` but not `__init__`."""
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def _storable(text: str) -> bool:
    """Return whether corpus readers accept a text: a few docstrings contain NUL characters or lone surrogates."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)
