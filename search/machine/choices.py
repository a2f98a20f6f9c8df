"""What will run here, by the same functions that choose it when it runs, and why."""

from dataclasses import dataclass
from typing import get_args

import numpy as np

from indexer.config import Precision
from indexer.encoders.batching import CPU_TOKENS
from indexer.encoders.device import choose_device, compute_dtype
from indexer.encoders.load import named_backend, suits_openvino
from indexer.errors import ConfigError
from indexer.run_options import RunOptions
from search.dedup.join.codes import choose_kernel, fit_basis
from search.dedup.settings import JoinOptions
from search.machine.found import Machine

_THRESHOLD, _ROWS, _DIM = 0.95, 256, 96  # of the join whose kernel is asked for


@dataclass(frozen=True)
class Choice:
    """What runs, such as "openvino, f32", for a task, and why in one line."""

    task: str
    runs: str
    why: str


def choices(machine: Machine, device: str = "auto") -> list[Choice]:
    """Each choice for a device. Raises ConfigError and MachineError as `choose_device` and `named_backend` do."""
    options = RunOptions(device=device)
    found = [
        *(_encoder(precision, options, machine) for precision in get_args(Precision)),
        Choice(
            "encode one or two queries",
            "numpy, float32",
            "of a BERT in float32: done before torch or OpenVINO are imported; other models as many texts",
        ),
        _batches(options),
        Choice("threads", f"{machine.cores.used}", _why_threads(machine)),
    ]
    if not machine.faiss.error:
        found.append(_search(machine))
    return [*found, _join(machine, device)]


def _encoder(precision: Precision, options: RunOptions, machine: Machine) -> Choice:
    task, device = f"encode, {precision}", choose_device(options.device)
    backend = named_backend(options)
    openvino = backend == "openvino" or (backend == "auto" and suits_openvino(options))
    if precision == "int8":
        if machine.openvino is None or device.type != "cpu":
            why = "it is not installed" if machine.openvino is None else "it runs on the CPU"
            return Choice(task, "nothing", f"OpenVINO computes int8, and {why}")
        return Choice(task, f"openvino, int8 and {_hint(precision)}", _why_int8(machine))
    if backend == "numpy":
        return Choice(task, "numpy, float32", "ISOTROPE_BACKEND names it")
    if openvino:
        if machine.openvino is None:
            return Choice(task, "nothing", "ISOTROPE_BACKEND names openvino, which is not installed")
        return Choice(task, f"openvino, {_hint(precision)}", _why_type(precision, _hint(precision) == "bf16", machine))
    dtype = str(compute_dtype(precision, options.half, device)).removeprefix("torch.")
    if device.type == "cpu":
        return Choice(task, f"torch, {dtype} on cpu", _why_type(precision, dtype == "bfloat16", machine))
    return Choice(task, f"torch, {dtype} on {device}", "the GPU is taken wherever there is one")


def _hint(precision: Precision) -> str:
    from indexer.encoders.openvino import inference_precision
    from indexer.encoders.openvino_graph import openvino

    return inference_precision(openvino().Core(), precision)


def _why_type(precision: Precision, half: bool, machine: Machine) -> str:
    if precision == "float32":
        return f"the class float32 is computed in nothing else: {_rate(machine, 'float32')}"
    measured = f"bfloat16 {_rate(machine, 'bfloat16')}, float32 {_rate(machine, 'float32')}"
    return f"bfloat16 is faster here: {measured}" if half else f"float32, of the same class, is faster here: {measured}"


def _why_int8(machine: Machine) -> str:
    return f"as the recipe says; int8 {_rate(machine, 'int8')}, float32 {_rate(machine, 'float32')}"


def _rate(machine: Machine, kind: str) -> str:
    return f"{machine.rates[kind]:,.0f} GFLOP/s a thread" if kind in machine.rates else "not at all"


def _batches(options: RunOptions) -> Choice:
    if choose_device(options.device).type == "cpu":
        return Choice(
            "batches", f"{CPU_TOKENS:,} tokens", "of texts of one length, as far as they go: fits a core's cache"
        )
    from indexer.encoders.transformer import GPU_TOKENS

    return Choice("batches", f"{GPU_TOKENS:,} tokens", "a GPU wants large batches")


def _why_threads(machine: Machine) -> str:
    cores = machine.cores
    if cores.limit is not None and cores.limit < cores.allowed:
        return f"the container pays for {cores.limit:g} of {cores.allowed} cores; each thread takes whole batches"
    left = "" if cores.allowed == cores.present else f" of {cores.present}, as the process is told"
    return f"one a core{left}; each takes whole batches, so that bits do not depend on how many there are"


def _search(machine: Machine) -> Choice:
    gpus = f", {machine.faiss.gpus} GPUs" if machine.faiss.gpus else ""
    level = machine.faiss.level or machine.faiss.options
    blas = f", matrix products {machine.faiss.blas}" if machine.faiss.blas else ""
    return Choice("search", f"FAISS, {level}{blas}{gpus}", f"built with: {machine.faiss.options}")


def _join(machine: Machine, device: str) -> Choice:
    task = "find near-duplicates"
    try:
        options = JoinOptions(device=device)
    except ConfigError as error:
        return Choice(task, "nothing", str(error))
    rows = np.random.default_rng(0).standard_normal((_ROWS, _DIM)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    kernel = choose_kernel(fit_basis(rows, _THRESHOLD), options)
    kind = str(kernel.dtype).removeprefix("torch.")
    if kernel.device.type != "cpu":
        return Choice(task, f"{kind} on {kernel.device}", "the GPU is taken wherever there is one")
    others = [f"{name} {_rate(machine, name)}" for name in ("int8", "float32") if name != kind]
    measured = f"{kind} {_rate(machine, kind)}, {', '.join(others)}"
    return Choice(task, f"{kind} on cpu", f"int8 where its products are exact and won a race: {measured}")
