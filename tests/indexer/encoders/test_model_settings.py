"""A recipe that names only a model follows the settings in the model's folder, or refuses the folder."""

import json
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest
import torch

from indexer.encoders.load import load_encoder
from indexer.errors import ConfigError, ModelError
from indexer.models.hub import quiet_transformers
from indexer.models.resolution import resolve_spec
from indexer.recipe.config import BasicPooling, EncoderConfig, Role
from indexer.recipe.run_options import Backend, RunOptions

TEXTS = [
    "how do whales sing",
    "Whale song is a pattern of regular and predictable sounds made by some species of whales.",
    "LIBRARY for data",
    "word " * 300,
]


@pytest.fixture
def folder(tiny_model: Callable[[str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model("bert-cased"), tmp_path / "copy"))


def named(model: Path | str, **settings: Any) -> EncoderConfig:
    return EncoderConfig(model=str(model), **{"precision": "float32", **settings})


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
    return unit(load_encoder(named(folder), RunOptions(device="cpu", threads=1)).encode(TEXTS, role))


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
    spec = resolve_spec(EncoderConfig())
    np.testing.assert_allclose(ours(EncoderConfig().model), reference(spec.folder), atol=1e-5)


def test_the_models_settings_written_out_are_the_same_encoder() -> None:
    own = resolve_spec(EncoderConfig())
    written = resolve_spec(EncoderConfig(pooling="mean", max_length=256, query_prompt="", document_prompt="",
                                         model_settings=False))  # fmt: skip
    assert own.fingerprint == written.fingerprint
    assert own.notes == ()


@pytest.mark.parametrize("mode", get_args(BasicPooling))
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
    spec = resolve_spec(named(tmp_path / "saved"))
    assert (spec.identity.pooling, spec.identity.max_length) == (mode, 24)
    assert (spec.identity.query_prefix, spec.identity.document_prefix) == ("find: ", "the ")
    np.testing.assert_allclose(ours(tmp_path / "saved"), reference(tmp_path / "saved"), atol=1e-5)
    np.testing.assert_allclose(ours(tmp_path / "saved", "query"), reference(tmp_path / "saved", query=True), atol=1e-5)


def test_the_old_layout_with_lower_casing_equals_sentence_transformers(folder: Path) -> None:
    old_layout(folder, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False})
    cased = ours(folder)
    write(folder, "sentence_bert_config.json", {"max_seq_length": 20, "do_lower_case": True})
    assert resolve_spec(named(folder)).identity.lowercase is True
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
        return int(resolve_spec(named(folder, **settings)).identity.max_length)

    assert (length(), length(max_length=0), length(max_length=100), length(max_length=17)) == (20, 20, 100, 17)
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
    identity = resolve_spec(named(folder)).identity
    assert (identity.query_prefix, identity.document_prefix) == want
    chosen = resolve_spec(named(folder, query_prompt="mine ", document_prompt="")).identity
    assert (chosen.query_prefix, chosen.document_prefix) == ("mine ", "")


def test_a_prompt_can_be_one_of_the_models_by_name(folder: Path) -> None:
    old_layout(folder, {"pooling_mode_mean_tokens": True})
    write(folder, "config_sentence_transformers.json", {"prompts": {"query": "q: ", "STS": "same: "}})
    spec = resolve_spec(named(folder, query_prompt="STS", document_prompt="STS"))
    assert (spec.identity.query_prefix, spec.identity.document_prefix) == ("same: ", "same: ")
    assert spec.with_query_prompt("query").identity.query_prefix == "q: "
    assert spec.with_query_prompt("Instruct: find\nQuery: ").identity.query_prefix == "Instruct: find\nQuery: "
    with pytest.raises(ConfigError, match=r'prompt is "sts", but the model has no prompt of this name; .*STS'):
        spec.with_query_prompt("sts")
    with pytest.raises(ConfigError, match=r'encoder.query_prompt is "sts", but the model has no prompt of this name'):
        resolve_spec(named(folder, query_prompt="sts"))


