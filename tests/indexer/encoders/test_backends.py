"""Backends agree within a precision class, give the same bits for any thread count, and the right one is chosen."""

import dataclasses
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer.encoders import load as load_module
from indexer.encoders.batching import BatchedEncoder
from indexer.encoders.load import load_encoder
from indexer.encoders.numpy_bert import NumpyEncoder
from indexer.encoders.openvino.backend import OpenVinoEncoder
from indexer.encoders.protocol import EncodeStats
from indexer.encoders.transformer import TransformerEncoder
from indexer.errors import ConfigError, CorpusError, MachineError, ModelError
from indexer.models.resolution import resolve_spec
from indexer.moments import Moments
from indexer.recipe.config import EncoderConfig, PoolingMode, WhiteningConfig
from indexer.recipe.run_options import RunOptions
from indexer.transforms import fit_whitening
from tests.tiny_models import architecture_cases

WORDS = ("whale", "song", "of", "the", "deep", "sea", "library", "data")
TEXTS = [" ".join(WORDS[(i * j) % 8] for j in range(1 + i % 11)) for i in range(60)]
AVERAGES: list[tuple[int, ...]] = [(0,), (1,), (1, -1)]
POOLINGS: list[PoolingMode] = ["mean", "cls", "max"]
KEYS = list(product(AVERAGES, POOLINGS))
Models = Callable[[str], Path]


def load(folder: Path | str, backend: str, threads: int = 1, **settings: Any) -> BatchedEncoder:
    config = EncoderConfig(model=str(folder), **{"max_length": 64, "precision": "float32", **settings})
    encoder = load_encoder(config, RunOptions(device="cpu", backend=backend, threads=threads))  # type: ignore[arg-type]
    assert isinstance(encoder, BatchedEncoder)
    return encoder


def cosines(rows: Any, others: Any) -> Any:
    return (rows * others).sum(axis=1) / np.linalg.norm(rows, axis=1) / np.linalg.norm(others, axis=1)


@pytest.mark.parametrize("architecture", architecture_cases("bert"))
def test_openvino_gives_what_torch_gives_or_says_that_it_cannot(architecture: str, tiny_model: Models) -> None:
    if architecture in CANNOT:
        with pytest.raises(ModelError, match=r"OpenVINO cannot run this model .* choose RunOptions.backend=.torch"):
            load(tiny_model(architecture), "openvino")
        return
    want = load(tiny_model(architecture), "torch").encode(TEXTS, "document")
    np.testing.assert_allclose(
        load(tiny_model(architecture), "openvino").encode(TEXTS, "document"), want, atol=2e-5, rtol=1e-5
    )


CANNOT = {"xlm"}  # a loop that tracing cannot follow


@pytest.mark.parametrize("backend", ["numpy", pytest.param("openvino", marks=pytest.mark.check)])
def test_every_state_of_a_backend_is_that_of_torch(backend: str, tiny_model: Models) -> None:
    found, want = (load(tiny_model("bert"), name, layers=(0, 1, -1)).states(TEXTS, KEYS) for name in (backend, "torch"))
    assert list(found) == list(want)
    for key in want:
        np.testing.assert_allclose(found[key], want[key], atol=2e-5)


@pytest.mark.parametrize("backend", ["torch", "openvino", "numpy"])
def test_tokenising_first_gives_the_bits_of_encode(backend: str, tiny_model: Models) -> None:
    encoder, log = load(tiny_model("bert"), backend, query_prompt="find: "), EncodeStats()
    rows = encoder.embed(encoder.tokenize(TEXTS, "query"), log)
    assert rows.tobytes() == encoder.encode(TEXTS, "query").tobytes()
    assert len(log.lengths) == len(TEXTS)


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=pytest.mark.check)])
@pytest.mark.parametrize("model", ["bert", pytest.param(EncoderConfig.model, marks=pytest.mark.check)])
def test_openvino_gives_the_same_bits_for_any_number_of_threads(model: str, precision: str, tiny_model: Models) -> None:
    folder = tiny_model(model) if model == "bert" else model
    rows = [
        load(folder, "openvino", threads, precision=precision, batch_tokens=32).encode(TEXTS, "document").tobytes()
        for threads in (1, 2, 3)
    ]
    assert rows[0] == rows[1] == rows[2]


@pytest.mark.parametrize("backend", ["torch", "openvino", "numpy"])
def test_padding_changes_rounding_only(backend: str, tiny_model: Models) -> None:
    """Compare one batch of all lengths, padded to the longest, with one text at a time."""
    encoder = load(tiny_model("bert"), backend, batch_tokens=100_000)
    alone = np.concatenate([encoder.encode([text], "document") for text in TEXTS])
    np.testing.assert_allclose(encoder.encode(TEXTS, "document"), alone, atol=1e-5)


