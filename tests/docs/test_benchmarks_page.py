"""The page of benchmarks: every command on it parses, every table names its command, machine and date."""

import json
import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest

from search.cli import cli
from tests.docs.pages import COMMANDS, ROOT, page

PAGE = page("benchmarks")
REPOSITORY = "https://github.com/isotrope/isotrope/blob/main/"
WRAPPED = re.sub(r" *\\\n *", " ", PAGE)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CODE = [
    *(code for language, code in FENCE.findall(WRAPPED) if not language),
    *re.findall(r"`([^`]+)`", FENCE.sub("", PAGE)),
]
LINES = [re.sub(r"\s+", " ", line.strip()) for code in CODE for line in re.split(r"\n(?=\S)|&& ", code)]
CALLS = sorted({line for line in LINES if re.match(r"isotrope \w+ \S", line) and line.split(" ", 1)[1] not in COMMANDS})
BENCHMARKS = sorted({found[0] for line in LINES if (found := re.search(r"python -m benchmarks\..*", line))})
SECTIONS = dict(re.findall(r"^##+ (.+)\n((?:(?!##).*\n?)*)", PAGE, re.MULTILINE))
UNDATED = {"Summary", "How it was measured"}


def parsed(command: click.Command, arguments: list[str]) -> None:
    """Parse the arguments of a command, and those of its subcommand. Raises ClickException for wrong ones."""
    with command.make_context(command.name, list(arguments)) as context:
        if isinstance(command, click.Group):
            rest = [*context._protected_args, *context.args]
            inner = command.get_command(context, rest[0])
            assert inner is not None, rest
            parsed(inner, rest[1:])


def anchor(title: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")


@pytest.mark.parametrize("line", CALLS)
def test_every_command_of_the_page_parses(line: str) -> None:
    parsed(cli, shlex.split(line)[1:])


@pytest.mark.parametrize("line", BENCHMARKS)
def test_every_benchmark_of_the_page_exists_and_takes_its_options(line: str) -> None:
    _, _, module, *arguments = shlex.split(line)
    assert (ROOT / f"{module.replace('.', '/')}.py").is_file()
    if arguments:
        parsed(import_module(module).main, arguments)


def test_commands_with_wrong_options_are_noticed() -> None:
    assert len(CALLS) > 20
    assert len(BENCHMARKS) > 12
    with pytest.raises(click.ClickException):
        parsed(cli, ["evaluate", "sts", "sts", "--methods", "all"])
    with pytest.raises(click.ClickException):
        parsed(import_module("benchmarks.dedup").main, ["index", "--thresholds", "0.9"])


def test_every_table_has_its_command_machine_and_date() -> None:
    tables = 0
    for title, text in SECTIONS.items():
        for after in [] if title in UNDATED else re.split(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)[1:]:
            told = re.search(r"^Command: (?:.+\n)*", after, re.MULTILINE)
            assert told, title
            line = " ".join(told[0].split())
            assert re.search(r"^Command: .+ · Machine: .+ · Date: \d{4}-\d\d-\d\d( · |$)", line), line
            tables += 1
    assert tables > 20


def test_dates_are_those_of_the_result_files() -> None:
    compared = 0
    for told in re.findall(r"^Command: (?:.+\n)*", PAGE, re.MULTILINE):
        files = re.findall(re.escape(REPOSITORY) + r"([\w/.-]+\.json)\)", told)
        dates = {_date(ROOT / file) for file in files if "serve-infinity" not in file}  # which names its own day
        assert dates <= {*re.findall(r"\d{4}-\d\d-\d\d", told)}, told
        compared += len(dates)
    assert compared > 15


def _date(file: Path) -> str:
    result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return str(result["provenance"]["created"][:10] if "provenance" in result else result["machine"]["date"])


@pytest.mark.parametrize("name", ["ann-static-200k", "ann-minilm-200k", "ann-minilm-1m"])
def test_rates_of_approximate_indexes_are_those_of_the_result_files(name: str) -> None:
    shown = next(text for text in SECTIONS.values() if f"[{name}.json]" in text and "| recall ≥ 0.95 |" in text)
    for result in json.loads((ROOT / f"benchmarks/results/{name}.json").read_text(encoding="utf-8"))["results"]:
        for measured in result["compared"].values():
            for peer, point in measured.items():
                assert f"{point['queries_per_second']:,.0f}" in shown, peer


def test_rates_of_encoders_are_those_of_the_result_file() -> None:
    rows = re.findall(r"^\| (\S.*?) \| (\d+) \| ([\d.]+) \| \d+% \| (\d+) \|", SECTIONS["Transformers"], re.MULTILINE)
    shown = {re.sub(r"[*,]", "", name).lower(): figures for name, *figures in rows}
    stored = json.loads((ROOT / "benchmarks/results/encode.json").read_text(encoding="utf-8"))["results"]
    for way in stored:
        documents, sentences = way["mixes"].values()
        figures = (
            f"{documents['texts_per_second']:.0f}",
            f"{documents['ratio']:.2f}",
            f"{sentences['texts_per_second']:.0f}",
        )
        assert shown[way["name"].replace(",", "").lower()] == [*figures]
    assert len(stored) == len(shown)


def test_figures_of_stores_are_those_of_the_result_file() -> None:
    for store in json.loads((ROOT / "benchmarks/results/stores.json").read_text(encoding="utf-8"))["results"]:
        asked = [
            f"{store[kind][key]:{form}}"
            for kind in ("plain", "filtered")
            for key, form in (("ms", ".2f"), ("recall", ".4f"))
        ]
        figures = " | ".join([f"{store['build']:.1f}", f"{store['bytes'] / 1e6:.1f}", *asked])
        assert f"| {figures} |" in SECTIONS["Vector stores in one process"], store["store"]


def test_every_figure_of_the_summary_is_in_its_section() -> None:
    rows = re.findall(r"^\| \[.+?\]\(#(.+?)\) \| (.+?) \| (.+?) \| (.+?) \|", SECTIONS["Summary"], re.MULTILINE)
    texts = {anchor(title): text for title, text in SECTIONS.items()}
    assert len(rows) > 10
    for target, *cells, ratio in rows:
        ours, theirs = (re.match(r"[\d.,]*\d", cell) for cell in cells)
        assert ours, cells
        assert theirs, cells
        for figure in (ours[0], theirs[0]):
            assert re.search(rf"(?<![\d.,]){re.escape(figure)}(?!\d)", texts[target]), (target, figure)
        less_is_better = re.search(r" (ms|s)$", cells[0]) or "First" in cells[0]
        high, low = (float(figure[0].replace(",", "")) for figure in (ours, theirs))
        quotient = low / high if less_is_better else high / low
        assert quotient == pytest.approx(float(ratio.strip("*")), rel=0.04), (target, quotient, ratio)


def test_links_to_sections_and_files_exist() -> None:
    anchors = {anchor(title) for title in SECTIONS}
    assert {*re.findall(r"\]\(#(.+?)\)", PAGE)} <= anchors
    for file in re.findall(re.escape(REPOSITORY) + r"([\w/.-]+)\)", PAGE):
        assert (ROOT / file).is_file(), file
    assert {"the-default-strength-with-other-models", "windows-by-structure", "the-weight-without-labels",
            "the-centre-without-labels"} <= anchors  # fmt: skip # to which other pages link
