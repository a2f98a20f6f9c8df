"""Devices and number types: a named device is used or refused, and `auto` selects the best device."""

from pathlib import Path

import pytest
import torch

from indexer.encoders import device as device_module
from indexer.encoders.batching import is_oom
from indexer.encoders.device import choose_device, compute_dtype
from indexer.encoders.load import load_encoder
from indexer.errors import ConfigError, MachineError
from indexer.recipe.config import EncoderConfig
from indexer.recipe.run_options import RunOptions
from indexer.system.processor import bfloat16_is_faster

CPU, CUDA, MPS = torch.device("cpu"), torch.device("cuda"), torch.device("mps")


def machine(monkeypatch: pytest.MonkeyPatch, gpus: int = 0, mps: bool = False, bf16: bool = True) -> None:
    """Simulate a machine with these devices."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: bf16)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(
    ("gpus", "mps", "want"), [(0, False, "cpu"), (0, True, "mps"), (1, False, "cuda"), (2, True, "cuda")]
)
def test_auto_takes_cuda_then_mps_then_the_cpu(
    monkeypatch: pytest.MonkeyPatch, gpus: int, mps: bool, want: str
) -> None:
    machine(monkeypatch, gpus, mps)
    assert choose_device("auto").type == want
    assert choose_device("cpu").type == "cpu"


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "mps"])
def test_a_missing_device_is_an_error_that_says_what_is_there(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    machine(monkeypatch)
    with pytest.raises(MachineError, match=rf'device is "{name}", but this machine has cpu\.'):
        load_encoder(EncoderConfig(), RunOptions(device=name))


def test_a_gpu_beyond_those_there_is_an_error_that_lists_them(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, gpus=2)
    assert choose_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(MachineError, match=r"has cpu, cuda:0, cuda:1\."):
        choose_device("cuda:2")


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "", "CPU", "cpu:0"])
def test_another_name_is_refused_with_the_choices(name: str) -> None:
    with pytest.raises(ConfigError, match="expected auto, cpu, cuda, cuda:N"):
        choose_device(name)


@pytest.mark.parametrize("device", [CPU, CUDA, MPS])
def test_the_class_float32_is_float32_everywhere(device: torch.device) -> None:
    assert compute_dtype("float32", "auto", device) == torch.float32


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_a_half_type_for_the_class_float32_is_refused(half: str) -> None:
    with pytest.raises(ConfigError, match=f'half is "{half}", but encoder.precision is "float32"'):
        compute_dtype("float32", half, CUDA)


@pytest.mark.parametrize(
    ("half", "bf16", "want"),
    [
        ("auto", True, torch.bfloat16),
        ("auto", False, torch.float16),
        ("float16", True, torch.float16),
        ("float16", False, torch.float16),
        ("bfloat16", True, torch.bfloat16),
    ],
)
def test_the_class_bfloat16_on_cuda(monkeypatch: pytest.MonkeyPatch, half: str, bf16: bool, want: torch.dtype) -> None:
    machine(monkeypatch, gpus=1, bf16=bf16)
    assert compute_dtype("bfloat16", half, CUDA) == want


@pytest.mark.parametrize(("has", "want"), [(True, torch.bfloat16), (False, torch.float32)])
def test_the_class_bfloat16_on_the_cpu(has: bool, want: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "bfloat16_is_faster", lambda: has)
    assert compute_dtype("bfloat16", "auto", CPU) == want
    assert compute_dtype("bfloat16", "bfloat16", CPU) == torch.bfloat16  # named explicitly


@pytest.mark.parametrize(
    ("vendor", "flags", "faster"),
    [
        ("AuthenticAMD", "fpu avx512_bf16 sse", True),
        ("GenuineIntel", "fpu avx512_bf16 amx_bf16", True),
        ("GenuineIntel", "fpu avx512_bf16 avx512_fp16", False),  # a virtual machine that hides AMX
        ("GenuineIntel", "fpu avx2", False),
        ("", "asimd bf16", True),
    ],
)
def test_bfloat16_is_read_off_the_processors_flags(
    vendor: str, flags: str, faster: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    about = f"processor: 0\nvendor_id\t: {vendor}\nflags: {flags}\n\nprocessor: 1\n"
    (tmp_path / "cpuinfo").write_text(about, encoding="utf-8")
    monkeypatch.setattr("indexer.system.processor.CPUINFO", tmp_path / "cpuinfo")
    assert bfloat16_is_faster() == faster
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    assert bfloat16_is_faster() == faster
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert not bfloat16_is_faster()


def test_the_class_bfloat16_on_mps() -> None:
    assert compute_dtype("bfloat16", "auto", MPS) == compute_dtype("bfloat16", "float16", MPS) == torch.float16


def test_half_types_that_a_device_does_not_compute_in_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, gpus=1, bf16=False)
    with pytest.raises(ConfigError, match="which a CPU does not support"):
        compute_dtype("bfloat16", "float16", CPU)
    with pytest.raises(ConfigError, match="not supported on MPS"):
        compute_dtype("bfloat16", "bfloat16", MPS)
    with pytest.raises(MachineError, match="this GPU does not support"):
        compute_dtype("bfloat16", "bfloat16", CUDA)


def test_out_of_memory_is_told_from_other_errors() -> None:
    assert is_oom(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_oom(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 byte"))
    assert not is_oom(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_oom(ValueError("not enough memory"))
