"""Model folders are untrusted: values in their files have types and bounds, and files outside are never used."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from safetensors.torch import load_file

from indexer.encoders.load import load_encoder
from indexer.encoders.numpy_bert import unsuited
from indexer.encoders.static.tables import load_table
from indexer.errors import CorpusError, IsotropeError, ModelError
from indexer.models.model_files import find_model_files, own_file
from indexer.models.resolution import resolve_spec
from indexer.papers.sif import read_counts
from indexer.recipe.config import EncoderConfig
from indexer.recipe.run_options import RunOptions
from indexer.system.safetensors_file import read_header
from search.export.convert import convert_to_safetensors

DEEP = "[" * 100_000
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
SENTENCE_TRANSFORMERS: dict[str, Any] = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ],
    "1_Pooling/config.json": {"pooling_mode_mean_tokens": True, "include_prompt": True},
    "sentence_bert_config.json": {"max_seq_length": 64, "do_lower_case": False},
    "config_sentence_transformers.json": {"prompts": {"query": "q: "}, "default_prompt_name": None},
}


@pytest.fixture
def folder(tiny_model: Callable[[str], Path], tmp_path: Path) -> Path:
    """Return a sentence-transformers folder for a test to modify."""
    copy = Path(shutil.copytree(tiny_model("bert"), tmp_path / "copy"))
    for name, value in SENTENCE_TRANSFORMERS.items():
        write(copy / name, value)
    return copy


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")


def changed(path: Path, **changes: Any) -> None:
    write(path, json.loads(path.read_text(encoding="utf-8")) | changes)


def encode(folder: Path, backend: str = "torch", **settings: Any) -> Any:
    config = EncoderConfig(**{"model": str(folder), "max_length": 32, "pooling": "auto", **settings})
    return load_encoder(config, RunOptions(threads=1, backend=backend)).encode(["the whale"], "document")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "tokenizer.json", *SENTENCE_TRANSFORMERS])
def test_json_that_is_nested_too_deeply_is_an_error_that_names_the_file(folder: Path, name: str) -> None:
    for text in (DEEP, '{"a":' * 100_000, '{"model": ' + DEEP):
        write(folder / name, text)
        with pytest.raises(ModelError, match=rf"{name}: .*nested deeper than 64 levels"):
            encode(folder)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("config.json", {"num_hidden_layers": "two"}, r"Expected `int \| null`, got `str` - at `\$.num_hidden_layers`"),
        ("config.json", {"num_hidden_layers": True}, "got `bool`"),
        ("config.json", {"num_hidden_layers": 2.5}, "got `float`"),
        ("config.json", {"num_hidden_layers": 0}, "num_hidden_layers is 0; expected 1 to 1,000"),
        ("config.json", {"num_hidden_layers": 10**9}, "num_hidden_layers is 1,000,000,000; expected 1 to 1,000"),
        ("config.json", {"hidden_size": 10**9}, "hidden_size is 1,000,000,000; expected"),
        ("config.json", {"hidden_size": 10**6}, r"describes a model of [\d,]+ numbers, but the weights contain"),
        ("config.json", {"intermediate_size": 10**9}, r"describes a model of [\d,]+ numbers, but the weights contain"),
        ("config.json", {"vocab_size": 10**9}, "vocab_size is 1,000,000,000; expected"),
        ("config.json", {"vocab_size": 10**7}, r"describes a model of [\d,]+ numbers, but the weights contain"),
        ("config.json", {"type_vocab_size": 10**9}, r"describes a model of [\d,]+ numbers, but the weights contain"),
        ("config.json", {"max_position_embeddings": 10**9}, "max_position_embeddings is 1,000,000,000; expected"),
        ("config.json", {"max_position_embeddings": 10**8}, r"describes a model of [\d,]+ numbers"),
        ("config.json", {"num_attention_heads": 0}, "num_attention_heads is 0; expected"),
        ("config.json", {"num_labels": 10**9}, "num_labels is 1,000,000,000; expected"),
        ("tokenizer_config.json", {"model_max_length": "long"}, "got `str` - at `\\$.model_max_length`"),
        ("tokenizer_config.json", {"extra_ids": 10**9}, "extra_ids is 1,000,000,000; expected"),
        ("tokenizer.json", {"added_tokens": [{"id": 2**31}]}, "a token with the id 2,147,483,648; expected ids below"),
        ("modules.json", {}, "Expected `array`, got `object`"),
        ("modules.json", [1], r"Expected `object`, got `int` - at `\$\[0\]`"),
        ("modules.json", [{"type": "x.Transformer", "path": 7}], r"got `int` - at `\$\[0\].path`"),
        ("1_Pooling/config.json", {"pooling_mode": {"mean": 1}}, r"1_Pooling/config.json: .*`\$.pooling_mode`"),
        ("sentence_bert_config.json", {"max_seq_length": -1}, r">= 0 - at `\$.max_seq_length`"),
        ("config_sentence_transformers.json", {"prompts": ["q"]}, r"got `array` - at `\$.prompts`"),
    ],
)  # fmt: skip
def test_a_type_or_size_that_no_model_has_is_refused_by_name(folder: Path, name: str, value: Any, message: str) -> None:
    if isinstance(value, dict) and name != "modules.json":
        changed(folder / name, **value)
    else:
        write(folder / name, value)
    with pytest.raises(ModelError, match=message) as caught:
        encode(folder)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_without_a_limit_is_none_of_them(folder: Path) -> None:
    want = encode(folder)
    for unlimited in (10**30, 1e30):
        changed(folder / "tokenizer_config.json", model_max_length=unlimited)
        assert np.array_equal(encode(folder), want)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_the_files_of_a_folder_hold_the_answer_is_an_error_of_ours(folder: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["config.json", "tokenizer_config.json", *SENTENCE_TRANSFORMERS]))
    before = (folder / name).read_text(encoding="utf-8")
    value = json.loads(before)
    if isinstance(value, dict):
        known = st.sampled_from([*value, "num_layers", "n_positions", "pad_token_id", "model_type", "pooling_mode"])
        value |= data.draw(st.dictionaries(known, JSON, min_size=1, max_size=3))
    else:
        value = data.draw(JSON | st.lists(st.dictionaries(st.sampled_from(["type", "path"]), JSON), max_size=3))
    write(folder / name, value)
    said = ""
    try:
        unsuited(find_model_files(folder))
        resolve_spec(EncoderConfig(model=str(folder), max_length=0, pooling="auto"))
    except IsotropeError as error:
        said = str(error)
    finally:
        write(folder / name, before)
    assert "\n" not in said


@pytest.mark.parametrize("changes", [{"num_attention_heads": 5}, {"num_hidden_layers": 3}, {"vocab_size": 7}])
def test_numpy_leaves_a_config_that_its_weights_do_not_fit_to_others(folder: Path, changes: dict[str, int]) -> None:
    assert not unsuited(find_model_files(folder))
    changed(folder / "config.json", **changes)
    assert unsuited(find_model_files(folder))
    for backend in ("numpy", "torch"):
        with pytest.raises(ModelError, match="copy"):
            encode(folder, backend)


def with_header(path: Path, header: Any, length: int | None = None) -> None:
    """Replace the header of a safetensors file; `length` is its stated length."""
    data = path.read_bytes()
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    rest = data[8 + int.from_bytes(data[:8], "little") :]
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + rest)


@pytest.mark.parametrize(
    ("header", "length", "message"),
    [
        ({}, 2**63, "too few for the stated header of 9,223,372,036,854,775,808"),
        ({}, 10**8, "too few for the stated header of 100,000,000"),
        (DEEP, None, "nested deeper than 64 levels"),
        ([], None, "Expected `object`, got `array`"),
        ({"a": []}, None, 'the header of "a": Expected `object`, got `array`'),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, "8"]}}, None, r'"a": .* `\$.data_offsets\[1\]`'),
        ({"a": {"dtype": "F32", "shape": [10**9, 10**9], "data_offsets": [0, 8]}}, None, '"a" is truncated or damaged'),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 2**60]}}, None, '"a" is truncated or damaged'),
        ({"a": {"dtype": "F32", "shape": [-1, -2], "data_offsets": [0, 8]}}, None, '"a" has an invalid shape'),
        ({"__metadata__": {"a": 1}}, None, "Expected `str`, got `int`"),
    ],
)
def test_a_header_that_its_file_cannot_have_is_refused_before_anything_is_read(
    folder: Path, header: Any, length: int | None, message: str
) -> None:
    with_header(folder / "model.safetensors", header, length)
    with pytest.raises(ModelError, match=rf"model\.safetensors: .*{message}"):
        read_header(folder / "model.safetensors")
    for backend in ("torch", "numpy"):
        with pytest.raises(ModelError):
            encode(folder, backend)


def make_special(path: Path, kind: str) -> None:
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja", "1_Pooling/config.json"]
)
def test_a_pipe_or_device_in_a_folder_is_refused_and_nothing_hangs(folder: Path, name: str, kind: str) -> None:
    make_special(folder / name, kind)
    with pytest.raises(ModelError, match=rf"{name}: .*(is a pipe, socket or device)"):
        encode(folder)
    with pytest.raises(ModelError):
        convert_to_safetensors(folder, folder.parent / "new")


def test_a_pipe_or_device_is_no_table(tmp_path: Path) -> None:
    for kind in ("pipe", "device"):
        make_special(tmp_path / "table.txt", kind)
        with pytest.raises(ModelError, match=r"table\.txt"):
            load_table(tmp_path / "table.txt")


def slow(folder: Path, pattern: str = "(a+)+$") -> None:
    """Give the tokenizer a pattern that needs exponentially many steps for some texts."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Removed", "invert": False}
    changed(folder / "tokenizer.json", pre_tokenizer=split, model=tokenizer["model"])
    changed(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_a_pattern_that_takes_too_many_steps_is_an_error_that_names_the_text(folder: Path, backend: str) -> None:
    slow(folder)
    encoder = load_encoder(
        EncoderConfig(model=str(folder), max_length=32),
        RunOptions(threads=1, backend=backend),  # type: ignore[arg-type]
    )
    assert np.isfinite(encoder.encode(["the whale"], "document")).all()
    texts = ["the whale", "a" * 40 + "b", "the song"]
    for run in (lambda: encoder.encode(texts, "document"), lambda: encoder.tokenizer.offsets(texts)):  # type: ignore[attr-defined]
        with pytest.raises(ModelError, match=rf'copy: the tokenizer failed: .*over\. The text begins "{"a" * 40}b"'):
            run()
    with pytest.raises(CorpusError, match="not valid Unicode"):
        encoder.encode(["\ud800"], "document")


def test_a_pattern_that_is_none_is_an_error_of_the_model(folder: Path) -> None:
    slow(folder, "(a+")
    with pytest.raises(ModelError, match="the tokenizer cannot be loaded"):
        encode(folder)


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def test_converting_copies_what_a_model_consists_of_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    want = encode(folder)
    pickled(folder)
    secret = tmp_path / "secret"
    secret.write_text("a password", encoding="utf-8")
    write(folder / "README.md", "# A model")
    for name, target in (("id_rsa", secret), ("notes.txt", secret), ("etc", Path("/etc")), ("gone", tmp_path / "none")):
        (folder / name).symlink_to(target)
    write(folder / ".env", "TOKEN=x")
    convert_to_safetensors(folder, tmp_path / "new")
    assert np.array_equal(encode(tmp_path / "new"), want)
    found = {str(path.relative_to(tmp_path / "new")) for path in (tmp_path / "new").rglob("*") if path.is_file()}
    own = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md"}
    assert found == own | set(SENTENCE_TRANSFORMERS)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "1_Pooling", "README.md", "pytorch_model.bin"])
