"""The README, and what no file of the repository may contain."""

import asyncio
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
import subprocess
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


README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_five_lines_of_the_readme_print_what_it_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whitening, "ROWS_PER_DIRECTION", 2)  # which `conftest` lowers
    (code, printed), *_ = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", README, re.DOTALL)
    exec(code, {"__name__": "__main__"})  # noqa: S102 - in this process, which has loaded the libraries
    score, text = capsys.readouterr().out.split(maxsplit=1)
    assert text == printed.split(maxsplit=1)[1]
    assert abs(float(score) - float(printed.split()[0])) < 0.01  # bfloat16 and float32 differ


def test_no_machine_path_or_registry_host_is_in_the_repository() -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT, check=False)
    files = [name for name in tracked.stdout.split("\0") if (ROOT / name).is_file()]  # and no link to a folder
    names = [name for name in files if not name.startswith("tests/data/")]
    hosts = re.compile("pypi" + r"\.org|files\.pythonhosted|download\." + r"pytorch\.org|/(work|root)/\w")
    for name in names:
        text = (ROOT / name).read_text(encoding="utf-8", errors="replace")  # a picture is no text, and is looked at too
        assert not hosts.search(text), name
