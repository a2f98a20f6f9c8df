"""A fitted encoder state belongs to its corpus: an index never mixes two states."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer import BuildConfig, Document, RunOptions, build_index, compact_index, delete_documents
from indexer.errors import ConfigError, CorpusError, MismatchError, ModelError
from indexer.papers.latte_mix.settings import LatteMixConfig
from indexer.papers.sif import SifConfig
from indexer.pipeline import build as build_module
from indexer.pipeline.add import add_documents
from indexer.pipeline.train import train_encoder, train_for_index
from indexer.recipe.config import EncoderConfig, WhiteningConfig
from indexer.recipe.index_config import StoreConfig
from indexer.store.manifest import load_manifest
from search import SearchEngine, verify_index
from tests.directories import snapshot
from tests.documents import DOCUMENTS
from tests.fitted import fit_and_build, papers
from tests.indexer.pipeline.test_static import WORDS, stored, write_table

OTHERS = [Document(f"o{number}", " ".join(np.random.default_rng(number).choice(WORDS[:9], 5))) for number in range(12)]
OVER = RunOptions(overwrite=True)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_table(tmp_path / "words.txt")


@pytest.fixture
def sif(table: Path) -> BuildConfig:
    encoder = EncoderConfig(kind="static", model=str(table), pooling="sif")
    return BuildConfig(encoder=encoder, store=StoreConfig(part_documents=4))


@pytest.fixture
def latte(sif: BuildConfig) -> BuildConfig:
    small = LatteMixConfig(dims=2, classes=3, batch=4)
    encoder = dataclasses.replace(sif.encoder, pooling="latte-mix")
    return dataclasses.replace(sif, encoder=encoder, papers=papers(latte_mix=small))


def stop_after_fitting(monkeypatch: pytest.MonkeyPatch, *arguments: Any, **named: Any) -> None:
    """A build that is killed once the encoder is fitted and some parts are encoded."""
    with monkeypatch.context() as patched:
        patched.setattr(build_module, "write_segments", _killed)
        with pytest.raises(KeyboardInterrupt):
            fit_and_build(*arguments, **named)


def _killed(*_: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize("kind", ["sif", "latte"])
def test_an_interrupted_build_of_another_corpus_leaves_nothing_in_the_next(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    config: BuildConfig = request.getfixturevalue(kind)
    stop_after_fitting(monkeypatch, [*DOCUMENTS, *OTHERS], tmp_path / "index", config)
    fit_and_build(DOCUMENTS, tmp_path / "index", config)
    fit_and_build(DOCUMENTS, tmp_path / "clean", config)
    assert load_manifest(tmp_path / "index").fingerprint == load_manifest(tmp_path / "clean").fingerprint
    assert snapshot(tmp_path / "index/encoder") == snapshot(tmp_path / "clean/encoder")
    np.testing.assert_array_equal(stored(tmp_path / "index"), stored(tmp_path / "clean"))
    verify_index(tmp_path / "index")


def test_a_compacted_index_is_that_of_a_build_of_what_is_left(sif: BuildConfig, tmp_path: Path) -> None:
    fit_and_build(DOCUMENTS, tmp_path / "index", sif)
    delete_documents(tmp_path / "index", [DOCUMENTS[-1].id])
    compact_index(tmp_path / "index")
    assert fit_and_build(DOCUMENTS[:-1], tmp_path / "index", sif).up_to_date


def test_an_interrupted_build_of_the_same_corpus_goes_on_with_its_state(
    sif: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after_fitting(monkeypatch, DOCUMENTS, tmp_path / "index", sif)
    assert fit_and_build(DOCUMENTS, tmp_path / "index", sif).parts_encoded == 0


def test_another_sample_is_another_state(sif: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = dataclasses.replace(sif, whitening=WhiteningConfig(sample=2))
    stop_after_fitting(monkeypatch, DOCUMENTS, tmp_path / "index", few)
    fit_and_build(DOCUMENTS, tmp_path / "index", sif)
    fit_and_build(DOCUMENTS, tmp_path / "clean", sif)
    assert snapshot(tmp_path / "index") == snapshot(tmp_path / "clean")


def test_a_published_state_is_kept_over_another_corpus_and_the_command_line_says_so(
    sif: BuildConfig, tmp_path: Path
) -> None:
    index, more = tmp_path / "index", [*DOCUMENTS, *OTHERS]
    fit_and_build(DOCUMENTS, index, sif)
    before = load_manifest(index).fingerprint
    assert "keeps the state of the previous generation" in train_for_index(more, index, sif, OVER)
    build_index(more, index, sif, OVER)
    assert load_manifest(index).fingerprint == before


def test_the_state_that_the_command_line_fits_is_that_of_training(sif: BuildConfig, tmp_path: Path) -> None:
    """With the same sample; an interrupted build reuses the state, and another corpus fits another state."""
    index = tmp_path / "index"
    assert "trained on 5 texts" in train_for_index(DOCUMENTS[:5], index, sif)
    assert train_for_index(DOCUMENTS[:5], index, sif) == ""
    train_encoder(DOCUMENTS[:5], tmp_path / "sif", sif)
    (state,) = (index / "encoder").iterdir()
    assert (state / "sif.safetensors").read_bytes() == (tmp_path / "sif/sif.safetensors").read_bytes()
    assert "trained on" in train_for_index(OTHERS, index, sif)
    build_index(OTHERS, index, sif)
    assert train_for_index(OTHERS, index, sif) == ""


def test_a_build_takes_finished_encoders_only(sif: BuildConfig, table: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'pooling is "sif".*Fix: train_encoder\(corpus, FOLDER, config\)'):
        build_index(DOCUMENTS, tmp_path / "index", sif)
    with pytest.raises(ConfigError, match="a stream can be read only once"):
        train_for_index(iter(DOCUMENTS), tmp_path / "index", sif)
    train_encoder(DOCUMENTS, tmp_path / "sif", sif)
    config = BuildConfig.load(tmp_path / "sif/recipe.toml")
    build_index(DOCUMENTS, tmp_path / "index", config)
    fit_and_build(DOCUMENTS, tmp_path / "own", sif)
    assert load_manifest(tmp_path / "index").fingerprint == load_manifest(tmp_path / "own").fingerprint
    with pytest.raises(ConfigError, match="which needs no training"):
        train_encoder(DOCUMENTS, tmp_path / "mean", BuildConfig(encoder=EncoderConfig(kind="static", model=str(table))))


def test_a_folder_that_does_not_fit_the_encoder_is_refused(sif: BuildConfig, tmp_path: Path) -> None:
    train_encoder(DOCUMENTS, tmp_path / "sif", sif)
    config = BuildConfig.load(tmp_path / "sif/recipe.toml")
    shorter = dataclasses.replace(config, encoder=dataclasses.replace(config.encoder, max_length=3))
    with pytest.raises(MismatchError, match="token vectors of another encoder"):
        build_index(DOCUMENTS, tmp_path / "index", shorter)
    (tmp_path / "sif/sif.safetensors").write_bytes(b"other")
    with pytest.raises(ModelError, match=r"its files differ from fitted\.json"):
        build_index(DOCUMENTS, tmp_path / "index", config)
    (tmp_path / "sif/fitted.json").unlink()
    (tmp_path / "sif/sif.safetensors").unlink()
    with pytest.raises(ModelError, match=r"does not contain sif\.safetensors"):
        build_index(DOCUMENTS, tmp_path / "index", config)


def test_a_transform_is_not_taken_from_an_index_of_another_state(
    sif: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit_and_build(OTHERS, tmp_path / "donor", sif)
    fit_and_build(DOCUMENTS, tmp_path / "index", sif)
    with pytest.raises(MismatchError, match="fitted to another corpus"):
        fit_and_build(DOCUMENTS, tmp_path / "index", sif, OVER, transform_from=tmp_path / "donor")
    stop_after_fitting(monkeypatch, DOCUMENTS, tmp_path / "new", sif)
    fit_and_build(DOCUMENTS, tmp_path / "new", sif, transform_from=tmp_path / "donor")
    assert load_manifest(tmp_path / "new").fingerprint == load_manifest(tmp_path / "donor").fingerprint
    assert SearchEngine(tmp_path / "new").search("bees dance", 1)


def test_a_failed_take_over_leaves_no_state_behind(sif: BuildConfig, tmp_path: Path) -> None:
    fit_and_build(OTHERS, tmp_path / "donor", sif)
    with pytest.raises(CorpusError):
        fit_and_build(DOCUMENTS[:1] * 2, tmp_path / "index", sif, transform_from=tmp_path / "donor")
    fit_and_build(DOCUMENTS, tmp_path / "index", sif)
    fit_and_build(DOCUMENTS, tmp_path / "clean", sif)
    assert load_manifest(tmp_path / "index").fingerprint == load_manifest(tmp_path / "clean").fingerprint


def test_another_trained_state_is_another_recipe(latte: BuildConfig, tmp_path: Path) -> None:
    recipes = []
    for name, documents in (("first", DOCUMENTS), ("second", OTHERS)):
        train_encoder(documents, tmp_path / name, latte)
        recipes.append(BuildConfig.load(tmp_path / name / "recipe.toml"))
    fit_and_build(DOCUMENTS, tmp_path / "index", recipes[0])
    assert fit_and_build(DOCUMENTS, tmp_path / "index", recipes[0]).up_to_date
    for other in (recipes[1], latte):
        with pytest.raises(ConfigError, match="contains embeddings of another fitted encoder"):
            fit_and_build(DOCUMENTS, tmp_path / "index", other)


def test_whole_numbers_are_the_same_settings_as_floats(table: Path, tmp_path: Path) -> None:
    latte = LatteMixConfig(dims=2, classes=3, threshold=0, beta=1)
    for pooling in ("sif", "latte-mix"):
        encoder = EncoderConfig(kind="static", model=str(table), pooling=pooling)
        settings = papers(latte_mix=latte, sif=SifConfig(a=1))
        fit_and_build(DOCUMENTS, tmp_path / pooling, BuildConfig(encoder=encoder, papers=settings))
        assert SearchEngine(tmp_path / pooling).search("bees dance", 1)


def test_a_wrong_table_is_named_and_not_the_state(sif: BuildConfig, table: Path, tmp_path: Path) -> None:
    fit_and_build(DOCUMENTS, tmp_path / "index", sif)
    other = tmp_path / "other.txt"
    other.write_text(table.read_text().replace("0.5", "0.625", 1))
    with pytest.raises(MismatchError, match="words has sha256") as raised:
        SearchEngine(tmp_path / "index", model=other).search("bees")
    assert "sif.safetensors" not in str(raised.value)


def test_drift_is_a_number_after_removal(sif: BuildConfig, tmp_path: Path) -> None:
    config = dataclasses.replace(sif, whitening=WhiteningConfig(strength="none"))
    fit_and_build(DOCUMENTS[:5], tmp_path / "index", config)  # five rows of seven numbers: two directions are constant
    add_documents(OTHERS, tmp_path / "index")
    drift = load_manifest(tmp_path / "index").quality["drift"]
    assert all(np.isfinite(drift[name]) for name in ("mean_shift", "covariance"))


def test_tokens_of_zeros_are_as_good_as_unknown(table: Path, tmp_path: Path) -> None:
    with table.open("a") as file:
        file.write(" ".join(["nought", *["0"] * 7]) + "\n")
    encoder = EncoderConfig(kind="static", model=str(table))
    report = fit_and_build(
        [*DOCUMENTS, Document("z", "nought nought")], tmp_path / "index", BuildConfig(encoder=encoder)
    )
    assert any(note.startswith("1 texts have no known tokens") for note in report.notes)