@pytest.mark.check
def test_the_class_bfloat16_keeps_its_bound_on_real_sentences(shared: Path) -> None:
    """Check the bound in the README on a few texts; `benchmarks/encode.py` measures it on thousands."""
    lines = (shared / "data/sts/stsb.tsv").read_text(encoding="utf-8").splitlines()[1:]
    sample = sorted({text for line in lines for text in line.split("\t")[1:]})[:1500]
    moments, texts = Moments.of(load(EncoderConfig.model, "openvino").encode(sample, "document")), sample[::5]
    full = load(EncoderConfig.model, "torch").encode(texts, "document")
    half = {
        backend: load(EncoderConfig.model, backend, precision="bfloat16").encode(some, "document")
        for backend, some in (("torch", texts), ("openvino", texts), ("numpy", texts[:40]))
    }
    for strength, bound in ((0.25, 0.9998), (1.0, 0.999)):
        transform = fit_whitening(moments, WhiteningConfig(strength=strength))
        want = transform.transform(full, "document")
        for backend in ("torch", "openvino"):
            assert cosines(transform.transform(half[backend], "document"), want).min() >= bound
        assert cosines(transform.transform(half["numpy"], "document"), want[:40]).min() >= 1 - 1e-5


def test_openvino_computes_bfloat16_only_where_the_processor_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from indexer.encoders.openvino import backend as module
    from indexer.encoders.openvino.backend import inference_precision

    monkeypatch.setattr(module, "bfloat16_is_faster", lambda: True)

    class Plain:
        def get_property(self, *_: str) -> list[str]:
            return ["FP32", "INT8"]

    class Capable:
        def get_property(self, *_: str) -> list[str]:
            return ["FP32", "BF16"]

    assert inference_precision(Plain(), "bfloat16") == inference_precision(Capable(), "float32") == "f32"
    assert inference_precision(Capable(), "bfloat16") == inference_precision(Capable(), "int8") == "bf16"
    monkeypatch.setattr(module, "bfloat16_is_faster", lambda: False)
    assert inference_precision(Capable(), "bfloat16") == inference_precision(Capable(), "int8") == "f32"


def test_openvino_encodes_where_it_may_use_avx2_only(tiny_model: Models, tmp_path: Path) -> None:
    """On a processor with bfloat16, OpenVINO limited to AVX2 still offers the type but cannot compute in it."""
    folder, few = str(tiny_model("bert")), TEXTS[:5]
    code = f"""
import sys, numpy as np
from indexer.recipe.config import EncoderConfig
from indexer.encoders.load import load_encoder
from indexer.recipe.run_options import RunOptions
config = EncoderConfig(model={folder!r}, max_length=64, precision="bfloat16")
encoder = load_encoder(config, RunOptions(backend="openvino", threads=1))
np.save(sys.argv[1], encoder.encode({few!r}, "document"))
print(encoder.backend)
"""
    want = load(folder, "openvino").encode(few, "document")
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2", "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", code, str(tmp_path / "rows.npy")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "openvino, f32"
    np.testing.assert_allclose(np.load(tmp_path / "rows.npy"), want, atol=2e-5)


