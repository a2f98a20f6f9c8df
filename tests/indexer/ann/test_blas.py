"""Selection of kernels for the BLAS in FAISS's wheels."""

import os
import subprocess
import sys

import pytest

from indexer.ann.blas import fitting_kernels, kernels_for
from indexer.system.processor import Processor

_AVX2 = {"sse2", "avx2", "fma"}
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
_TOLD = """
import numpy
from indexer import ann
ann.import_faiss()
from threadpoolctl import threadpool_info
blas = [one for one in threadpool_info() if one["internal_api"] == "openblas"]
print(*[one["architecture"] for one in blas if "faiss" in one["filepath"]])
"""


@pytest.mark.parametrize(
    ("flags", "kernels"),
    [
        (_AVX512, "SkylakeX"),
        (_AVX2, "Haswell"),
        (_AVX512 - {"avx512vl"}, "Haswell"),
        (_AVX2 - {"fma"}, None),
        (set(), None),
    ],
)
def test_kernels_fit_the_instructions(flags: set[str], kernels: str | None) -> None:
    assert kernels_for(flags) == kernels


def test_environment_is_as_it_was_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    with fitting_kernels():
        assert os.environ.get("OPENBLAS_CORETYPE") == kernels_for(Processor.here().flags)
    assert "OPENBLAS_CORETYPE" not in os.environ
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    with fitting_kernels():
        assert os.environ["OPENBLAS_CORETYPE"] == "Haswell"
    assert os.environ["OPENBLAS_CORETYPE"] == "Haswell"


def test_faiss_multiplies_with_them() -> None:
    expected = kernels_for(Processor.here().flags)
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}
    found = subprocess.run(
        [sys.executable, "-c", _TOLD], env=environment, capture_output=True, text=True, check=True
    ).stdout.split()
    if expected is None or not found:
        pytest.skip("no OpenBLAS of FAISS's, or a processor without a known kernel")
    assert found == [expected]
