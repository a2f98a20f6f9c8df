"""Isotrope: the public names of `indexer` and `search`, the version, and the entry point of the command `isotrope`.

    from isotrope import SearchEngine

Each name is imported when it is first used, so that `import isotrope` loads no numerical library.

`indexer` and `search` are common names. A script's own search.py comes first on Python's path and would hide the
package. Once `isotrope` is imported, both names are loaded from the folder that contains `isotrope`, and from no other.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from indexer import *  # noqa: F403
    from search import *  # noqa: F403
    from search.dedup import *  # noqa: F403
    from search.distill import *  # noqa: F403
    from search.erasure import *  # noqa: F403
    from search.evaluation import *  # noqa: F403
    from search.export import *  # noqa: F403
    from search.migration import *  # noqa: F403

    __version__: str

_HOME = Path(__file__).resolve().parents[1]
_PACKAGES = ("indexer", "search")
_EXPORTERS = (
    *_PACKAGES,
    "search.dedup",
    "search.distill",
    "search.erasure",
    "search.evaluation",
    "search.export",
    "search.migration",
)


class _OwnPackages:
    """A finder that comes before Python's path: `indexer` and `search` are those of this folder."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [str(_HOME)]) if name in _PACKAGES else None


def _require_own(name: str) -> None:
    """Raise ImportError if another module of this name is already loaded."""
    if (module := sys.modules.get(name)) is None:
        return
    expected = _HOME / name
    folders = [Path(folder).resolve() for folder in getattr(module, "__path__", [])]
    if expected not in folders:
        loaded = folders[0] if folders else getattr(module, "__file__", None)
        raise ImportError(
            f"this program has imported {loaded} as the module {name}. It hides Isotrope's package {expected}. "
            f"Fix: rename {loaded}.",
            name=name,
            path=str(loaded),
        )


for _name in _PACKAGES:
    _require_own(_name)
sys.meta_path.insert(0, _OwnPackages)


def _get(name: str) -> Any:
    if name == "__all__":
        return sorted(exported for package in _EXPORTERS for exported in import_module(package).__all__)
    if name == "__version__":
        return import_module("indexer").__version__
    for package in map(import_module, _EXPORTERS):
        if name in package.__all__:
            return getattr(package, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*_get("__all__"), "__version__", "main"]


if not TYPE_CHECKING:  # a type checker would take every name for one of this module
    __getattr__ = _get


def main() -> None:
    """Remove the working directory from the path, unless it contains the packages, and run the command line.

    Python puts it there for `python -m isotrope`, and for an empty entry of PYTHONPATH. Any module in it could
    hide one that Isotrope needs.
    """
    with suppress(FileNotFoundError):  # the working directory was deleted
        if (here := Path.cwd()) != _HOME:
            sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]
    from search.cli import main as run

    run()
