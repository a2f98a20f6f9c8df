"""Late imports: the public names of packages, so that `import indexer` stays fast, and the packages of extras."""

import re
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from indexer.errors import MachineError

_EXPORT = re.compile(r"^from ([\w.]+) import (\w+) as \w+$", re.MULTILINE)
LOADER = "load-encoder"  # prefix of threads that only load, for which an interrupted command does not wait


def stub_exports(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package with the names in the `.pyi` file of `file`.

    The stub has a line `from MODULE import NAME as NAME` for each name. MODULE is imported when NAME is first used.
    """
    home = {name: module for module, name in _EXPORT.findall(Path(file).with_suffix(".pyi").read_text("utf-8"))}
    names = sorted(home)

    def get(name: str) -> Any:
        if name in home:
            return getattr(import_module(home[name]), name)
        submodule = name.startswith("_") or PathFinder.find_spec(f"{package}.{name}", [str(Path(file).parent)])
        if not submodule and (hidden := _hidden_module(package, Path(file))):
            raise ImportError(
                f"{name} is not in Isotrope's package {Path(file).parent}, imported by this program as {package}. "
                f"The package hides {hidden}. Fix: rename {hidden}.",
                name=package,
                path=file,
            )
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, lambda: names, names


def _hidden_module(package: str, file: Path) -> Path | None:
    """Return the user's own module of a package's name, which `import isotrope` hides, if there is one."""
    spec = PathFinder.find_spec(package) if "." not in package else None
    if spec is None or spec.origin is None or Path(spec.origin).resolve() == file.resolve():
        return None
    return Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)


def require_extra(module: str, extra: str) -> Any:
    """Return the module. Raises MachineError with the command that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MachineError(
            f"this needs the package {module.partition('.')[0]}, which cannot be loaded ({error}). "
            f"Run: {install_line(extra)}."
        ) from error


def install_line(extra: str, options: str = "") -> str:
    """Return the command that installs an extra's packages by name, because no package index has isotrope yet."""
    from importlib.metadata import PackageNotFoundError  # only a failure needs it

    try:
        packages = " ".join(f"'{package}'" for package in _requirements(extra))
    except PackageNotFoundError:  # the folders were copied, not installed
        packages = f"'.[{extra}]'"
    return f"pip install {options}{packages} (the extra isotrope[{extra}])"


def _requirements(extra: str) -> list[str]:
    from importlib.metadata import requires

    packages: list[str] = []
    for line in requires("isotrope") or []:
        package, _, marker = line.partition(";")
        if not re.search(rf"\bextra == ['\"]{extra}['\"]", marker):
            continue
        inner = re.fullmatch(r"isotrope\[(\w+)\]", package.strip())
        packages += _requirements(inner[1]) if inner else [package.strip()]
    return packages
