"""Which versions of the libraries that shape results are at work."""

import importlib.metadata
import platform
from functools import cache

_BUILDING = (
    "isotrope",
    "numpy",
    "pyarrow",
    "tokenizers",
    "torch",
    "transformers",
    "openvino",
    "nncf",
    "faiss-cpu",
    "faiss-gpu",
)


@cache  # reading the metadata of a distribution takes milliseconds
def version_of(distribution: str) -> str:
    """The version of an installed distribution; empty when it is not."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def library_versions(more: tuple[str, ...] = ()) -> dict[str, str]:
    """Name -> version of Python, of what a build uses, and of the distributions in `more`, where installed."""
    versions = {"python": platform.python_version()}
    for name in (*_BUILDING, *more):
        if version := version_of(name):
            versions[name] = version
    return versions
