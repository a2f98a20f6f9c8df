"""Settings of the papers' methods: removed directions, kinds of transform, poolings of tokens."""

import dataclasses
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from indexer import BuildConfig, build_index
from indexer.encoders.fitted_state import fit_state
from indexer.encoders.load import load_encoder, open_encoder
from indexer.encoders.token_embeddings import TokenEmbeddings
from indexer.errors import ConfigError, ModelError
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.model_files import file_sha256
from indexer.models.resolution import resolve_spec, with_fitted_state
from indexer.moments import Moments
from indexer.papers.flow import Flow, FlowConfig
from indexer.papers.latte_mix.hellinger import Hellinger
from indexer.papers.latte_mix.settings import LatteMixConfig
from indexer.papers.sbert_wk import sbert_wk
from indexer.papers.sif import SifConfig, count_tokens, read_counts, sif_weights, write_counts
from indexer.recipe.config import EncoderConfig, WhiteningConfig
from indexer.recipe.run_options import RunOptions
from indexer.transforms import (
    FitData,
    Normalisation,
    Whitening,
    fit_transform,
    fit_whitening,
    transform_from_bytes,
    transform_to_bytes,
)
from search import SearchEngine
from search.evaluation.sweep import Setting, Sweep
from tests.documents import DOCUMENTS
from tests.fitted import fit_and_build, papers

Rows = npt.NDArray[np.float64]
TEXTS = [f"{document.title} {document.text}" for document in DOCUMENTS]


def rows_of(seed: int, count: int = 60, dim: int = 8) -> Rows:
    random = np.random.default_rng(seed)
    return random.normal(size=(count, dim)) @ random.normal(size=(dim, dim)) + 3 * random.normal(size=dim)


@given(seed=st.integers(0, 40), removed=st.integers(1, 3))
def test_removal_alone_is_that_of_sif(seed: int, removed: int) -> None:
    """Return X - X U U^T, U the leading right singular vectors of the uncentred rows."""
    rows = rows_of(seed)
    found = fit_whitening(Moments.of(rows), WhiteningConfig(strength="none"), removed)
    leading = np.linalg.svd(rows, full_matrices=False)[2][:removed]
    left = rows - rows @ leading.T @ leading
    vectors = found.transform(rows, "document").astype(np.float64)
    unit = left / np.linalg.norm(left, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors @ vectors.T, unit @ unit.T, atol=1e-5)
    np.testing.assert_array_equal(found.transform(rows, "query"), found.transform(rows, "document"))


@given(seed=st.integers(0, 40), removed=st.integers(0, 3), strength=st.sampled_from([0.0, 0.5, 1.0]))
def test_whitening_after_removal_is_whitening_of_what_is_left(seed: int, removed: int, strength: float) -> None:
    rows = rows_of(seed)
    found = fit_whitening(Moments.of(rows), WhiteningConfig(strength=strength), removed)
    assert isinstance(found, Whitening)
    leading = np.linalg.svd(rows, full_matrices=False)[2][:removed]
    left = rows - rows @ leading.T @ leading
    after = fit_whitening(Moments.of(left), WhiteningConfig(strength=strength))
    assert found.dim == after.dim == 8 - removed
    np.testing.assert_allclose(found.transform(rows, "document"), after.transform(left, "document"), atol=1e-4)


def test_no_more_directions_are_removed_than_leave_one() -> None:
    with pytest.raises(ConfigError, match=r"whitening\.remove is 8, but embeddings have 8 dimensions"):
        fit_whitening(Moments.of(rows_of(0)), WhiteningConfig(strength="none"), 8)


@pytest.mark.parametrize(
    ("config", "pooling", "removed"),
    [
        (WhiteningConfig(), "mean", 0),
        (WhiteningConfig(), "sif", 1),
        (WhiteningConfig(remove=0), "sif", 0),
        (WhiteningConfig(remove=2), "mean", 2),
        (WhiteningConfig(kind="flow"), "sif", 0),
    ],
)
def test_one_direction_is_removed_after_sif_unless_the_recipe_says_otherwise(
    config: WhiteningConfig, pooling: str, removed: int
) -> None:
    assert config.removed(pooling) == removed


@pytest.mark.parametrize("changes", [{"dim": 3}, {"shrinkage": 0.5}, {"remove": 1}])
def test_other_kinds_refuse_what_only_whitening_has(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match='kind is "flow", which does not use'):
        WhiteningConfig(kind="flow", **changes)


