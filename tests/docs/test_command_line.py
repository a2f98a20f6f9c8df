"""Every command and its help: documented, with examples that run."""

import asyncio
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest
from fastapi.testclient import TestClient
from mcp import Client, StdioServerParameters

from indexer.recipe.config import BuildConfig
from indexer.transforms import whitening
from search.cli import LazyGroup
from tests.docs.pages import COMMANDS, DOCS, ROOT, SERVED_AT, block, blocks, examples, page
from tests.hubs import FakeHub
from tests.search.cli.test_cli import ISOTROPE, Done, isotrope
from tests.servers import server_process
from tests.tiny_models import make_tiny_cross_encoder


@pytest.mark.parametrize("part", ["an index's life", pytest.param("all", marks=pytest.mark.check)])
def test_the_commands_of_the_page_run(part: str, playground: Path) -> None:
    calls = examples(block(page("reference/command-line"), "console"))
    changing = {"add", "delete", "sync", "refit", "compact"}
    reading = {"query", "inspect", "verify", "dedup", "evaluate", "tune", "report", "doctor"}
    assert {call[0] for call in calls} == {"build", "encode-parts"} | reading | changing
    for call in calls:
        if part != "all" and call[0] in ("evaluate", "tune", "report"):
            continue
        if call[0] in changing and not Path("my-index").exists():
            assert "\n$ cp -r demo/index my-index\n" in block(page("reference/command-line"), "console")
            shutil.copytree("demo/index", "my-index")
        piped = (playground / ("demo/stdlib.jsonl" if call[0] == "build" else "questions.txt")).read_text()
        done = isotrope(*call, stdin=piped)
        assert done.returncode == 0, (call, done.stderr)
        assert done.stdout


@pytest.mark.parametrize("name", [name for name in COMMANDS if not isinstance(COMMANDS[name][0], LazyGroup)])
def test_every_command_is_on_the_page(name: str) -> None:
    assert f"| `isotrope {name} " in page("reference/command-line")


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
    if part == "measuring":
        assert isotrope("build", "demo/stdlib.jsonl", "demo/index").returncode == 0
    assert isotrope("build", "docs.jsonl", "my-index").returncode == 0
    for name, (command, _) in COMMANDS.items():
        if name.startswith(("evaluate", "tune", "report", "train")) != (part == "measuring"):
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
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"id": ["a", "b"], "body": ["Some text.", "Other text."]}), path)


def prepare_bin_model(source: Path, target: Path) -> None:
    import shutil

    import torch
    from safetensors.torch import load_file

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
