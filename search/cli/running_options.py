"""Options that say where and by what an encoder runs, shared by the commands that load one."""

from collections.abc import Callable
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


def encoder_options(command: F) -> F:
    """--device, --backend"""
    return _DEVICE(_BACKEND(command))


def threaded_encoder_options(command: F) -> F:
    """--device, --backend, --threads"""
    return encoder_options(_THREADS(command))


def run_options(options: dict[str, Any], **more: Any) -> RunOptions:
    """How to run, from the options above; `more` are further fields."""
    named = {name: options[name] for name in ("device", "backend", "threads") if name in options}
    return RunOptions(**named, **more)
