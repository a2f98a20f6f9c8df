"""Options that commands share: where and by what an encoder runs, and how a changed index is published."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from indexer.config import Backend, RunOptions

F = TypeVar("F", bound=Callable[..., Any])
_DEVICE = click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:N or mps.")
_BACKEND = click.option(
    "--backend",
    type=click.Choice(get_args(Backend)),
    default="auto",
    show_default=True,
    help="What runs the encoder; auto takes the fastest that is installed. Results agree within the precision.",
)
_THREADS = click.option("--threads", type=int, default=0, help="CPU threads; 0 takes every core.")

_CHANGE: tuple[Callable[[Any], Any], ...] = (
    click.option("--model", type=click.Path(path_type=Path), help="Folder of the model, if it has moved."),
    _DEVICE,
    _BACKEND,
    _THREADS,
    click.option("--allow-low-recall", is_flag=True, help="Publish although the index misses index.recall."),
    click.option("--json", "as_json", is_flag=True, help="Print the report as JSON."),
    click.option("--quiet", is_flag=True, help="No progress bars."),
)


def encoder_options(command: F) -> F:
    """--device, --backend"""
    return _DEVICE(_BACKEND(command))


def threaded_encoder_options(command: F) -> F:
    """--device, --backend, --threads"""
    return encoder_options(_THREADS(command))


def change_options(command: F) -> F:
    """The options above and --model, --allow-low-recall, --json and --quiet: what commands that make a new generation
    of an index share."""
    for option in reversed(_CHANGE):
        command = option(command)
    return command


def run_options(options: dict[str, Any], **more: Any) -> RunOptions:
    """How to run, from the options above; `more` are further fields."""
    named = {name: options[name] for name in ("device", "backend", "threads") if name in options}
    return RunOptions(**named, **more)
