"""`isotrope doctor`: what this machine has, what will run on it and why, and what is wrong with it."""

import os
import platform
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import click

from search.cli.options import json_option

# Instructions that decide how fast matrix products are, as Linux names them.
_INSTRUCTIONS = (
    "avx", "fma", "avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16",
    "asimd", "asimddp", "i8mm", "bf16", "sve", "sve2",
)  # fmt: skip
_POOLS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_LIMITING = (
    "ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "FAISS_SIMD_LEVEL", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA",
)  # fmt: skip
_OTHERS = ("CUDA_VISIBLE_DEVICES", "ISOTROPE_BACKEND", "ISOTROPE_CACHE", "OPENBLAS_CORETYPE", "TMPDIR")
_DRIVER = Path("/dev/nvidiactl")
_AMPERE = 8  # the first generation of CUDA's GPUs that multiplies bfloat16
_PRODUCT = (256, 384, 1536)  # rows and sizes of a layer, as in a small encoder
_LITTLE_SPACE, _LITTLE_MEMORY = 1 << 30, 2 << 30
_FEW_FILES = 1024  # open at a time: a large index has a file a segment, and a server a socket a client
_GAIN = 1.5  # of int8 products over float32; at 1.1 encoding took half as long again, at 3.2 it took half the time


@dataclass(frozen=True)
class Cores:
    """Numbers of cores: in the machine, allowed to this process, paid for by the container (None: no limit), used."""

    present: int
    allowed: int
    limit: float | None
    used: int


@dataclass(frozen=True)
class Disk:
    """A folder for files, the bytes free there, and why it cannot be written (empty: it can)."""

    folder: str
    free: int
    reason: str = ""


@dataclass(frozen=True)
class Gpu:
    """A GPU as torch sees it: CUDA's capability such as "9.0", and whether its hardware multiplies bfloat16."""

    name: str
    bytes: int
    capability: str
    bfloat16: bool


@dataclass(frozen=True)
class Faiss:
    """The GPUs that FAISS sees, its build, the instructions that it and its own BLAS chose; or why it cannot load."""

    gpus: int = 0
    options: str = ""
    level: str = ""
    blas: str = ""
    error: str = ""


@dataclass(frozen=True)
class Machine:
    """Facts about this machine. Sizes are in bytes; rates are 10^9 operations a second of torch on one thread."""

    system: str
    processor: str
    instructions: tuple[str, ...]
    cores: Cores
    memory: int
    memory_limit: int | None
    gpus: tuple[Gpu, ...]
    nvidia_driver: bool
    torch_cuda: str  # the version of CUDA that torch was built for; empty: for CPUs
    torch_level: str  # instructions of torch's own loops
    openvino: tuple[str, ...] | None  # number types it computes in by hardware; None: not installed
    faiss: Faiss
    temporary: Disk
    cache: Disk
    open_files: int
    environment: dict[str, str]
    versions: dict[str, str]
    rates: dict[str, float]


@dataclass(frozen=True)
class Choice:
    """The backend that runs a task, such as "openvino, f32", and the reason in one line."""

    task: str
    runs: str
    why: str


@dataclass(frozen=True)
class Problem:
    """A fault and its fix; nothing can run with a serious one."""

    what: str
    way_out: str
    serious: bool = False


def examine() -> Machine:
    """Collect the facts. This imports torch, FAISS and OpenVINO, and times products for some milliseconds."""
    import torch

    from indexer.system.cache import cache_folder
    from indexer.system.control_group import memory_limit
    from indexer.system.processor import Processor
    from indexer.system.versions import library_versions

    processor = Processor.here()
    return Machine(
        system=f"{platform.system()} {platform.release()}, {platform.machine()}",
        processor=processor.name,
        instructions=tuple(name for name in _INSTRUCTIONS if name in processor.flags),
        cores=_cores(),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        memory_limit=memory_limit(),
        gpus=_gpus(),
        nvidia_driver=_DRIVER.exists(),
        torch_cuda=torch.version.cuda or "",
        torch_level=torch.backends.cpu.get_cpu_capability(),
        openvino=_openvino(),
        faiss=_faiss(),
        temporary=_disk(Path(tempfile.gettempdir())),
        cache=_disk(cache_folder()),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        environment={name: os.environ[name] for name in sorted({*_POOLS, *_LIMITING, *_OTHERS}) if name in os.environ},
        versions=library_versions(("faiss-gpu-cuvs",)),
        rates=_rates(),
    )


