"""SIF and flows in indexes of static tables."""

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from indexer import BuildConfig, Document, build_index
from indexer.encoders.load import load_encoder
from indexer.errors import ConfigError
from indexer.papers.flow import Flow, FlowConfig
from indexer.pipeline.add import add_documents
from indexer.pipeline.refit import refit_index
from indexer.recipe.config import WhiteningConfig
from indexer.store.manifest import load_manifest
from search import SearchEngine, verify_index
from search.export.faiss import export_faiss
from search.export.sentence_transformers import export_sentence_transformers
from tests.documents import DOCUMENTS
from tests.fitted import fit_and_build, papers
from tests.indexer.pipeline.test_static import (
    WORDS,
    joined,
    known,
    require_same_vectors_in_sentence_transformers,
    static,
    stored,
    vectors,
    write_table,
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_table(tmp_path / "words.txt")


def flow_recipe(table: Path, flow: FlowConfig) -> BuildConfig:
    return dataclasses.replace(static(table), whitening=WhiteningConfig(kind="flow"), papers=papers(flow=flow))


def test_sif_weighs_by_rarity_and_takes_out_the_first_direction(table: Path, tmp_path: Path) -> None:
    """Algorithm 1 of Arora et al."""
    config = dataclasses.replace(static(table, pooling="sif"), whitening=WhiteningConfig(strength="none"))
    fit_and_build(DOCUMENTS, tmp_path / "index", config)
    texts = [known(joined(document)) for document in DOCUMENTS]
    counts = Counter(word for text in texts for word in text)
    total, rows = sum(counts.values()), dict(zip(WORDS, vectors().astype(np.float64), strict=True))
    weighted = np.array(
        [sum(1e-3 / (1e-3 + counts[word] / total) * rows[word] for word in text) / len(text) for text in texts]
    )
    np.testing.assert_allclose(stored(tmp_path / "index"), weighted, rtol=1e-5)
    first = np.linalg.svd(weighted, full_matrices=False)[2][0]
    left = weighted - np.outer(weighted @ first, first)
    left /= np.linalg.norm(left, axis=1, keepdims=True)
    engine = SearchEngine(tmp_path / "index")
    vectors_there = engine.index.vectors(np.arange(len(DOCUMENTS)))
    np.testing.assert_allclose(vectors_there @ vectors_there.T, left @ left.T, atol=1e-5)
    assert engine.search(joined(DOCUMENTS[3]), 1)[0].score == pytest.approx(1, abs=1e-5)


def test_sif_counts_are_kept_with_the_index(table: Path, tmp_path: Path) -> None:
    index, config = tmp_path / "index", static(table, pooling="sif")
    fit_and_build(DOCUMENTS, index, config)
    before = load_manifest(index)
    assert any(name.endswith("sif.safetensors") for name in before.files)
    assert fit_and_build(DOCUMENTS, index, config).up_to_date
    add_documents([Document("new", "whales whales whales")], index)
    assert load_manifest(index).fingerprint == before.fingerprint
    next((index / "encoder").glob("*/sif.safetensors")).write_bytes(b"other")
    with pytest.raises(Exception, match=r"sif\.safetensors"):
        SearchEngine(index).search("whales")


def test_a_pooling_that_is_fitted_cannot_encode_before_it_is(table: Path) -> None:
    with pytest.raises(ConfigError, match="must be fitted to a corpus"):
        load_encoder(static(table, pooling="sif").encoder).encode(["whales"], "document")


def test_an_index_with_a_flow_answers_grows_and_is_refitted(table: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    build_index(DOCUMENTS, index, flow_recipe(table, FlowConfig(levels=2, depth=2, width=4, epochs=3)))
    engine = SearchEngine(index)
    transform = engine.index.transform
    assert isinstance(transform, Flow)
    assert not np.array_equal(transform.mean, transform.query_mean)
    assert engine.neighbours("d3", 2)
    add_documents([Document("new", "bees dance on steel cables")], index)
    assert SearchEngine(index).search("bees dance on steel cables", 1, exact=True)
    refit_index(index, ["papers.flow.seed=1"])
    again = SearchEngine(index).index.transform
    assert isinstance(again, Flow)
    assert set(again.arrays()) == set(transform.arrays())
    verify_index(index)


@pytest.mark.parametrize("whitening", [WhiteningConfig(), WhiteningConfig(strength="none")])
def test_sentence_transformers_gives_the_same_vectors(table: Path, tmp_path: Path, whitening: WhiteningConfig) -> None:
    config = dataclasses.replace(static(table, pooling="sif"), whitening=whitening)
    fit_and_build(DOCUMENTS, tmp_path / "index", config)
    require_same_vectors_in_sentence_transformers(tmp_path)


def test_flows_are_not_exported(table: Path, tmp_path: Path) -> None:
    build_index(DOCUMENTS, tmp_path / "flow", flow_recipe(table, FlowConfig(levels=1, depth=1, width=4)))
    with pytest.raises(ConfigError, match='kind is "flow"'):
        export_sentence_transformers(tmp_path / "flow", tmp_path / "folder")
    with pytest.raises(ConfigError, match='kind is "flow"'):
        export_faiss(tmp_path / "flow", tmp_path / "index.faiss")
