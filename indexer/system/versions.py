"""Versions of the installed libraries that affect results."""

import platform
import sys
from functools import cache
from pathlib import Path

_BUILDING = ("isotrope", "numpy", "pyarrow", "tokenizers", "torch", "transformers", "openvino", "nncf",
             "faiss-cpu", "faiss-gpu")  # fmt: skip


def named_version(distribution: str) -> str:
    """Return the version of a distribution by the name of its folder of metadata, or "" without such a folder.

    The import of importlib.metadata takes a tenth of the time to a first answer.
    """
    folders = (name for entry in sys.path for name in Path(entry).glob(f"{distribution.replace('-', '_')}-*.dist-info"))
    return next(folders, Path()).stem.partition("-")[2]


@cache  # reading the metadata of a distribution takes milliseconds
def version_of(distribution: str) -> str:
    """Return the version of a distribution, or "" if it is not installed."""
    if known := named_version(distribution):
        return known
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def library_versions(more: tuple[str, ...] = ()) -> dict[str, str]:
    """Return name -> version of Python and of the installed distributions among a build's libraries and `more`."""
    versions = {name: version for name in (*_BUILDING, *more) if (version := version_of(name))}
    return {"python": platform.python_version()} | versions