@pytest.mark.parametrize(("kind", "expected"), [("whitening", Whitening), ("flow", Flow), ("hellinger", Hellinger)])
def test_every_kind_of_transform_is_fitted_written_and_read(kind: Any, expected: type) -> None:
    rows = np.abs(rows_of(1)).astype(np.float32)
    config = WhiteningConfig(kind=kind)
    found = fit_transform(
        FitData(lambda: Moments.of(rows), lambda: iter([rows])),
        config,
        "mean",
        paper={"levels": 2, "depth": 1, "width": 4},
    )
    assert isinstance(found, expected)
    again = transform_from_bytes(transform_to_bytes(found), "here")
    assert (again.kind, again.settings()) == (found.kind, found.settings())
    for role in ("document", "query"):
        np.testing.assert_array_equal(again.transform(rows, role), found.transform(rows, role))
    assert (found.query_mean is not None) == config.centres_by_role == (kind != "hellinger")


def test_moments_are_not_enough_for_a_flow() -> None:
    material = FitData.of_moments(Moments.of(rows_of(2)))
    assert isinstance(fit_transform(material, WhiteningConfig(), "mean"), Whitening)
    with pytest.raises(ConfigError, match="trained on individual embeddings"):
        fit_transform(material, WhiteningConfig(kind="flow"), "mean")


def test_settings_are_named_by_what_they_do_and_sweeps_try_each_once() -> None:
    own = Setting("mean", (-1,), WhiteningConfig())
    sweep = Sweep(poolings=("mean", "sif"), strengths=("none", 1.0), kinds=("whitening", "flow"))
    labels = [setting.label for setting in sweep.settings(own)]
    assert labels == [
        "mean -1 raw", "mean -1 flow role", "mean -1 strength 1 role",
        "sif -1 1 removed", "sif -1 flow role", "sif -1 strength 1 1 removed role",
    ]  # fmt: skip
    raw = [setting.raw for setting in sweep.settings(own)]
    assert raw == [True, False, False, False, False, False]
    assert sweep.settings(own)[1].to_dict()["kind"] == "flow"
    assert sweep.settings(own)[3].to_dict()["removed"] == 1


# Poolings of a transformer's tokens


@pytest.fixture
def fitted(tiny_config: BuildConfig, tmp_path: Path) -> Callable[..., EncoderSpec]:
    def make(pooling: Any, **changes: Any) -> EncoderSpec:
        config = dataclasses.replace(tiny_config.encoder, pooling=pooling, **changes)
        spec, folder = resolve_spec(config), tmp_path / pooling
        folder.mkdir()
        fit_state(spec, lambda: iter([TEXTS]), folder, RunOptions())
        return with_fitted_state(spec, folder, {path.name: file_sha256(path) for path in sorted(folder.iterdir())})

    return make


def test_sif_of_a_transformer_weighs_its_token_states(fitted: Callable[..., EncoderSpec]) -> None:
    spec = fitted("sif", layers=(1,))
    encoder = open_encoder(spec, RunOptions())
    weights = sif_weights(read_counts(Path(spec.state or "")), 1e-3)
    outputs = TokenEmbeddings(spec)
    tokens = outputs.encoder.tokenize(TEXTS, "document")
    assert weights[0] == pytest.approx(1e-3 / (1e-3 + (tokens.ids == 0).mean()))
    (rows, starts) = next(outputs(TEXTS))
    expected = [
        (rows[start:end] * weights[tokens.ids[start:end], None]).mean(axis=0) for start, end in pairwise(starts)
    ]
    np.testing.assert_allclose(encoder.encode(TEXTS, "document"), expected, atol=1e-5)


def test_counts_are_kept_as_they_were(tmp_path: Path, fitted: Callable[..., EncoderSpec]) -> None:
    encoder = TokenEmbeddings(fitted("sif")).encoder
    ids = [encoder.tokenize(texts, "document").ids for texts in (TEXTS, TEXTS[:2])]
    counts = count_tokens(ids, encoder.vocabulary)
    write_counts(tmp_path, counts)
    np.testing.assert_array_equal(read_counts(tmp_path), counts)
    (tmp_path / "sif.safetensors").write_bytes(b"no")
    with pytest.raises(ModelError, match="not the token counts"):
        read_counts(tmp_path)


def test_sbert_wk_pools_the_states_of_the_layers_named(tiny_config: BuildConfig) -> None:
    config = dataclasses.replace(tiny_config.encoder, pooling="sbert-wk", layers=(0, 1, 2))
    spec = resolve_spec(config)
    outputs = TokenEmbeddings(spec)
    by_layer = [next(outputs(TEXTS, [layer])) for layer in (0, 1, 2)]
    starts = by_layer[0][1]
    expected = [
        sbert_wk([torch.from_numpy(rows[None, start:end]) for rows, _ in by_layer], None)[0].numpy()
        for start, end in pairwise(starts)
    ]
    np.testing.assert_allclose(open_encoder(spec, RunOptions()).encode(TEXTS, "document"), expected, atol=1e-4)


