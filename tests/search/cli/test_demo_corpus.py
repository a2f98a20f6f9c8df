"""The demonstration corpus: docstrings of the standard library."""

import json
import shutil
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from indexer.corpus.corpus import read_corpus
from indexer.errors import ConfigError, CorpusError, ExistsError
from search.cli.demo_corpus import stdlib_documents, write_stdlib_corpus

LIBRARY = Path(sysconfig.get_path("stdlib"))
SOME = ("asyncio", "datetime.py", "json", "os.py", "_pydatetime.py", "random.py", "shutil.py", "test/support")


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the documents of a few modules, because all modules take seconds to parse."""
    root = tmp_path_factory.mktemp("library")
    for name in filter(lambda name: (LIBRARY / name).exists(), SOME):
        (root / name).parent.mkdir(exist_ok=True)
        (shutil.copytree if (LIBRARY / name).is_dir() else shutil.copyfile)(LIBRARY / name, root / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sysconfig.get_path", lambda _: str(root))
        return list(stdlib_documents())


@pytest.mark.check
def test_it_holds_thousands_of_documents() -> None:
    assert len(list(stdlib_documents())) > 5_000


def test_it_holds_documents_of_every_kind(documents: list[dict[str, Any]]) -> None:
    assert {document["kind"] for document in documents} == {"module", "class", "function", "method"}


def test_known_docstrings_are_there(documents: list[dict[str, Any]]) -> None:
    found = {document["id"]: document for document in documents}
    assert found["json"]["kind"] == "module"
    assert found["json.decoder.JSONDecoder.decode"]["kind"] == "method"
    assert found["shutil.copyfile"] | {"line": 0} == {
        "id": "shutil.copyfile",
        "text": found["shutil.copyfile"]["text"],
        "module": "shutil",
        "kind": "function",
        "line": 0,
    }
    assert found["asyncio.queues.Queue.get"]["text"].startswith("Remove and return an item"), "async functions too"


def test_ids_are_unique_and_texts_are_not_blank(documents: list[dict[str, Any]]) -> None:
    assert len({document["id"] for document in documents}) == len(documents)
    assert all(document["text"].strip() for document in documents)


def test_tests_and_installed_packages_are_left_out(documents: list[dict[str, Any]]) -> None:
    parts = {part for document in documents for part in document["module"].split(".")}
    assert not parts & {"test", "tests", "idle_test", "site-packages"}


def make_library(monkeypatch: pytest.MonkeyPatch, root: Path, files: dict[str, bytes]) -> None:
    for name, source in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(source)
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(root))


def test_names_lines_and_repeats(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = b'''"""Top."""
class A:
    """A
       class."""
    if True:
        async def f(self):
            """One."""
            def g(): "Inner."
    else:
        def f(self): "Two."
def blank(): " "
'''
    files = {"p/__init__.py": source, "p/test/t.py": b'"""T."""', "broken.py": b"def", "latin.py": b"'\xff'"}
    make_library(monkeypatch, tmp_path, files)
    found = [(d["id"], d["kind"], d["line"], d["text"]) for d in stdlib_documents()]
    assert found == [
        ("p", "module", 1, "Top."),
        ("p.A", "class", 2, "A\nclass."),
        ("p.A.f", "method", 6, "One."),
        ("p.A.f.g", "function", 8, "Inner."),
        ("p.A.f:10", "method", 10, "Two."),
    ]


def test_a_module_that_only_hands_on_a_private_one_has_its_documents(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Write the library's layout of Python 3.12 and 3.13."""
    make_library(monkeypatch, tmp_path, {
        "_pydatetime.py": b'"""Dates."""\nclass date:\n    def __sub__(self, day): """Subtract two dates."""',
        "datetime.py": b"try:\n    from _datetime import *\nexcept ImportError:\n    from _pydatetime import *",
        "_pydecimal.py": b'"""Private."""\nclass Decimal:\n    """Floating point."""',
        "decimal.py": b'"""Public."""\nimport sys, _pydecimal\nsys.modules[__name__] = _pydecimal',
        "other.py": b'import _pydecimal\nfrom _pydecimal import Decimal\n"""Not a docstring."""',
    })  # fmt: skip
    found = {document["id"]: (document["module"], document["text"]) for document in stdlib_documents()}
    assert found == {
        "datetime": ("datetime", "Dates."),
        "datetime.date.__sub__": ("datetime", "Subtract two dates."),
        "decimal": ("decimal", "Public."),
        "decimal.Decimal": ("decimal", "Floating point."),
    }


def test_what_the_demo_is_asked_is_in_the_corpus(documents: list[dict[str, Any]]) -> None:
    names = {document["id"] for document in documents}
    assert names >= {"random.Random.shuffle", "datetime.date.__sub__", "datetime.timedelta", "os.walk", "os.fwalk"}


def test_a_python_without_sources_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make_library(monkeypatch, tmp_path, {})
    with pytest.raises(CorpusError, match="no source files"):
        list(stdlib_documents())


def test_the_written_file_is_a_corpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, documents: list[dict[str, Any]]
) -> None:
    monkeypatch.setattr("search.cli.demo_corpus.stdlib_documents", lambda: iter(documents))
    path = tmp_path / "stdlib.jsonl"
    assert write_stdlib_corpus(path) == len(documents)
    assert [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]] == documents
    read = list(read_corpus(path))
    assert [d.id for d in read] == [document["id"] for document in documents]
    assert set(read[0].metadata) == {"module", "kind", "line"}
    assert list(tmp_path.iterdir()) == [path]


def test_a_target_that_cannot_be_written_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make_library(monkeypatch, tmp_path, {"a.py": b'"""A."""'})
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match=r"-o .* cannot be created: .*file is a file"):
        write_stdlib_corpus(tmp_path / "file" / "stdlib.jsonl")
    with pytest.raises(ExistsError, match=r"-o .* already exists"):
        write_stdlib_corpus(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
    assert write_stdlib_corpus(tmp_path / "file", force=True) == 1
