"""Options of `isotrope evaluate sts --methods`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
_METHODS = [
    "all",
    "cls",
    "mean",
    "max",
    "layers",
    "whitening",
    "sif",
    "sbert-wk",
    "flow",
    "latte-mix",
    "auto-encoder",
    "normal-vae",
]


def methods_options(function: F) -> F:
    """--methods, --train, --train-documents, --seeds"""
    for option in (
        click.option("--seeds", type=int, help="Seeds of each method that draws numbers.  [default: 3]"),
        click.option(
            "--train-documents", type=int, default=0, help="Documents of --train used, by hash of id. Default: all."
        ),
        click.option(
            "--train",
            type=click.Path(path_type=Path),
            help="Corpus that Latte-Mix and its controls are trained on, and SIF counts words in.",
        ),
        click.option(
            "--methods",
            multiple=True,
            type=click.Choice(_METHODS),
            help="Compare methods instead of settings, mean pooling always among them; repeatable.",
        ),
    ):
        function = option(function)
    return function
