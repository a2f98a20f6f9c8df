"""Finding a model's files: folders, the packaged weights, the hub; safetensors only; converting pickles."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from indexer.encoders.load import load_encoder
from indexer.errors import ExistsError, ModelError
from indexer.models import hub
from indexer.models.hub import DEMO_SHA256, locate_model
from indexer.models.resolution import resolve_spec
from indexer.recipe.config import EncoderConfig
from indexer.recipe.run_options import RunOptions
from search.export.convert import convert_to_safetensors

TEXTS = ["the whale", "a song of the deep sea", "data"]
DEMO_ID = "sentence-transformers/all-MiniLM-L6-v2"


@pytest.fixture
def folder(tiny_model: Callable[[str], Path], tmp_path: Path) -> Path:
    """Return a copy of a tiny model for a test to modify."""
    return Path(shutil.copytree(tiny_model("bert"), tmp_path / "copy"))


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Set up an empty cache and no network, independent of the machine."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))


def config(folder: Path | str, **settings: Any) -> EncoderConfig:
    return EncoderConfig(model=str(folder), **{"max_length": 64, **settings})


def encode(folder: Path, **settings: Any) -> Any:
    return load_encoder(config(folder, **settings), RunOptions(threads=1)).encode(TEXTS, "document")


def pickled(folder: Path) -> dict[str, torch.Tensor]:
    """Leave only pytorch_model.bin as weights in the folder; return its tensors."""
    tensors = load_file(folder / "model.safetensors")
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return tensors


def test_a_relative_folder_without_a_dot_is_a_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert locate_model("copy").folder == locate_model("./copy").folder == folder


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "~/nowhere/at/all"])
def test_a_path_that_is_no_folder_is_refused_without_asking_the_hub(name: str) -> None:
    with pytest.raises(ModelError, match="no such folder"):
        resolve_spec(config(name))


def test_an_unknown_id_without_a_network_names_the_ways_out(offline: None) -> None:
    with pytest.raises(ModelError, match=r"HF_HUB_OFFLINE is set.*config.encoder.model to build") as caught:
        resolve_spec(config("nobody/no-such-model"))
    assert "\n" not in str(caught.value)
    assert "isotrope[demo]" not in str(caught.value)


def test_minilm_without_the_package_names_the_package(offline: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "DEMO_PACKAGE", "no_such_package")
    with pytest.raises(ModelError, match=r"pip install '.*isotrope\[demo\]"):
        resolve_spec(EncoderConfig())


def test_a_name_that_is_no_id_is_refused_in_one_line(offline: None) -> None:
    with pytest.raises(ModelError, match="cannot be downloaded"):
        resolve_spec(config("a/b/c"))


class Response:
    """A stand-in for the response in the hub's errors."""

    headers: dict[str, str] = {}
    request = None


@pytest.mark.parametrize(
    ("kind", "words"), [("GatedRepoError", "is gated"), ("RepositoryNotFoundError", "is not on the")]
)
def test_what_the_hub_answers_is_told(monkeypatch: pytest.MonkeyPatch, kind: str, words: str) -> None:
    def answer(*_: Any, local_files_only: bool = False, **__: Any) -> str:
        if local_files_only:
            raise huggingface_hub.errors.LocalEntryNotFoundError("not cached")
        error: Any = getattr(huggingface_hub.errors, kind)
        raise error("no", response=Response())

    monkeypatch.setattr(huggingface_hub, "snapshot_download", answer)
    with pytest.raises(ModelError, match=words):
        resolve_spec(config("some/model"))


def test_a_cached_snapshot_is_used_and_a_half_filled_one_is_fetched(
    folder: Path, monkeypatch: pytest.MonkeyPatch, offline: None, tmp_path: Path
) -> None:
    (tmp_path / "cache/models--some--model").mkdir(parents=True)
    asked: list[bool] = []

    def snapshot(*_: Any, local_files_only: bool = False, **__: Any) -> str:
        asked.append(local_files_only)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert locate_model("some/model").folder == folder
    assert asked == [True]
    (folder / "model.safetensors").unlink()
    locate_model("some/model")
    assert asked == [True, True, False, False]  # the second time for ONNX


