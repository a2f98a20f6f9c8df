"""How many products of matrices a thread does a second here, by number type: what decides where a flag cannot.

A flag tells that an instruction is there, not that it is fast, nor that a library uses it: without hardware of its own
bfloat16 takes many times as long as float32. So the number types that a class of results may be computed in race for
some milliseconds. What won is kept (`indexer.cache`) for this processor, library and environment, so that the bits of a
vector depend neither on a busy moment nor on the process.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from indexer.cache import cached_folder, read_cached
from indexer.parallel import single_torch_thread
from indexer.processor import Processor
from indexer.versions import version_of

Library = Literal["torch", "openvino"]
Rates = dict[str, float]
"""Number type -> 10^9 multiplications and additions a second on one thread; those the processor cannot do are missing.
"""
# Settings by which libraries leave instructions out.
_CHOOSING = ("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
_RULES = 2  # bump when the race is run another way
_FILE = "rates.json"
_SHAPE = (256, 384, 1536)  # rows and sizes of a layer, as in a small encoder
_RUNS = 3
_LONG = 0.1  # seconds: less than 3e9 FLOP/s
_HINTS = {"float32": "f32", "bfloat16": "bf16"}


def bfloat16_pays(library: Library) -> bool:
    """Whether a library multiplies bfloat16 faster than float32 on this processor; kept from the first time on."""
    rates = _kept_rates(library)
    return rates.get("bfloat16", 0.0) > rates["float32"]


def measured_rates(library: Library, types: tuple[str, ...] = ("float32", "bfloat16")) -> Rates:
    """The rates of a library, measured now, on one thread."""
    with single_torch_thread() if library == "torch" else nullcontext():
        products = {kind: product for kind in types if (product := _PRODUCTS[library](kind)) is not None}
        return race(products)


def race(products: Mapping[str, Callable[[], Any]], clock: Callable[[], float] = time.perf_counter) -> Rates:
    """The rate of each product of `_SHAPE`, which take turns: the best of some runs, after one that prepares.

    A product whose first run takes long is emulated: it has lost, and runs no more. A product whose matrix is wrong is
    left out: OpenVINO offers bfloat16 wherever the processor has it, and returns an empty matrix in no time where
    ONEDNN_MAX_CPU_ISA forbids the instructions.
    """
    running, best = dict(products), dict.fromkeys(products, float("inf"))
    for number in range(1 + _RUNS):
        for kind, product in tuple(running.items()):
            start = clock()
            matrix = product()
            seconds = clock() - start
            if number or seconds > _LONG:
                best[kind] = min(best[kind], seconds)
            if not _is_right(matrix):
                del running[kind], best[kind]
            elif _LONG < best[kind] < float("inf"):
                del running[kind]
    return {kind: 2e-9 * float(np.prod(_SHAPE)) / seconds for kind, seconds in best.items()}


def _is_right(matrix: Any) -> bool:
    """Whether this is the product of two matrices of ones; every number type represents it exactly."""
    rows, inner, columns = _SHAPE
    return tuple(matrix.shape) == (rows, columns) and float(matrix.min()) == float(matrix.max()) == inner


@cache
def _kept_rates(library: Library) -> Rates:
    processor = Processor.here()
    key = {
        "rules": _RULES,
        "library": [library, version_of(library)],
        "processor": [processor.name, *sorted(processor.flags)],
        "environment": {name: os.environ.get(name, "") for name in _CHOOSING},
    }

    def make(folder: Path) -> None:
        (folder / _FILE).write_text(json.dumps(measured_rates(library)), encoding="utf-8")

    return read_cached(cached_folder("rates", key, make) / _FILE, Rates)


def _torch_product(kind: str) -> Callable[[], object] | None:
    import torch

    rows, inner, columns = _SHAPE
    dtype = getattr(torch, kind)
    left, right = torch.ones(rows, inner, dtype=dtype), torch.ones(inner, columns, dtype=dtype)
    if kind != "int8":
        return lambda: left @ right
    try:
        torch._int_mm(left, right)
    except (AttributeError, RuntimeError, NotImplementedError):
        return None
    return lambda: torch._int_mm(left, right)


def _openvino_product(kind: str) -> Callable[[], object] | None:
    from indexer.encoders.openvino_graph import openvino

    if kind not in _HINTS:
        return None
    runtime = openvino()
    from openvino import opset13

    rows, inner, columns = _SHAPE
    given = opset13.parameter([-1, inner], np.float32)
    product = opset13.matmul(given, opset13.constant(np.ones((inner, columns), np.float32)), False, False)
    settings = {"INFERENCE_PRECISION_HINT": _HINTS[kind], "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": 1}
    compiled = runtime.Core().compile_model(runtime.Model([product], [given], "product"), "CPU", settings)
    if compiled.get_property("INFERENCE_PRECISION_HINT") != getattr(runtime.Type, _HINTS[kind]):
        return None  # what it computes in instead is another type's rate
    request, left = compiled.create_infer_request(), np.ones((rows, inner), np.float32)
    return lambda: request.infer([left], share_inputs=True)[0]


_PRODUCTS: dict[Library, Callable[[str], Callable[[], Any] | None]] = {
    "torch": _torch_product,
    "openvino": _openvino_product,
}
