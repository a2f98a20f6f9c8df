"""Versions of the installed libraries that affect results."""

import importlib.metadata
import platform
from functools import cache

_BUILDING = ("isotrope", "numpy", "pyarrow", "tokenizers", "torch", "transformers", "openvino", "nncf",
             "faiss-cpu", "faiss-gpu")  # fmt: skip


@cache  # reading the metadata of a distribution takes milliseconds
def version_of(distribution: str) -> str:
    """Return the version of a distribution, or "" if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def library_versions(more: tuple[str, ...] = ()) -> dict[str, str]:
    """Return name -> version of Python and of the installed distributions among a build's libraries and `more`."""
    versions = {name: version for name in (*_BUILDING, *more) if (version := version_of(name))}
    return {"python": platform.python_version()} | versions
