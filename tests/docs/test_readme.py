"""The README and the tutorial: short, their samples run, and their figures are those of the benchmarks page."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from indexer.transforms import whitening
from tests.docs.pages import ROOT, blocks, page
from tests.docs.walk import follow
from tests.search.cli.test_cli import ISOTROPE

README = (ROOT / "README.md").read_text(encoding="utf-8")
SITE = "https://isotrope.github.io/isotrope/"
HIT = re.compile(r"^ *(-?\d\.\d{3}) (?:\(.*\))? *(\S+)  ", re.MULTILINE)  # score, perhaps its parts, id


def test_the_readme_is_short_and_its_links_are_absolute() -> None:
    assert len(README.splitlines()) <= 150
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert len(links) > 20
    assert [link for link in links if not link.startswith("https://")] == []  # the page of a package has no files


@pytest.mark.parametrize("text", [README, page("index")], ids=["readme", "home"])
def test_the_five_lines_print_what_the_readme_says(
    text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whitening, "ROWS_PER_DIRECTION", 2)  # which `conftest` lowers
    (printed,) = re.findall(r"```python\n.*?```\n\n```\n(.*?)```", README, re.DOTALL)
    exec(blocks(text, "python")[0], {"__name__": "__main__"})  # noqa: S102 - in this process, which has loaded the libraries
    score, hit = capsys.readouterr().out.split(maxsplit=1)
    assert hit == printed.split(maxsplit=1)[1]
    assert abs(float(score) - float(printed.split()[0])) < 0.01  # bfloat16 and float32 differ


def test_the_results_of_the_readme_are_those_of_the_benchmarks() -> None:
    measured = page("benchmarks")
    rows = re.findall(r"^\| (?!---)([^|]+)\| ([^|]+)\| ([^|]+)\| `([^`]+)` \|$", README, re.MULTILINE)
    assert len(rows) > 3
    for _, ours, peers, command in rows:
        assert command.split(" --")[0] in measured.replace("../shared/data/", ""), command
        for figure in re.findall(r"\d[\d.,]*", f"{ours} {peers}"):
            assert re.search(rf"(?<![\d.,]){re.escape(figure)}", measured), figure


def commands(text: str) -> list[tuple[str, str]]:
    """Return each command of the console blocks with what the page prints after it."""
    parts = re.split(r"^\$ ", "\n".join(blocks(text, "console")), flags=re.MULTILINE)[1:]
    return [(command, printed) for command, _, printed in (part.partition("\n") for part in parts)]


@pytest.mark.check
def test_the_commands_of_the_readme_and_the_tutorial_print_these_hits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Build the demo's index with the real model; counts depend on the version of Python, the hits shown do not.

    The pages about questions and security ask the same index, and show answers that only Python 3.11 gives.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ISOTROPE_BACKEND", "auto")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    checked = 0
    corpus = [("isotrope demo-corpus -o stdlib.jsonl", "")]
    for command, expected in [*corpus, *commands(README), *commands(page("tutorial"))]:
        words = command.replace("isotrope ", f"{shlex.join(ISOTROPE)} ", 1)
        if any(option in command for option in ("-o stdlib", "-o duplicates", "--kept")):
            words += " --force"
        done = subprocess.run(["sh", "-c", words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.stderr)
        shown, printed = HIT.findall(expected), HIT.findall(done.stdout)
        assert [name for _, name in shown] == [name for _, name in printed], command
        assert [float(score) for score, _ in shown] == pytest.approx([float(score) for score, _ in printed], abs=0.03)
        checked += len(shown)
    assert checked > 6
    exec(blocks(page("tutorial"), "python")[0], {"__name__": "__main__"})  # noqa: S102
    assert len(capsys.readouterr().out.splitlines()) == 3
    if sys.version_info[:2] == (3, 11):
        follow_with_the_index(tmp_path / "questions", "how-to/ask", 11)
        follow_with_the_index(tmp_path / "security", "explanation/security", 1)


def follow_with_the_index(folder: Path, name: str, programs: int) -> None:
    """Follow a page in a folder that has the demo's corpus and index; the tutorial has left the index as built."""
    (folder / "demo").mkdir(parents=True)
    (folder / "demo/stdlib.jsonl").symlink_to(Path("stdlib.jsonl").absolute())
    shutil.copytree("my-index", folder / "demo/index")
    made = ("isotrope demo-corpus -o demo/stdlib.jsonl\n", "isotrope build demo/stdlib.jsonl demo/index\n")
    assert follow(name, folder, dict.fromkeys(made, "")) == programs
