"""Memory of models: what a model needs is compared with the machine before anything is loaded."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from indexer.encoders import memory
from indexer.encoders.device import compute_dtype
from indexer.encoders.hf_model import load_model
from indexer.encoders.load import load_encoder, size_in_memory
from indexer.encoders.transformer import TransformerEncoder
from indexer.errors import MachineError
from indexer.models.model_files import find_model_files
from indexer.models.resolution import resolve_spec
from indexer.recipe.config import EncoderConfig
from indexer.recipe.run_options import RunOptions

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
TEXTS = ["the whale", "a song of the deep sea"]


@pytest.fixture
def folder(tiny_model: Callable[[str], Path], tmp_path: Path) -> Path:
    """Return a copy of a tiny model, which no other test has loaded."""
    return Path(shutil.copytree(tiny_model("bert"), tmp_path / "copy"))


@pytest.fixture
def half(folder: Path) -> Path:
    """Return the model with its weights stored in bfloat16."""
    weights = {name: tensor.bfloat16() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def load(folder: Path, precision: Any = "float32", **options: Any) -> Any:
    config = EncoderConfig(model=str(folder), max_length=64, precision=precision)
    return load_encoder(config, RunOptions(threads=1, **options))


def machine(monkeypatch: pytest.MonkeyPatch, total: int = 1 << 40, free: int = 1 << 40, cuda: int = 1 << 40) -> None:
    """Simulate a machine with this much memory."""
    monkeypatch.setattr(memory, "total_memory", lambda: total)
    monkeypatch.setattr(memory, "free_memory", lambda: free)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (cuda, 1 << 40))


def test_parameters_are_counted_without_loading_them(folder: Path) -> None:
    loaded = load_model(find_model_files(folder), [2], torch.float32)
    pooler = 32 * 32 + 32  # in the file, and not loaded
    found = memory.parameter_count(find_model_files(folder))
    assert found == sum(tensor.numel() for tensor in loaded.model.parameters()) + pooler


@pytest.mark.parametrize(("precision", "kind", "width"), [("float32", "float32", 4), ("bfloat16", "bfloat16", 2)])
def test_a_model_larger_than_the_free_memory_is_refused_before_it_is_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch, precision: str, kind: str, width: int
) -> None:
    import transformers

    files = find_model_files(folder)
    count = sum(tensor.numel() for tensor in load_model(files, [2], torch.float32).model.parameters())
    options = {} if precision == "float32" else {"half": "bfloat16"}
    machine(monkeypatch, free=width * count)
    load(folder, precision, **options)
    machine(monkeypatch, free=width * count - 1)
    (folder / "README.md").touch()  # the folder is not the one that was loaded
    monkeypatch.setattr(transformers.BertModel, "from_pretrained", None)
    message = rf"copy: the model of {count:,} parameters in {kind} needs 0\.\d GB of memory, but .* free on cpu"
    with pytest.raises(MachineError, match=message) as caught:
        load(folder, precision, **options)
    assert ('RunOptions(half="bfloat16") needs half of it' in str(caught.value)) == (precision == "float32")


def test_layers_that_are_cut_off_need_no_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = find_model_files(folder)
    first = sum(tensor.numel() for tensor in load_model(files, [1], torch.float32).model.parameters())
    machine(monkeypatch, free=4 * first)
    load_model(files, [1], torch.float32)
    with pytest.raises(MachineError, match="parameters"):
        load_model(files, [2], torch.float32)


def test_a_gpu_needs_the_memory_and_the_host_only_for_weights_that_it_converts(
    half: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = find_model_files(half)
    machine(monkeypatch, cuda=10)
    with pytest.raises(MachineError, match=r"in bfloat16 needs .* are free on cuda:0"):
        load_model(files, [2], torch.bfloat16, CUDA)
    machine(monkeypatch, free=10)
    load_model(files, [2], torch.bfloat16, CUDA)
    with pytest.raises(MachineError, match=r"in float16 needs .* are free on cpu"):
        load_model(files, [2], torch.float16, CUDA)


def test_weights_stored_in_the_number_type_are_mapped_and_not_copied(half: Path) -> None:
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("the system does not list mapped files")
    for dtype, mapped in ((torch.bfloat16, True), (torch.float32, False)):
        weight = load_model(find_model_files(half), [2], dtype).model.get_input_embeddings().weight
        lines = [line for line in maps.read_text(encoding="utf-8").splitlines() if str(half) in line]
        ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
        assert any(start <= weight.data_ptr() < end for start, end in ranges) == mapped


@pytest.mark.parametrize(
    ("total", "want"), [(200, torch.float32), (401, torch.float32), (400, torch.bfloat16), (201, torch.bfloat16)]
)
def test_the_class_bfloat16_is_computed_in_bfloat16_where_only_that_fits(
    monkeypatch: pytest.MonkeyPatch, total: int, want: torch.dtype
) -> None:
    monkeypatch.setattr("indexer.encoders.device.bfloat16_is_faster", lambda: False)
    machine(monkeypatch, total)
    assert compute_dtype("bfloat16", "auto", CPU, parameters=100) == want
    assert compute_dtype("float32", "auto", CPU, parameters=100) == torch.float32


def test_a_model_too_large_to_be_converted_for_openvino_goes_to_torch(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ISOTROPE_BACKEND")
    monkeypatch.setattr("indexer.encoders.openvino.conversion.call_in_child", None)  # a conversion would fail
    machine(monkeypatch, total=memory.CONVERSION * memory.parameter_count(find_model_files(folder)))
    assert isinstance(load(folder, device="cpu"), TransformerEncoder)


def test_a_conversion_without_the_free_memory_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ISOTROPE_BACKEND")
    monkeypatch.setenv("ISOTROPE_CACHE", str(tmp_path))  # another test may have converted the model
    monkeypatch.setattr("indexer.encoders.openvino.conversion.call_in_child", None)
    machine(monkeypatch, free=100)
    for backend in ("auto", "openvino"):
        with pytest.raises(MachineError, match=r"converting the model for OpenVINO needs .* RunOptions.backend=.torch"):
            load(folder, backend=backend, device="cpu")


def test_what_a_model_needs_is_told_before_it_is_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = resolve_spec(EncoderConfig(model=str(folder), max_length=64, precision="bfloat16"))
    monkeypatch.setattr(memory, "parameter_count", lambda _: 7_567_295_488)
    cases: list[tuple[bool, dict[str, Any], str]] = [
        (True, {}, "15.1 GB"),
        (False, {}, "30.3 GB"),
        (False, {"half": "bfloat16"}, "15.1 GB"),
        (False, {"device": "cuda"}, "15.1 GB"),
    ]
    machine(monkeypatch)
    for faster, options, size in cases:
        monkeypatch.setattr("indexer.encoders.load.bfloat16_is_faster", lambda faster=faster: faster)
        assert size_in_memory(spec, RunOptions(**options)) == f"7,567 million parameters, {size}"
    machine(monkeypatch, total=24 << 30)
    assert size_in_memory(spec, RunOptions()) == "7,567 million parameters, 15.1 GB"
    assert size_in_memory(resolve_spec(EncoderConfig(kind="vectors", model=""))) == ""


@pytest.mark.parametrize(
    ("device", "dtype", "installed", "flash"),
    [(CUDA, torch.bfloat16, True, True), (CUDA, torch.float16, True, True), (CUDA, torch.bfloat16, False, False),
     (CUDA, torch.float32, True, False), (CPU, torch.bfloat16, True, False)],
)  # fmt: skip
def test_flash_attention_is_used_in_half_precision_on_cuda_where_it_is_installed(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: torch.device,
    dtype: torch.dtype,
    installed: bool,
    flash: bool,
) -> None:
    import transformers

    asked: dict[str, Any] = {}
    real = transformers.BertModel.from_pretrained

    def recorded(*arguments: Any, attn_implementation: str = "", **options: Any) -> Any:
        asked.update(attention=attn_implementation)
        return real(*arguments, **options)

    machine(monkeypatch)
    monkeypatch.setattr("transformers.utils.import_utils.is_flash_attn_2_available", lambda: installed)
    monkeypatch.setattr(transformers.BertModel, "from_pretrained", recorded)
    load_model(find_model_files(folder), [2], dtype, device)
    assert asked == {"attention": "flash_attention_2" if flash else ""}


def test_an_architecture_without_flash_attention_keeps_its_own(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch)
    monkeypatch.setattr("transformers.utils.import_utils.is_flash_attn_2_available", lambda: True)
    loaded = load_model(find_model_files(tiny_model("t5")), [3], torch.bfloat16, CUDA)
    assert "flash" not in loaded.model.config._attn_implementation


def test_half_precision_from_mapped_weights_is_close_to_float32(half: Path) -> None:
    rows, exact = (load(half, "bfloat16", half=kind).encode(TEXTS, "document") for kind in ("bfloat16", "auto"))
    cosines = (rows * exact).sum(axis=1) / np.linalg.norm(rows, axis=1) / np.linalg.norm(exact, axis=1)
    assert cosines.min() > 0.999
