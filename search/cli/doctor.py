"""`isotrope doctor`: the hardware, the backends that run on it and why, and any problems."""

import os
import platform
import resource
import shutil
import sys
import tempfile
import timeit
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import click

from indexer.errors import ConfigError, MachineError
from indexer.lazy_imports import install_line
from indexer.system import control_group
from indexer.system.cache import cache_folder
from indexer.system.processor import Processor
from indexer.system.threads import available_cores, single_torch_thread
from indexer.system.versions import library_versions, version_of
from search.cli.options import json_option
from search.formatting import size

# Instructions that decide the speed of matrix products, by their Linux names.
_INSTRUCTIONS = (
    "avx", "fma", "avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16",
    "asimd", "asimddp", "i8mm", "bf16", "sve", "sve2",
)  # fmt: skip
_POOLS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_LIMITING = (
    "ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "FAISS_SIMD_LEVEL", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA",
)  # fmt: skip
_VARIABLES = (*_POOLS, *_LIMITING, "CUDA_VISIBLE_DEVICES", "ISOTROPE_BACKEND", "ISOTROPE_CACHE", "OPENBLAS_CORETYPE",
              "TMPDIR")  # fmt: skip
_DRIVER = Path("/dev/nvidiactl")
_AMPERE = 8  # the first major CUDA capability with bfloat16 products
_PRODUCT = (256, 384, 1536)  # rows and sizes of a layer of a small encoder
_LOW_DISK, _LOW_MEMORY = 1 << 30, 2 << 30
_FEW_FILES = 1024  # open files: a large index needs one a segment, and a server a socket a client
_GAIN = 1.5  # least gain of int8 over float32: with 1.1 encoding took half as long again, with 3.2 half the time


@dataclass(frozen=True)
class Cores:
    """Cores of the machine, those allowed to this process, the container's limit (None: no limit), and those used."""

    present: int
    allowed: int
    limit: float | None
    used: int


@dataclass(frozen=True)
class Disk:
    """A folder for files, its free bytes, and the reason why it is not writable (empty if it is)."""

    folder: str
    free: int
    reason: str = ""


@dataclass(frozen=True)
class Gpu:
    """A GPU that torch sees: its CUDA capability, such as "9.0", and whether its hardware multiplies bfloat16."""

    name: str
    bytes: int
    capability: str
    bfloat16: bool


@dataclass(frozen=True)
class Faiss:
    """The GPUs that FAISS sees, its build options, the instruction sets of FAISS and its BLAS; or the import error."""

    gpus: int = 0
    options: str = ""
    level: str = ""
    blas: str = ""
    error: str = ""


@dataclass(frozen=True)
class Machine:
    """Facts about this machine. Sizes are in bytes; rates are GFLOP/s of torch on one thread."""

    system: str
    processor: str
    kind: str  # its best instruction set for matrix products
    instructions: tuple[str, ...]
    cores: Cores
    memory: int
    memory_limit: int | None
    gpus: tuple[Gpu, ...]
    nvidia_driver: bool
    torch_cuda: str  # CUDA version of the torch build; empty for a CPU build
    torch_level: str  # instruction set of torch's own loops
    openvino: tuple[str, ...] | None  # number types that it computes in hardware; None: not installed
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
    """A problem and its fix. A serious problem stops everything."""

    what: str
    fix: str
    serious: bool = False


def examine() -> Machine:
    """Return the facts. Imports torch, FAISS and OpenVINO, and times matrix products for some milliseconds."""
    import torch

    from indexer.encoders.openvino.graph import openvino

    processor = Processor.here()
    types = openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES") if version_of("openvino") else None
    return Machine(
        system=f"{platform.system()} {platform.release()}, {platform.machine()}",
        processor=processor.name,
        kind=processor.kind,
        instructions=tuple(name for name in _INSTRUCTIONS if name in processor.flags),
        cores=_cores(),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        memory_limit=control_group.memory_limit(),
        gpus=_gpus(),
        nvidia_driver=_DRIVER.exists(),
        torch_cuda=torch.version.cuda or "",
        torch_level=torch.backends.cpu.get_cpu_capability(),
        openvino=None if types is None else tuple(types),
        faiss=_faiss(),
        temporary=_disk(Path(tempfile.gettempdir())),
        cache=_disk(cache_folder()),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        environment={name: os.environ[name] for name in sorted(_VARIABLES) if name in os.environ},
        versions=library_versions(("faiss-gpu-cuvs",)),
        rates=_rates(),
    )


