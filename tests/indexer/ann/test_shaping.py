"""Padding changes no score, dimensions are allocated by their variances, and both improve recall."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer import ann
from indexer.ann.factory import allocate_dimensions
from indexer.ann.parameters import largest_parameters
from tests.indexer.ann.test_faiss_index import made, saved, unit_vectors

DIM = 21


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=64), st.integers(1, 5), st.integers(0, 3))
def test_every_dimension_goes_to_one_place(variances: list[float], size: int, spare: int) -> None:
    codes = -(-len(variances) // size) + spare
    dealt = allocate_dimensions(np.array(variances), codes, size).tolist()
    assert len(dealt) == codes * size
    assert sorted(place for place in dealt if place >= 0) == list(range(len(variances)))
    assert dealt == allocate_dimensions(np.array(variances), codes, size).tolist()


def test_variances_multiply_to_about_the_same_in_each_code() -> None:
    variances = np.geomspace(1000, 1, 64)
    dealt = allocate_dimensions(variances, 16, 4).reshape(16, 4)
    products = np.log(variances[dealt]).sum(axis=1)
    as_they_come = np.log(variances).reshape(16, 4).sum(axis=1)
    assert np.ptp(products) < np.ptp(as_they_come) / 20


@pytest.mark.parametrize(
    "inside", ["Flat", "IVF1,PQ8x4fs,RFlat", "HNSW8", "IVF4,Flat", "SQfp16", "PQ8x4fs,Refine(SQ8)"]
)
@pytest.mark.parametrize("width", [32, DIM])
def test_a_padded_index_holds_the_vectors_that_were_added(inside: str, width: int, tmp_path: Path) -> None:
    vectors = unit_vectors(400, DIM)
    if width % 8 and "PQ" in inside:
        inside = inside.replace("PQ8", "PQ7")
    index = made(f"Pad{width},{inside}", vectors)
    assert (index.d, index.ntotal) == (DIM, 400)
    ann.set_search_parameters(index, largest_parameters(index))
    scores, rows = index.search(vectors[:20], 1)
    assert rows[:, 0].tolist() == list(range(20))
    np.testing.assert_allclose(scores[:, 0], 1, atol=0.02)
    saved(index, tmp_path / "a")
    again = ann.map_index(tmp_path / "a").search(vectors[:20], 1)
    np.testing.assert_array_equal(again[1], rows)
    np.testing.assert_array_equal(again[0], scores)


def test_a_width_that_is_too_small_is_faiss_s_own() -> None:
    """FAISS truncates or rejects vectors there."""
    assert ann.make_index("Pad8,Flat", DIM).d == DIM


def recall(index: Any, vectors: Any, queries: Any) -> float:
    best = np.argsort(-(queries @ vectors.T), axis=1)[:, :10]
    found = index.search(queries, 10)[1]
    return float(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found.tolist(), best.tolist(), strict=True)]))


def test_dealing_out_finds_more_where_variances_fall() -> None:
    draw = np.random.default_rng(0)
    raw = draw.standard_normal((4000, 64)).astype(np.float32) * np.geomspace(4, 0.25, 64, dtype=np.float32)
    vectors = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    kept, queries = vectors[:3900], vectors[3900:]
    plain, dealt = (made(factory, kept) for factory in ("IVF1,PQ16x4fs", "Pad64,IVF1,PQ16x4fs"))
    assert recall(dealt, kept, queries) > recall(plain, kept, queries) + 0.05


def test_graphs_are_made_with_more_effort_than_faiss_s_own() -> None:
    assert ann.make_index("HNSW8", DIM).hnsw.efConstruction == 100
