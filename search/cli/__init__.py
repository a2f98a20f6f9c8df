"""The command line. A command parses options, makes one call to the library and prints the result, without logic.

Commands are imported when they are called, so that `isotrope --help` loads no numerical library.
"""

import atexit
import gc
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

from indexer.errors import IsotropeError, as_shown, written_for
from indexer.lazy_imports import LOADER
from search.formatting import escape

_COMMANDS = {
    "build": ("search.cli.build:build", "Build an index from a corpus, or continue an interrupted build."),
    "encode-parts": ("search.cli.build:encode_parts", "Encode parts of a prepared build, on any machine."),
    "query": ("search.cli.query:command", "Find the documents closest to a text."),
    "serve": ("search.cli.serve:serve", "Serve an index over HTTP, with a search page."),
    "mcp": ("search.cli.serve:mcp", "Serve an index to agents over the Model Context Protocol."),
    "add": ("search.cli.change:add", "Add documents to an index, or replace them by id."),
    "sync": ("search.cli.sync:sync", "Make an index equal to its sources: add, replace and delete documents."),
    "delete": ("search.cli.change:delete", "Delete documents from an index."),
    "erase": ("search.cli.erase:command", "Remove documents from every file of an index, and prove it."),
    "refit": ("search.cli.change:refit", "Refit the whitening, or choose the index type again."),
    "compact": (
        "search.cli.change:compact",
        "Merge segments, remove deleted documents from the disk, remove old generations.",
    ),
    "distill": (
        "search.cli.distill:command",
        "Make a table that answers the questions of an index without its encoder.",
    ),
    "migrate": ("search.cli.migrate:command", "Change the encoder of an index, after a measured comparison."),
    "inspect": ("search.cli.inspect:inspect", "Show contents, build settings and measured recall of an index."),
    "diff": ("search.cli.diff:command", "Compare two indexes or generations: documents and answers that changed."),
    "dedup": ("search.cli.dedup:command", "Find near-duplicates, and prove the result."),
    "evaluate": ("search.cli.evaluate:command", "Measure quality: similarity, retrieval, recall."),
    "train": ("search.cli.prepare:train", "Fit an encoder to a corpus before builds, without labels."),
    "tune": ("search.cli.tune:command", "Choose settings of whitening and hybrid search, with or without labels."),
    "report": ("search.cli.inspect:report", "Write a page about an index: spectrum, scores, gates, measured quality."),
    "plan": ("search.cli.plan:command", "Estimate time, storage, hosts and cost for a corpus of any size."),
    "export": ("search.cli.export:command", "Export an index to the format of another program."),
    "push": ("search.cli.hub:push", "Upload an index to the Hugging Face hub."),
    "pull": ("search.cli.hub:pull", "Download an index from the Hugging Face hub."),
    "doctor": ("search.cli.doctor:command", "Show the hardware, the chosen backends and any problems."),
    "verify": ("search.cli.inspect:verify", "Check every byte and count of an index."),
    "recipe": ("search.cli.prepare:recipe", "List the recipes that --config takes by name, or print one."),
    "convert": ("search.cli.prepare:convert", "Convert pytorch_model.bin weights to safetensors."),
    "demo-corpus": ("search.cli.prepare:demo_corpus", "Write the standard library's docstrings as a corpus."),
}
_INDEXES = ("index", "against", "transform_from")  # arguments and options that name an index
_TRACEBACK = "ISOTROPE_TRACEBACK"
_PATIENCE = 2.0  # seconds for a thread to clean up


class NamedPath(click.Path):
    """A path that is not empty. Path would read the empty text of an unset shell variable as the current folder.

    A path of an index may be a URL in object storage, which is converted to its local cache folder.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the path is empty; expected a path (. is the current folder).", param, ctx)
        from indexer.system.urls import (  # imported here because --help does not need it
            local_path,
            mirror_folder,
            url_of,
        )

        if (url := url_of(value or "")) and param is not None:
            if param.name not in _INDEXES:
                self.fail(f"{url} is a URL, supported only for indexes and corpora; expected a path.", param, ctx)
            return mirror_folder(url)
        path = str(local_path(value)) if value and self.type is not str else value
        return super().convert(path, param, ctx)


class LazyGroup(click.Group):
    """A group that imports a command when it is called. `commands_at` maps a name to "module:command" and a summary.

    Every path parameter of its commands rejects an empty text.
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

    def invoke(self, ctx: click.Context) -> Any:
        with written_for("shell"):
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self.commands_at.items()])


@click.group(cls=LazyGroup, commands_at=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="isotrope", prog_name="isotrope")
def cli() -> None:
    """Turn a text corpus into a searchable vector index. Every step is recorded and checked."""


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 input, index or machine at fault, 2 usage, 130 interrupted."""
    warnings.showwarning = _show_warning
    atexit.register(gc.freeze)  # else Python ends by looking for garbage in all modules: 0.3 s after a query
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # unsupported characters are printed as escapes
    try:
        cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except IsotropeError as error:
        sys.exit(print_error(str(error)))
    except (KeyboardInterrupt, click.Abort):
        _exit_interrupted()
    except BrokenPipeError:
        sys.stderr.close()  # the reader of the output closed the pipe
        sys.exit(1)
    except OSError as error:
        sys.exit(print_error(f"{error.filename or 'output'}: {error.strerror or error}."))
    except MemoryError:
        sys.exit(print_error("out of memory; finished parts are kept. Fix: lower store.part_documents or --workers."))
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001  # the last resort; a panic in Rust is not an Exception
        sys.exit(_unexpected(error))


def _exit_interrupted() -> NoReturn:
    click.echo(
        "\nInterrupted. No incomplete output was published; run the same command again to continue a build.",
        err=True,
    )
    for loader in [thread for thread in threading.enumerate() if thread.name.startswith(LOADER)]:
        loader.join(_PATIENCE)
        if loader.is_alive():  # Python would wait for the import of torch, many seconds on a busy machine
            with suppress(OSError):  # the reader may have closed the pipe
                click.echo(nl=False)
            os._exit(130)
    sys.exit(130)


def _unexpected(error: BaseException) -> int:
    if os.environ.get(_TRACEBACK, "0") not in ("", "0"):
        import traceback

        click.echo(traceback.format_exc(), err=True)
    message = escape(" ".join(f"{type(error).__name__}: {error}".split()).rstrip("."))
    return print_error(
        f"unexpected ({message}). This is a bug in isotrope; report it with the output of {_TRACEBACK}=1."
    )


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning of this project or a library as a note, without its file and line."""
    click.echo(f"note: {escape(as_shown(' '.join(str(message).split())))}", err=True)


def print_error(message: str) -> int:
    """Print an error on stderr, and return the exit code for it."""
    click.echo(f"{click.style('error:', fg='red', bold=True)} {message}", err=True)
    return 1