def _cores() -> Cores:
    present = os.sysconf("SC_NPROCESSORS_ONLN")
    affinity = getattr(os, "sched_getaffinity", None)
    return Cores(present, len(affinity(0)) if affinity else present, control_group.cpu_limit(), available_cores())


def _gpus() -> tuple[Gpu, ...]:
    from torch import cuda

    cards = map(cuda.get_device_properties, range(cuda.device_count() if cuda.is_available() else 0))
    return tuple(
        Gpu(card.name, card.total_memory, f"{card.major}.{card.minor}", card.major >= _AMPERE) for card in cards
    )


def _faiss() -> Faiss:
    from threadpoolctl import threadpool_info

    from indexer.ann.faiss_index import import_faiss

    try:
        module: Any = import_faiss()
    except MachineError as error:
        return Faiss(error=str(error))
    config = getattr(module, "SIMDConfig", None)  # FAISS 1.14 and later choose at run time
    kernels = [library.get("architecture") for library in threadpool_info() if "faiss" in library["filepath"]]
    return Faiss(module.get_num_gpus(), module.get_compile_options().strip(), config.get_level_name() if config else "",
                 next(filter(None, kernels), ""))  # fmt: skip


def _disk(folder: Path) -> Disk:
    """Return the facts of a folder, or of the nearest parent that exists."""
    parent = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    try:
        tempfile.TemporaryFile(dir=parent).close()
        reason = ""
    except OSError as error:
        reason = error.strerror or str(error)
    return Disk(str(folder), shutil.disk_usage(parent).free, reason)


def _rate(gflops: float) -> str:
    """Return a rate with two digits: some processors multiply a type at less than 1 GFLOP/s."""
    return f"{gflops:,.0f}" if gflops >= 10 else f"{gflops:.2g}"


def _rates() -> dict[str, float]:
    """Return the GFLOP/s of each number type that torch can multiply."""
    import torch

    rows, inner, columns = _PRODUCT
    rates: dict[str, float] = {}
    with single_torch_thread():
        for kind in ("float32", "bfloat16", "int8"):
            left, right = (torch.ones(shape, dtype=getattr(torch, kind)) for shape in ((rows, inner), (inner, columns)))
            with suppress(AttributeError, RuntimeError, NotImplementedError):
                product = partial(torch._int_mm if kind == "int8" else torch.matmul, left, right)
                rates[kind] = 2e-9 * rows * inner * columns / min(timeit.repeat(product, repeat=4, number=1))
    return rates


def choices(machine: Machine, device: str = "auto") -> list[Choice]:
    """Return the choices for a device. Raises ConfigError and MachineError as `choose_device` and `named_backend`."""
    from indexer.encoders.batching import CPU_TOKENS, GPU_TOKENS
    from indexer.encoders.device import choose_device
    from indexer.recipe.config import Precision

    on_cpu, cores, faiss = choose_device(device).type == "cpu", machine.cores, machine.faiss
    batches = "texts of similar length; a batch fits the cache of a core" if on_cpu else "GPUs need large batches"
    threads = "one per core"
    if cores.limit is not None and cores.limit < cores.allowed:
        threads = f"the container is limited to {cores.limit:g} of {cores.allowed} cores"
    elif cores.allowed != cores.present:
        threads += f"; this process may use {cores.allowed} of {cores.present}"
    search = f"FAISS, {faiss.level or faiss.options}{faiss.blas and f', matrix products {faiss.blas}'}"
    search += f", {faiss.gpus} GPUs" if faiss.gpus else ""
    return [
        *(Choice(f"encode, {precision}", *_encoder(precision, device, machine)) for precision in get_args(Precision)),
        Choice("encode one or two queries", "numpy, float32",
               "for BERT models in float32, to answer before torch or OpenVINO load; other models use the above"),
        Choice("batches", f"{CPU_TOKENS if on_cpu else GPU_TOKENS:,} tokens", batches),
        Choice("threads", f"{cores.used}", f"{threads}; each encodes whole batches, so their number changes no bit"),
        *([] if faiss.error else [Choice("search", search, f"built with: {faiss.options}")]),
        Choice("find near-duplicates", *_join(machine, device)),
    ]  # fmt: skip


