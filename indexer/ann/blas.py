"""Selection of matrix kernels for the OpenBLAS in FAISS's wheels.

Wheels of FAISS 1.15 contain OpenBLAS 0.3.15, of 2021. It recognises processors by model number and treats an unknown
processor as the oldest, with SSE instructions only. On an Ice Lake Xeon, 256 queries against 63,905 vectors of 381
dimensions then take 1,012 ms, against 362 ms with AVX2 kernels and 262 ms with AVX-512 kernels. An environment variable
can name the kernels, so this module sets it according to the processor's instructions.
"""

import os
from collections.abc import Iterator, Set
from contextlib import contextmanager

from indexer.system.processor import Processor

_VARIABLE = "OPENBLAS_CORETYPE"
# OpenBLAS's names, fastest first, and the instructions that the kernels need.
_KERNELS = {"SkylakeX": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma"}, "Haswell": {"avx2", "fma"}}


@contextmanager
def fitting_kernels() -> Iterator[None]:
    """Within the block, an OpenBLAS that is being loaded uses the fastest kernels for this processor. An OpenBLAS that
    is already loaded keeps its kernels, and an `OPENBLAS_CORETYPE` set by the user is kept."""
    kernels = kernels_for(Processor.here().flags)
    if kernels is None or _VARIABLE in os.environ:
        yield
        return
    os.environ[_VARIABLE] = kernels
    try:
        yield
    finally:
        del os.environ[_VARIABLE]  # newer libraries and child processes recognise the processor themselves


def kernels_for(flags: Set[str]) -> str | None:
    """Return OpenBLAS's name of the kernels for a processor with these instructions; None keeps its own choice."""
    return next((name for name, needed in _KERNELS.items() if needed <= flags), None)