def _cores() -> Cores:
    from indexer.system.control_group import cpu_limit
    from indexer.system.threads import available_cores

    present = os.sysconf("SC_NPROCESSORS_ONLN")
    affinity = getattr(os, "sched_getaffinity", None)
    return Cores(present, len(affinity(0)) if affinity else present, cpu_limit(), available_cores())


def _gpus() -> tuple[Gpu, ...]:
    from torch import cuda

    cards = map(cuda.get_device_properties, range(cuda.device_count() if cuda.is_available() else 0))
    return tuple(
        Gpu(card.name, card.total_memory, f"{card.major}.{card.minor}", card.major >= _AMPERE) for card in cards
    )


def _openvino() -> tuple[str, ...] | None:
    from indexer.encoders.openvino.graph import openvino
    from indexer.system.versions import version_of

    if not version_of("openvino"):
        return None
    return tuple(openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))


def _faiss() -> Faiss:
    from threadpoolctl import threadpool_info

    from indexer.ann.faiss_index import import_faiss
    from indexer.errors import MachineError

    try:
        module: Any = import_faiss()
    except MachineError as error:
        return Faiss(error=str(error))
    config = getattr(module, "SIMDConfig", None)  # since 1.14 it chooses as it runs
    level = config.get_level_name() if config else ""
    kernels = [library.get("architecture") for library in threadpool_info() if "faiss" in library["filepath"]]
    blas = next((name for name in kernels if name), "")
    return Faiss(module.get_num_gpus(), module.get_compile_options().strip(), level, blas)


def _disk(folder: Path) -> Disk:
    """Return the facts of a folder, or of the nearest parent that exists."""
    parent = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    reason = ""
    try:
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
    return Disk(str(folder), shutil.disk_usage(parent).free, reason)


def _rates() -> dict[str, float]:
    """Return the rate of each number type that torch can multiply."""
    import torch

    from indexer.system.threads import single_torch_thread

    rows, inner, columns = _PRODUCT
    rates: dict[str, float] = {}
    with single_torch_thread():
        for kind in ("float32", "bfloat16", "int8"):
            left, right = (torch.ones(shape, dtype=getattr(torch, kind)) for shape in ((rows, inner), (inner, columns)))
            times = [time.perf_counter()]
            try:
                for _ in range(4):
                    _ = torch._int_mm(left, right) if kind == "int8" else left @ right
                    times.append(time.perf_counter())
            except (AttributeError, RuntimeError, NotImplementedError):
                continue
            fastest = min(end - start for start, end in pairwise(times))
            rates[kind] = 2e-9 * rows * inner * columns / fastest
    return rates


