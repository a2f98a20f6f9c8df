"""Messages name Python's arguments for users of the library, and options for users of the command line."""

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from indexer import BuildConfig, Document, build_index, delete_documents, read_corpus, refit_index
from indexer.errors import IsotropeError, as_argument, reader, set_to, spelled, written_for
from indexer.system.child_process import call_in_child
from search import SearchEngine
from search.cli import _COMMANDS, cli
from search.export import export_parquet
from tests.test_architecture import dotted, modules

SHELL = re.compile(rf"(?<![\w-])--[a-z]|\bisotrope ({'|'.join(_COMMANDS)})\b")
OF_THE_COMMAND_LINE = {
    "search.cli": "the command line itself",
    "search.plan": "only `isotrope plan` calls it",
    "search.server": "only `isotrope serve` and `isotrope mcp` start a server; clients read the options of its start",
    "search.papers.commands": "the commands themselves",
    "search.papers.method_settings": "only `isotrope evaluate methods` calls it",
    "search.papers.rte": "only `isotrope evaluate rte` calls it",
    "search.papers.whiteningbert": "only `isotrope evaluate whiteningbert` calls it",
    "search.papers.word_vectors": "only `isotrope evaluate words` calls it",
    "search.papers.words": "only `isotrope evaluate words` calls it",
}
PLACES = {
    "indexer.executors.ray_actors._unreachable": "a command of Ray",
    "indexer.executors.ray_actors._about_tokens": "a command of Ray",
    "indexer.models.model_files.check_pinned": "an option of pip",
    "indexer.models.model_files._weights": "the library has no function for `isotrope convert`",
    "search.export.index_card.": "the card of a repository shows both",
    "search.export.index_card._section": "the card of a repository shows both",
    "search.client.answers.stranger": "a server is started by a command",
    "search.client.asynchronous.__init__": "a server is started by a command",
    "search.client.blocking.__init__": "a server is started by a command",
    "search.evaluation.tune.chunks._command": "a result states the command that applies it",
    "search.evaluation.tune.tune._command": "a result states the command that applies it",
    "search.evaluation.tune.tune._options": "a result states the command that applies it",
    "search.ranking.options.SearchOptions": "the help of the command line",
}


def test_no_message_names_an_option_where_a_python_user_reads_it() -> None:
    found = dict[str, int]()
    for path, tree in modules():
        if not any(f"{dotted(path)}.".startswith(f"{name}.") for name in OF_THE_COMMAND_LINE):
            found |= {f"{dotted(path)}.{place}": line for place, line in shell_words(tree)}
    assert {place: line for place, line in found.items() if place not in PLACES} == {}
    assert set(found) == set(PLACES), "an exception that nothing needs"


