"""Filtered search: only allowed rows return, k return if k match, and no recall is lost."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer import ann
from indexer.ann import exact, parameters
from indexer.arrays import SearchResult
from indexer.errors import ConfigError
from tests.indexer.ann.test_faiss_index import (
    COMPONENTS,
    Vectors,
    assert_answers_equal,
    by_brute_force,
    made,
    served,
    unit_vectors,
)

ROWS, DIM, K = 4000, 32, 10
TUNED = {"nprobe": 8, "efSearch": 64, "k_factor": 16}
APPROXIMATE = [
    "HNSW16",
    "HNSW16,SQ8",
    "IVF16,Flat",
    "IVF1,PQ16x4fs,RFlat",
    "Pad48,IVF1,PQ12x4fs,Refine(SQfp16)",
    "Pad48,IVF16,PQ24x4fsr,Refine(SQfp16)",
    "PQ16x4fs,RFlat",
    "PQ16x4fs,Refine(SQ8)",
    "RaBitQ4",
    "IVF16,RaBitQ4",
    "RaBitQfs4,RFlat",
    "IVF1,RaBitQfs4,RFlat",
    "SQ8",
]
Mask = npt.NDArray[np.bool_]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    ann.set_threads(1)


@cache
def corpus() -> tuple[Vectors, Vectors]:
    """Vectors, and queries near some of them."""
    vectors = unit_vectors(ROWS, DIM)
    queries = vectors[::100] + 0.5 * unit_vectors(40, DIM, seed=1)
    return vectors, (queries / np.linalg.norm(queries, axis=1, keepdims=True)).astype(np.float32)


@cache
def index_of(factory: str) -> Any:
    """An index of the corpus with the search parameters that a build would choose."""
    index = made(factory, corpus()[0])
    ann.set_search_parameters(
        index, {name: value for name, value in TUNED.items() if name in ann.search_parameters(index)}
    )
    return index


def some_of(count: int, rows: int = ROWS, seed: int = 7) -> Mask:
    mask = np.zeros(rows, bool)
    mask[np.random.default_rng(seed).choice(rows, count, replace=False)] = True
    return mask


def best_allowed(query: Vectors, mask: Mask, k: int = K) -> list[int]:
    scores = np.where(mask, corpus()[0].astype(np.float64) @ query.astype(np.float64), -np.inf)
    best: list[int] = np.argsort(-scores, kind="stable")[: min(k, mask.sum())].tolist()
    return best


def recall(found: list[SearchResult], mask: Mask) -> float:
    """Mean share of the best allowed rows that were found."""
    shares = []
    for (_, rows), query in zip(found, corpus()[1], strict=True):
        right = best_allowed(query, mask)
        shares.append(len(set(right) & set(rows.tolist())) / len(right))
    return float(np.mean(shares))


def assert_sound(found: list[SearchResult], mask: Mask) -> None:
    for scores, rows in found:
        assert mask[rows].all()
        assert len(set(rows.tolist())) == len(rows) == len(scores)
        assert (np.diff(scores) <= 0).all()


# --- an exact index


@given(
    st.lists(st.tuples(COMPONENTS, COMPONENTS, COMPONENTS, st.booleans()), min_size=1, max_size=60),
    st.lists(st.tuples(COMPONENTS, COMPONENTS, COMPONENTS), min_size=1, max_size=9),
    st.integers(1, 70),
)
def test_a_flat_index_answers_as_brute_force_over_the_allowed_rows_does(
    rows: list[tuple[int, int, int, bool]], queries: list[tuple[int, ...]], k: int
) -> None:
    vectors, mask = np.array([row[:3] for row in rows], np.float32), np.array([row[3] for row in rows])
    asked, allowed = np.array(queries, np.float32), np.flatnonzero(mask)
    found = ann.search_index(served(vectors), asked, k, mask)
    for (scores, places), query in zip(found, asked, strict=True):
        expected = by_brute_force(vectors[allowed], query, k) if len(allowed) else []
        assert list(zip(places.tolist(), scores.tolist(), strict=True)) == [(allowed[row], s) for row, s in expected]


@pytest.mark.parametrize("count", [10, 40, 2000, ROWS - 1])
def test_every_route_through_a_flat_index_gives_the_same(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows or many queries are copied together, otherwise FAISS skips the rows: the answers are equal."""
    vectors, queries = corpus()
    index, mask = served(vectors), some_of(count)
    one_by_one = [ann.search_index(index, query[None], K, mask)[0] for query in queries[:8]]
    assert_answers_equal(ann.search_index(index, queries[:8], K, mask), one_by_one)
    monkeypatch.setattr(exact, "_BLOCK_BYTES", 4 * DIM * 90)  # copied 90 rows at a time
    assert_answers_equal(ann.search_index(index, queries[:8], K, mask), one_by_one)
    assert [sorted(rows.tolist()) for _, rows in one_by_one] == [sorted(best_allowed(q, mask)) for q in queries[:8]]


def test_all_allowed_duplicates_come_along_and_no_others() -> None:
    vectors = unit_vectors(400)
    vectors[100:300] = vectors[7]
    mask = some_of(200, 400)
    ((_, rows),) = ann.search_index(served(vectors), vectors[7:8], 1, mask)
    assert rows.tolist() == [row for row in (7, *range(100, 300)) if mask[row]]


# --- any index