@pytest.mark.parametrize("name", [DEMO_ID, "all-MiniLM-L6-v2"])
def test_the_packaged_minilm_is_found_by_either_name(offline: None, name: str) -> None:
    found = locate_model(name)
    assert found.pinned == DEMO_SHA256
    assert resolve_spec(EncoderConfig(model=name)).fingerprint == resolve_spec(EncoderConfig()).fingerprint


@pytest.mark.parametrize("name", ["config.json", "1_Pooling/config.json"])
def test_a_packaged_file_with_other_bytes_is_refused(offline: None, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(hub, "DEMO_SHA256", {**DEMO_SHA256, name: "0" * 64})
    with pytest.raises(ModelError, match=rf"{name}: the packaged model differs from the one .* expected 0000"):
        resolve_spec(EncoderConfig())


def test_a_folder_without_config_or_tokenizer_says_what_was_found(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"no tokenizer \(found config\.json, model\.safetensors, .*spiece\.model"):
        resolve_spec(config(folder))
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"no config\.json \(found model\.safetensors"):
        resolve_spec(config(folder))


def test_a_folder_of_many_files_that_is_no_model_is_not_listed_whole(tmp_path: Path) -> None:
    for name in (*(f"{number}.log" for number in range(40)), "notes.txt"):
        (tmp_path / name).touch()
    with pytest.raises(ModelError, match=r"no config\.json \(found 41 files and folders, among them notes\.txt\)"):
        resolve_spec(config(tmp_path))


@pytest.mark.parametrize("text", ["{", "[]", "\x00"])
def test_a_malformed_config_is_refused_by_name(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match=r"config\.json: (cannot be read as JSON|is a JSON list)"):
        resolve_spec(config(folder))


def test_a_folder_with_only_a_pickle_is_refused_with_the_converter_named(folder: Path) -> None:
    pickled(folder)
    with pytest.raises(ModelError, match=r"only pytorch_model\.bin.* isotrope convert .*copy -o NEW_FOLDER"):
        resolve_spec(config(folder))


def test_an_adapter_is_refused(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ModelError, match="PEFT adapter"):
        resolve_spec(config(folder))


def shard(folder: Path) -> dict[str, str]:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(sorted(tensors))}
    for file in set(weight_map.values()):
        part = {name: tensor for name, tensor in tensors.items() if weight_map[name] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return weight_map


def test_sharded_weights_encode_the_same_and_every_shard_is_needed(folder: Path) -> None:
    want = encode(folder)
    shard(folder)
    assert np.array_equal(encode(folder), want)
    assert len(resolve_spec(config(folder)).identity.weights) == 3
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"1 of 2 weight shards are missing: model-00002"):
        resolve_spec(config(folder))


@pytest.mark.parametrize("backend", ["torch", pytest.param("openvino", marks=pytest.mark.check)])
def test_a_model_that_transformers_saved_in_shards_encodes_the_same(
    folder: Path, tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISOTROPE_BACKEND", backend)
    want = encode(folder, precision="float32")
    model = AutoModel.from_pretrained(folder, local_files_only=True)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="20KB")
    assert np.array_equal(encode(folder, precision="float32"), want)
    identity = resolve_spec(config(folder)).identity
    assert len(identity.weights) > 3
    last = folder / max(name for name in identity.weights if name.endswith(".safetensors"))
    data = bytearray(last.read_bytes())
    data[-1] ^= 1
    last.write_bytes(bytes(data))
    assert resolve_spec(config(folder)).identity.weights != identity.weights
    with pytest.raises(ModelError, match="its weights are in several files"):
        load_encoder(config(folder), RunOptions(backend="numpy"))


