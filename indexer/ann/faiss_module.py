"""The one place that imports FAISS."""

import importlib.metadata
import re
from types import ModuleType

from indexer.errors import MachineError

_MATRIX_QUERIES = 3
_WHEELS = ("faiss-cpu", "faiss-gpu", "faiss-gpu-cuvs")


def require_faiss() -> ModuleType:
    """The module `faiss`. Raises MachineError unless exactly one wheel provides it."""
    found = [name for name in _WHEELS if _installed(name)]
    if len(found) > 1:
        raise MachineError(
            f"{' and '.join(found)} are both installed; they provide the same module and overwrite each other. "
            f"Run: pip uninstall -y {' '.join(found)}, then one of: pip install 'isotrope[cpu]' or 'isotrope[gpu]'."
        )
    try:
        return loaded_faiss()
    except ImportError as error:
        raise MachineError(
            f"FAISS is not installed or cannot be loaded ({error}). "
            "Run: pip install 'isotrope[cpu]' (or 'isotrope[gpu]' on Linux with CUDA)."
        ) from error


def loaded_faiss() -> ModuleType:
    """The module `faiss`, where there is an index already: looking for wheels takes a millisecond."""
    import faiss

    module: ModuleType = faiss
    return module


def prefer_matrix_products(dim: int) -> None:
    """Let FAISS compare three queries or more with whole vectors by matrix products, fewer one by one.

    Of itself it does so from 128,000 values on, which is 333 queries of 384 dimensions; that takes about three times
    as long for 8 to 300 queries, and for training product quantizers.
    """
    loaded_faiss().cvar.distance_compute_blas_threshold = _MATRIX_QUERIES * dim


def set_threads(count: int) -> None:
    """Threads FAISS uses for one call."""
    require_faiss().omp_set_num_threads(count)


def reason_of(error: BaseException) -> str:
    """The sentence in a FAISS error, without its C++ location."""
    last = str(error).strip().splitlines()[-1]
    return re.sub(r"^Error in .* at \S+:\d+: ", "", last).split("Error: ")[-1].rstrip(".")


def _installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