@pytest.mark.parametrize("count", [10, ROWS // 100, ROWS // 2])
@pytest.mark.parametrize("factory", APPROXIMATE)
def test_k_allowed_rows_come_back_and_filters_cost_no_recall(factory: str, count: int) -> None:
    index, mask, queries = index_of(factory), some_of(count), corpus()[1]
    found = ann.search_index(index, queries, K, mask)
    assert_sound(found, mask)
    assert [len(rows) >= min(K, count) for _, rows in found] == [True] * len(queries)
    without = recall(ann.search_index(index, queries, K), np.ones(ROWS, bool))
    assert without > 0.6
    assert recall(found, mask) >= without - 0.03


@pytest.mark.parametrize("factory", APPROXIMATE)
def test_a_single_allowed_row_is_found(factory: str) -> None:
    for _, rows in ann.search_index(index_of(factory), corpus()[1], K, some_of(1)):
        assert rows.tolist() == np.flatnonzero(some_of(1)).tolist()


@pytest.mark.parametrize("factory", ["PQ16x4fs", "PQ8x6", "IVF4,RQ4x4fs"])
def test_a_kind_that_takes_no_selector_and_holds_no_vectors_may_give_fewer_but_never_others(factory: str) -> None:
    index, queries = index_of(factory), corpus()[1]
    assert not ann.supports_filter(index)
    for count in (1, 10, 400, 2000, ROWS - 5):
        mask = some_of(count)
        found = ann.search_index(index, queries, K, mask)
        assert_sound(found, mask)
        if count >= 2000:
            assert min(len(rows) for _, rows in found) >= K


@pytest.mark.parametrize(
    ("factory", "exact"),
    [
        ("PCA24,HNSW16", "PCA24,Flat"),
        ("PCA24,HNSW16,SQ8", "PCA24,SQ8"),
        ("PCA24,PQ12x4fs,RFlat", "Flat"),
        ("PCA24,Flat", "PCA24,Flat"),
    ],
)
def test_few_rows_behind_a_linear_layer_are_scored_by_what_the_index_holds(factory: str, exact: str) -> None:
    """Queries pass through the layer to the vectors inside."""
    queries, mask = corpus()[1], some_of(20)
    found = ann.search_index(index_of(factory), queries, K, mask)
    everything = ann.search_index(index_of(exact), queries, ROWS)
    for (scores, rows), (all_scores, all_rows) in zip(found, everything, strict=True):
        kept = mask[all_rows]
        assert rows.tolist() == all_rows[kept][:K].tolist()
        np.testing.assert_allclose(scores, all_scores[kept][:K], atol=2e-6)


@pytest.mark.parametrize("factory", ["Flat", "HNSW16", "IVF16,Flat", "IVF1,PQ16x4fs,RFlat", "PQ16x4fs,RFlat"])
def test_no_row_allowed_finds_nothing_and_all_allowed_is_no_filter(factory: str) -> None:
    index, queries = index_of(factory), corpus()[1]
    assert [len(rows) for _, rows in ann.search_index(index, queries, K, np.zeros(ROWS, bool))] == [0] * len(queries)
    everything = ann.search_index(index, queries, K, np.ones(ROWS, bool))
    assert_answers_equal(everything, ann.search_index(index, queries, K))


@pytest.mark.parametrize("mask", [np.ones(ROWS - 1, bool), np.ones(ROWS, np.uint8), np.ones((1, ROWS), bool)])
def test_a_mask_of_another_shape_or_type_is_refused(mask: Any) -> None:
    with pytest.raises(ConfigError, match=r"expected a bool for each of 4,000 rows"):
        ann.search_index(index_of("Flat"), corpus()[1], K, mask)


@pytest.mark.parametrize("factory", ["HNSW16", "IVF16,Flat", "IVF1,PQ16x4fs,RFlat", "IVF16,RaBitQ4"])
def test_a_search_leaves_the_parameters_of_the_index_as_they_are(factory: str) -> None:
    index = index_of(factory)
    before = ann.search_parameters(index)
    for count in (10, 2000):
        ann.search_index(index, corpus()[1], K, some_of(count))
    assert ann.search_parameters(index) == before


@pytest.mark.parametrize("factory", ["Flat", "IVF1,PQ16x4fs,RFlat", "HNSW16"])
def test_searches_with_different_filters_run_side_by_side(factory: str) -> None:
    """Allowed rows and parameters belong to the call, not to the index."""
    index, queries = index_of(factory), corpus()[1]
    masks = [some_of(count, seed=count) for count in (5, 300, 1500, 2500)] * 3
    alone = [ann.search_index(index, queries, K, mask) for mask in masks]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda mask: ann.search_index(index, queries, K, mask), masks))
    for found, expected in zip(together, alone, strict=True):
        assert_answers_equal(found, expected)


# --- which kinds take a selector


@pytest.mark.parametrize(
    ("factory", "takes"),
    [
        ("Flat", True),
        ("HNSW16", True),
        ("IVF16,Flat", True),
        ("IVF1,PQ16x4fs,RFlat", True),
        ("PCA24,HNSW16", True),
        ("PQ16x4fs,RFlat", False),
        ("RaBitQfs4,RFlat", False),
        ("PQ8x6", False),
    ],
)
def test_whether_a_kind_takes_a_selector_is_found_by_trying(
    factory: str, takes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameters, "_accepts", {})
    assert ann.supports_filter(index_of(factory)) is takes
    monkeypatch.setattr(parameters, "_try_parameters", None)  # once is enough
    assert ann.supports_filter(index_of(factory)) is takes


def test_a_kind_that_would_ignore_the_selector_counts_as_taking_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "_accepts", {})
    monkeypatch.setattr(parameters, "_faiss_parameters", lambda *_: None)
    assert not ann.supports_filter(index_of("HNSW16"))


def test_nothing_is_concluded_from_an_empty_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "_accepts", {})
    assert not ann.supports_filter(ann.make_index("HNSW16", DIM))
    assert ann.supports_filter(index_of("HNSW16"))
