"""What is loaded late: the names of packages, so that `import indexer` stays cheap, and packages of extras."""

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from indexer.errors import MachineError

LOADER = "load-encoder"  # begins the names of threads that only load: an interrupted command does not wait for them


def lazy_exports(package: str, home: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` for a package; `home` maps each public name to the module that defines it."""

    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home[name]), name)

    return get, lambda: sorted(home)


def require_extra(module: str, extra: str) -> Any:
    """The module. Raises MachineError with the line that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MachineError(
            f"this needs the package {module.partition('.')[0]}, which cannot be loaded ({error}). "
            f"Run: {install_line(extra)}."
        ) from error


def install_line(extra: str, options: str = "") -> str:
    """The command that installs the packages of an extra by name, because no package index has isotrope yet."""
    from importlib.metadata import PackageNotFoundError  # here, as only a failure needs it

    try:
        packages = " ".join(f"'{package}'" for package in _requirements(extra))
    except PackageNotFoundError:  # the folders were copied, not installed
        packages = f"'.[{extra}]'"
    return f"pip install {options}{packages} (the extra isotrope[{extra}])"


def _requirements(extra: str) -> list[str]:
    from importlib.metadata import requires

    found: list[str] = []
    for line in requires("isotrope") or []:
        package, _, marker = line.partition(";")
        if not re.search(rf"\bextra == ['\"]{extra}['\"]", marker):
            continue
        inner = re.fullmatch(r"isotrope\[(\w+)\]", package.strip())
        found += _requirements(inner[1]) if inner else [package.strip()]
    return found