def test_converting_refuses_a_link_that_leads_out_of_the_folder(folder: Path, tmp_path: Path, name: str) -> None:
    pickled(folder)
    outside = tmp_path / "outside"
    if (folder / name).exists():
        (folder / name).rename(outside)
    else:
        outside.write_text("a password", encoding="utf-8")
    (folder / name).symlink_to(outside)
    with pytest.raises(ModelError, match=rf"{name}.*: is a link to .*outside.*, outside the model's folder"):
        convert_to_safetensors(folder, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_snapshot_of_the_hub_is_made_of_links_that_are_its_own(folder: Path, tmp_path: Path) -> None:
    """Link models--x/snapshots/REVISION/config.json to models--x/blobs/HASH."""
    pickled(folder)
    home = tmp_path / "hub" / "models--some--model"
    snapshot = home / "snapshots" / "0123"
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        link, blob = snapshot / path.relative_to(folder), home / "blobs" / "-".join(path.relative_to(folder).parts)
        for parent in (link.parent, blob.parent):
            parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(path.read_bytes())
        link.symlink_to(os.path.relpath(blob, link.parent))
    convert_to_safetensors(snapshot, tmp_path / "new")
    assert np.isfinite(encode(tmp_path / "new")).all()
    other = tmp_path / "hub" / "models--other" / "blobs"
    other.mkdir(parents=True)
    (other / "0").write_text("of another model", encoding="utf-8")
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to(other / "0")
    with pytest.raises(ModelError, match="outside the model's folder"):
        own_file(snapshot, "config.json")


def test_links_within_a_folder_are_its_own(folder: Path) -> None:
    (folder / "config.json").rename(folder / "the-config.json")
    (folder / "config.json").symlink_to("the-config.json")
    assert own_file(folder, "config.json") == folder.resolve() / "the-config.json"
    for name in ("../copy/config.json", "/etc/passwd", "a/../../b"):
        with pytest.raises(ModelError, match="outside the model's folder"):
            own_file(folder, name)
    assert find_model_files(folder).config.model_type == "bert"


def test_counts_that_no_corpus_has_are_refused(tmp_path: Path) -> None:
    one = np.ones(1, np.int64)
    for vocabulary, tokens, counts in (
        (10**12, one, one),
        (-1, one, one),
        (5, -one, one),
        (5, one, -one),
        (1, one, one),
    ):
        arrays = {"vocabulary": np.array([vocabulary]), "tokens": tokens, "counts": counts}
        save_file(arrays, tmp_path / "sif.safetensors")
        with pytest.raises(ModelError, match="not the token counts"):
            read_counts(tmp_path)
