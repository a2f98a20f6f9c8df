"""The command line: options in, one library call, output. No logic.

Commands are imported when they are called, so that `isotrope --help` loads no numerical library.
"""

import io
import os
import sys
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn, TextIO

import click

from indexer.errors import IsotropeError, as_shown
from indexer.lazy import LOADER
from search.text import escape

_COMMANDS = {
    "build": ("search.cli.build:command", "Build an index from a corpus, or continue an interrupted build."),
    "encode-parts": ("search.cli.encode_parts:command", "Encode parts of a prepared build, on any machine."),
    "query": ("search.cli.query:command", "Find the documents closest to a text."),
    "serve": ("search.cli.serve:command", "Serve an index over HTTP, with a search page."),
    "mcp": ("search.cli.mcp:command", "Serve an index to agents, by the Model Context Protocol."),
    "add": ("search.cli.add:command", "Add documents to an index, or replace them by id."),
    "delete": ("search.cli.delete:command", "Take documents out of an index."),
    "refit": ("search.cli.refit:command", "Fit the whitening, or choose the index, anew."),
    "compact": (
        "search.cli.compact:command",
        "Fold segments, drop deleted documents from the disk, forget old generations.",
    ),
    "inspect": (
        "search.cli.inspect:inspect",
        "Show what an index holds, how it was built and what its search reaches.",
    ),
    "dedup": ("search.cli.dedup:command", "Find near-duplicates, and prove it."),
    "evaluate": ("search.cli.evaluate:command", "Measure quality: similarity, retrieval, recall."),
    "train": ("search.cli.prepare:train", "Fit an encoder to a corpus before builds, without labels."),
    "tune": ("search.cli.tune:command", "Pick settings of whitening and hybrid search, without labels or with."),
    "report": ("search.cli.report:command", "One page about an index: spectrum, scores, gates, measured quality."),
    "plan": (
        "search.cli.plan:command",
        "Work out what a corpus of any size will take: time, storage, hosts, money.",
    ),
    "export": ("search.cli.export:command", "Write an index in the format of another program."),
    "doctor": (
        "search.cli.doctor:command",
        "Show what this machine has, what will run on it and why, and what is amiss.",
    ),
    "verify": ("search.cli.inspect:verify", "Check every byte and count of an index."),
    "convert": ("search.cli.prepare:convert", "Turn pytorch_model.bin weights into safetensors."),
    "demo-corpus": ("search.cli.prepare:demo_corpus", "Write the standard library's docstrings as a corpus."),
}
_INDEXES = ("index", "against", "transform_from")  # arguments and options that name an index
_TRACEBACK = "ISOTROPE_TRACEBACK"
_PATIENCE = 2.0  # seconds for a thread to clear away what it has begun


class NamedPath(click.Path):
    """A path that is not empty: that is an unset variable of a shell, and Path takes it for the current folder.

    Where an index is named it may be a URL in object storage; then the folder that stands for it.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("it is empty; expected a path (. is the current folder).", param, ctx)
        from indexer.urls import local_path, mirror_folder, url_of  # here, as --help needs none of it

        if (url := url_of(value or "")) and param is not None:
            if param.name not in _INDEXES:
                self.fail(
                    f"{url} is in object storage, where only indexes and corpora are; expected a path.", param, ctx
                )
            return mirror_folder(url)
        return super().convert(str(local_path(value)) if value else value, param, ctx)


class LazyGroup(click.Group):
    """A group that imports a command when it is called: `commands_at` maps a name to "module:command" and one line.

    Wherever a command takes a path, an empty text is refused.
    """

    def __init__(self, *args: Any, commands_at: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.commands_at = commands_at

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands_at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands_at:
            return None
        module, _, name = self.commands_at[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), name)
        for parameter in command.params:
            if isinstance(parameter.type, click.Path) and not isinstance(parameter.type, NamedPath):
                parameter.type = NamedPath(path_type=parameter.type.type)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            if close := get_close_matches(args[0], self.commands_at, n=1):
                raise click.UsageError(f"{error.message} Did you mean '{close[0]}'?", ctx) from None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self.commands_at.items()])


@click.group(cls=LazyGroup, commands_at=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="isotrope", prog_name="isotrope")
def cli() -> None:
    """Turn a text corpus into a searchable vector index whose every step is recorded and checked."""


def main() -> None:
    """Run the command line. Exit code 0 done, 1 input, index or machine at fault, 2 usage, 130 interrupted."""
    warnings.showwarning = _show_warning
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a character shows its number
    try:
        cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except IsotropeError as error:
        sys.exit(_failure(str(error)))
    except (KeyboardInterrupt, click.Abort):
        _exit_interrupted()
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away; there is nobody left to tell
        sys.exit(1)
    except OSError as error:
        sys.exit(_failure(f"{error.filename or 'output'}: {error.strerror or error}."))
    except MemoryError:
        sys.exit(_failure("out of memory. Finished parts are kept; lower store.part_documents or --workers."))
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001  # the one place for what nobody foresaw; Rust's panics are no Exception
        sys.exit(_unforeseen(error))


def _exit_interrupted() -> NoReturn:
    click.echo(
        "\nInterrupted. Nothing half-written is left as if whole; run the same command again to continue a build.",
        err=True,
    )
    for loader in [thread for thread in threading.enumerate() if thread.name.startswith(LOADER)]:
        loader.join(_PATIENCE)
        if loader.is_alive():  # Python would wait until torch is imported, for many seconds on a busy machine
            with suppress(OSError):  # its reader may have gone
                click.echo(nl=False)
            os._exit(130)
    sys.exit(130)


def _unforeseen(error: BaseException) -> int:
    if os.environ.get(_TRACEBACK, "0") not in ("", "0"):
        import traceback

        click.echo(traceback.format_exc(), err=True)
    what = escape(" ".join(f"{type(error).__name__}: {error}".split()).rstrip("."))
    return _failure(
        f"unexpected ({what}). This is a fault of isotrope; set {_TRACEBACK}=1 to see where, and report it."
    )


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning, of ours or of a library, as a note: which line of which file gave it tells a user nothing."""
    click.echo(f"note: {escape(as_shown(' '.join(str(message).split())))}", err=True)


def _failure(message: str) -> int:
    click.echo(f"{click.style('error:', fg='red', bold=True)} {message}", err=True)
    return 1
