"""int8 from corpus to answer: calibrated once on the index's sample, stored in it, and part of the fingerprint."""

import dataclasses
import importlib.util
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer import BuildConfig, Document, train_encoder
from indexer.encoders import int8
from indexer.encoders.load import load_encoder
from indexer.encoders.openvino.graph import GRAPH
from indexer.errors import ConfigError, EvaluationError, IsotropeError
from indexer.pipeline import build as build_module
from indexer.store.manifest import load_manifest
from search import SearchEngine, verify_index
from search.evaluation.sweep import Setting
from search.evaluation.target import Target
from tests.fitted import fit_and_build

pytestmark = pytest.mark.check  # importing and running the calibration takes seconds
WORDS = ("whale", "song", "of", "the", "deep", "sea", "library", "data", "sing", "in")
DOCUMENTS = [Document(str(n), " ".join(WORDS[(n * j + n // 3) % 10] for j in range(2 + n % 9))) for n in range(20)]


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ISOTROPE_BACKEND")


@pytest.fixture
def config(tiny_config: BuildConfig) -> BuildConfig:
    return dataclasses.replace(tiny_config, encoder=dataclasses.replace(tiny_config.encoder, precision="int8"))


_built: dict[str, Path] = {}


@pytest.fixture
def index(config: BuildConfig, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build an int8 index, calibrated once per session."""
    if "index" not in _built:
        _built["index"] = tmp_path_factory.mktemp("int8") / "index"
        fit_and_build(DOCUMENTS, _built["index"], config)
    return shutil.copytree(_built["index"], tmp_path / "index")


@pytest.fixture
def calibrations(index: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Record the texts of each calibration, and replace it by a copy of the result of `index`, which is faster."""
    seen: list[list[str]] = []
    made = next((index / "encoder").iterdir())

    def counting(spec: Any, texts: Any, folder: Path) -> None:
        seen.append(list(texts))
        for path in made.iterdir():
            if path.name != "state.json":
                shutil.copy(path, folder)

    monkeypatch.setattr(int8, "quantise", counting)
    return seen


def contents(index: Path) -> dict[str, bytes]:
    files = sorted(path for path in index.rglob("*") if path.is_file())
    return {str(path.relative_to(index)): path.read_bytes() for path in files if "manifests" not in path.parts}


def test_nncf_gets_its_log_level_back_when_calibrating_fails() -> None:
    with int8._silent():
        logger = logging.getLogger("nncf")  # NNCF sets its level during the import
    before = logger.level
    with pytest.raises(ValueError, match="no ranges"), int8._silent():
        raise ValueError("no ranges")
    assert logger.level == before != logging.ERROR


def test_an_int8_index_is_close_to_a_float32_one_and_in_order(index: Path, config: BuildConfig) -> None:
    assert verify_index(index).passed
    full = dataclasses.replace(config.encoder, precision="float32")
    want = load_encoder(full).encode([document.text for document in DOCUMENTS], "document")
    found = np.concatenate([np.load(path) for path in sorted(index.glob("parts/*/embeddings.npy"))])
    cosines = (found * want).sum(axis=1) / np.linalg.norm(found, axis=1) / np.linalg.norm(want, axis=1)
    assert 0.97 < cosines.mean() < 1 - 1e-7  # random weights, and 16-bit sums overflow on some processors
    with SearchEngine(index) as engine:
        assert type(engine.encoder).__name__ == "OpenVinoEncoder"
        hit = engine.search(DOCUMENTS[7].text, k=1)[0]
        assert hit.text == DOCUMENTS[7].text


def test_the_state_is_named_by_the_manifest_and_part_of_the_fingerprint(index: Path, config: BuildConfig) -> None:
    manifest = load_manifest(index)
    state = manifest.encoder["identity"]["state"]
    folders = {str(Path(name).parent) for name in manifest.files if name.startswith("encoder/")}
    assert len(folders) == 1
    folder = folders.pop()
    assert {f"{folder}/{name}": digest for name, digest in state.items()} == {
        name: digest.sha256
        for name, digest in manifest.files.items()
        if name.startswith("encoder/") and not name.endswith("state.json")
    }
    assert GRAPH in state
    assert manifest.features == ("encoder-state",)  # so that older versions refuse the index


@pytest.mark.check
def test_two_builds_of_the_same_corpus_are_equal_byte_by_byte(
    index: Path, config: BuildConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Calibrate twice; no output, and the environment is unchanged."""
    fit_and_build(DOCUMENTS, tmp_path / "again", config)
    assert contents(tmp_path / "again") == contents(index)
    assert "NNCF_CI" not in os.environ
    assert capfd.readouterr() == ("", "")


def test_it_is_calibrated_on_the_documents(config: BuildConfig, tmp_path: Path, calibrations: list[list[str]]) -> None:
    fit_and_build(DOCUMENTS, tmp_path / "again", config)
    assert sorted(calibrations[0]) == sorted(document.text for document in DOCUMENTS)


def test_a_complete_index_is_up_to_date_and_not_calibrated_again(
    index: Path, config: BuildConfig, calibrations: list[list[str]]
) -> None:
    assert fit_and_build(DOCUMENTS, index, config).up_to_date
    assert calibrations == []


def test_an_interrupted_build_finds_its_calibration_again(
    index: Path, config: BuildConfig, tmp_path: Path, calibrations: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(build_module, "encode_parts", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fit_and_build(DOCUMENTS, tmp_path / "again", config)
    fit_and_build(DOCUMENTS, tmp_path / "again", config)
    assert len(calibrations) == 1
    assert contents(tmp_path / "again") == contents(index)


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_calibration_cut_short_or_damaged_is_made_again(
    index: Path, config: BuildConfig, tmp_path: Path, calibrations: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for damage in (
        lambda folder: (folder / "state.json").unlink(),
        lambda folder: spoil(folder / "graph.bin"),
        lambda folder: (folder / "state.json").write_text("{"),
    ):
        again = tmp_path / f"again-{len(calibrations)}"
        with monkeypatch.context() as patch:
            patch.setattr(build_module, "encode_parts", interrupted)
            with pytest.raises(KeyboardInterrupt):
                fit_and_build(DOCUMENTS, again, config)
        damage(next((again / "encoder").iterdir()))
        fit_and_build(DOCUMENTS, again, config)
        assert contents(again) == contents(index)
    assert len(calibrations) == 6


def spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_the_next_generation_keeps_the_calibration_and_with_it_the_embeddings(
    index: Path, config: BuildConfig, calibrations: list[list[str]]
) -> None:
    from indexer import RunOptions

    more = [*DOCUMENTS, Document("new", "the library of the deep sea")]
    report = fit_and_build(more, index, config, RunOptions(overwrite=True))
    assert calibrations == []
    assert (report.rows_encoded, report.rows_reused) == (1, 0) or report.parts_kept == 5


def test_a_damaged_state_is_found_before_an_answer(index: Path) -> None:
    spoil(next((index / "encoder").iterdir()) / "graph.bin")
    with pytest.raises(IsotropeError, match=r"graph\.bin"), SearchEngine(index) as engine:
        engine.search("whale")
    assert not verify_index(index).passed


def test_an_index_moved_elsewhere_still_answers(index: Path, tmp_path: Path) -> None:
    with SearchEngine(index.rename(tmp_path / "moved")) as engine:
        assert engine.search("whale song", k=3)


def test_int8_is_refused_before_a_corpus_is_read_where_nothing_can_calibrate(
    config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == "nncf" else find(name))

    def read(_: int) -> Document:
        raise AssertionError("the corpus was read")

    with pytest.raises(ConfigError, match=r"needs nncf .* pip install"):
        train_encoder(map(read, [0]), tmp_path / "int8", config)


def test_other_layers_of_an_int8_index_cannot_be_compared(index: Path) -> None:
    subject = Target.of_index(index)
    rows = subject.states([subject.own]).encode(["whale song"])
    assert np.isfinite(rows.of(["whale song"], (subject.own.layers, subject.own.pooling))).all()
    with pytest.raises(EvaluationError, match="calibrated for its own layers"):
        subject.states([Setting("mean", (1, -1), subject.own.whitening)])
    with pytest.raises(ConfigError, match="calibrated for a single average of layers"):
        subject.states([Setting("cls", subject.own.layers, subject.own.whitening)]).encode(["whale song"])