def test_a_recipe_that_contradicts_the_folder_says_so(folder: Path) -> None:
    old_layout(folder, {"pooling_mode_cls_token": True})
    write(folder, "config_sentence_transformers.json", {"prompts": {"query": "q: "}})
    assert resolve_spec(named(folder)).notes == ()
    notes = resolve_spec(named(folder, pooling="mean", max_length=30, query_prompt="")).notes
    (folder / "sentence_bert_config.json").unlink()  # the tokenizer states a length too
    assert resolve_spec(named(folder, max_length=30)).notes == (
        "the model's folder says encoder.max_length = 128; the recipe says 30",
    )
    assert notes == (
        'the model\'s folder says encoder.pooling = "cls"; the recipe says "mean"',
        "the model's folder says encoder.max_length = 20; the recipe says 30",
        'the model\'s folder says encoder.query_prompt = "q: "; the recipe says ""',
    )


def test_without_the_models_settings_only_the_transformer_counts(folder: Path) -> None:
    old_layout(folder, {"pooling_mode_cls_token": True}, ("Transformer", "Pooling", "Router"))
    write(folder, "config_sentence_transformers.json", {"prompts": {"query": "q: "}})
    spec = resolve_spec(named(folder, model_settings=False))
    identity = spec.identity
    assert (identity.pooling, identity.max_length, identity.query_prefix, identity.modules) == ("mean", 128, "", None)
    assert spec.notes == ()


def test_a_plain_transformer_gets_the_mean_with_a_note(folder: Path) -> None:
    spec = resolve_spec(named(folder))
    assert (spec.identity.pooling, spec.identity.max_length) == ("mean", 128)
    assert spec.notes == ("the model's folder states no pooling, so the mean of all tokens is used",)


