"""Pages of the documentation and what tests read from them: fenced blocks, calls of `isotrope`, commands by name."""

import re
import shlex
from pathlib import Path

import click

from search.cli import LazyGroup, cli

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SERVED_AT = "http://127.0.0.1:8080"  # in examples


def page(name: str) -> str:
    """Return the text of a page of `docs/`, such as "how-to/files"."""
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def blocks(text: str, language: str, holds: str = "") -> list[str]:
    """Return all fenced blocks in this language that contain a text."""
    return [code for code in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL) if holds in code]


def block(text: str, language: str, holds: str = "") -> str:
    """Return the first of these blocks; there must be one."""
    found = blocks(text, language, holds)
    assert found, (language, holds)
    return found[0]


def examples(text: str) -> list[list[str]]:
    """Return every line that calls isotrope as words, without comments, pipes and redirections."""
    lines = [line.strip().removeprefix("$ ") for line in text.splitlines()]
    calls = [line.split(" | ")[-1].split(" < ")[0] for line in lines if re.match(r"(\w+ .*\| )?isotrope ", line)]
    return [shlex.split(call, comments=True)[1:] for call in calls]


def overview(group: LazyGroup, prefix: str = "") -> dict[str, tuple[click.Command, str]]:
    """Return every command by its full name, commands of groups after the group, with its line in the overview."""
    found: dict[str, tuple[click.Command, str]] = {}
    for name, (_, line) in group.commands_at.items():
        command = group.get_command(click.Context(group), name)
        assert command is not None
        found[prefix + name] = (command, line)
        if isinstance(command, LazyGroup):
            found |= overview(command, f"{prefix}{name} ")
    return found


assert isinstance(cli, LazyGroup)
COMMANDS = overview(cli)
