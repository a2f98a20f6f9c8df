"""The facts of a machine: choices agree with what runs, and each problem is found, with a fix."""

import dataclasses
import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from indexer.encoders.load import load_encoder
from indexer.errors import ConfigError, MachineError
from indexer.recipe.config import EncoderConfig
from indexer.recipe.run_options import RunOptions
from indexer.system import control_group
from indexer.system import threads as parallel
from indexer.system.threads import available_cores
from search.cli import doctor
from search.cli.doctor import Choice, Cores, Disk, Faiss, Gpu, Machine, choices, examine, problems

GIB = 1 << 30
FINE = Machine(
    system="Linux 6.1, x86_64",
    processor="Example 9000",
    kind="VNNI",
    instructions=("avx", "fma", "avx2", "avx512f", "avx512_vnni"),
    cores=Cores(8, 8, None, 8),
    memory=16 * GIB,
    memory_limit=None,
    gpus=(),
    nvidia_driver=False,
    torch_cuda="",
    torch_level="AVX512",
    openvino=("FP32", "INT8"),
    faiss=Faiss(0, "OPTIMIZE AVX2", "AVX2"),
    temporary=Disk("/tmp", 9 * GIB),  # noqa: S108 - a name
    cache=Disk("/home/u/.cache/isotrope", 9 * GIB),
    open_files=4096,
    environment={},
    versions={"torch": "2.13.0"},
    rates={"float32": 90.0, "bfloat16": 17.0, "int8": 300.0},
)
GPU = Gpu("NVIDIA Example", 80 * GIB, "9.0", True)


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ISOTROPE_BACKEND", raising=False)


def but(**changed: Any) -> Machine:
    """Return a machine whose only problem is this change."""
    return dataclasses.replace(FINE, **changed)


def test_a_machine_in_order_has_no_problems() -> None:
    assert problems(FINE) == []
    assert problems(but(gpus=(GPU,), torch_cuda="13.0", nvidia_driver=True, openvino=None)) == []


@pytest.mark.parametrize(
    ("machine", "what", "fix"),
    [
        (but(openvino=None), "OpenVINO, .* is not installed", r"pip install '.*isotrope\[fast\]"),
        (but(torch_cuda="13.0"), "built for CUDA 13.0 .* finds no GPU", "CPU wheel"),
        (but(torch_cuda="13.0", nvidia_driver=True), "sees no GPU, but an NVIDIA driver is installed", "nvidia-smi"),
        (but(nvidia_driver=True), "torch is built for CPUs", "wheel of torch for CUDA"),
        (but(environment={"OMP_NUM_THREADS": "9"}), "OMP_NUM_THREADS is 9, but .* 8 cores", "set it to 8"),
        (but(cores=Cores(8, 8, 1.5, 2)), "limited to 1.5 of 8 cores", "OMP_NUM_THREADS=2"),
        (
            but(environment={"ONEDNN_MAX_CPU_ISA": "AVX2"}),
            "ONEDNN_MAX_CPU_ISA=AVX2 disables",
            "Unset ONEDNN_MAX_CPU_ISA",
        ),
        (but(instructions=("avx",)), "no AVX2", "newer processor"),
        (but(rates={"float32": 66.0, "int8": 72.0}), "int8 products are not clearly faster", 'keep "bfloat16"'),
        (but(memory_limit=GIB), "1.1 GB of memory", "static table"),
        (but(memory=GIB), "1.1 GB of memory", "static table"),
        (but(temporary=Disk("/tmp", 5000)), "/tmp, .* has 5.0 kB left", "TMPDIR"),  # noqa: S108
        (but(cache=Disk("/c", 9 * GIB, "Read-only file system")), "/c, .*Read-only file system", "ISOTROPE_CACHE"),
        (but(open_files=256), "may open only 256 files", "ulimit -n 4096"),
    ],
)
def test_slow_or_scarce_hardware_is_a_warning_with_a_fix(machine: Machine, what: str, fix: str) -> None:
    import re

    (problem,) = problems(machine)
    assert re.search(what, problem.what), problem
    assert re.search(fix, problem.fix), problem
    assert not problem.serious


def test_without_faiss_nothing_works_and_that_comes_first() -> None:
    error = "faiss-cpu and faiss-gpu are both installed; they overwrite each other. Run: pip uninstall -y them."
    first, second = problems(but(faiss=Faiss(error=error), openvino=None))
    assert first.serious
    assert not second.serious
    assert first.what == "faiss-cpu and faiss-gpu are both installed; they overwrite each other."
    assert first.fix == "Run: pip uninstall -y them."
    assert "search" not in runs(but(faiss=Faiss(error=error)))


