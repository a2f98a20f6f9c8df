"""Late imports: the public names of packages, so that `import indexer` stays cheap, and the packages of extras."""

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from indexer.errors import MachineError

_EXPORT = re.compile(r"^from ([\w.]+) import (\w+) as \w+$", re.MULTILINE)
LOADER = "load-encoder"  # begins the names of threads that only load: an interrupted command does not wait for them


def stub_exports(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package that exports the names in the `.pyi` beside `file`.

    The stub has one line a name, `from MODULE import NAME as NAME`. MODULE is imported when NAME is first used.
    """
    home = {name: module for module, name in _EXPORT.findall(Path(file).with_suffix(".pyi").read_text("utf-8"))}
    names = sorted(home)

    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home[name]), name)

    return get, lambda: names, names


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
