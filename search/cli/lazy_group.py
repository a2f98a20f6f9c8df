"""A group of commands that are imported when they are called, so that `--help` loads no numerical library."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class NamedPath(click.Path):
    """A path that is not empty: that is an unset variable of a shell, and Path takes it for the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("it is empty; expected a path (. is the current folder).", param, ctx)
        return super().convert(value, param, ctx)


class LazyGroup(click.Group):
    """A group that knows its commands' names, modules and one-line helps: `commands_at` maps a name to the latter two.

    Each module offers its command as `command`. Wherever one takes a path, an empty text is refused.
    """

    def __init__(self, *args: Any, commands_at: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.commands_at = commands_at

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands_at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands_at:
            return None
        command: click.Command = import_module(self.commands_at[cmd_name][0]).command
        for parameter in command.params:
            if isinstance(parameter.type, click.Path) and not isinstance(parameter.type, NamedPath):
                parameter.type = NamedPath(path_type=parameter.type.type)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self.commands_at.items()])
