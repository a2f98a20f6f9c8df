"""`pooling = "auto"` follows the settings of a sentence-transformers folder, or refuses the folder."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from indexer.encoders.load import load_encoder
from indexer.errors import ModelError
from indexer.models.hub import quiet_transformers
from indexer.models.resolution import resolve_spec
from indexer.recipe.config import EncoderConfig
from indexer.recipe.run_options import RunOptions

TEXTS = [
    "how do whales sing",
    "Whale song is a pattern of regular and predictable sounds made by some species of whales.",
    "LIBRARY for data",
    "word " * 300,
]


@pytest.fixture
def folder(tiny_model: Callable[[str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model("bert-cased"), tmp_path / "copy"))


def auto(model: Path | str, **settings: Any) -> EncoderConfig:
    return EncoderConfig(model=str(model), pooling="auto", **{"precision": "float32", **settings})


def unit(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    normalised: npt.NDArray[Any] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return normalised


def reference(folder: Path | str, query: bool = False) -> npt.NDArray[Any]:
    from sentence_transformers import SentenceTransformer

    with quiet_transformers():
        model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    encode = model.encode_query if query else model.encode_document
    return unit(np.asarray(encode(TEXTS, batch_size=2, show_progress_bar=False)))


def ours(folder: Path | str, role: Any = "document") -> npt.NDArray[Any]:
    return unit(load_encoder(auto(folder), RunOptions(device="cpu", threads=1)).encode(TEXTS, role))


def write(folder: Path, name: str, value: Any) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(value), encoding="utf-8")


def old_layout(folder: Path, pooling: dict[str, Any], modules: tuple[str, ...] = ("Transformer", "Pooling")) -> None:
    """Write the files of sentence-transformers up to version 5."""
    paths = {"Transformer": "", "Pooling": "1_Pooling"}
    kinds = [
        {
            "idx": i,
            "name": str(i),
            "path": paths.get(kind, f"{i}_{kind}"),
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(modules)
    ]
    write(folder, "modules.json", kinds)
    write(folder, "1_Pooling/config.json", {"word_embedding_dimension": 32, **pooling})
    write(folder, "sentence_bert_config.json", {"max_seq_length": 20, "do_lower_case": False})


@pytest.mark.check
def test_the_real_minilm_equals_sentence_transformers() -> None:
    spec = resolve_spec(EncoderConfig(pooling="auto"))
    np.testing.assert_allclose(ours(EncoderConfig().model), reference(spec.folder), atol=1e-5)


def test_auto_is_the_same_encoder_as_its_settings_written_out() -> None:
    assert resolve_spec(EncoderConfig(pooling="auto")).fingerprint == resolve_spec(EncoderConfig()).fingerprint


@pytest.mark.parametrize("mode", ["cls", "mean", "max"])
def test_a_folder_saved_by_the_installed_version_equals_it(folder: Path, tmp_path: Path, mode: str) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    with quiet_transformers():
        model = SentenceTransformer(
            modules=[Transformer(str(folder)), Pooling(32, pooling_mode=mode)],
            prompts={"query": "find: ", "document": "the "},
            device="cpu",
        )
        model.max_seq_length = 24
        model.save_pretrained(str(tmp_path / "saved"), create_model_card=False)
    spec = resolve_spec(auto(tmp_path / "saved"))
    assert (spec.identity.pooling, spec.identity.max_length) == (mode, 24)
    assert (spec.identity.query_prefix, spec.identity.document_prefix) == ("find: ", "the ")
    np.testing.assert_allclose(ours(tmp_path / "saved"), reference(tmp_path / "saved"), atol=1e-5)
    np.testing.assert_allclose(ours(tmp_path / "saved", "query"), reference(tmp_path / "saved", query=True), atol=1e-5)


def test_the_old_layout_with_lower_casing_equals_sentence_transformers(folder: Path) -> None:
    old_layout(folder, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False})
    cased = ours(folder)
    write(folder, "sentence_bert_config.json", {"max_seq_length": 20, "do_lower_case": True})
    assert resolve_spec(auto(folder)).identity.lowercase is True
    assert not np.allclose(ours(folder), cased)
    np.testing.assert_allclose(ours(folder), reference(folder), atol=1e-5)


def test_an_old_model_in_a_subfolder_is_found(folder: Path) -> None:
    old_layout(folder, {"pooling_mode_mean_tokens": True})
    want = ours(folder)
    (folder / "0_Transformer").mkdir()
    for path in [p for p in folder.iterdir() if p.is_file() and p.name != "modules.json"]:
        path.rename(folder / "0_Transformer" / path.name)
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    write(folder, "modules.json", [{**modules[0], "path": "0_Transformer"}, modules[1]])
    assert np.array_equal(ours(folder), want)


def test_the_length_of_the_folder_stands_unless_the_recipe_names_another(folder: Path) -> None:
    old_layout(folder, {"pooling_mode_mean_tokens": True})

    def length(**settings: Any) -> int:
        return int(resolve_spec(auto(folder, **settings)).identity.max_length)

    assert (length(), length(max_length=0), length(max_length=256), length(max_length=17)) == (20, 20, 20, 17)
    write(folder, "sentence_bert_config.json", {"max_seq_length": 9999})
    assert length() == 128  # the position embeddings
    (folder / "sentence_bert_config.json").unlink()
    assert length() == 128


@pytest.mark.parametrize(
    ("prompts", "default", "want"),
    [
        ({"query": "q: ", "passage": "p: "}, None, ("q: ", "p: ")),
        ({"query": "q: ", "document": "d: ", "passage": "p: "}, None, ("q: ", "d: ")),
        ({"any": "a: "}, "any", ("a: ", "a: ")),
        ({"any": "a: ", "query": "q: "}, "any", ("q: ", "a: ")),
        ({"any": "a: "}, None, ("", "")),
        ({}, None, ("", "")),
    ],
)
def test_prompts_are_looked_up_by_role(
    folder: Path, prompts: dict[str, str], default: str | None, want: tuple[str, str]
) -> None:
    old_layout(folder, {"pooling_mode_mean_tokens": True})
    write(folder, "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": default})
    identity = resolve_spec(auto(folder)).identity
    assert (identity.query_prefix, identity.document_prefix) == want
    named = resolve_spec(auto(folder, query_prefix="mine ", document_prefix="ours ")).identity
    assert (named.query_prefix, named.document_prefix) == ("mine ", "ours ")


def test_a_folder_without_modules_is_refused_with_the_choices(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"no modules\.json\. Fix: name the pooling: cls, mean or max"):
        resolve_spec(auto(folder))


@pytest.mark.parametrize(
    ("pooling", "words"),
    [
        ({"pooling_mode_lasttoken": True}, "lasttoken"),
        ({"pooling_mode": "weightedmean"}, "weightedmean"),
        ({"pooling_mode": ["cls", "mean"]}, "cls, mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}, "cls, max"),
    ],
)
def test_another_pooling_is_refused_with_the_way_out(folder: Path, pooling: dict[str, Any], words: str) -> None:
    old_layout(folder, pooling)
    with pytest.raises(ModelError, match=rf"{words}; cls, mean or max is supported\. Fix: name a pooling"):
        resolve_spec(auto(folder))


def test_a_further_module_is_refused_and_normalize_is_not(folder: Path) -> None:
    old_layout(folder, {"pooling_mode_mean_tokens": True}, ("Transformer", "Pooling", "Normalize"))
    resolve_spec(auto(folder))
    old_layout(folder, {"pooling_mode_mean_tokens": True}, ("Transformer", "Pooling", "Dense", "Normalize"))
    with pytest.raises(ModelError, match=r"its modules are Transformer, Pooling, Dense, Normalize"):
        resolve_spec(auto(folder))


@pytest.mark.parametrize(
    "change", [{"transformer_task": "fill-mask"}, {"query_length": 8}, {"query_expansion": {"a": 1}}]
)
def test_settings_of_the_transformer_that_are_not_followed_are_refused(folder: Path, change: dict[str, Any]) -> None:
    old_layout(folder, {"pooling_mode_mean_tokens": True})
    write(folder, "sentence_bert_config.json", change)
    with pytest.raises(ModelError, match=r"sets .* not supported here"):
        resolve_spec(auto(folder))


def test_a_prompt_left_out_of_the_pooling_is_refused(folder: Path) -> None:
    old_layout(folder, {"pooling_mode_mean_tokens": True, "include_prompt": False})
    resolve_spec(auto(folder))
    write(folder, "config_sentence_transformers.json", {"prompts": {"query": "q: "}})
    with pytest.raises(ModelError, match="leaves its prompt out"):
        resolve_spec(auto(folder))
