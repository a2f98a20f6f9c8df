"""A folder with only an ONNX file gives the embeddings of torch on the same model's safetensors, without torch."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import huggingface_hub
import numpy as np
import numpy.typing as npt
import onnx
import pytest

from indexer import build_index
from indexer.encoders import load as load_module
from indexer.encoders.load import load_encoder, warm_backend
from indexer.errors import ConfigError, ModelError
from indexer.models import hub
from indexer.models.cross_encoder_spec import resolve_cross_encoder
from indexer.models.hub import locate_model, quiet_transformers
from indexer.models.model_files import find_model_files
from indexer.models.resolution import resolve_spec
from indexer.recipe.config import BasicPooling, BuildConfig, EncoderConfig, Role, WhiteningConfig
from indexer.recipe.ranking import RerankConfig
from indexer.recipe.run_options import RunOptions
from search import SearchEngine
from search.export import export_sentence_transformers
from search.export.convert import convert_to_safetensors
from search.plan.model_shape import model_shape
from tests.documents import DOCUMENTS
from tests.onnx_folders import BERT_INPUTS, export_onnx, move_tensors, name_tensors

TEXTS = [
    "",
    " ",
    "the whale",
    "a long text of the library " * 60,  # is cut
    "鯨の歌は海の底から聞こえる",
    "сколько песен поёт кит",
    "🐳 and a\u0301",
    *("the song of the deep sea " * count for count in range(9)),
]
Folder = Callable[[str], Path]


@pytest.fixture(scope="session")
def onnx_bert(tiny_model: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_onnx(tiny_model("bert"), tmp_path_factory.mktemp("onnx") / "bert")


@pytest.fixture
def folder(onnx_bert: Path, tmp_path: Path) -> Path:
    """Return a copy for a test to modify."""
    return Path(shutil.copytree(onnx_bert, tmp_path / "copy"))


def config(model: Path | str, **settings: Any) -> EncoderConfig:
    return EncoderConfig(model=str(model), **{"precision": "float32", "query_prompt": "find: ", **settings})


def encode(model: Path, backend: Any, role: Role = "document", threads: int = 1, **settings: Any) -> npt.NDArray[Any]:
    options = RunOptions(device="cpu", backend=backend, threads=threads)
    return load_encoder(config(model, **settings), options).encode(TEXTS, role)


def assert_close(rows: npt.NDArray[Any], expected: npt.NDArray[Any]) -> None:
    np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=1e-5)


def without_torch(*arguments: str) -> str:
    """Return the output of a command in a process that cannot import torch."""
    program = "import sys; sys.modules['torch'] = None; import isotrope; isotrope.main()"
    environment = {name: value for name, value in os.environ.items() if name != "ISOTROPE_BACKEND"}
    run = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False,
                         env=environment | {"PYTHONPATH": ":".join(sys.path)})  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize("role", get_args(Role))
@pytest.mark.parametrize("pooling", get_args(BasicPooling))
def test_every_pooling_equals_torch(pooling: Any, role: Any, tiny_model: Folder, onnx_bert: Path) -> None:
    expected = encode(tiny_model("bert"), "torch", role, pooling=pooling)
    assert_close(encode(onnx_bert, "openvino", role, pooling=pooling), expected)


@pytest.mark.parametrize(
    ("architecture", "inputs"),
    [
        ("distilbert", BERT_INPUTS[:2]),
        ("bert-cased", ("position_ids", "attention_mask", "input_ids")),
        ("xlm-roberta", ("input_ids", "attention_mask", "position_ids")),  # positions from 2
        ("gpt2", ("input_ids", "attention_mask", "position_ids")),
        ("modernbert", BERT_INPUTS[:2]),
    ],
)
def test_architectures_and_inputs_equal_torch(
    architecture: str, inputs: tuple[str, ...], tiny_model: Folder, tmp_path: Path
) -> None:
    model = tiny_model(architecture)
    folder = export_onnx(model, tmp_path / "onnx", inputs, output="token_embeddings")
    assert_close(encode(folder, "openvino"), encode(model, "torch"))


def test_other_outputs_are_left_out_and_inputs_get_their_number_type(folder: Path, onnx_bert: Path) -> None:
    model = onnx.load(folder / "onnx/model.onnx")
    model.graph.output.insert(0, onnx.helper.make_tensor_value_info("sentence_embedding", onnx.TensorProto.FLOAT, None))
    model.graph.node.append(onnx.helper.make_node("Identity", ["last_hidden_state"], ["sentence_embedding"]))
    for tensor in model.graph.input:  # int32, converted to the int64 that the nodes read
        for node in model.graph.node:
            node.input[:] = [f"wide_{name}" if name == tensor.name else name for name in node.input]
        cast = onnx.helper.make_node("Cast", [tensor.name], [f"wide_{tensor.name}"], to=onnx.TensorProto.INT64)
        model.graph.node.insert(0, cast)
        tensor.type.tensor_type.elem_type = onnx.TensorProto.INT32
    onnx.save(model, folder / "onnx/model.onnx")
    assert_close(encode(folder, "openvino"), encode(onnx_bert, "openvino"))


def test_the_folders_modules_prompts_and_limit_apply(tiny_model: Folder, tmp_path: Path) -> None:
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, LayerNorm, Pooling, Transformer

    torch.manual_seed(0)
    dense = Dense(32, 20, activation_function=torch.nn.Tanh())
    modules = [Transformer(str(tiny_model("bert"))), Pooling(32, pooling_mode="weightedmean"), dense, LayerNorm(20)]
    with quiet_transformers():
        model = SentenceTransformer(modules=modules, prompts={"query": "find: ", "document": "the "}, device="cpu")
        model.max_seq_length = 24
        model.save_pretrained(str(tmp_path / "saved"), create_model_card=False)
    folder = export_onnx(tmp_path / "saved", tmp_path / "onnx")
    for role in get_args(Role):
        rows = encode(folder, "openvino", role, query_prompt="auto")
        assert rows.shape == (len(TEXTS), 20)
        assert_close(rows, encode(tmp_path / "saved", "torch", role, query_prompt="auto"))


def test_several_poolings_in_one_pass_equal_those_of_their_own(onnx_bert: Path) -> None:
    encoder = load_encoder(config(onnx_bert), RunOptions(backend="openvino", threads=1))
    states = encoder.states(TEXTS, [((-1,), "cls"), ((-1,), "max")])
    for (_, pooling), rows in states.items():
        assert np.array_equal(rows, encode(onnx_bert, "openvino", pooling=pooling))


def test_the_number_of_threads_changes_no_bit(onnx_bert: Path) -> None:
    rows = [encode(onnx_bert, "openvino", threads=threads, batch_tokens=64) for threads in (1, 2, 3)]
    assert np.array_equal(rows[0], rows[1])
    assert np.array_equal(rows[0], rows[2])


def test_a_build_and_a_query_give_the_hits_of_torch_without_torch(
    tiny_model: Folder, onnx_bert: Path, tmp_path: Path
) -> None:
    recipe = BuildConfig(encoder=config(tiny_model("bert")), whitening=WhiteningConfig(strength="none"))
    build_index(DOCUMENTS, tmp_path / "torch", recipe, RunOptions(backend="torch"))
    expected = SearchEngine(tmp_path / "torch", options=RunOptions(backend="torch")).search("songs of whales", k=5)
    lines = [json.dumps({"id": each.id, "title": each.title, "text": each.text}) for each in DOCUMENTS]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
    settings = (f"encoder.model={onnx_bert}", "encoder.precision=float32", "encoder.query_prompt='find: '",
                "whitening.strength=none")  # fmt: skip
    overrides = [word for setting in settings for word in ("--set", setting)]
    without_torch("build", str(tmp_path / "corpus.jsonl"), str(tmp_path / "index"), *overrides)
    hits = json.loads(without_torch("query", str(tmp_path / "index"), "songs of whales", "-k", "5", "--json"))["hits"]
    assert [hit["id"] for hit in hits] == [hit.id for hit in expected]
    np.testing.assert_allclose([hit["score"] for hit in hits], [hit.score for hit in expected], atol=1e-5)


def test_safetensors_come_first_and_a_pickle_last(folder: Path, tiny_model: Folder) -> None:
    shutil.copy(folder / "onnx/model.onnx", folder / "model.onnx")
    (folder / "pytorch_model.bin").touch()
    assert find_model_files(folder).weights == ("onnx/model.onnx",)
    shutil.rmtree(folder / "onnx")
    assert find_model_files(folder).weights == ("model.onnx",)
    assert_close(encode(folder, "openvino"), encode(tiny_model("bert"), "torch"))
    shutil.copy(tiny_model("bert") / "model.safetensors", folder)
    assert find_model_files(folder).weights == ("model.safetensors",)
    for name in ("model.safetensors", "model.onnx"):
        (folder / name).unlink()
    with pytest.raises(ModelError, match=r"has only pytorch_model.bin, a pickle"):
        find_model_files(folder)


def test_tensors_beside_the_file_are_weights_too(folder: Path, onnx_bert: Path) -> None:
    data = move_tensors(folder / "onnx/model.onnx")
    assert np.array_equal(encode(folder, "openvino"), encode(onnx_bert, "openvino"))
    spec = resolve_spec(config(folder))
    assert list(spec.identity.weights) == ["onnx/model.onnx", "onnx/model.onnx_data"]
    data.write_bytes(data.read_bytes()[:-1] + b"\0")
    assert resolve_spec(config(folder)).fingerprint != spec.fingerprint
    data.write_bytes(b"cut")
    with pytest.raises(ModelError, match="OpenVINO cannot run this model"):
        encode(folder, "openvino")
    data.unlink()
    with pytest.raises(ModelError, match=r'lists tensors in "onnx/model.onnx_data"; expected this file beside it'):
        resolve_spec(config(folder))


def test_a_snapshot_of_the_hub_whose_files_are_links_is_read(folder: Path, onnx_bert: Path, tmp_path: Path) -> None:
    data = move_tensors(folder / "onnx/model.onnx")
    snapshot, blobs = (tmp_path / "models--some--model" / name for name in ("snapshots/0123", "blobs"))
    shutil.copytree(folder, snapshot)
    blobs.mkdir()
    for number, name in enumerate(("model.onnx", data.name)):
        (snapshot / "onnx" / name).rename(blobs / str(number))
        (snapshot / "onnx" / name).symlink_to(f"../../../blobs/{number}")
    assert np.array_equal(encode(snapshot, "openvino"), encode(onnx_bert, "openvino"))
    (blobs / "1").rename(tmp_path / "elsewhere")
    (snapshot / "onnx" / data.name).unlink()
    (snapshot / "onnx" / data.name).symlink_to(tmp_path / "elsewhere")
    shutil.rmtree(os.environ["ISOTROPE_CACHE"] + "/onnx")
    with pytest.raises(ModelError, match="outside the model's folder"):
        encode(snapshot, "openvino")


@pytest.mark.parametrize(
    "name", ["../secret", "{}/secret", "../copy/onnx/secret", "a\\b", "..", ".", "", "inside/secret", "\0", "x" * 5000]
)
def test_tensors_elsewhere_are_refused(folder: Path, tmp_path: Path, name: str) -> None:
    data = move_tensors(folder / "onnx/model.onnx")
    (folder / "onnx/inside").mkdir()
    for secret in (tmp_path, folder, folder / "onnx/inside"):
        shutil.copy(data, secret / "secret")
    name_tensors(folder / "onnx/model.onnx", name.format(tmp_path))
    with pytest.raises(ModelError, match=r"outside the model's folder|expected this file beside it"):
        resolve_spec(config(folder))


@pytest.mark.parametrize(
    ("inputs", "changes", "message"),
    [
        (
            BERT_INPUTS,
            {"output": "logits"},
            r"outputs are logits \[\?,\?,32\]; expected last_hidden",
        ),
        (BERT_INPUTS, {"any_size": False}, r"inputs are input_ids \[2,5\], .*; expected .*\[\?,\?\]"),
        (("input_ids",), {}, r"inputs are input_ids \[\?,\?\]; expected input_ids and attention_mask"),
    ],
)
def test_other_inputs_and_outputs_are_refused_by_name(
    inputs: tuple[str, ...], changes: dict[str, Any], message: str, tiny_model: Folder, tmp_path: Path
) -> None:
    folder = export_onnx(tiny_model("bert"), tmp_path / "onnx", inputs, **changes)
    with pytest.raises(ModelError, match=message):
        encode(folder, "openvino")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": (1, -1)}, r"encoder.layers is \[1, -1\]; expected \[-1\]"),
        ({"pooling": "sif"}, 'encoder.pooling is "sif"; expected one of cls'),
        ({"precision": "int8"}, 'encoder.precision is "int8"; expected "bfloat16"'),
    ],
)
def test_settings_that_need_the_model_are_refused(onnx_bert: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_spec(config(onnx_bert, **settings))


def test_only_openvino_runs_it(onnx_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for backend in ("torch", "numpy"):
        with pytest.raises(ConfigError, match=f"backend {backend} reads safetensors.* Fix: choose .* openvino"):
            encode(onnx_bert, backend)
    for options in (RunOptions(half="float16"), RunOptions(compile=True)):
        with pytest.raises(ConfigError, match=r"has only onnx/model.onnx. Fix: leave out (half|compile)"):
            load_encoder(config(onnx_bert), replace(options, backend="openvino"))
    with pytest.raises(ConfigError, match="runs on the CPU"):
        load_encoder(config(onnx_bert), RunOptions(device="cuda", backend="openvino"))
    monkeypatch.delenv("ISOTROPE_BACKEND")
    monkeypatch.setattr(load_module, "_has_gpu", lambda: True)
    warm_backend(resolve_spec(config(onnx_bert)))  # converts nothing
    for texts in ("many", "few"):
        encoder = load_encoder(config(onnx_bert), RunOptions(texts=texts))
        assert encoder.backend == "openvino, f32"
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"has only onnx/model.onnx.* Install it: pip install 'openvino"):
        load_encoder(config(onnx_bert))


def test_other_commands_say_what_they_need(onnx_bert: Path, tiny_model: Folder, tmp_path: Path) -> None:
    planned, counted = model_shape(config(onnx_bert)), model_shape(config(tiny_model("bert")))
    assert replace(planned, weights=counted.weights) == counted  # these are counted in the headers of safetensors
    with pytest.raises(ModelError, match=r"nothing to convert; OpenVINO runs onnx/model.onnx as it is"):
        convert_to_safetensors(onnx_bert, tmp_path / "converted")
    with pytest.raises(ModelError, match=r"has only onnx/model.onnx; expected a cross-encoder with model.safetensors"):
        resolve_cross_encoder(RerankConfig(model=str(onnx_bert)))
    build_index(DOCUMENTS, tmp_path / "index", BuildConfig(encoder=config(onnx_bert)), RunOptions(backend="openvino"))
    with pytest.raises(ConfigError, match=r"weights are an ONNX file.*Fix: export the vectors with export_parquet"):
        export_sentence_transformers(tmp_path / "index", tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_the_hub_is_asked_for_onnx_only_without_safetensors(
    folder: Path, tiny_model: Folder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    asked: list[list[str]] = []
    answer = tiny_model("bert")

    def snapshot(*_: Any, allow_patterns: list[str], **__: Any) -> str:
        asked.append(allow_patterns)
        return str(answer)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    locate_model("some/model")
    assert asked == [hub.DOWNLOADED]
    answer = folder
    assert locate_model("some/model").folder == folder
    assert asked[1:] == [hub.DOWNLOADED, ["onnx/model.onnx*", "model.onnx*"]]
