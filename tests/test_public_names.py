"""The names that programs import: few at the top, all of them loadable, with the types in their signatures."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

from isotrope import _EXPORTERS

PACKAGES = _EXPORTERS
ROOT = Path(__file__).resolve().parents[1]
ALIASES = {  # of plain types: literals, numbers, arrays, unions
    "Count", "DocumentSource", "DrawnFrom", "Embeddings", "Executor", "Float64Array", "Hash", "MOST_DEPTH", "Mask",
    "Method", "Objective", "OnError", "PoolingKey", "PoolingMode", "Protocol", "Queries", "Recipe", "RerankerChoice",
    "Role", "RowIds", "SearchResult", "Strength",
    "TextDuplicates", "Vectors", "VectorsOf", "Where",
}  # fmt: skip
FILES_OF_AN_INDEX = {  # behind `engine.index`, `engine.encoder` and `Target`, for the evaluations
    "DocumentIds", "DocumentReader", "EncoderIdentity", "FileDigest", "Manifest", "ModelFiles", "OutputLayer",
    "Tokens", "Transform", "EmbeddingReader", "FitData", "KindTraits", "LiveNumbering", "LiveRows", "Mark",
    "MissingRows", "Moments", "Option", "RejectsFile", "RowView", "SearchedSegment", "Segment", "SegmentEntry",
    "SourceFile",
}  # fmt: skip
DETAILS = {  # fields of results
    "FoldedDocument", "Place", "Subset", "TextEmbeddings", "ThresholdCandidate", "Truncated",
}  # fmt: skip
_EXPORT = re.compile(r"^from ([\w.]+) import (\w+) as \w+$", re.MULTILINE)


def exports(package: str) -> list[tuple[str, str]]:
    """Return (module, name) of each public name of a package."""
    return _EXPORT.findall((ROOT / package.replace(".", "/") / "__init__.pyi").read_text(encoding="utf-8"))


PUBLIC = {name for package in PACKAGES for _, name in exports(package)}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_is_loaded_and_has_a_docstring(package: str) -> None:
    module = import_module(package)
    names = [name for _, name in exports(package)]
    assert module.__all__ == sorted(names)
    for name in names:
        assert getattr(module, name) is not None


def test_the_top_level_has_the_names_that_most_programs_use() -> None:
    assert len(exports("search")) <= 20


def test_every_type_that_a_public_signature_names_is_public() -> None:
    missing = {
        f"{module}.{name}: {used}"
        for package in PACKAGES
        for module, name in exports(package)
        for used in types_of(module, name)
        if used not in PUBLIC | ALIASES | FILES_OF_AN_INDEX | DETAILS
    }
    assert sorted(missing) == []


def types_of(module: str, name: str) -> set[str]:
    """Return the names of this project's types in the signatures of a function, or of a class's public methods."""
    tree = ast.parse(Path(str(import_module(module).__file__)).read_text(encoding="utf-8"))
    ours = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("indexer", "search"):
            ours |= {alias.asname or alias.name for alias in node.names}
    (home,) = [node for node in tree.body if getattr(node, "name", "") == name] or [ast.Pass()]
    annotations: list[ast.expr | None] = []
    members = home.body if isinstance(home, ast.ClassDef) else [home]
    for member in members:
        if isinstance(member, ast.AnnAssign) and not ast.unparse(member.target).startswith("_"):
            annotations.append(member.annotation)
        if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
            if member.name.startswith("_") and member.name != "__init__":
                continue
            arguments = member.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
            annotations += [argument.annotation for argument in every if argument] + [member.returns]
    return {word for each in annotations if each for word in re.findall(r"\w+", ast.unparse(each))} & ours


def test_a_type_checker_sees_the_names_of_every_package() -> None:
    source = (ROOT / "isotrope/__init__.py").read_text(encoding="utf-8")
    assert [package for package in PACKAGES if f"    from {package} import *" not in source] == []
