"""Whether the whitening of a build is a default that was measured on another model."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from indexer import BuildConfig, Document, build_index
from indexer.models.resolution import resolve_spec
from indexer.pipeline.build import _MEASURED_ON, is_untuned
from indexer.recipe.config import EncoderConfig, WhiteningConfig
from tests.documents import DOCUMENTS

STATIC = BuildConfig.load("static").whitening


def untuned(encoder: EncoderConfig, whitening: WhiteningConfig = WhiteningConfig()) -> bool:  # noqa: B008 - frozen
    config = BuildConfig(encoder=encoder, whitening=whitening)
    return is_untuned(config, resolve_spec(config))


def test_each_default_was_measured_on_the_model_of_its_recipe(shared: Path) -> None:
    assert {WhiteningConfig(), STATIC} == _MEASURED_ON.keys()
    table = EncoderConfig(kind="static", model=str(shared / "models/potion-base-4m-int8"))
    assert not untuned(EncoderConfig())
    assert untuned(EncoderConfig(pooling="cls"))
    assert untuned(EncoderConfig(query_prompt="query: "))
    assert untuned(EncoderConfig(truncate_dim=128))
    assert not untuned(table, STATIC)
    assert BuildConfig.load("static").encoder.model in _MEASURED_ON[STATIC]
    assert untuned(table)


def test_another_model_has_a_default_that_was_not_measured_on_it(tiny_model: Callable[[str], Path]) -> None:
    encoder = EncoderConfig(model=str(tiny_model("bert")))
    assert untuned(encoder)
    assert untuned(encoder, STATIC)
    assert untuned(encoder, WhiteningConfig(sample=500, query_sample="questions.txt"))


@pytest.mark.parametrize(
    "whitening",
    [
        WhiteningConfig(strength="none"),
        WhiteningConfig(strength=0.3),
        WhiteningConfig(centre="common"),
        WhiteningConfig(dim=8),
        WhiteningConfig(kind="flow"),
    ],
)
def test_settings_that_are_no_default_are_a_choice(
    whitening: WhiteningConfig, tiny_model: Callable[[str], Path]
) -> None:
    assert not untuned(EncoderConfig(model=str(tiny_model("bert"))), whitening)


def test_embeddings_from_the_corpus_have_a_note_of_their_own() -> None:
    assert not untuned(EncoderConfig(kind="vectors"))


def test_a_build_reports_it_unless_it_reuses_a_transform(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    config = BuildConfig(encoder=EncoderConfig(model=str(tiny_model("bert")), max_length=32))
    assert build_index(DOCUMENTS, tmp_path / "first", config).untuned
    assert not build_index(DOCUMENTS, tmp_path / "again", config, transform_from=tmp_path / "first").untuned
    assert not build_index(DOCUMENTS, tmp_path / "first", config).untuned, "up to date: nothing was built"
    raw = dataclasses.replace(config, whitening=WhiteningConfig(strength="none"))
    assert not build_index(DOCUMENTS, tmp_path / "raw", raw).untuned
    given = [Document(str(row), "", vector=np.eye(9, 4, dtype=np.float32)[row] + 1) for row in range(9)]
    assert not build_index(given, tmp_path / "given", BuildConfig(encoder=EncoderConfig(kind="vectors"))).untuned
