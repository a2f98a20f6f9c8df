"""The figures of a report agree with their definitions and with oracles."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.transforms import Whitening
from search import SearchEngine
from search.evaluation.report.statistics import VectorStatistics, _pairs, measure_cloud
from search.index import Index
from tests.documents import DOCUMENTS
from tests.oracles import iso_score, partition_ratio
from tests.search.evaluation.report.pages import Built, figures_of, page_of


def unit(rows: Any) -> Any:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def raw_embeddings(index: Path) -> Any:
    return np.concatenate([np.load(file) for file in sorted(index.glob("parts/*/embeddings.npy"))]).astype(np.float64)


@pytest.mark.parametrize("recipe", [(), ("whitening.strength=1", "whitening.dim=5")])
def test_figures_are_what_their_definitions_say(built: Built, recipe: tuple[str, ...]) -> None:
    index = built(*recipe)
    figures, raw = figures_of(index), raw_embeddings(index)
    engine = SearchEngine(index)
    texts = [f"{document.title} {document.text}" for document in DOCUMENTS]
    for cloud, vectors in [(figures.before, unit(raw)), (figures.after, engine.embed(texts, "document"))]:
        values = np.sort(np.linalg.eigvalsh(np.cov(vectors.T)))[::-1].clip(0)
        np.testing.assert_allclose(cloud.spectrum, values / values.sum(), atol=1e-6)
        cosines = [float(vectors[a] @ vectors[b]) for a in range(9) for b in range(a + 1, 9)]
        assert cloud.mean_cosine == pytest.approx(np.mean(cosines), abs=1e-6)
        assert cloud.cosine_deviation == pytest.approx(np.std(cosines), abs=1e-6)
        assert cloud.partition == pytest.approx(partition_ratio(vectors), rel=1e-5)
        assert cloud.isoscore == pytest.approx(iso_score(vectors), abs=1e-5)
        assert cloud.leading(10) == pytest.approx(values[:10].sum() / values.sum(), abs=1e-5)
    np.testing.assert_allclose(figures.norms, np.linalg.norm(raw, axis=1), rtol=1e-6)
    assert (figures.rows, figures.sampled, len(figures.lengths)) == (9, 9, 9)


@given(st.integers(0, 2**32), st.integers(2, 6))
def test_a_cloud_equals_the_oracles(seed: int, dim: int) -> None:
    """For any number of blocks, and any mean and spread of the directions."""
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(30, dim)) * draw.uniform(0.1, 3, dim) + draw.normal(size=dim)
    vectors = unit(rows).astype(np.float32)
    cloud = measure_cloud(lambda: np.array_split(vectors, 4), np.zeros(0))
    assert cloud.isoscore == pytest.approx(iso_score(vectors), abs=1e-5)
    assert cloud.partition == pytest.approx(partition_ratio(vectors), rel=1e-5)
    assert cloud.mean_cosine is None


def test_isotropic_and_flat_clouds_score_one_and_nought() -> None:
    axes = np.concatenate([np.eye(4), -np.eye(4)]).astype(np.float32)
    even = measure_cloud(lambda: [axes], np.zeros(0))
    assert (even.isoscore, even.participation, even.partition) == pytest.approx((1, 4, 1))
    line = measure_cloud(lambda: [axes[[0, 4]]], np.zeros(0))
    assert (line.isoscore, line.participation) == pytest.approx((0, 1))


def test_a_cloud_without_variance_or_pairs_has_no_figures() -> None:
    alike = VectorStatistics(np.zeros(3), np.zeros(0), 1.0)
    figures = (alike.participation, alike.isoscore, alike.leading(1), alike.mean_cosine, alike.cosine_deviation)
    assert figures == (None,) * 5
    assert VectorStatistics(np.ones(1), np.zeros(0), 1.0).isoscore is None  # in one dimension
    uneven = VectorStatistics(np.array([0.5, 0.25, 0.25]), np.array([0.0, 0.5, 1.0]), 1.0)
    assert (uneven.participation, uneven.isoscore) == pytest.approx((8 / 3, 5 / 6))
    assert (uneven.leading(1), uneven.leading(2)) == (0.5, 0.75)
    assert (uneven.mean_cosine, uneven.cosine_deviation) == pytest.approx((0.5, np.sqrt(1 / 6)))


def test_whitening_makes_the_vectors_more_even(built: Built) -> None:
    figures = figures_of(built("whitening.strength=1"))
    assert figures.after.isoscore is not None
    assert figures.before.isoscore is not None
    assert figures.after.isoscore > figures.before.isoscore
    assert figures.after.partition > figures.before.partition


def test_the_offset_of_the_queries_is_relative_to_the_spread_of_the_documents(built: Built) -> None:
    index = built()
    transform = Index.open(index).transform
    assert isinstance(transform, Whitening)
    raw = raw_embeddings(index)
    spread = np.sqrt(((raw - raw.mean(axis=0)) ** 2).sum(axis=1).mean())
    offset = figures_of(index).offset
    assert offset == pytest.approx(np.linalg.norm(transform.query_mean - raw.mean(axis=0)) / spread)
    assert f"is {offset:.3g} times" in page_of(index).text
    common = built("whitening.centre=common")
    assert figures_of(common).offset is None
    assert 'have the same centre ("common")' in page_of(common).text


def test_cosines_are_of_all_pairs_or_of_some_drawn_the_same_way_each_time() -> None:
    for rows in (1, 4, 200):
        assert list(zip(*_pairs(rows), strict=True)) == list(itertools.combinations(range(rows), 2))
    first, second = _pairs(300)
    assert (first[:5].tolist(), second[:5].tolist()) == ([255, 191, 153, 80, 92], [21, 61, 298, 68, 221])
    assert (len(first), first.min(), first.max(), bool((first == second).any())) == (20_000, 0, 299, False)


def test_a_text_as_long_as_the_encoder_takes_is_not_cut(built: Built) -> None:
    figures = replace(figures_of(built()), lengths=np.array([31, 32, 33, 34]))
    assert [replace(figures, max_length=limit).truncated for limit in (32, 34, None)] == [2, 0, 0]