def test_poolings_of_tokens_are_computed_by_torch_whatever_is_installed(
    tiny_config: BuildConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ISOTROPE_BACKEND")
    config = dataclasses.replace(tiny_config.encoder, pooling="sbert-wk", layers=(0, 1, 2))
    assert load_encoder(config).backend.startswith("torch")
    assert load_encoder(config, RunOptions(texts="few")).backend.startswith("torch")
    with pytest.raises(ConfigError, match="openvino does not compute"):
        load_encoder(config, RunOptions(backend="openvino"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pooling": "sbert-wk"}, "which compares layers"),
        ({"pooling": "sif", "precision": "int8"}, "which int8 does not support"),
        ({"kind": "vectors", "pooling": "latte-mix"}, "the corpus brings the embeddings"),
    ],
)
def test_encoders_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EncoderConfig(**changes)


@pytest.mark.parametrize(
    ("cls", "setting", "value"),
    [
        (LatteMixConfig, "encoder_layers", 4), (LatteMixConfig, "classes", 1), (LatteMixConfig, "temperature", 0.0),
        (LatteMixConfig, "warmup", 1.0), (LatteMixConfig, "seed", -1), (LatteMixConfig, "threshold", -1.0),
        (FlowConfig, "levels", 0), (FlowConfig, "learning_rate", float("inf")), (FlowConfig, "seed", 1 << 32),
        (SifConfig, "a", 0.0),
    ],
)  # fmt: skip
def test_settings_of_training_are_checked(cls: type, setting: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"{setting} is {value}"):
        cls(**{setting: value})


def test_an_override_reaches_a_nested_table() -> None:
    config = BuildConfig().with_overrides(["papers.latte_mix.dims=4", "papers.flow.epochs=7"])
    assert (config.paper("latte_mix").dims, config.paper("flow").epochs) == (4, 7)
    with pytest.raises(ConfigError, match=r'unknown setting "papers\.latte_mix\.dim"; did you mean'):
        BuildConfig().with_overrides(["papers.latte_mix.dim=4"])
    with pytest.raises(ConfigError, match=r'unknown section "papers\.flo"; did you mean "papers\.flow"'):
        BuildConfig().with_overrides(["papers.flo.seed=4"])
    with pytest.raises(ConfigError, match='no table of settings "pooling"'):
        BuildConfig().with_overrides(["encoder.pooling.mode=mean"])
    assert BuildConfig.from_dict(config.to_dict()) == config


def test_what_tokens_depend_on_is_not_how_they_are_pooled(tiny_config: BuildConfig) -> None:
    def of(**changes: Any) -> str:
        return resolve_spec(dataclasses.replace(tiny_config.encoder, **changes)).identity.token_fingerprint

    assert of() == of(pooling="max") == of(query_prompt="ask: ")
    assert len({of(), of(layers=(1,)), of(document_prompt="say: "), of(max_length=16)}) == 4


@pytest.mark.parametrize("pooling", ["sif", "sbert-wk", "latte-mix"])
def test_an_index_of_each_pooling_finds_its_documents(pooling: Any, tiny_config: BuildConfig, tmp_path: Path) -> None:
    encoder = dataclasses.replace(tiny_config.encoder, pooling=pooling, layers=(0, 1, 2))
    settings = papers(latte_mix=LatteMixConfig(dims=3, classes=5))
    common = WhiteningConfig(centre="common")
    config = dataclasses.replace(tiny_config, encoder=encoder, whitening=common, papers=settings)
    report = fit_and_build(DOCUMENTS, tmp_path / "index", config)
    assert report.backend.startswith("torch")
    engine = SearchEngine(tmp_path / "index")
    for document, text in zip(DOCUMENTS, TEXTS, strict=True):
        (hit,) = engine.search_vectors(engine.encoder.encode([text], "document"), 1)[0]
        assert hit.id == document.id
        assert hit.score == pytest.approx(1, abs=1e-5)


def test_a_single_document_has_nothing_to_fit(tiny_config: BuildConfig, tmp_path: Path) -> None:
    for kind in ("whitening", "flow"):
        config = dataclasses.replace(tiny_config, whitening=WhiteningConfig(kind=kind))
        report = build_index(_one(), tmp_path / kind, config)
        assert "nothing to fit" in report.notes[0]
        assert isinstance(SearchEngine(tmp_path / kind).index.transform, Normalisation)


def _one() -> Iterator[Any]:
    return iter(DOCUMENTS[:1])
