"""The identity of an encoder: every file and setting that affects its results, and no others."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer.encoders.load import load_encoder
from indexer.errors import ConfigError, ModelError, written_for
from indexer.models import resolution as spec_module
from indexer.models.identity import EncoderIdentity, identity_difference
from indexer.models.resolution import resolve_spec
from indexer.recipe.config import EncoderConfig

MINILM = EncoderConfig(precision="float32")  # the packaged weights: the tests have no network


@pytest.fixture
def bert(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("bert")


@pytest.fixture
def folder(bert: Path, tmp_path: Path) -> Path:
    """Return a copy for a test to modify."""
    return Path(shutil.copytree(bert, tmp_path / "copy"))


def config(folder: Path, **settings: Any) -> EncoderConfig:
    return EncoderConfig(model=str(folder), **{"max_length": 64, **settings})


def edit_json(path: Path, **changes: Any) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**data, **changes}), encoding="utf-8")


def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_the_real_minilm_is_known_by_its_hashes_and_resolved_settings() -> None:
    spec = resolve_spec(MINILM)
    assert spec.identity.weights == {
        "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    }
    assert spec.identity.layers == (6,)
    assert spec.identity.max_length == 256
    assert spec.identity.batch_tokens == 0
    assert spec.model == MINILM.model


def test_the_fingerprint_is_the_sha256_of_the_canonical_json() -> None:
    spec = resolve_spec(MINILM)
    text = json.dumps(spec.identity.to_dict(), sort_keys=True, separators=(",", ":"))
    assert spec.fingerprint == hashlib.sha256(text.encode()).hexdigest()
    assert json.loads(text) == spec.identity.to_dict()
    assert EncoderIdentity.from_dict(json.loads(text)) == spec.identity


def test_the_fingerprint_of_minilm_never_changes_under_the_same_rules() -> None:
    # Changing this value invalidates every existing index: bump resolution.RULES if it must change.
    first = "bfae63f97980b9fb7c7e4ee2a38d7934c05b586b6313184c040dfcab46d086e6"
    second = "876b8bad4b71627438fdfbf9bc15a3b795f2d512677364ab145a42706096bacc"
    assert [resolve_spec(MINILM, rules=rules).fingerprint for rules in (1, 2)] == [first, second]
    assert resolve_spec(MINILM).fingerprint == second


def test_the_same_files_under_another_name_and_path_are_the_same_encoder(tmp_path: Path) -> None:
    spec = resolve_spec(MINILM)
    shutil.copytree(spec.folder, tmp_path / "moved")
    moved = resolve_spec(replace(MINILM, model=str(tmp_path / "moved")))
    pointed = resolve_spec(replace(MINILM, model="a/name-that-is-nowhere"), folder=tmp_path / "moved")
    assert moved.fingerprint == pointed.fingerprint == spec.fingerprint
    assert {moved.folder, pointed.folder} == {str(tmp_path / "moved")}


SPOILERS: dict[str, Callable[[Path], None]] = {
    "model.safetensors": lambda folder: flip_last_byte(folder / "model.safetensors"),
    "tokenizer.json": lambda folder: edit_json(folder / "tokenizer.json", version="1.1"),
    "tokenizer_config.json": lambda folder: edit_json(folder / "tokenizer_config.json", do_lower_case=False),
    "special_tokens_map.json": lambda folder: edit_json(folder / "special_tokens_map.json", unk_token="[MASK]"),
    "added_tokens.json": lambda folder: edit_json(folder / "added_tokens.json", new=300),
    "config.json": lambda folder: edit_json(folder / "config.json", layer_norm_eps=1e-5),
}


@pytest.mark.parametrize("name", SPOILERS)
def test_every_file_read_is_part_of_the_identity(folder: Path, name: str) -> None:
    for extra in ("special_tokens_map.json", "added_tokens.json"):
        (folder / extra).write_text("{}", encoding="utf-8")
    before = resolve_spec(config(folder))
    SPOILERS[name](folder)
    after = resolve_spec(config(folder))
    assert after.fingerprint != before.fingerprint
    assert identity_difference(before.identity, after.identity).startswith(f"{name} has sha256 ")
    assert "; " not in identity_difference(before.identity, after.identity)


CHANGES: dict[str, Any] = {
    "pooling": "cls",
    "layers": (1,),
    "max_length": 32,
    "query_prompt": "query: ",
    "document_prompt": "passage: ",
    "truncate_dim": 16,
    "precision": "float32",
    "batch_tokens": 512,
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_setting_is_part_of_the_identity(bert: Path, name: str) -> None:
    before, after = resolve_spec(config(bert)), resolve_spec(config(bert, **{name: CHANGES[name]}))
    assert after.fingerprint != before.fingerprint
    message = identity_difference(before.identity, after.identity)
    assert message.startswith(f"encoder.{name} is ")
    assert "expected" in message


def test_the_rules_are_part_of_the_identity(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = resolve_spec(config(bert))
    monkeypatch.setattr(spec_module, "RULES", spec_module.RULES + 1)
    assert identity_difference(before.identity, resolve_spec(config(bert)).identity) == "rules is 3, expected 2"


def test_files_that_are_not_read_are_not_part_of_the_identity(folder: Path) -> None:
    before = resolve_spec(config(folder))
    (folder / "README.md").write_text("words", encoding="utf-8")
    (folder / "vocab.txt").write_text("not read: tokenizer.json is there", encoding="utf-8")
    assert resolve_spec(config(folder)).fingerprint == before.fingerprint


def test_a_mismatch_names_both_hashes_and_equal_identities_have_none(folder: Path) -> None:
    before = resolve_spec(config(folder))
    flip_last_byte(folder / "model.safetensors")
    after = resolve_spec(config(folder))
    message = identity_difference(before.identity, after.identity)
    for spec in (before, after):
        assert spec.identity.weights["model.safetensors"][:16] in message
    assert identity_difference(before.identity, before.identity) == ""


def test_layers_are_resolved_sorted_and_without_repetition(bert: Path) -> None:
    assert resolve_spec(config(bert, layers=(-1, 1))).identity.layers == (1, 2)
    assert resolve_spec(config(bert, layers=(2, -1, 0, -3))).identity.layers == (0, 2)
    assert (
        resolve_spec(config(bert, layers=(1, -1))).fingerprint == resolve_spec(config(bert, layers=(1, 2))).fingerprint
    )


@pytest.mark.parametrize("layer", [3, -4])
def test_a_layer_out_of_range_is_refused_with_the_range(bert: Path, layer: int) -> None:
    with pytest.raises(ConfigError, match=rf"layers has {layer}, but the model has 2 blocks; expected 0 .* to 2"):
        resolve_spec(config(bert, layers=(layer,)))


def test_length_0_is_the_tokenizers_limit_capped_by_the_position_embeddings(folder: Path) -> None:
    def own() -> int:
        return int(resolve_spec(config(folder, max_length=0)).identity.max_length)

    assert own() == 128
    edit_json(folder / "tokenizer_config.json", model_max_length=100)
    assert own() == 100
    edit_json(folder / "config.json", max_position_embeddings=90)
    assert own() == 90
    edit_json(folder / "config.json", model_type="roberta", pad_token_id=1)
    assert own() == 88
    edit_json(folder / "config.json", model_type="t5")
    assert own() == 100
    edit_json(folder / "tokenizer_config.json", model_max_length=1e30)
    assert own() == 512


def test_a_length_above_the_position_embeddings_is_refused_with_the_limit(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"max_length is 129.*128 tokens"):
        resolve_spec(config(folder, max_length=129))
    edit_json(folder / "config.json", model_type="t5")
    assert resolve_spec(config(folder, max_length=4000)).identity.max_length == 4000


def test_a_config_without_a_number_of_layers_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    with pytest.raises(ModelError, match="has no number of layers"):
        resolve_spec(config(folder))


@pytest.mark.parametrize(("name", "content"), [
    ("config.json", {"model_type": "model2vec"}), ("modules.json", [{"type": "a.StaticEmbedding", "path": ""}]),
])  # fmt: skip
def test_a_static_table_is_no_transformer(tmp_path: Path, name: str, content: Any) -> None:
    (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ModelError, match=r"is a static table .*\. Fix: BuildConfig.load\(\"static\"\)"):
        resolve_spec(config(tmp_path))
    with written_for("shell"), pytest.raises(ModelError, match=r"Fix: --config static\."):
        resolve_spec(config(tmp_path))


def test_xlm_reads_its_vocabulary_also_beside_a_tokenizer_json(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """XLM has a Python tokenizer, but its hub folders also contain a tokenizer.json."""
    plain = tiny_model("xlm")
    both = Path(shutil.copytree(plain, tmp_path / "both"))
    (both / "tokenizer.json").write_bytes((tiny_model("bert") / "tokenizer.json").read_bytes())
    first, second = (EncoderConfig(model=str(folder), max_length=32) for folder in (plain, both))
    assert {"vocab.json", "tokenizer.json"} <= set(resolve_spec(second).identity.tokenizer)
    texts = ["whales sing", "in the deep sea"]
    np.testing.assert_array_equal(
        load_encoder(first).encode(texts, "query"), load_encoder(second).encode(texts, "query")
    )
