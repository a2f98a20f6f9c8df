"""The examples of the how-to pages run."""

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


@pytest.mark.parametrize("part", ["texts and frames", pytest.param("all", marks=pytest.mark.check)])
def test_the_examples_of_the_python_page_run(part: str, playground: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = [code for code in re.findall(r"```(?:python)?\n(.*?)```", page("how-to/python"), re.DOTALL) if "import" in code]
    assert len(blocks) > 8
    if part == "all":
        assert isotrope("build", "demo/stdlib.jsonl", "demo/index").returncode == 0
    for code in blocks[: None if part == "all" else 2]:
        exec(code, {"__name__": "__main__"})  # noqa: S102
        assert capsys.readouterr().out


@pytest.mark.check
def test_the_examples_of_the_hub_page_run(playground: Path, hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    text = page("how-to/hub")
    assert isotrope("build", "demo/stdlib.jsonl", "demo/index").returncode == 0
    for call in examples(re.sub(r" +#.*", "", block(text, "console"))):
        done = isotrope(*call)
        assert (done.returncode, bool(done.stdout)) == (0, True), (call, done.stderr)
    exec(block(text, "python"), {"__name__": "__main__"})  # noqa: S102
    assert capsys.readouterr().out.splitlines()[1].split()[1] == "os.walk"
    assert [repository.private for repository in hub.repositories.values()] == [False, True]


@pytest.mark.parametrize("part", ["the first commands", pytest.param("all", marks=pytest.mark.check)])
def test_the_examples_of_the_page_about_files_run(
    part: str, playground: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = page("how-to/files")
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    for commands in blocks[: None if part == "all" else 1]:
        for call in examples(commands):
            done = isotrope(*call)
            assert (done.returncode, bool(done.stdout)) == (0, True), (call, done.stderr)
    (answer,) = re.findall(r"\n```\n(when does .*?)\n```", text, re.DOTALL)
    printed = isotrope(*examples(blocks[0])[1]).stdout
    ids = re.compile(r"^ *-?\d\.\d{3}  (\S+?)(?:[:#]\S+)?  ", re.MULTILINE)
    assert ids.findall(printed) == ids.findall(answer) == ["home/ferry.md"]
    if part == "all":
        exec(block(text, "python"), {"__name__": "__main__"})  # noqa: S102
        assert "home/ferry.md" in capsys.readouterr().out
