"""Matrix kernels for the BLAS that FAISS's wheels bring.

Wheels of FAISS 1.15 hold OpenBLAS 0.3.15, of 2021. It knows processors by their model numbers, and takes one that it
does not know for the oldest, with SSE instructions alone: measured on an Ice Lake Xeon, 256 queries against 63,905
vectors of 381 dimensions take 1,012 ms so, 362 ms with kernels for AVX2, 262 ms with those for AVX-512. Whoever loads
the library may name the kernels in the environment; so they are named, by the instructions that the processor has.
"""

import os
from collections.abc import Iterator, Set
from contextlib import contextmanager

from indexer.system.processor import Processor

_VARIABLE = "OPENBLAS_CORETYPE"
# OpenBLAS's names, the fastest first, and what their kernels need.
_KERNELS = {
    "SkylakeX": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma"},
    "Haswell": {"avx2", "fma"},
}


@contextmanager
def fitting_kernels() -> Iterator[None]:
    """Within the block, an OpenBLAS that is loaded takes the kernels that are fastest here.

    One that is loaded already, and a user's own `OPENBLAS_CORETYPE`, are left as they are.
    """
    kernels = kernels_for(Processor.here().flags)
    if kernels is None or _VARIABLE in os.environ:
        yield
        return
    os.environ[_VARIABLE] = kernels
    try:
        yield
    finally:
        del os.environ[_VARIABLE]  # libraries and processes to come know better


def kernels_for(flags: Set[str]) -> str | None:
    """OpenBLAS's name of the kernels for a processor with these instructions; None: what it finds by itself."""
    return next((name for name, needed in _KERNELS.items() if needed <= flags), None)