def choices(machine: Machine, device: str = "auto") -> list[Choice]:
    """Return the choices for a device. Raises ConfigError and MachineError as `choose_device` and `named_backend`."""
    from indexer.encoders.batching import CPU_TOKENS
    from indexer.encoders.device import choose_device
    from indexer.recipe.config import Precision
    from indexer.recipe.run_options import RunOptions

    options = RunOptions(device=device)
    if choose_device(device).type == "cpu":
        batches = (f"{CPU_TOKENS:,} tokens", "of texts of one length, as far as they go: fits a core's cache")
    else:
        from indexer.encoders.transformer import GPU_TOKENS

        batches = (f"{GPU_TOKENS:,} tokens", "a GPU wants large batches")
    faiss = machine.faiss
    search = f"FAISS, {faiss.level or faiss.options}{faiss.blas and f', matrix products {faiss.blas}'}"
    search += f", {faiss.gpus} GPUs" if faiss.gpus else ""
    return [
        *(Choice(f"encode, {precision}", *_encoder(precision, options, machine)) for precision in get_args(Precision)),
        Choice("encode one or two queries", "numpy, float32",
               "of a BERT in float32: done before torch or OpenVINO are imported; other models as many texts"),
        Choice("batches", *batches),
        Choice("threads", f"{machine.cores.used}", _why_threads(machine.cores)),
        *([] if faiss.error else [Choice("search", search, f"built with: {faiss.options}")]),
        Choice("find near-duplicates", *_join(machine, device)),
    ]  # fmt: skip


def _encoder(precision: Any, options: Any, machine: Machine) -> tuple[str, str]:
    """Return the backend for a precision class, and the reason."""
    from indexer.encoders.device import choose_device, compute_dtype
    from indexer.encoders.load import named_backend, suits_openvino

    device, backend = choose_device(options.device), named_backend(options)
    if precision == "int8":
        if machine.openvino is None or device.type != "cpu":
            why = "it is not installed" if machine.openvino is None else "it runs on the CPU"
            return "nothing", f"OpenVINO computes int8, and {why}"
        return f"openvino, int8 and {_hint(precision)}", f"as the recipe says; {_measured(machine, 'int8', 'float32')}"
    if backend == "numpy":
        return "numpy, float32", "ISOTROPE_BACKEND names it"
    if backend == "openvino" or (backend == "auto" and suits_openvino(options)):
        if machine.openvino is None:
            return "nothing", "ISOTROPE_BACKEND names openvino, which is not installed"
        return f"openvino, {_hint(precision)}", _why_type(precision, _hint(precision) == "bf16", machine)
    dtype = str(compute_dtype(precision, options.half, device)).removeprefix("torch.")
    if device.type == "cpu":
        return f"torch, {dtype} on cpu", _why_type(precision, dtype == "bfloat16", machine)
    return f"torch, {dtype} on {device}", "the GPU is taken wherever there is one"


def _hint(precision: Any) -> str:
    from indexer.encoders.openvino.backend import inference_precision
    from indexer.encoders.openvino.graph import openvino

    return inference_precision(openvino().Core(), precision)


def _why_type(precision: str, half: bool, machine: Machine) -> str:
    if precision == "float32":
        return f"the class float32 is computed in nothing else: {_measured(machine, 'float32').partition(' ')[2]}"
    has = "has instructions for bfloat16" if half else "has no instructions for bfloat16; float32 is of the same class"
    return f"the processor {has}: {_measured(machine, 'bfloat16', 'float32')}"


def _measured(machine: Machine, *kinds: str) -> str:
    rates = {kind: f"{rate:,.0f} GFLOP/s a thread" for kind, rate in machine.rates.items()}
    return ", ".join(f"{kind} {rates.get(kind, 'not at all')}" for kind in kinds)


def _why_threads(cores: Cores) -> str:
    if cores.limit is not None and cores.limit < cores.allowed:
        return f"the container pays for {cores.limit:g} of {cores.allowed} cores; each thread takes whole batches"
    left = "" if cores.allowed == cores.present else f" of {cores.present}, as the process is told"
    return f"one a core{left}; each takes whole batches, so that bits do not depend on how many there are"


