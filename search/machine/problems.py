"""What is amiss on a machine, and the way out. Serious is what nothing can run with."""

from collections.abc import Callable
from dataclasses import dataclass

from indexer.lazy import install_line
from search.machine.found import Disk, Machine
from search.text import size

_LITTLE_SPACE = 1 << 30
_LITTLE_MEMORY = 2 << 30
_FEW_FILES = 1024  # open at a time: a large index has a file a segment, and a server a socket a client
_GAIN = 1.5  # of int8 products over float32; at 1.1 encoding took half as long again, at 3.2 it took half the time
_POOLS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_LIMITING = (
    "ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "FAISS_SIMD_LEVEL", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA",
)  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """What was found, and what to do about it."""

    what: str
    way_out: str
    serious: bool = False


def problems(machine: Machine) -> list[Problem]:
    """All of them, the serious ones first."""
    found = [problem for check in _CHECKS for problem in check(machine)]
    return sorted(found, key=lambda problem: not problem.serious)


def _faiss(machine: Machine) -> list[Problem]:
    if not machine.faiss.error:
        return []
    what, _, way_out = machine.faiss.error.partition(" Run: ")
    return [Problem(what, f"Run: {way_out}", serious=True)]


def _openvino(machine: Machine) -> list[Problem]:
    if machine.openvino is not None or machine.gpus:
        return []
    return [Problem("OpenVINO, the faster way to encode on a CPU, is not installed.", install_line("fast"))]


def _torch(machine: Machine) -> list[Problem]:
    if machine.gpus:
        return []
    if machine.torch_cuda and machine.nvidia_driver:
        return [Problem(f"torch, built for CUDA {machine.torch_cuda}, sees no GPU, though a driver is there.",
                        "Compare the driver's version (nvidia-smi) and CUDA_VISIBLE_DEVICES.")]  # fmt: skip
    if machine.torch_cuda:
        return [Problem(f"torch is built for CUDA {machine.torch_cuda}, gigabytes of libraries, and there is no GPU.",
                        'Install its CPU wheel, whose address pytorch.org shows under "Get started".')]  # fmt: skip
    if machine.nvidia_driver:
        return [Problem("there is an NVIDIA driver, but torch is built for CPUs.",
                        'Install a wheel of torch for CUDA; pytorch.org shows it under "Get started".')]  # fmt: skip
    return []


def _threads(machine: Machine) -> list[Problem]:
    cores, found = machine.cores, list[Problem]()
    for name in _POOLS:
        given = machine.environment.get(name, "").partition(",")[0]
        if given.isdigit() and int(given) > cores.used:
            what = f"{name} is {given}, but {cores.used} cores may be used: threads wait for one another."
            found.append(Problem(what, f"Unset it, or set it to {cores.used}."))
    if cores.limit is not None and cores.limit < cores.allowed and "OMP_NUM_THREADS" not in machine.environment:
        what = f"the container pays for {cores.limit:g} cores of {cores.allowed}, which libraries' own threads ignore."
        found.append(Problem(what, f"Set OMP_NUM_THREADS={cores.used}."))
    return found


def _instructions(machine: Machine) -> list[Problem]:
    found = []
    for name in _LIMITING:
        if name in machine.environment:
            what = f"{name}={machine.environment[name]} leaves instructions of this processor out."
            found.append(Problem(what, f"Unset {name}."))
    if "x86_64" in machine.system and machine.instructions and "avx2" not in machine.instructions:
        what = "the processor has no AVX2: products of matrices take several times as long."
        found.append(Problem(what, "Take a newer processor for more than a few thousand documents."))
    int8, floats = machine.rates.get("int8", 0.0), machine.rates["float32"]
    if machine.openvino is not None and int8 < _GAIN * floats and not machine.gpus:
        what = f"int8 products are hardly faster than float32 here: {int8:,.0f} against {floats:,.0f} GFLOP/s a thread."
        found.append(Problem(what, 'encoder.precision = "int8" saves no time: leave it at "bfloat16".'))
    return found


def _memory(machine: Machine) -> list[Problem]:
    bytes_ = min(machine.memory, machine.memory_limit or machine.memory)
    if bytes_ >= _LITTLE_MEMORY:
        return []
    return [Problem(f"there are {size(bytes_)} of memory; torch and a small model take about one GiB.",
                    "Give more, or encode with a static table (configs/static.toml).")]  # fmt: skip


def _disks(machine: Machine) -> list[Problem]:
    return [
        *_disk(machine.temporary, "temporary files", "TMPDIR"),
        *_disk(machine.cache, "the cache", "ISOTROPE_CACHE"),
    ]


def _disk(disk: Disk, use: str, variable: str) -> list[Problem]:
    way_out = f"Name another folder with the environment variable {variable}."
    if disk.reason:
        return [Problem(f"{disk.folder}, the folder of {use}, cannot be written ({disk.reason}).", way_out)]
    if disk.free < _LITTLE_SPACE:
        return [Problem(f"{disk.folder}, the folder of {use}, has {size(disk.free)} left.", f"Free some. {way_out}")]
    return []


def _files(machine: Machine) -> list[Problem]:
    if machine.open_files < 0 or machine.open_files >= _FEW_FILES:  # negative: no limit
        return []
    return [Problem(f"at most {machine.open_files} files may be open at a time.", f"ulimit -n {4 * _FEW_FILES}")]


_CHECKS: list[Callable[[Machine], list[Problem]]] = [
    _faiss, _openvino, _torch, _threads, _instructions, _memory, _disks, _files,
]  # fmt: skip