def runs(machine: Machine, device: str = "auto") -> dict[str, str]:
    return {choice.task: choice.runs for choice in choices(machine, device)}


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=pytest.mark.check)])
def test_the_encoder_shown_is_the_encoder_that_runs(precision: Any, tiny_model: Callable[[str], Path]) -> None:
    shown = runs(examine())
    config = EncoderConfig(model=str(tiny_model("bert")), max_length=32, precision=precision)
    assert load_encoder(config, RunOptions()).backend == shown[f"encode, {precision}"]
    few = load_encoder(EncoderConfig(model=str(tiny_model("bert")), max_length=32), RunOptions(texts="few"))
    assert few.backend == shown["encode one or two queries"]


def test_torch_is_shown_if_openvino_is_missing_or_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("ISOTROPE_BACKEND", "torch")
        assert runs(FINE)["encode, float32"] == "torch, float32 on cpu"
    monkeypatch.setattr("indexer.encoders.load.importlib.util.find_spec", lambda *_: None)
    shown = runs(but(openvino=None))
    assert shown["encode, float32"] == "torch, float32 on cpu"
    assert shown["encode, int8"] == "nothing"


def test_a_gpu_is_preferred_and_has_larger_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda")
    kernel = SimpleNamespace(dtype=torch.bfloat16, device=device)
    monkeypatch.setattr("indexer.encoders.device.choose_device", lambda _: device)
    monkeypatch.setattr("search.dedup.join.quantised.choose_kernel", lambda *_: kernel)
    monkeypatch.setattr("indexer.encoders.load.suits_openvino", lambda _: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    shown = runs(but(gpus=(GPU,)), "cuda")
    assert shown["encode, bfloat16"] == "torch, bfloat16 on cuda"
    assert shown["encode, int8"] == "nothing"
    assert shown["batches"] == "32,768 tokens"
    assert shown["find near-duplicates"] == "bfloat16 on cuda"


def test_a_choice_of_number_types_is_shown_with_the_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISOTROPE_BACKEND", "torch")
    for faster in (False, True):
        monkeypatch.setattr("indexer.encoders.device.bfloat16_is_faster", lambda faster=faster: faster)
        machine = but(rates={"float32": 90.0, "bfloat16": 700.0 if faster else 17.0})
        (choice,) = (choice for choice in choices(machine) if choice.task == "encode, bfloat16")
        assert choice.runs == f"torch, {'bfloat16' if faster else 'float32'} on cpu"
        assert "float32 90 GFLOP/s per thread" in choice.why
        assert f"bfloat16 {700 if faster else 17} GFLOP/s" in choice.why


def test_an_absent_device_is_rejected() -> None:
    with pytest.raises(MachineError, match="this machine has"):
        choices(FINE, "cuda:99")
    with pytest.raises(ConfigError, match="expected auto, cpu"):
        choices(FINE, "gpu")


@pytest.mark.parametrize(
    ("cores", "why"),
    [
        (Cores(8, 8, None, 8), "one per core; each encodes whole batches"),
        (Cores(8, 2, None, 2), "one per core; this process may use 2 of 8"),
        (Cores(8, 8, 1.5, 2), "limited to 1.5 of 8 cores"),
    ],
)
def test_the_number_of_threads_is_explained(cores: Cores, why: str) -> None:
    choice = next(choice for choice in choices(but(cores=cores)) if choice.task == "threads")
    assert choice == Choice("threads", str(cores.used), choice.why)
    assert why in choice.why


def test_the_facts_are_those_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ISOTROPE_CACHE", str(tmp_path / "not" / "yet"))
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    machine = examine()
    assert machine.cores.used == available_cores() <= machine.cores.allowed <= machine.cores.present
    assert machine.cache.folder == str(tmp_path / "not" / "yet")
    assert not machine.cache.reason
    assert not (tmp_path / "not").exists()  # looking changes nothing
    assert machine.environment["OMP_NUM_THREADS"] == "77"
    assert machine.faiss.error == ""
    assert machine.faiss.options.startswith("OPTIMIZE")
    assert machine.rates["float32"] > 0


@pytest.mark.parametrize(("limit", "used"), [(None, 3), (1.5, 2), (8.0, 3)])
def test_cores_are_those_that_the_process_may_use(
    limit: float | None, used: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`PYTHON_CPU_COUNT` and `-X cpu_count` change Python's count, not this one."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_NPROCESSORS_ONLN": 64}[name])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 60}, raising=False)
    for module in (parallel, control_group):
        monkeypatch.setattr(module, "cpu_limit", lambda: limit)
    assert doctor._cores() == Cores(64, 3, limit, used)


def test_a_folder_that_cannot_be_written_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert doctor._disk(tmp_path).reason == "Read-only file system"


def test_gpus_are_shown_with_the_types_that_they_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [SimpleNamespace(name="T4", total_memory=16 * GIB, major=7, minor=5),
             SimpleNamespace(name="H100", total_memory=80 * GIB, major=9, minor=0)]  # fmt: skip
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(cards))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: cards[index])
    assert doctor._gpus() == (Gpu("T4", 16 * GIB, "7.5", False), Gpu("H100", 80 * GIB, "9.0", True))