def shell_words(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the function or class and the line of every text with an option or command, except shell arguments."""

    def visit(node: ast.AST, place: str) -> Iterator[tuple[str, int]]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            place = node.name
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return  # a docstring
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and SHELL.search(node.value):
            yield place, node.lineno
        children: Sequence[ast.AST] = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "spelled":
            children = list[ast.AST](node.args[:1])
        for child in children:
            yield from visit(child, place)

    yield from visit(tree, "")


def test_a_spelling_is_that_of_the_reader() -> None:
    def texts() -> list[str]:
        return [
            spelled("refit_index", "isotrope refit"),
            as_argument("ignore_missing", True),
            as_argument("model"),
            as_argument("against", "INDEX"),
            as_argument("split", "dev"),
            as_argument("device", "cpu", "RunOptions"),
            as_argument("workers", of="RunOptions"),
            set_to("whitening.strength", "none"),
            set_to("chunk.tokens", 128),
        ]

    library = ["refit_index", "ignore_missing=True", "model", "against=INDEX", 'split="dev"',
               'RunOptions(device="cpu")', "RunOptions.workers", 'config.whitening.strength = "none"',
               "config.chunk.tokens = 128"]  # fmt: skip
    assert texts() == library
    with written_for("shell"):
        assert texts() == ["isotrope refit", "--ignore-missing", "--model", "--against INDEX", "--split dev",
                           "--device cpu", "--workers", "--set whitening.strength=none",
                           "--set chunk.tokens=128"]  # fmt: skip
        with written_for("library"):
            assert texts() == library
        assert reader() == "shell"
    assert reader() == "library"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("messages")
    (folder / "words.txt").write_text("whale 1 0 2\nbridge 0 1 1\nsteel 1 1 0\nsea 2 1 0\n")
    config = BuildConfig().with_overrides(["encoder.kind=static", f"encoder.model={folder / 'words.txt'}"])
    documents = [Document(f"d{number}", text) for number, text in enumerate(["whale sea", "steel bridge", "sea"])]
    build_index(documents, folder / "index", config)
    (folder / "recipe.toml").write_text(config.to_toml())
    (folder / "other.toml").write_text(config.with_overrides(["whitening.strength=1"]).to_toml())
    (folder / "docs.jsonl").write_text('{"text": "whale"}\n{"text": 3}\n')
    return folder / "index"


def search(index: Path, **fields: Any) -> None:
    with SearchEngine(index) as engine:
        engine.search("whale", **fields)


Case = tuple[Callable[[Path], object], list[str], str, str]
CASES: dict[str, Case] = {
    "missing id": (
        lambda index: delete_documents(index, ["d9"]), ["delete", "index", "d9"],
        "or pass ignore_missing=True.", "or pass --ignore-missing.",
    ),
    "another recipe": (
        lambda index: build_index([Document("a", "whale")], index, BuildConfig.load(index.parent / "other.toml")),
        ["build", "docs.jsonl", "index", "--config", "other.toml"],
        "pass RunOptions(overwrite=True) to publish", "pass --overwrite (--force in isotrope dedup) to publish",
    ),
    "a weight without hybrid": (
        lambda index: search(index, hybrid_weight=0.5), ["query", "index", "whale", "--hybrid-weight", "0.5"],
        "hybrid_weight weighs vectors against BM25; expected hybrid=True as well",
        "--hybrid-weight weighs vectors against BM25; expected --hybrid as well",
    ),
    "a depth without a model": (
        lambda index: search(index, rerank_depth=5), ["query", "index", "whale", "--rerank-depth", "5"],
        'rerank_by(MODEL)), or record one: refit_index(INDEX, ["rerank.model=MODEL"])',
        "--rerank MODEL), or record one: isotrope refit INDEX --set rerank.model=MODEL",
    ),
    "a setting that refit cannot change": (
        lambda index: refit_index(index, ["chunk.tokens=9"]), ["refit", "index", "--set", "chunk.tokens=9"],
        'assignment "chunk.tokens=9": refit changes', '--set "chunk.tokens=9": refit changes',
    ),
    "a file that exists": (
        lambda index: export_parquet(index, index.parent / "words.txt"),
        ["export", "index", "--to", "parquet", "-o", "words.txt"],
        "pass force=True to overwrite it", "pass --force to overwrite it",
    ),
    "a number for a text": (
        lambda index: list(read_corpus(index.parent / "docs.jsonl")),
        ["build", "docs.jsonl", "new", "--config", "recipe.toml"],
        'set corpus.columns = {"text": "string"} to read it as text', "pass --column text:string to read it as text",
    ),
    "no index": (
        lambda index: SearchEngine(index.with_name("none")), ["inspect", "none"],
        "Build one with: build_index(corpus, index)", "Build one with: isotrope build SOURCE",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_an_error_names_arguments_for_the_library_and_options_for_the_command_line(
    index: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, command, library, shell = CASES[case]
    with pytest.raises(IsotropeError) as caught:
        call(index)
    monkeypatch.chdir(index.parent)
    done = CliRunner().invoke(cli, command)
    assert isinstance(done.exception, IsotropeError), done.output
    assert library in str(caught.value)
    assert SHELL.search(str(caught.value)) is None
    assert shell in str(done.exception)
    assert library not in str(done.exception)
    assert reader() == "library", "the command line has left its spelling behind"


def test_processes_write_for_the_reader_of_their_parent() -> None:
    def message() -> str:
        with pytest.raises(IsotropeError) as caught:
            call_in_child(f"{__name__}:refuse", {}, "a refusal")
        return str(caught.value)

    assert message() == "leave out model"
    with written_for("shell"):
        assert message() == "leave out --model"


def refuse() -> None:
    raise IsotropeError(f"leave out {as_argument('model')}")


def test_a_server_names_the_fields_of_requests(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readers = []

    def listen(listener: Any, _: object) -> int:
        readers.append(reader())
        listener._socket.close()
        return 0

    monkeypatch.setattr("search.server.http.listener.Listener.listen", listen)
    done = CliRunner().invoke(cli, ["serve", str(index), "--port", "0"])
    assert (done.exception, readers) == (None, ["library"])
