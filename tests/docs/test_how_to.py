"""The examples of the how-to pages run."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import block, examples, page
from tests.docs.walk import follow
from tests.hubs import FakeHub
from tests.search.cli.test_cli import isotrope


@pytest.mark.check
@pytest.mark.parametrize(("name", "blocks"), [("clean-csv", 9)])
def test_a_reader_who_follows_a_page_in_an_empty_folder_sees_what_it_shows(
    name: str, blocks: int, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    assert follow(f"how-to/{name}", tmp_path / "empty") == blocks


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