def test_a_graph_is_used_once_by_the_thread_that_loads_it_before_lanes_share_it(
    tiny_model: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads that use the bindings for the first time at once can deadlock."""
    from indexer.encoders.openvino import backend as module

    users: list[str] = []
    rows = module._Compiled.rows

    def seen(compiled: Any, batch: Any) -> Any:
        users.append(threading.current_thread().name)
        return rows(compiled, batch)

    monkeypatch.setattr(module._Compiled, "rows", seen)
    encoder = load(tiny_model("bert"), "openvino", threads=2, batch_tokens=16)
    assert users == [threading.current_thread().name]
    encoder.encode(TEXTS, "document")
    assert len({*users}) > 1


def test_running_out_of_memory_halves_a_batch_of_openvino(tiny_model: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, log = load(tiny_model("bert"), "openvino", batch_tokens=10_000), EncodeStats()
    assert isinstance(encoder, OpenVinoEncoder)
    want = encoder.encode(TEXTS, "document")
    compiled = next(iter(encoder.runner._compiled.values()))
    rows, most = compiled.rows, [15]

    def limited(batch: Any) -> Any:
        if len(batch) > most[0]:
            raise RuntimeError("Exception from src/inference: std::bad_alloc")
        return rows(batch)

    monkeypatch.setattr(compiled, "rows", limited)
    np.testing.assert_allclose(encoder.encode(TEXTS, "document", log), want, atol=1e-5)
    assert log.retries > 0
    most[0] = 0
    with pytest.raises(MachineError, match=r"does not fit into memory on the CPU"):
        encoder.encode(["whale"], "document")


@pytest.mark.parametrize("backend", ["openvino", "numpy"])
def test_a_text_that_is_not_unicode_is_named(backend: str, tiny_model: Models) -> None:
    with pytest.raises(CorpusError, match="is not valid Unicode"):
        load(tiny_model("bert"), backend).encode(["b \ud800"], "query")


_CONFIGURED = """
import sys
from indexer.recipe.config import EncoderConfig
from indexer.recipe.run_options import RunOptions
from indexer.encoders.load import load_encoder
config = EncoderConfig(model={model!r}, max_length=64, precision="float32")
"""


@pytest.mark.parametrize("backend", ["openvino", "numpy"])
def test_the_light_backends_import_neither_torch_nor_transformers(backend: str, tiny_model: Models) -> None:
    load(tiny_model("bert"), backend)  # converts the model if it is not cached
    code = _CONFIGURED.format(model=str(tiny_model("bert"))) + (
        f"print(load_encoder(config, RunOptions(backend={backend!r})).encode(['whale'], 'query').shape)\n"
        "print([name for name in ('torch', 'transformers', 'nncf', 'openvino') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["(1, 32)", "['openvino']" if backend == "openvino" else "[]"]


@pytest.mark.check
def test_converting_leaves_neither_torch_nor_transformers_behind(tiny_model: Models, tmp_path: Path) -> None:
    code = _CONFIGURED.format(model=str(tiny_model("bert"))) + (
        "load_encoder(config, RunOptions(backend='openvino'))\n"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    environment = os.environ | {"ISOTROPE_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines() == ["[]"]
    assert len(list(tmp_path.glob("openvino/*/graph.xml"))) == 1  # converted now


@pytest.mark.check
def test_a_conversion_that_is_killed_is_an_error_and_leaves_nothing(
    tiny_model: Models, unset: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from indexer.encoders.openvino import conversion as openvino_conversion

    monkeypatch.setenv("ISOTROPE_CACHE", str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(openvino_conversion, "__name__", __name__)  # the module in which the process finds `convert`
        with pytest.raises(MachineError, match=r"converting .* for OpenVINO was ended by the signal SIGKILL"):
            chosen(tiny_model)
    assert list((tmp_path / "openvino").iterdir()) == []
    assert chosen(tiny_model) is OpenVinoEncoder


def convert(folder: str, **_: Any) -> None:
    """End in the middle of a conversion, as if memory ran out."""
    (Path(folder) / "graph.xml").write_text("<net", encoding="utf-8")
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.check
def test_a_model_that_cannot_be_loaded_is_the_same_error_from_the_process_that_converts(
    tiny_model: Models, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from safetensors.numpy import load_file, save_file

    monkeypatch.setenv("ISOTROPE_CACHE", str(tmp_path / "cache"))
    folder = shutil.copytree(tiny_model("bert"), tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("attention.output.dense.weight"))
    save_file({each: value for each, value in tensors.items() if each != name}, folder / "model.safetensors")
    said = []
    for backend in ("torch", "openvino"):
        with pytest.raises(ModelError, match=r"weights lack 1 tensors .* such as .*attention\.output\.dense") as error:
            load(folder, backend)
        said.append(str(error.value))
    assert said[0] == said[1]


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ISOTROPE_BACKEND")


def chosen(tiny_model: Models, architecture: str = "bert", precision: str = "float32", **options: Any) -> type:
    config = EncoderConfig(model=str(tiny_model(architecture)), max_length=64, precision=precision)  # type: ignore[arg-type]
    return type(load_encoder(config, RunOptions(**options)))


def test_auto_takes_openvino_on_a_cpu_and_numpy_for_a_few_texts(tiny_model: Models, unset: None) -> None:
    assert chosen(tiny_model) is OpenVinoEncoder
    assert chosen(tiny_model, texts="few") is NumpyEncoder
    assert chosen(tiny_model, backend="torch", texts="few") is TransformerEncoder


@pytest.mark.check
def test_auto_takes_openvino_for_a_few_texts_of_a_model_that_numpy_does_not_run(
    tiny_model: Models, unset: None
) -> None:
    assert chosen(tiny_model, "roberta", texts="few") is OpenVinoEncoder


def test_auto_takes_torch_where_openvino_is_not_installed_or_a_gpu_is_there(
    tiny_model: Models, unset: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(load_module, "_has_gpu", lambda: True)
        patch.setattr("indexer.encoders.device._best", lambda: "cpu")  # this machine has no GPU
        assert chosen(tiny_model) is TransformerEncoder
        assert chosen(tiny_model, device="cpu") is OpenVinoEncoder
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == "openvino" else find(name))
    assert chosen(tiny_model) is TransformerEncoder
    with pytest.raises(ConfigError, match=r"pip install '.*isotrope\[fast\]"):
        chosen(tiny_model, backend="openvino")


def test_auto_takes_torch_for_a_model_that_openvino_cannot_run(
    tiny_model: Models, unset: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A failed comparison is cached, so that the model is not converted again."""
    from indexer.encoders.openvino import conversion as openvino_conversion

    proved: list[int] = []

    def off(*_: Any) -> str:
        proved.append(1)
        return "it is off by 3.0e-01"

    monkeypatch.setenv("ISOTROPE_CACHE", str(tmp_path))
    here = lambda _, arguments, task: openvino_conversion.convert(**arguments)  # noqa: E731 - in this process
    monkeypatch.setattr(openvino_conversion, "call_in_child", here)
    monkeypatch.setattr(openvino_conversion, "_difference", off)
    assert chosen(tiny_model) is TransformerEncoder
    with pytest.raises(ModelError, match=r"it is off by 3\.0e-01; .* Fix: choose RunOptions.backend=.torch"):
        chosen(tiny_model, backend="openvino")
    assert len(proved) == 2 * len(openvino_conversion._SHAPES)  # the second time with other masks


def test_a_graph_that_is_not_the_models_does_not_pass_its_proof(tiny_model: Models, tmp_path: Path) -> None:
    import torch

    from indexer.encoders.hf_model import KeyedModel, PooledModel, load_model
    from indexer.encoders.openvino import conversion as backend
    from indexer.encoders.openvino.graph import OpenVinoGraph, openvino

    spec = resolve_spec(EncoderConfig(model=str(tiny_model("bert")), max_length=32))
    loaded = load_model(spec.files, [2], torch.float32)
    pooled = PooledModel(loaded, [2], spec)
    model, other = KeyedModel(pooled, [((2,), "mean")]), KeyedModel(pooled, [((2,), "max")])
    graph = OpenVinoGraph(tmp_path, loaded.dim, loaded.vocabulary, loaded.takes_types)
    assert backend._write_proved(model, graph) == ""
    compiled = openvino().Core().compile_model(graph.path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    with torch.no_grad():
        assert "it is off by" in backend._difference(other, compiled, graph, (3, 17))


def test_the_environment_names_the_backend_and_a_wrong_name_is_refused(
    tiny_model: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISOTROPE_BACKEND", "numpy")
    assert chosen(tiny_model) is NumpyEncoder
    assert chosen(tiny_model, backend="torch") is TransformerEncoder
    monkeypatch.setenv("ISOTROPE_BACKEND", "nympy")
    with pytest.raises(ConfigError, match='ISOTROPE_BACKEND is "nympy"; expected one of auto, torch, openvino, numpy'):
        chosen(tiny_model)


@pytest.mark.parametrize("backend", ["openvino", "numpy"])
def test_a_cpu_backend_refuses_another_device(backend: str, tiny_model: Models) -> None:
    with pytest.raises(ConfigError, match="runs on the CPU"):
        chosen(tiny_model, backend=backend, device="cuda")


@pytest.mark.parametrize(
    ("architecture", "why"),
    [("roberta", 'model type in config.json is "roberta"'), ("t5", 'model type in config.json is "t5"')],
)
def test_numpy_refuses_what_is_not_bert(architecture: str, why: str, tiny_model: Models) -> None:
    with pytest.raises(ModelError, match=why):
        load(tiny_model(architecture), "numpy")


def test_int8_is_computed_by_openvino_after_a_calibration(tiny_model: Models, unset: None) -> None:
    for backend in ("torch", "numpy"):
        with pytest.raises(ConfigError, match="which only the backend openvino computes"):
            load(tiny_model("bert"), backend, precision="int8")
    with pytest.raises(ConfigError, match="build an index with it"):
        chosen(tiny_model, precision="int8")


def test_a_resolved_encoder_is_the_same_whoever_runs_it(tiny_model: Models) -> None:
    config = EncoderConfig(model=str(tiny_model("bert")), max_length=64)
    options = [RunOptions(backend=name) for name in ("torch", "openvino", "numpy")]
    prints = {load_encoder(config, option).spec.fingerprint for option in options}
    assert prints == {resolve_spec(config).fingerprint}
    assert dataclasses.asdict(RunOptions())["backend"] == "auto"
