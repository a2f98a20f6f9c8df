"""Every command and its help: documented, with examples that run."""

import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from tests.docs.pages import COMMANDS, ROOT, block, examples, page
from tests.hubs import FakeHub
from tests.search.cli.test_cli import Done, isotrope
from tests.servers import server_process
from tests.tiny_models import make_tiny_cross_encoder


@pytest.mark.parametrize("part", ["an index's life", pytest.param("all", marks=pytest.mark.check)])
def test_the_commands_of_the_page_run(part: str, playground: Path) -> None:
    commands = block(page("reference/command-line"), "console", "cp -r")
    calls = examples(commands)
    changing = {"add", "delete", "sync", "refit", "compact"}
    reading = {"query", "inspect", "diff", "verify", "dedup", "evaluate", "tune", "report", "doctor"}
    assert {call[0] for call in calls} == {"build", "encode-parts"} | reading | changing
    for call in calls:
        if part != "all" and call[0] in ("evaluate", "tune", "report"):
            continue
        if call[0] in changing and not Path("my-index").exists():
            assert "\n$ cp -r demo/index my-index\n" in commands
            shutil.copytree("demo/index", "my-index")
        piped = (playground / ("demo/stdlib.jsonl" if call[0] == "build" else "questions.txt")).read_text()
        done = isotrope(*call, stdin=piped)
        assert done.returncode == 0, (call, done.stderr)
        assert done.stdout


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_help_says_the_same_as_the_overview_and_has_an_example(name: str) -> None:
    command, line = COMMANDS[name]
    assert (command.help or "").splitlines()[0] == line
    assert examples(command.help or "")
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name


@pytest.mark.check
@pytest.mark.parametrize("part", ["first", "measuring"])
def test_the_examples_of_the_helps_run(
    part: str, playground: Path, tiny_model: Callable[[str], Path], hub: FakeHub
) -> None:
    """Run them unchanged, in order, on the files they name."""
    (playground / "dumps").mkdir()
    prepare_parquet(playground / "dumps/a.parquet")
    prepare_bin_model(tiny_model("bert"), playground / "old-model")
    make_tiny_cross_encoder(playground / "cross-encoder")
    shutil.copytree(tiny_model("roberta"), playground / "better-model")
    if part == "measuring":
        assert isotrope("build", "demo/stdlib.jsonl", "demo/index").returncode == 0
    for index in ("my-index", "old-index", "new-index"):
        assert isotrope("build", "docs.jsonl", index).returncode == 0
    for name, (command, _) in COMMANDS.items():
        if name.startswith(("evaluate", "tune", "report", "train", "distill")) != (part == "measuring"):
            continue
        for call in examples(command.help or ""):
            if call[0] == "serve" or "--http" in call or "--watch" in call:
                continue  # it answers until it is stopped: tests/search/server
            with answering(call) as arguments:
                done: Done = isotrope(*arguments, stdin="one line\nand another\n")
            assert done.returncode == 0, (call, done.stderr)


@contextmanager
def answering(call: list[str]) -> Iterator[list[str]]:
    """Run a call unchanged, except that --url names a server of the demo's index."""
    if "--url" not in call:
        yield call
        return
    with server_process(Path("demo/index").resolve()) as server:
        place = call.index("--url") + 1
        yield [*call[:place], server.url, *call[place + 1 :]]


def prepare_parquet(path: Path) -> None:
    pq.write_table(pa.table({"id": ["a", "b"], "body": ["Some text.", "Other text."]}), path)


def prepare_bin_model(source: Path, target: Path) -> None:
    shutil.copytree(source, target)
    torch.save(load_file(target / "model.safetensors"), target / "pytorch_model.bin")
    (target / "model.safetensors").unlink()


def test_every_command_has_an_example_on_the_index_or_the_corpus_of_the_demo() -> None:
    others = ("layers", "methods", "retrieval", "rte", "whiteningbert")  # they measure on data sets of their own
    none = {"convert", "demo-corpus", "doctor", "evaluate", "plan", "recipe", *(f"evaluate {name}" for name in others)}
    without = {
        name for name, (command, _) in COMMANDS.items() if not re.search(r"isotrope .* demo/", command.help or "")
    }
    assert without <= none


def test_the_examples_of_exit_codes_end_with_them(playground: Path) -> None:
    assert isotrope("build", "demo/stdlib.jsonl", "demo/index").returncode == 0
    text = page("reference/exit-codes")
    codes = set()
    for line in block(text, "console").splitlines():
        command, _, comment = line.removeprefix("$ ").partition("  # exit code ")
        done = isotrope(*shlex.split(command)[1:])
        assert done.returncode == int(comment or 0), (line, done.stderr)
        assert bool(done.stdout) == (done.returncode == 0)
        assert bool(done.stderr) == (done.returncode != 0)
        assert f"\n| {done.returncode} | " in text
        codes.add(done.returncode)
        if command == "isotrope inspect no-index":
            assert done.stderr == block(text, "text")
    assert codes == {0, 1, 2}


def test_every_environment_variable_is_documented() -> None:
    sources = [path.read_text(encoding="utf-8") for top in ("indexer", "search") for path in (ROOT / top).rglob("*.py")]
    named = {name for text in sources for name in re.findall(r"ISOTROPE_[A-Z_]+", text)}
    assert named == set(re.findall(r"^\| `(ISOTROPE_[A-Z_]+)`", page("reference/command-line"), re.MULTILINE))


@pytest.mark.check
@pytest.mark.parametrize("name", ["recipe", "corpora"])
def test_the_commands_of_the_reference_run(name: str, playground: Path) -> None:
    for call in examples(block(page(f"reference/{name}"), "console")):
        if "e5" in call[:5] and "--set" in call:
            continue  # its weights are on the hub
        call, file = (call[:-2], call[-1]) if ">" in call else (call, "printed")
        done = isotrope(*call, stdin=(playground / "demo/stdlib.jsonl").read_text())
        assert (done.returncode, bool(done.stdout)) == (0, True), (call, done.stderr)
        (playground / file).write_text(done.stdout)
