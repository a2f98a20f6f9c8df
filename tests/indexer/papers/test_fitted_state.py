"""What an encoder is fitted with belongs to the corpus it was fitted on: an index never mixes two of them."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from indexer.pipeline.train_pooling import train_pooling

from indexer import BuildConfig, Document, RunOptions, build_index, compact_index, delete_documents
from indexer.config import EncoderConfig, LatteMixConfig, StoreConfig, WhiteningConfig
from indexer.errors import ConfigError, CorpusError, MismatchError
from indexer.pipeline import build as build_module
from indexer.pipeline.add import add_documents
from indexer.store.manifest import load_manifest
from search import SearchEngine, verify_index
from tests.directories import snapshot
from tests.documents import DOCUMENTS
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
    return dataclasses.replace(sif, encoder=dataclasses.replace(sif.encoder, pooling="latte-mix", latte_mix=small))


def stop_after_fitting(monkeypatch: pytest.MonkeyPatch, *arguments: Any, **named: Any) -> None:
    """A build that is killed once the encoder is fitted and some parts are encoded."""
    with monkeypatch.context() as patched:
        patched.setattr(build_module, "write_segments", _killed)
        with pytest.raises(KeyboardInterrupt):
            build_index(*arguments, **named)


def _killed(*_: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize("kind", ["sif", "latte"])
def test_an_interrupted_build_of_another_corpus_leaves_nothing_in_the_next(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    config: BuildConfig = request.getfixturevalue(kind)
    stop_after_fitting(monkeypatch, [*DOCUMENTS, *OTHERS], tmp_path / "index", config)
    build_index(DOCUMENTS, tmp_path / "index", config)
    build_index(DOCUMENTS, tmp_path / "clean", config)
    assert load_manifest(tmp_path / "index").fingerprint == load_manifest(tmp_path / "clean").fingerprint
    assert snapshot(tmp_path / "index/encoder") == snapshot(tmp_path / "clean/encoder")
    np.testing.assert_array_equal(stored(tmp_path / "index"), stored(tmp_path / "clean"))
    verify_index(tmp_path / "index")


def test_a_compacted_index_is_that_of_a_build_of_what_is_left(sif: BuildConfig, tmp_path: Path) -> None:
    build_index(DOCUMENTS, tmp_path / "index", sif)
    delete_documents(tmp_path / "index", [DOCUMENTS[-1].id])
    compact_index(tmp_path / "index")
    assert build_index(DOCUMENTS[:-1], tmp_path / "index", sif).up_to_date


def test_an_interrupted_build_of_the_same_corpus_goes_on_with_its_state(
    sif: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after_fitting(monkeypatch, DOCUMENTS, tmp_path / "index", sif)
    assert build_index(DOCUMENTS, tmp_path / "index", sif).parts_encoded == 0


def test_another_sample_is_another_state(sif: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = dataclasses.replace(sif, whitening=WhiteningConfig(sample=2))
    stop_after_fitting(monkeypatch, DOCUMENTS, tmp_path / "index", few)
    build_index(DOCUMENTS, tmp_path / "index", sif)
    build_index(DOCUMENTS, tmp_path / "clean", sif)
    assert snapshot(tmp_path / "index") == snapshot(tmp_path / "clean")


def test_a_published_state_is_kept_over_another_corpus_and_the_report_says_so(sif: BuildConfig, tmp_path: Path) -> None:
    build_index(DOCUMENTS, tmp_path / "index", sif)
    before = load_manifest(tmp_path / "index").fingerprint
    report = build_index([*DOCUMENTS, *OTHERS], tmp_path / "index", sif, OVER)
    assert load_manifest(tmp_path / "index").fingerprint == before
    assert any("fitted with is kept from the generation before" in note for note in report.notes)


def test_a_transform_is_not_taken_from_an_index_of_another_state(
    sif: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(OTHERS, tmp_path / "donor", sif)
    build_index(DOCUMENTS, tmp_path / "index", sif)
    with pytest.raises(MismatchError, match="fitted to another corpus"):
        build_index(DOCUMENTS, tmp_path / "index", sif, OVER, transform_from=tmp_path / "donor")
    stop_after_fitting(monkeypatch, DOCUMENTS, tmp_path / "new", sif)
    build_index(DOCUMENTS, tmp_path / "new", sif, transform_from=tmp_path / "donor")
    assert load_manifest(tmp_path / "new").fingerprint == load_manifest(tmp_path / "donor").fingerprint
    assert SearchEngine(tmp_path / "new").search("bees dance", 1)


def test_a_failed_take_over_leaves_no_state_behind(sif: BuildConfig, tmp_path: Path) -> None:
    build_index(OTHERS, tmp_path / "donor", sif)
    with pytest.raises(CorpusError):
        build_index([], tmp_path / "index", sif, transform_from=tmp_path / "donor")
    build_index(DOCUMENTS, tmp_path / "index", sif)
    build_index(DOCUMENTS, tmp_path / "clean", sif)
    assert load_manifest(tmp_path / "index").fingerprint == load_manifest(tmp_path / "clean").fingerprint


def test_another_trained_state_is_another_recipe(latte: BuildConfig, tmp_path: Path) -> None:
    recipes = []
    for name, documents in (("first", DOCUMENTS), ("second", OTHERS)):
        train_pooling(documents, tmp_path / name, latte)
        recipes.append(BuildConfig.load(tmp_path / name / "recipe.toml"))
    build_index(DOCUMENTS, tmp_path / "index", recipes[0])
    assert build_index(DOCUMENTS, tmp_path / "index", recipes[0]).up_to_date
    for other in (recipes[1], latte):
        with pytest.raises(ConfigError, match="another auto-encoder than the recipe asks for"):
            build_index(DOCUMENTS, tmp_path / "index", other)


def test_whole_numbers_are_the_same_settings_as_floats(table: Path, tmp_path: Path) -> None:
    latte = LatteMixConfig(dims=2, classes=3, threshold=0, beta=1)
    for pooling in ("sif", "latte-mix"):
        encoder = EncoderConfig(kind="static", model=str(table), pooling=pooling, sif_a=1, latte_mix=latte)
        build_index(DOCUMENTS, tmp_path / pooling, BuildConfig(encoder=encoder))
        assert SearchEngine(tmp_path / pooling).search("bees dance", 1)


def test_a_wrong_table_is_named_and_not_the_state(sif: BuildConfig, table: Path, tmp_path: Path) -> None:
    build_index(DOCUMENTS, tmp_path / "index", sif)
    other = tmp_path / "other.txt"
    other.write_text(table.read_text().replace("0.5", "0.625", 1))
    with pytest.raises(MismatchError, match="words has sha256") as raised:
        SearchEngine(tmp_path / "index", model=other).search("bees")
    assert "sif.safetensors" not in str(raised.value)


def test_drift_is_a_number_after_removal(sif: BuildConfig, tmp_path: Path) -> None:
    config = dataclasses.replace(sif, whitening=WhiteningConfig(strength="none"))
    build_index(DOCUMENTS[:5], tmp_path / "index", config)  # five rows of seven numbers: two directions do not vary
    add_documents(OTHERS, tmp_path / "index")
    drift = load_manifest(tmp_path / "index").quality["drift"]
    assert all(np.isfinite(drift[name]) for name in ("mean_shift", "covariance"))


def test_tokens_of_zeros_are_as_good_as_unknown(table: Path, tmp_path: Path) -> None:
    with table.open("a") as file:
        file.write(" ".join(["nought", *["0"] * 7]) + "\n")
    encoder = EncoderConfig(kind="static", model=str(table))
    report = build_index([*DOCUMENTS, Document("z", "nought nought")], tmp_path / "index", BuildConfig(encoder=encoder))
    assert any(note.startswith("1 texts hold nothing") for note in report.notes)
