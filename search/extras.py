"""Packages that only measuring needs, asked for when they are used."""

from importlib import import_module
from typing import Any

from indexer.errors import MachineError


def require_extra(module: str, extra: str) -> Any:
    """The module. Raises MachineError with the line that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MachineError(
            f"this needs the package {module.partition('.')[0]}, which cannot be loaded ({error}). "
            f"Run: pip install 'isotrope[{extra}]' (in a clone: pip install '.[{extra}]')."
        ) from error