@pytest.mark.parametrize(
    ("pooling", "words"),
    [
        ({"pooling_mode": ["cls", "mean"]}, "cls, mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}, "cls, max"),
        ({"pooling_mode": "attention"}, "attention"),
    ],
)
def test_another_pooling_is_refused_with_the_way_out(folder: Path, pooling: dict[str, Any], words: str) -> None:
    old_layout(folder, pooling)
    with pytest.raises(ModelError, match=rf"the pooling is {words}; one of cls, .* Fix: set encoder\.model_settings"):
        resolve_spec(named(folder))


def test_a_further_module_is_refused_and_normalize_is_not(folder: Path) -> None:
    old_layout(folder, {"pooling_mode_mean_tokens": True}, ("Transformer", "Pooling", "Normalize"))
    assert resolve_spec(named(folder)).identity.modules is None
    old_layout(folder, {"pooling_mode_mean_tokens": True}, ("Transformer", "Pooling", "CNN", "Normalize"))
    with pytest.raises(ModelError, match=r"its modules are Transformer, Pooling, CNN, Normalize"):
        resolve_spec(named(folder))


def save_with(folder: Path, modules: list[Any], saved: Path) -> Path:
    """Save a model with modules after its pooling, by sentence-transformers."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    with quiet_transformers():
        chain = [Transformer(str(folder)), Pooling(32, pooling_mode="mean"), *modules]
        model = SentenceTransformer(modules=chain, prompts={"query": "find: ", "document": ""}, device="cpu")
        model.save_pretrained(str(saved), create_model_card=False)
    return saved


def output_modules(names: str) -> list[Any]:
    from sentence_transformers.sentence_transformer.modules import Dense, LayerNorm, Normalize

    torch.manual_seed(1)
    made: dict[str, Callable[[], Any]] = {
        "tanh": lambda: Dense(32, 32, activation_function=torch.nn.Tanh()),
        "identity": lambda: Dense(32, 40, bias=False, activation_function=torch.nn.Identity()),
        "back": lambda: Dense(40, 32, bias=False, activation_function=torch.nn.Identity()),
        "gelu": lambda: Dense(32, 32, activation_function=torch.nn.GELU(), use_residual=True),
        "silu": lambda: Dense(32, 16, activation_function=torch.nn.SiLU(), use_residual=True),
        "norm": lambda: LayerNorm(32),
        "unit": lambda: Normalize(),
    }
    return [made[name]() for name in names.split()]


CHAINS = ["tanh", "identity back unit", "norm gelu", "unit silu unit"]
ALL_MODULES = "tanh identity back norm gelu unit silu unit"  # a conversion for openvino takes seconds


@pytest.mark.parametrize(("backend", "chain"), [
    *product(("torch", "numpy"), CHAINS), *product(get_args(Backend)[1:], [ALL_MODULES])
])  # fmt: skip
def test_modules_after_the_pooling_equal_sentence_transformers(
    tiny_model: Callable[[str], Path], tmp_path: Path, backend: Backend, chain: str
) -> None:
    saved = save_with(tiny_model("bert"), output_modules(chain), tmp_path / "saved")
    encoder = load_encoder(named(saved), RunOptions(device="cpu", threads=1, backend=backend))
    for role in get_args(Role):
        want = reference(saved, query=role == "query")
        assert encoder.dim == want.shape[1]
        np.testing.assert_allclose(unit(encoder.encode(TEXTS, role)), want, atol=1e-5)


def test_other_weights_of_a_module_are_another_encoder(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    folders = [save_with(tiny_model("bert"), output_modules(chain), tmp_path / str(number))
               for number, chain in enumerate(("tanh", "tanh", "norm tanh", "gelu"))]  # fmt: skip
    one, same, more, other = (resolve_spec(named(folder)).fingerprint for folder in folders)
    assert one == same
    assert len({one, more, other}) == 3


@pytest.mark.parametrize("change", [{"activation_function": "torch.nn.modules.activation.Softmax"},
                                    {"module_input_name": "token_embeddings"}])  # fmt: skip
def test_a_dense_module_that_cannot_be_followed_is_refused(
    tiny_model: Callable[[str], Path], tmp_path: Path, change: dict[str, Any]
) -> None:
    saved = save_with(tiny_model("bert"), output_modules("tanh"), tmp_path / "saved")
    path = saved / "2_Dense" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | change), encoding="utf-8")
    with pytest.raises(ModelError, match=r"2_Dense.config\.json: .*expected"):
        load_encoder(named(saved))


def test_leading_dimensions_are_kept_before_the_transform(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    saved = save_with(tiny_model("bert"), output_modules("gelu"), tmp_path / "saved")
    whole = load_encoder(named(saved), RunOptions(device="cpu", threads=1))
    cut = load_encoder(named(saved, truncate_dim=12), RunOptions(device="cpu", threads=1))
    assert (whole.dim, cut.dim) == (32, 12)
    assert np.array_equal(cut.encode(TEXTS, "query"), whole.encode(TEXTS, "query")[:, :12])
    with pytest.raises(ConfigError, match=r"encoder\.truncate_dim is 33, .* have 32 dimensions"):
        load_encoder(named(saved, truncate_dim=33))


@pytest.mark.parametrize(
    "change", [{"transformer_task": "fill-mask"}, {"query_length": 8}, {"query_expansion": {"a": 1}}]
)
def test_settings_of_the_transformer_that_are_not_followed_are_refused(folder: Path, change: dict[str, Any]) -> None:
    old_layout(folder, {"pooling_mode_mean_tokens": True})
    write(folder, "sentence_bert_config.json", change)
    with pytest.raises(ModelError, match=r"sets .* not supported here"):
        resolve_spec(named(folder))


def test_a_prompt_left_out_of_the_pooling_is_refused(folder: Path) -> None:
    old_layout(folder, {"pooling_mode_mean_tokens": True, "include_prompt": False})
    resolve_spec(named(folder))
    write(folder, "config_sentence_transformers.json", {"prompts": {"query": "q: "}})
    with pytest.raises(ModelError, match="leaves its prompt out"):
        resolve_spec(named(folder))
