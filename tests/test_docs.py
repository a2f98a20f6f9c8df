"""Documentation that cannot rot: the README's commands and library example run, every command is documented."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from indexer.config import BuildConfig
from search.cli import _COMMANDS, cli
from tests.test_cli import Done, isotrope

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [
    '{"id": "1", "title": "Whales", "text": "Whales sing for hours.", "year": 1970}',
    '{"id": "2", "title": "Bridges", "text": "A bridge hangs from cables.", "year": 1883}',
    '{"id": "3", "title": "Bread", "text": "Yeast makes the dough rise.", "year": 1000}',
]


def commands() -> list[click.Command]:
    context = click.Context(cli, info_name="isotrope")
    found = [cli.get_command(context, name) for name in cli.list_commands(context)]
    return [command for command in found if command is not None]


def examples(text: str) -> list[list[str]]:
    """Every line that calls isotrope, as words; pipes and redirections are cut off."""
    lines = [line.strip().removeprefix("$ ") for line in text.splitlines()]
    calls = [line.split(" | ")[-1].split(" < ")[0] for line in lines if re.match(r"(\w+ .*\| )?isotrope ", line)]
    return [shlex.split(call)[1:] for call in calls]


def block(language: str) -> str:
    """The first fenced block of the README in this language."""
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found, language
    return found.group(1)


@pytest.fixture
def playground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the names that the examples use."""
    (tmp_path / "docs.jsonl").write_text("\n".join(DOCUMENTS) + "\n")
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_commands_of_the_readme_run(playground: Path) -> None:
    calls = examples(block("console"))
    assert {call[0] for call in calls} == {"build", "query", "inspect", "verify"}
    for call in calls:
        piped = "\n".join(DOCUMENTS) if call[0] == "build" else "who sings\nwho bakes\n"
        done = isotrope(*call, stdin=piped)
        assert done.returncode == 0, (call, done.stderr)
        assert done.stdout


def test_the_library_example_of_the_readme_runs(playground: Path) -> None:
    done = subprocess.run([sys.executable, "-c", block("python")], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0].split()[1] == "1"


@pytest.mark.parametrize("name", list(_COMMANDS))
def test_every_command_is_in_the_readme(name: str) -> None:
    assert f"| `isotrope {name} " in README


@pytest.mark.parametrize("command", commands(), ids=lambda command: str(command.name))
def test_every_help_says_the_same_as_the_overview_and_has_an_example(command: click.Command) -> None:
    assert (command.help or "").splitlines()[0] == _COMMANDS[str(command.name)][1]
    assert examples(command.help or "")
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name


def test_the_examples_of_the_helps_run(
    playground: Path, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they stand, in order, on the files they name."""
    (playground / "dumps").mkdir()
    prepare_parquet(playground / "dumps/a.parquet")
    prepare_bin_model(tiny_model("bert"), playground / "old-model")
    for command in commands():
        for number, call in enumerate(examples(command.help or "")):
            if command.name == "build":  # three different corpora, one name
                call[call.index("my-index")] = f"my-index{number or ''}"
            done: Done = isotrope(*call, stdin="one line\nand another\n")
            assert done.returncode == 0, (call, done.stderr)
    assert (playground / "stdlib.jsonl").is_file()


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


def test_every_recipe_loads_and_is_in_the_readme() -> None:
    for path in sorted((ROOT / "configs").glob("*.toml")):
        assert BuildConfig.load(path)
        assert f"`configs/{path.name}`" in README


def test_the_format_page_names_every_file_of_an_index() -> None:
    from indexer.store import layout

    for name in (layout.DOCUMENTS, layout.WINDOWS, layout.EMBEDDINGS, layout.MOMENTS, layout.PART, layout.LOCK):
        assert name in README
    for name in (layout.manifest_name(1), layout.part_name(0), layout.transform_name(1), layout.segment_name(1, 0)):
        assert name in README


def test_no_machine_path_or_registry_host_is_in_the_repository() -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT, check=False)
    names = [name for name in tracked.stdout.split("\0") if name and not name.startswith("tests/data/")]
    hosts = re.compile("pypi" + r"\.org|files\.pythonhosted|download\." + r"pytorch\.org|/(work|root)/\w")
    for name in names:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert not hosts.search(text), name
