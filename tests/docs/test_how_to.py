"""The examples of the how-to pages run."""

import ast
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.docs.pages import ROOT, block, blocks, examples, page
from tests.docs.walk import follow
from tests.hubs import FakeHub
from tests.search.cli.test_cli import isotrope

_LEAST_MESSAGE = 20  # characters


@pytest.mark.check
@pytest.mark.parametrize(
    "name",
    ["how-to/change", "how-to/clean-csv", "how-to/erase", "how-to/files", "how-to/keep-recall", "how-to/vectors"],
)
def test_a_reader_who_follows_a_page_in_an_empty_folder_sees_what_it_shows(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert follow(name, tmp_path / "empty") >= 3


@pytest.mark.check
def test_the_page_about_measuring_runs(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    build = "isotrope build demo/stdlib.jsonl demo/index"
    faster = f"{build} --config static --set encoder.model={shared / 'models/potion-base-4m-int8'}"
    assert follow("how-to/measure", tmp_path / "empty", {build: faster}) > 8


@pytest.mark.check
def test_the_commands_of_the_page_about_tables_run(shared: Path, playground: Path) -> None:
    for call in calls_of("how-to/static-table"):
        table = ["--set", f"encoder.model={shared / 'models/potion-base-4m-int8'}"]
        own = [] if call[0] != "build" or any("encoder.model" in word for word in call) else table
        assert isotrope(*call, *own).returncode == 0, call


@pytest.mark.check
def test_the_commands_for_many_machines_run(playground: Path) -> None:
    """Those for a cluster, a queue and a bucket do not; the arithmetic of the queues' jobs does."""
    assert isotrope("build", "demo/stdlib.jsonl", "demo/index").returncode == 0
    text = page("how-to/many-machines")
    clusters, first_parts = ("--ray-address", "--shards", "s3://", "plan"), {"0:128": "0:1", "128:256": "1:2"}
    for words in calls_of("how-to/many-machines"):
        call = [first_parts.get(word, word) for word in words]
        call += ["--set", "store.part_documents=60"] * (call[0] == "build" and "dumps-index" in call)
        if not any(word.startswith(clusters) for word in call) and "$" not in " ".join(call):
            assert isotrope(*call).returncode == 0, call
    (job,) = yaml.safe_load(block(text, "yaml"))["spec"]["template"]["spec"]["containers"]
    slurm = re.findall(r"--wrap '(.*?)'", text, re.DOTALL)[0].replace("\\\n", " ")
    for script in (job["command"][2], slurm):
        numbers = {"JOB_COMPLETION_INDEX": "59", "SLURM_ARRAY_TASK_ID": "59", "PATH": os.environ["PATH"]}
        said = ["bash", "-c", script.replace("isotrope", "echo")]
        printed = subprocess.run(said, capture_output=True, text=True, check=True, env=numbers).stdout
        assert printed.endswith("--parts 7552:7680\n")


@pytest.mark.check
def test_the_examples_of_the_hub_page_run(playground: Path, hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert isotrope("build", "demo/stdlib.jsonl", "demo/index").returncode == 0
    for call in calls_of("how-to/hub"):
        done = isotrope(*call)
        assert (done.returncode, bool(done.stdout)) == (0, True), (call, done.stderr)
    exec(block(page("how-to/hub"), "python"), {"__name__": "__main__"})  # noqa: S102
    assert capsys.readouterr().out.splitlines()[1].split()[1] == "os.walk"
    assert [repository.private for repository in hub.repositories.values()] == [False, True]


def test_the_page_about_installing_names_every_extra() -> None:
    rows = re.findall(
        r"^\| (`[^|]*`) \| ", page("install").partition("## Extras")[2].partition("## Sizes")[0], re.MULTILINE
    )
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert sorted(named) == sorted(project["optional-dependencies"])


def calls_of(name: str) -> list[list[str]]:
    """Return the calls of isotrope in all blocks of a page, each on one line."""
    return [call for code in blocks(page(name), "sh") for call in examples(code.replace("\\\n", " "))]


def test_every_message_on_the_page_of_errors_is_one_of_the_product() -> None:
    """Each is a string of the source code, where `...` and names of files stand for the values in it."""
    patterns = [pattern for folder in ("indexer", "isotrope", "search") for pattern in _messages_in(ROOT / folder)]
    shown = [line for code in blocks(page("how-to/troubleshooting"), "text") for line in code.splitlines()]
    assert len(shown) > 20
    assert [line for line in shown if not any(pattern.search(line) for pattern in patterns)] == []


def _messages_in(folder: Path) -> Iterator[re.Pattern[str]]:
    """Yield a pattern for each text of a module with 20 characters or more besides its values."""
    for module in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr | ast.Constant):
                parts = [
                    part.value if isinstance(part, ast.Constant) else None for part in getattr(node, "values", [node])
                ]
                texts = [part if isinstance(part, str) else None for part in parts]
                if sum(len(text) for text in texts if text) >= _LEAST_MESSAGE:
                    yield re.compile("".join(".+?" if text is None else re.escape(text) for text in texts))
