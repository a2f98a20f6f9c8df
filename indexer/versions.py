"""Which versions of the libraries that shape results are at work."""

import importlib.metadata
import platform

_BUILDING = ("isotrope", "numpy", "pyarrow", "tokenizers", "torch", "transformers", "faiss-cpu", "faiss-gpu")


def library_versions(more: tuple[str, ...] = ()) -> dict[str, str]:
    """Name -> version of Python, of what a build uses, and of the distributions in `more`, where installed."""
    versions = {"python": platform.python_version()}
    for name in (*_BUILDING, *more):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