def _join(machine: Machine, device: str) -> tuple[str, str]:
    """Return the number type that near-duplicates are found in, and the reason."""
    import numpy as np

    from indexer.errors import ConfigError
    from search.dedup.join.codes import choose_kernel, fit_basis
    from search.dedup.settings import JoinOptions

    try:
        options = JoinOptions(device=device)
    except ConfigError as error:
        return "nothing", str(error)
    rows = np.random.default_rng(0).standard_normal((256, 96)).astype(np.float32)
    kernel = choose_kernel(fit_basis(rows / np.linalg.norm(rows, axis=1, keepdims=True), 0.95), options)
    kind = str(kernel.dtype).removeprefix("torch.")
    if kernel.device.type != "cpu":
        return f"{kind} on {kernel.device}", "the GPU is taken wherever there is one"
    measured = _measured(machine, kind, *(name for name in ("int8", "float32") if name != kind))
    return f"{kind} on cpu", f"int8 where its products are exact and won a race: {measured}"


def problems(machine: Machine) -> list[Problem]:
    """Return the problems, the serious ones first."""
    found = [*_library_problems(machine), *_thread_problems(machine), *_speed_problems(machine)]
    return sorted([*found, *_space_problems(machine)], key=lambda problem: not problem.serious)


def _library_problems(machine: Machine) -> Iterator[Problem]:
    from indexer.lazy import install_line

    if machine.faiss.error:
        what, _, way_out = machine.faiss.error.partition(" Run: ")
        yield Problem(what, f"Run: {way_out}", serious=True)
    if machine.gpus:
        return
    if machine.openvino is None:
        yield Problem("OpenVINO, the faster way to encode on a CPU, is not installed.", install_line("fast"))
    if machine.torch_cuda and machine.nvidia_driver:
        yield Problem(f"torch, built for CUDA {machine.torch_cuda}, sees no GPU, though a driver is there.",
                      "Compare the driver's version (nvidia-smi) and CUDA_VISIBLE_DEVICES.")  # fmt: skip
    elif machine.torch_cuda:
        yield Problem(f"torch is built for CUDA {machine.torch_cuda}, gigabytes of libraries, and there is no GPU.",
                      'Install its CPU wheel, whose address pytorch.org shows under "Get started".')  # fmt: skip
    elif machine.nvidia_driver:
        yield Problem("there is an NVIDIA driver, but torch is built for CPUs.",
                      'Install a wheel of torch for CUDA; pytorch.org shows it under "Get started".')  # fmt: skip


def _thread_problems(machine: Machine) -> Iterator[Problem]:
    cores = machine.cores
    for name in _POOLS:
        given = machine.environment.get(name, "").partition(",")[0]
        if given.isdigit() and int(given) > cores.used:
            yield Problem(f"{name} is {given}, but {cores.used} cores may be used: threads wait for one another.",
                          f"Unset it, or set it to {cores.used}.")  # fmt: skip
    if cores.limit is not None and cores.limit < cores.allowed and "OMP_NUM_THREADS" not in machine.environment:
        what = f"the container pays for {cores.limit:g} cores of {cores.allowed}, which libraries' own threads ignore."
        yield Problem(what, f"Set OMP_NUM_THREADS={cores.used}.")


def _speed_problems(machine: Machine) -> Iterator[Problem]:
    for name in _LIMITING:
        if name in machine.environment:
            what = f"{name}={machine.environment[name]} leaves instructions of this processor out."
            yield Problem(what, f"Unset {name}.")
    if "x86_64" in machine.system and machine.instructions and "avx2" not in machine.instructions:
        yield Problem("the processor has no AVX2: products of matrices take several times as long.",
                      "Take a newer processor for more than a few thousand documents.")  # fmt: skip
    int8, floats = machine.rates.get("int8", 0.0), machine.rates["float32"]
    if machine.openvino is not None and int8 < _GAIN * floats and not machine.gpus:
        what = f"int8 products are hardly faster than float32 here: {int8:,.0f} against {floats:,.0f} GFLOP/s a thread."
        yield Problem(what, 'encoder.precision = "int8" saves no time: leave it at "bfloat16".')


