"""A cross-encoder has the scores of sentence-transformers' `CrossEncoder`, and is the recipe's recorded model."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer import BuildConfig, RunOptions, add_documents, build_index, refit_index
from indexer.arrays import Float64Array
from indexer.encoders.protocol import EncodeStats
from indexer.errors import ConfigError, CorpusError, ExistsError, MismatchError, ModelError
from indexer.models.cross_encoder_spec import resolve_cross_encoder, with_recorded_hash
from indexer.recipe.ranking import RerankConfig
from indexer.store.manifest import load_manifest
from search.ranking.cross_encoder import CrossEncoder, another_model, open_cross_encoder
from tests.documents import DOCUMENTS
from tests.life import NEW
from tests.tiny_models import make_tiny_cross_encoder, make_tiny_model

QUERIES = ["the whale sing", "of data", "the library, for the deep sea and the song of the whale"]
TEXTS = ["song of the deep sea", "a library for data", "x", "data " * 30, "whale song, the song. " * 60]
PAIRS = [(query, text) for query in QUERIES for text in TEXTS]
OTHERS = ["xlm-roberta", "deberta-v2", "modernbert", "electra", "distilbert", "mpnet", "albert", "roberta"]
_ROUNDING = 2e-5  # of a logit, between batches and backends, in float32


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_cross_encoder(tmp_path_factory.mktemp("models") / "cross-encoder")


def opened(model: Path, backend: str = "torch", **settings: object) -> CrossEncoder:
    config = RerankConfig(model=str(model), **{"precision": "float32", **settings})  # type: ignore[arg-type]
    return open_cross_encoder(resolve_cross_encoder(config), RunOptions(backend=backend))  # type: ignore[arg-type]


def predicted(model: Path, pairs: Sequence[tuple[str, str]], length: int | None = None) -> Float64Array:
    """Return the scores of sentence-transformers in float32."""
    transformers = pytest.importorskip("sentence_transformers")
    encoder = transformers.CrossEncoder(str(model), device="cpu", max_length=length, local_files_only=True)
    found: Float64Array = encoder.predict(list(pairs), show_progress_bar=False).astype(np.float64)
    return found


def scores(encoder: CrossEncoder, pairs: Sequence[tuple[str, str]], log: EncodeStats | None = None) -> Float64Array:
    return encoder.scores([query for query, _ in pairs], [text for _, text in pairs], log)


@pytest.mark.filterwarnings("ignore")  # of sentence-transformers
@pytest.mark.parametrize(
    ("length", "backend"),
    [(0, "torch"), (24, "torch"), (24, "openvino"), pytest.param(0, "openvino", marks=pytest.mark.check)],
)
def test_the_scores_are_those_of_sentence_transformers(model: Path, length: int, backend: str) -> None:
    if backend == "openvino":
        pytest.importorskip("openvino")
    encoder = opened(model, backend, max_length=length)
    assert encoder.backend.startswith(backend)
    assert np.allclose(scores(encoder, PAIRS), predicted(model, PAIRS, length or None), atol=_ROUNDING)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("architecture", "backend"),
    [
        *((name, "torch") for name in OTHERS),
        *(pytest.param(name, "openvino", marks=pytest.mark.check) for name in OTHERS),
    ],
)
def test_cross_encoders_of_other_architectures_give_the_same(architecture: str, backend: str, tmp_path: Path) -> None:
    """OpenVINO returns NaN for padded texts with ModernBERT's short windows, so torch runs these models."""
    if backend == "openvino":
        pytest.importorskip("openvino")
    own: dict[str, Any] = {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}
    folder = make_tiny_cross_encoder(tmp_path / architecture, architecture=architecture, **own)
    expected = predicted(folder, PAIRS, 100)
    assert len(np.unique(expected.round(3))) > len(PAIRS) // 2
    found = scores(opened(folder, backend, max_length=100), PAIRS)
    assert np.allclose(found, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("activation", ["Identity", "Sigmoid"])
def test_a_folder_that_sentence_transformers_saved_is_read_with_its_activation(
    model: Path, tmp_path: Path, activation: str
) -> None:
    transformers, torch = pytest.importorskip("sentence_transformers"), pytest.importorskip("torch")
    chosen = getattr(torch.nn, activation)()
    transformers.CrossEncoder(str(model), device="cpu", activation_fn=chosen).save_pretrained(str(tmp_path / "saved"))
    found = scores(opened(tmp_path / "saved"), PAIRS)
    assert np.allclose(found, predicted(tmp_path / "saved", PAIRS), atol=_ROUNDING)
    assert (found.max() > 1) == (activation == "Identity")


def test_the_activation_of_older_versions_is_read_too(tmp_path: Path, model: Path) -> None:
    name = "torch.nn.modules.linear.Identity"
    older = make_tiny_cross_encoder(tmp_path / "older", sbert_ce_default_activation_function=name)
    logits = scores(opened(older), PAIRS)
    assert np.allclose(scores(opened(model), PAIRS), 1 / (1 + np.exp(-logits)))


def test_neither_order_nor_batches_matter(model: Path) -> None:
    encoder = opened(model)
    whole, backwards = scores(encoder, PAIRS), scores(encoder, PAIRS[::-1])[::-1]
    one_by_one = np.concatenate([scores(encoder, [pair]) for pair in PAIRS])
    assert np.allclose(whole, backwards, atol=_ROUNDING)
    assert np.allclose(whole, one_by_one, atol=_ROUNDING)
    assert np.array_equal(whole, scores(encoder, PAIRS))  # the same pairs give the same bits
    assert len(scores(encoder, [])) == 0


def test_pairs_that_do_not_fit_into_memory_are_halved_with_the_types_of_their_tokens(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Token types separate the query from the text: every score changes without them."""
    encoder, pairs = opened(model), PAIRS * 4
    whole = scores(encoder, pairs)
    run, halved = encoder._runner._classifier, list[int]()  # type: ignore[attr-defined]
    forward = run.forward

    def limited(input_ids: Any, **inputs: Any) -> Any:
        if len(input_ids) > 1:
            halved.append(len(input_ids))
            raise MemoryError
        return forward(input_ids=input_ids, **inputs)

    monkeypatch.setattr(run, "forward", limited)
    assert np.allclose(scores(encoder, pairs), whole, atol=_ROUNDING)
    assert len(halved) > 1

    def without_types(input_ids: Any, token_type_ids: Any, **inputs: Any) -> Any:
        return forward(input_ids=input_ids, token_type_ids=token_type_ids * 0, **inputs)

    monkeypatch.setattr(run, "forward", without_types)
    assert not np.isclose(scores(encoder, pairs), whole, atol=_ROUNDING).any()


def test_scores_that_a_float32_sigmoid_makes_equal_are_told_apart(tmp_path: Path) -> None:
    import torch
    import transformers

    folder = make_tiny_cross_encoder(tmp_path / "sure")
    sure = transformers.BertForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        sure.classifier.bias.add_(18)
    sure.save_pretrained(folder)
    found = scores(opened(folder), PAIRS)
    assert len(np.unique(found)) == len(np.unique(PAIRS, axis=0))


def test_pairs_that_were_cut_are_counted(model: Path) -> None:
    log = EncodeStats()
    scores(opened(model), PAIRS, log)
    assert (len(log.lengths), log.truncated) == (len(PAIRS), len(QUERIES))  # the longest text, for each query
    log = EncodeStats()
    scores(opened(model, max_length=24), PAIRS, log)
    assert log.truncated > len(QUERIES)


def test_bfloat16_is_a_class_of_its_own_and_close(model: Path) -> None:
    half, whole = opened(model, precision="bfloat16"), opened(model)
    assert half.spec.fingerprint != whole.spec.fingerprint
    assert np.allclose(scores(half, PAIRS), scores(whole, PAIRS), atol=0.1)


def test_a_text_that_is_not_unicode_is_refused(model: Path) -> None:
    with pytest.raises(CorpusError, match="not valid Unicode"):
        scores(opened(model), [("whale", "\ud800")])


def test_a_model_with_several_labels_is_refused(tmp_path: Path) -> None:
    for labels in (2, 3):
        folder = make_tiny_cross_encoder(tmp_path / f"labels-{labels}", labels)
        with pytest.raises(ModelError, match=rf"has {labels} labels; expected a cross-encoder with 1"):
            resolve_cross_encoder(RerankConfig(model=str(folder)))


def test_an_encoder_is_no_cross_encoder(tmp_path: Path) -> None:
    folder = make_tiny_model("bert", tmp_path / "encoder")
    with pytest.raises(ModelError, match=r"is BertModel, not a cross-encoder; expected a model \.\.\.ForSequence"):
        resolve_cross_encoder(RerankConfig(model=str(folder)))


def test_a_model_whose_head_is_missing_is_refused_instead_of_made_up(tmp_path: Path) -> None:
    folder = make_tiny_cross_encoder(tmp_path / "headless")
    config = json.loads((folder / "config.json").read_text())
    shutil.copy(make_tiny_model("bert", tmp_path / "encoder") / "model.safetensors", folder / "model.safetensors")
    assert config["architectures"] == ["BertForSequenceClassification"]
    with pytest.raises(ModelError, match=r"the weights lack .* such as classifier\.bias, which would be random"):
        opened(folder)


def test_an_activation_that_is_not_known_is_refused(tmp_path: Path) -> None:
    folder = make_tiny_cross_encoder(tmp_path / "odd", sbert_ce_default_activation_function="somebody.Else")
    with pytest.raises(ModelError, match=r"is somebody\.Else; expected Identity or Sigmoid"):
        resolve_cross_encoder(RerankConfig(model=str(folder)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "m", "depth": 0}, "rerank.depth is 0; expected 1 to 1,000."),
        ({"model": "m", "depth": 1001}, "rerank.depth is 1001; expected 1 to 1,000."),
        ({"model": "m", "max_length": -1}, "rerank.max_length is -1; expected 0"),
        ({"model": "m", "sha256": "abc"}, 'rerank.sha256 is "abc"; expected 64 hex digits'),
        ({"sha256": "0" * 64}, 'rerank.sha256 is set, but rerank.model is ""'),
        ({"model": "m", "precision": "int8"}, 'rerank.precision is "int8"; expected "float32" or "bfloat16".'),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BuildConfig.from_dict({"rerank": settings})


def test_a_length_beyond_the_model_is_refused(model: Path) -> None:
    for length, message in ((129, "has position embeddings for 128 tokens"), (7, "expected at least 8")):
        with pytest.raises(ConfigError, match=message):
            resolve_cross_encoder(RerankConfig(model=str(model), max_length=length))


def test_the_hash_is_of_all_that_decides_scores(model: Path, tmp_path: Path) -> None:
    config = RerankConfig(model=str(model))
    known = resolve_cross_encoder(config).fingerprint
    copy = shutil.copytree(model, tmp_path / "elsewhere")
    assert resolve_cross_encoder(replace(config, model=str(copy), depth=7)).fingerprint == known
    assert resolve_cross_encoder(replace(config, max_length=24)).fingerprint != known
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    (copy / "tokenizer_config.json").write_text(json.dumps(settings | {"truncation_side": "left"}))
    changed = RerankConfig(model=str(copy), sha256=known)
    with pytest.raises(MismatchError, match=r"differs from the one in the recipe: .*refit_index"):
        resolve_cross_encoder(changed)


def test_a_build_records_the_hash_and_knows_it_again(
    tiny_config: BuildConfig, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    config = replace(tiny_config, rerank=RerankConfig(model=f"./{model.name}", depth=20))
    build_index(DOCUMENTS, tmp_path / "index", config)
    kept = load_manifest(tmp_path / "index").config["rerank"]
    expected = resolve_cross_encoder(RerankConfig(model=str(model)))
    assert (kept["model"], kept["sha256"], kept["depth"]) == (str(model.resolve()), expected.fingerprint, 20)
    assert build_index(DOCUMENTS, tmp_path / "index", config).up_to_date
    with pytest.raises(ExistsError, match=r"rerank\.depth is 20 there and 30 here"):
        build_index(DOCUMENTS, tmp_path / "index", replace(config, rerank=replace(config.rerank, depth=30)))
    add_documents(NEW, tmp_path / "index")
    assert load_manifest(tmp_path / "index").config["rerank"] == kept


def test_a_refit_records_the_hash_of_another_model_and_forgets_that_of_none(
    tiny_config: BuildConfig, model: Path, tmp_path: Path
) -> None:
    index = tmp_path / "index"
    build_index(DOCUMENTS, index, tiny_config)
    refit_index(index, [f"rerank.model={model}"])
    first = load_manifest(index).config["rerank"]
    refit_index(index, ["rerank.max_length=24"])
    second = load_manifest(index).config["rerank"]
    refit_index(index, ["rerank.depth=10"])
    assert load_manifest(index).config["rerank"] == second | {"depth": 10}
    assert len({first["sha256"], second["sha256"], ""}) == 3
    refit_index(index, ["rerank.model="])
    assert load_manifest(index).config["rerank"] == second | {"model": "", "sha256": "", "depth": 10}
    with pytest.raises(ModelError, match="no such folder"):
        refit_index(index, ["rerank.model=./nowhere"])


def test_the_recorded_model_keeps_its_settings_when_it_is_named(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any other model keeps its own length limit."""
    plain = BuildConfig(rerank=RerankConfig(model=str(model), max_length=24, depth=7, precision="float32"))
    recorded = with_recorded_hash(plain).rerank
    moved, other = (
        shutil.copytree(model, tmp_path / "moved"),
        make_tiny_cross_encoder(tmp_path / "other", hidden_act="relu"),
    )
    monkeypatch.chdir(model.parent)
    for named in (model, str(model), f"./{model.name}", model.name, moved):
        found = another_model(recorded, named)
        assert found == replace(recorded, model=str(named), sha256="")
        assert resolve_cross_encoder(found).fingerprint == recorded.sha256
    assert another_model(recorded, other) == replace(recorded, model=str(other), max_length=0, sha256="")
    assert another_model(recorded, "./nowhere") == replace(recorded, model="./nowhere", max_length=0, sha256="")
    settings = json.loads((moved / "tokenizer_config.json").read_text())
    (moved / "tokenizer_config.json").write_text(json.dumps(settings | {"truncation_side": "left"}))
    assert another_model(recorded, moved).max_length == 0


def test_a_recipe_without_a_cross_encoder_stays_as_it_is() -> None:
    assert with_recorded_hash(BuildConfig()) == BuildConfig()
    with pytest.raises(ConfigError, match=r"rerank\.model is empty"):
        resolve_cross_encoder(RerankConfig())


@pytest.mark.check
def test_torch_runs_what_openvino_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    from indexer.encoders.openvino import conversion

    monkeypatch.delenv("ISOTROPE_BACKEND", raising=False)
    monkeypatch.setenv("ISOTROPE_CACHE", str(tmp_path / "cache"))
    here = lambda _, arguments, task: conversion.convert(**arguments)  # noqa: E731 - in this process
    monkeypatch.setattr(conversion, "call_in_child", here)
    monkeypatch.setattr(conversion, "_difference", lambda *_: "it is off by 3.0e-01")
    folder = make_tiny_cross_encoder(tmp_path / "model")
    assert opened(folder, "auto").backend.startswith("torch")
    with pytest.raises(ModelError, match="OpenVINO cannot run this model"):
        opened(folder, "openvino")