def test_an_index_that_leads_out_of_the_folder_is_refused(folder: Path) -> None:
    weight_map = shard(folder)
    index = {"weight_map": {**weight_map, "stray": "../elsewhere.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(ModelError, match="outside the model's folder"):
        resolve_spec(config(folder))


def test_a_missing_weight_is_refused_not_made_up(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    gone = next(name for name in tensors if "layer.1" in name)
    save_file({k: v for k, v in tensors.items() if k != gone}, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lack 1 tensors .* such as .*layer\.1"):
        encode(folder)
    assert np.isfinite(encode(folder, layers=(1,))).all()  # block 1 exists, and block 2 is not needed


@pytest.mark.parametrize(
    "change", [{"model_type": "no-such-model"}, {"hidden_size": 48}, {"model_type": "bart"}, {"hidden_size": "x"}]
)
def test_weights_or_architectures_that_do_not_fit_are_a_model_error(folder: Path, change: dict[str, Any]) -> None:
    data = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**data, **change}), encoding="utf-8")
    with pytest.raises(ModelError, match="copy"):
        encode(folder)


def test_truncated_safetensors_are_a_model_error(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelError, match=r"model\.safetensors: cannot be read as safetensors: .* is truncated"):
        encode(folder)


def test_remote_code_is_never_run_but_its_mention_does_no_harm(folder: Path) -> None:
    want = encode(folder)
    data = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    auto_map = {"AutoModel": "modeling_evil.EvilModel", "AutoConfig": "modeling_evil.EvilConfig"}
    (folder / "config.json").write_text(json.dumps({**data, "auto_map": auto_map}), encoding="utf-8")
    (folder / "modeling_evil.py").write_text("raise SystemExit('ran')", encoding="utf-8")
    assert np.array_equal(encode(folder), want)


def test_a_converted_folder_encodes_the_same(folder: Path, tmp_path: Path) -> None:
    want = encode(folder)
    pickled(folder)
    convert_to_safetensors(folder, tmp_path / "new")
    assert np.array_equal(encode(tmp_path / "new"), want)
    assert not list((tmp_path / "new").glob("*.bin"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "new"]


def test_sharded_pickles_with_shared_tensors_are_converted(folder: Path, tmp_path: Path) -> None:
    want = encode(folder)
    tensors = pickled(folder)
    (folder / "pytorch_model.bin").unlink()
    tensors["cls.decoder.weight"] = tensors["embeddings.word_embeddings.weight"]  # tied, as in a masked LM
    names = {name: f"pytorch_model-0000{1 + i % 2}-of-00002.bin" for i, name in enumerate(sorted(tensors))}
    for file in set(names.values()):
        torch.save({name: tensors[name] for name in tensors if names[name] == file}, folder / file)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": names}), encoding="utf-8")
    convert_to_safetensors(folder, tmp_path / "new")
    assert np.array_equal(encode(tmp_path / "new"), want)
    (folder / "pytorch_model-00001-of-00002.bin").unlink()
    with pytest.raises(ModelError, match="1 of 2 weight shards are missing"):
        convert_to_safetensors(folder, tmp_path / "newer")


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("ran",))


def test_converting_refuses_code_existing_targets_and_folders_without_pickles(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nothing to convert"):
        convert_to_safetensors(folder, tmp_path / "new")
    pickled(folder)
    with pytest.raises(ExistsError, match="already exists"):
        convert_to_safetensors(folder, folder)
    with pytest.raises(ModelError, match="is inside"):
        convert_to_safetensors(folder, folder / "new")
    torch.save({"weight": Evil()}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="cannot be read as plain weights"):
        convert_to_safetensors(folder, tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy"]


def test_a_conversion_that_fails_leaves_nothing_behind(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pickled(folder)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("search.export.convert.save_file", full)
    with pytest.raises(ModelError, match="No space left"):
        convert_to_safetensors(folder, tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy"]