def _encoder(precision: Any, device_name: str, machine: Machine) -> tuple[str, str]:
    """Return the backend for a precision class, and the reason."""
    from indexer.encoders.device import choose_device, compute_dtype
    from indexer.encoders.load import named_backend, suits_openvino
    from indexer.encoders.openvino.backend import inference_precision
    from indexer.encoders.openvino.graph import openvino
    from indexer.recipe.run_options import RunOptions

    options = RunOptions(device=device_name)
    device, backend, is_int8 = choose_device(device_name), named_backend(options), precision == "int8"
    if is_int8 and (machine.openvino is None or device.type != "cpu"):
        reason = "is not installed" if machine.openvino is None else "runs only on the CPU"
        return "nothing", f"only OpenVINO computes int8, and OpenVINO {reason}"
    if backend == "numpy" and not is_int8:
        return "numpy, float32", "ISOTROPE_BACKEND names numpy"
    if is_int8 or backend == "openvino" or (backend == "auto" and suits_openvino(options)):
        if machine.openvino is None:
            return "nothing", "ISOTROPE_BACKEND names openvino, which is not installed"
        kind = inference_precision(openvino().Core(), precision)
        runs = f"openvino, {'int8 and ' if is_int8 else ''}{kind}"
    else:
        kind = str(compute_dtype(precision, options.half, device)).removeprefix("torch.")
        runs = f"torch, {kind} on {device}"
        if device.type != "cpu":
            return runs, "a GPU is preferred"
    if is_int8:
        return runs, f"set by the recipe; {_measured(machine, 'int8', 'float32')}"
    if precision == "float32":
        return runs, f"class float32 allows no other type: {_measured(machine, 'float32').partition(' ')[2]}"
    faster = "bfloat16" if kind in ("bf16", "bfloat16") else "float32, of the same class,"
    return runs, f"{faster} is faster with this processor's instructions: {_measured(machine, 'bfloat16', 'float32')}"


def _measured(machine: Machine, *kinds: str) -> str:
    rates = {kind: f"{_rate(rate)} GFLOP/s per thread" for kind, rate in machine.rates.items()}
    return ", ".join(f"{kind} {rates.get(kind, 'not supported')}" for kind in kinds)


def _join(machine: Machine, device: str) -> tuple[str, str]:
    """Return the number type of the near-duplicate search, and the reason."""
    from search.dedup.join.quantised import EXAMPLE_BASIS, choose_kernel
    from search.dedup.settings import JoinOptions

    try:
        options = JoinOptions(device=device)
    except ConfigError as error:
        return "nothing", str(error)
    kernel = choose_kernel(lambda _: EXAMPLE_BASIS, options)
    kind = str(kernel.dtype).removeprefix("torch.")
    if kernel.device.type != "cpu":
        return f"{kind} on {kernel.device}", "a GPU is preferred"
    measured = _measured(machine, kind, *(name for name in ("int8", "float32") if name != kind))
    return f"{kind} on cpu", f"int8 is used if its products are exact and were faster in a trial: {measured}"


def problems(machine: Machine) -> list[Problem]:
    """Return the problems, the serious ones first."""
    cores, environment, cuda, driver = machine.cores, machine.environment, machine.torch_cuda, machine.nvidia_driver
    int8, float32 = machine.rates.get("int8", 0.0), machine.rates["float32"]
    memory = min(machine.memory, machine.memory_limit or machine.memory)
    limit = cores.allowed if cores.limit is None else cores.limit
    no_gpu = not machine.gpus
    faiss, _, command = machine.faiss.error.partition(" Run: ")
    pools = {name: environment.get(name, "").partition(",")[0] for name in _POOLS}
    folders = ((machine.temporary, "temporary files", "TMPDIR"), (machine.cache, "the cache", "ISOTROPE_CACHE"))
    checks = [
        (no_gpu and machine.openvino is None,
         "OpenVINO, the faster backend on CPUs, is not installed.", install_line("fast")),
        (no_gpu and cuda and driver, f"torch, built for CUDA {cuda}, sees no GPU, but an NVIDIA driver is installed.",
         "Check the driver version (nvidia-smi) and CUDA_VISIBLE_DEVICES."),
        (no_gpu and cuda and not driver, f"torch is built for CUDA {cuda} (gigabytes of libraries), but finds no GPU.",
         'Install its CPU wheel, listed at pytorch.org under "Get started".'),
        (no_gpu and driver and not cuda, "an NVIDIA driver is installed, but torch is built for CPUs.",
         'Install a wheel of torch for CUDA, listed at pytorch.org under "Get started".'),
        *((count.isdigit() and int(count) > cores.used,
           f"{name} is {count}, but this process may use {cores.used} cores: threads wait for each other.",
           f"Unset it, or set it to {cores.used}.") for name, count in pools.items()),
        (limit < cores.allowed and "OMP_NUM_THREADS" not in environment,
         f"the container is limited to {limit:g} of {cores.allowed} cores; libraries start a thread per core anyway.",
         f"Set OMP_NUM_THREADS={cores.used}."),
        *((name in environment, f"{name}={environment.get(name)} disables instructions of this processor.",
           f"Unset {name}.") for name in _LIMITING),
        ("x86_64" in machine.system and machine.instructions and "avx2" not in machine.instructions,
         "the processor has no AVX2: matrix products take several times as long.",
         "Use a newer processor for more than a few thousand documents."),
        (no_gpu and machine.openvino is not None and int8 < _GAIN * float32,
         f"int8 products are not clearly faster than float32: {_rate(int8)} and {_rate(float32)} GFLOP/s per thread.",
         'encoder.precision = "int8" saves no time: keep "bfloat16".'),
        (memory < _LOW_MEMORY, f"only {size(memory)} of memory; torch and a small model take about 1 GiB.",
         "Add memory, or encode with a static table (configs/static.toml)."),
        *((disk.reason or disk.free < _LOW_DISK,
           f"{disk.folder}, the folder of {use}, "
           + (f"is not writable ({disk.reason})." if disk.reason else f"has {size(disk.free)} left."),
           f"{'' if disk.reason else 'Free space. '}Set the environment variable {variable} to another folder.")
          for disk, use, variable in folders),
        (0 <= machine.open_files < _FEW_FILES,  # negative: no limit
         f"this process may open only {machine.open_files} files.", f"ulimit -n {4 * _FEW_FILES}"),
    ]  # fmt: skip
    serious = [Problem(faiss, f"Run: {command}", serious=True)] if faiss else []
    return [*serious, *(Problem(what, fix) for applies, what, fix in checks if applies)]


