"""What is there: processor, memory, disks, limits, GPUs, libraries and the instructions they use."""

import os
import platform
import resource
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_info

from indexer.ann.faiss_index import import_faiss
from indexer.cache import cache_folder
from indexer.control_group import cpu_limit, memory_limit
from indexer.encoders.product_rates import Rates, measured_rates
from indexer.errors import MachineError
from indexer.parallel import available_cores
from indexer.processor import Processor
from indexer.versions import library_versions, version_of

# Instructions that decide how fast products of matrices are; as Linux names them.
_INSTRUCTIONS = (
    "avx", "fma", "avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16",
    "asimd", "asimddp", "i8mm", "bf16", "sve", "sve2",
)  # fmt: skip
# What limits the threads or the instructions of a library, and what names a backend or a folder.
_VARIABLES = (
    "ATEN_CPU_CAPABILITY", "CUDA_VISIBLE_DEVICES", "DNNL_MAX_CPU_ISA", "FAISS_SIMD_LEVEL",
    "ISOTROPE_BACKEND", "ISOTROPE_CACHE", "MKL_ENABLE_INSTRUCTIONS", "MKL_NUM_THREADS", "OMP_NUM_THREADS",
    "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS", "TMPDIR",
)  # fmt: skip
_DRIVER = Path("/dev/nvidiactl")


@dataclass(frozen=True)
class Cores:
    """How many cores there are, may be run on, are paid for by the container, and are used."""

    present: int
    allowed: int
    limit: float | None  # of the container; None: no limit
    used: int


@dataclass(frozen=True)
class Disk:
    """A folder to write in, and the bytes free there; `reason` says why it cannot be written, or nothing."""

    folder: str
    free: int
    reason: str = ""


@dataclass(frozen=True)
class Gpu:
    """A GPU as torch sees it. `capability` is CUDA's, such as "9.0"; `bfloat16`: in hardware."""

    name: str
    bytes: int
    capability: str
    bfloat16: bool


@dataclass(frozen=True)
class Faiss:
    """GPUs that FAISS sees, how it was built, the instructions that it chose, and the kernels that its own BLAS chose;
    or why it is not there."""

    gpus: int = 0
    options: str = ""
    level: str = ""
    blas: str = ""
    error: str = ""


@dataclass(frozen=True)
class Machine:
    """All that was found. Sizes in bytes, rates as in `product_rates`."""

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
    rates: Rates  # of torch, 10^9 multiplications and additions a second on one thread


def examine() -> Machine:
    """Look around. Takes the imports of torch, FAISS and OpenVINO, and races of some milliseconds."""
    import torch

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
        environment={name: os.environ[name] for name in _VARIABLES if name in os.environ},
        versions=library_versions(("faiss-gpu-cuvs",)),
        rates=measured_rates("torch", ("float32", "bfloat16", "int8")),
    )


def _cores() -> Cores:
    present = os.sysconf("SC_NPROCESSORS_ONLN")
    affinity = getattr(os, "sched_getaffinity", None)
    return Cores(present, len(affinity(0)) if affinity else present, cpu_limit(), available_cores())


def _gpus() -> tuple[Gpu, ...]:
    import torch

    if not torch.cuda.is_available():
        return ()
    found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return tuple(Gpu(one.name, one.total_memory, f"{one.major}.{one.minor}", one.major >= _AMPERE) for one in found)


_AMPERE = 8  # the first generation of CUDA's GPUs that multiplies bfloat16


def _openvino() -> tuple[str, ...] | None:
    if not version_of("openvino"):
        return None
    from indexer.encoders.openvino_graph import openvino

    return tuple(openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))


def _faiss() -> Faiss:
    try:
        module: Any = import_faiss()
    except MachineError as error:
        return Faiss(error=str(error))
    config = getattr(module, "SIMDConfig", None)  # since 1.14 it chooses as it runs
    level = config.get_level_name() if config else ""
    own = [one.get("architecture") for one in threadpool_info() if "faiss" in one["filepath"]]
    blas = next((name for name in own if name), "")
    return Faiss(module.get_num_gpus(), module.get_compile_options().strip(), level, blas)


def _disk(folder: Path) -> Disk:
    """Of a folder that is not there yet, what holds for the one it will be made in."""
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    reason = ""
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
    return Disk(str(folder), shutil.disk_usage(there).free, reason)