def _space_problems(machine: Machine) -> Iterator[Problem]:
    from search.text import size

    memory = min(machine.memory, machine.memory_limit or machine.memory)
    if memory < _LITTLE_MEMORY:
        yield Problem(f"there are {size(memory)} of memory; torch and a small model take about one GiB.",
                      "Give more, or encode with a static table (configs/static.toml).")  # fmt: skip
    for disk, use, variable in (
        (machine.temporary, "temporary files", "TMPDIR"),
        (machine.cache, "the cache", "ISOTROPE_CACHE"),
    ):
        about, way_out = (
            f"{disk.folder}, the folder of {use},",
            f"Name another folder with the environment variable {variable}.",
        )
        if disk.reason:
            yield Problem(f"{about} cannot be written ({disk.reason}).", way_out)
        elif disk.free < _LITTLE_SPACE:
            yield Problem(f"{about} has {size(disk.free)} left.", f"Free some. {way_out}")
    if 0 <= machine.open_files < _FEW_FILES:  # negative: no limit
        yield Problem(f"at most {machine.open_files} files may be open at a time.", f"ulimit -n {4 * _FEW_FILES}")


@click.command("doctor")
@click.option("--device", default="auto", show_default=True, help="Where it would run: auto, cpu, cuda, cuda:N or mps.")
@json_option
def command(device: str, as_json: bool) -> None:
    """Show the hardware, the chosen backends and any problems.

    Libraries are imported, and products of matrices race for some milliseconds. Exits with 1 if something that is
    needed is broken; what is merely slow is a warning.

    \b
    Examples:
      isotrope doctor
      isotrope doctor --json
    """
    from search.cli.output import print_facts, print_json, print_line

    machine = examine()
    chosen, wrong = choices(machine, device), problems(machine)
    passed = not any(problem.serious for problem in wrong)
    if as_json:
        print_json({
            "found": asdict(machine),
            "choices": [asdict(choice) for choice in chosen],
            "problems": [asdict(problem) for problem in wrong],
            "passed": passed,
        })  # fmt: skip
    else:
        print_facts(_in_words(machine))
        click.echo()
        print_facts([(choice.task, f"{choice.runs}\n{choice.why}") for choice in chosen])
        for problem in wrong:
            click.echo()
            print_line(f"{'broken' if problem.serious else 'warning'}: {problem.what} {problem.way_out}")
    if not passed:
        sys.exit(1)


def _in_words(machine: Machine) -> list[tuple[str, str]]:
    from search.text import size

    cores, limit = machine.cores, machine.memory_limit
    paid = "" if cores.limit is None else f", time for {cores.limit:g}"
    rates = ", ".join(f"{kind} {rate:,.0f}" for kind, rate in machine.rates.items())
    gpus = "; ".join(f"{gpu.name}, {size(gpu.bytes)}, capability {gpu.capability}" for gpu in machine.gpus)
    faiss = machine.faiss.level or machine.faiss.options or "none"
    openvino = "not installed" if machine.openvino is None else ", ".join(machine.openvino)
    facts = [
        ("system", machine.system),
        ("processor", machine.processor),
        ("instructions", ", ".join(machine.instructions) or "not told by the system"),
        ("cores", f"{cores.used} used: {cores.present} present, {cores.allowed} allowed{paid}"),
        ("memory", size(machine.memory) + ("" if limit is None else f", of which {size(limit)} may be used")),
        ("GPUs", gpus or "none that torch sees"),
        ("products", f"{rates} GFLOP/s a thread (torch)"),
        ("libraries use", f"torch {machine.torch_level}; FAISS {faiss}; OpenVINO {openvino}"),
        ("temporary files", f"{machine.temporary.folder}, {size(machine.temporary.free)} free"),
        ("cache", f"{machine.cache.folder}, {size(machine.cache.free)} free"),
        ("open files", f"at most {machine.open_files:,}" if machine.open_files >= 0 else "no limit"),
        ("versions", ", ".join(f"{name} {version}" for name, version in machine.versions.items())),
    ]
    environment = ", ".join(f"{name}={value}" for name, value in machine.environment.items())
    return [*facts, *([("environment", environment)] if environment else [])]