@click.command("doctor")
@click.option("--device", default="auto", show_default=True, help="Device to examine: auto, cpu, cuda, cuda:N or mps.")
@json_option
def command(device: str, as_json: bool) -> None:
    """Show the hardware, the chosen backends and any problems.

    Imports the libraries and times matrix products for some milliseconds. Exits with 1 if a required library is
    broken; slow or scarce hardware is a warning.

    \b
    Examples:
      isotrope doctor
      isotrope doctor --json
    """
    from search.cli.output import print_facts, print_json, print_line

    machine = examine()
    chosen, faults = choices(machine, device), problems(machine)
    passed = not any(problem.serious for problem in faults)
    if as_json:
        lists = {"choices": list(map(asdict, chosen)), "problems": list(map(asdict, faults))}
        print_json({"found": asdict(machine), **lists, "passed": passed})
    else:
        print_facts(_in_words(machine))
        click.echo()
        print_facts([(choice.task, f"{choice.runs}\n{choice.why}") for choice in chosen])
        for problem in faults:
            click.echo()
            print_line(f"{'broken' if problem.serious else 'warning'}: {problem.what} {problem.fix}")
    if not passed:
        sys.exit(1)


def _in_words(machine: Machine) -> list[tuple[str, str]]:
    cores, limit, disks = machine.cores, machine.memory_limit, (machine.temporary, machine.cache)
    temporary, cache = (f"{disk.folder}, {size(disk.free)} free" for disk in disks)
    faiss = machine.faiss.level or machine.faiss.options or "none"
    openvino = "not installed" if machine.openvino is None else ", ".join(machine.openvino)
    gpus = "; ".join(f"{gpu.name}, {size(gpu.bytes)}, capability {gpu.capability}" for gpu in machine.gpus)
    rates = ", ".join(f"{kind} {_rate(rate)}" for kind, rate in machine.rates.items())
    limited = "" if cores.limit is None else f", limited to {cores.limit:g}"
    return [
        ("system", machine.system),
        ("processor", machine.processor),
        ("kind", f"{machine.kind}: compare with the benchmarks of such processors"),
        ("instructions", ", ".join(machine.instructions) or "not reported by the system"),
        ("cores", f"{cores.used} used: {cores.present} present, {cores.allowed} allowed{limited}"),
        ("memory", size(machine.memory) + ("" if limit is None else f", limited to {size(limit)}")),
        ("GPUs", gpus or "none visible to torch"),
        ("products", f"{rates} GFLOP/s per thread (torch)"),
        ("libraries use", f"torch {machine.torch_level}; FAISS {faiss}; OpenVINO {openvino}"),
        ("temporary files", temporary),
        ("cache", cache),
        ("open files", f"at most {machine.open_files:,}" if machine.open_files >= 0 else "no limit"),
        ("versions", ", ".join(f"{name} {version}" for name, version in machine.versions.items())),
        ("environment", ", ".join(f"{name}={value}" for name, value in machine.environment.items())),
    ]
