"""Filtered search fills k whatever the kind of index, with exact scores, and finds what brute force finds."""

from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

from indexer import ann
from indexer.store.manifest import SegmentEntry
from search.segments import Segment, search_segments

ROWS, DIM, K = 20_000, 32, 10
KINDS = [
    "Flat",
    "HNSW16",
    "IVF64,Flat",
    "IVF1,PQ16x4fs,RFlat",
    "Pad48,IVF1,PQ12x4fs,Refine(SQfp16)",
    "PQ16x4fs,RFlat",
    "PQ16x4fs,Refine(SQ8)",
    "IVF64,SQ8",
    "SQ8",
]
USUAL = ("Flat", "IVF64,Flat", "IVF1,PQ16x4fs,RFlat")  # one that is exact, one of lists, one of short codes
SOME_OR_ALL = [kind if kind in USUAL else pytest.param(kind, marks=pytest.mark.check) for kind in KINDS]
SHARES = {"10 rows": 10, "1 %": ROWS // 100, "50 %": ROWS // 2}
Vectors = npt.NDArray[np.float32]


@cache
def vectors() -> Vectors:
    """Unit vectors with clusters, as documents have them."""
    draw = np.random.default_rng(7)
    centres = draw.normal(size=(200, DIM))
    raw = centres[draw.integers(0, 200, ROWS)] + 0.7 * draw.normal(size=(ROWS, DIM))
    unit: Vectors = (raw / np.linalg.norm(raw, axis=1, keepdims=True)).astype(np.float32)
    return unit


@cache
def queries() -> Vectors:
    draw = np.random.default_rng(8)
    raw = vectors()[draw.integers(0, ROWS, 20)] + 0.1 * draw.normal(size=(20, DIM))
    unit: Vectors = (raw / np.linalg.norm(raw, axis=1, keepdims=True)).astype(np.float32)
    return unit


def vectors_of(rows: npt.NDArray[np.int64]) -> Vectors:
    return vectors()[rows]


@cache
def segment(kind: str, first: int = 0, rows: int = ROWS) -> Segment:
    index = ann.make_index(kind, DIM)
    ann.train_index(index, vectors()[first : first + rows][:5000])
    ann.add_vectors(index, vectors()[first : first + rows])
    return Segment(SegmentEntry("", first, rows, kind), index)


def allowed_rows(count: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros(ROWS, bool)
    mask[np.random.default_rng(count).choice(ROWS, count, replace=False)] = True
    return mask


def best_of(query: Vectors, mask: npt.NDArray[np.bool_], k: int) -> tuple[list[int], npt.NDArray[np.float64]]:
    """Brute force in float64."""
    rows = np.flatnonzero(mask)
    scores = vectors()[rows].astype(np.float64) @ query.astype(np.float64)
    order = np.lexsort((rows, -scores))[:k]
    return rows[order].tolist(), scores[order]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("kind", SOME_OR_ALL)
def test_a_filtered_search_fills_k_with_exact_scores(kind: str, share: str) -> None:
    mask = allowed_rows(SHARES[share])
    found = search_segments([segment(kind)], queries(), K, mask, vectors_of)
    recalls = []
    for query, (scores, rows) in zip(queries(), found, strict=True):
        assert len(rows) >= K
        assert mask[rows].all()
        assert (np.diff(scores) <= 0).all()
        np.testing.assert_allclose(scores, vectors()[rows] @ query, atol=2e-6)
        right, _ = best_of(query, mask, K)
        recalls.append(len(set(right) & set(rows[:K].tolist())) / K)
    assert np.mean(recalls) >= (1.0 if kind == "Flat" or share == "10 rows" else 0.5)


@pytest.mark.parametrize("kind", SOME_OR_ALL)
def test_exact_search_is_brute_force_whatever_the_kind(kind: str) -> None:
    mask = allowed_rows(700)
    for query, (_, rows) in zip(
        queries(), search_segments([segment(kind)], queries(), K, mask, vectors_of, exact=True), strict=True
    ):
        assert rows[:K].tolist() == best_of(query, mask, K)[0]


def test_segments_of_different_kinds_answer_as_one() -> None:
    half = ROWS // 2
    both = [segment("IVF1,PQ16x4fs,RFlat", 0, half), segment("Flat", half, half)]
    shared = []
    for query, (scores, rows) in zip(queries(), search_segments(both, queries(), K, None, vectors_of), strict=True):
        right, exact = best_of(query, np.ones(ROWS, bool), K)
        shared.append(len(set(right) & set(rows.tolist())) / K)
        assert scores[0] == pytest.approx(exact[0], abs=2e-6)
    assert np.mean(shared) > 0.9  # the compressed half misses some; scores of both halves are comparable


def test_fewer_rows_than_k_come_back_all() -> None:
    mask = allowed_rows(10)
    for kind in USUAL:
        for _, rows in search_segments([segment(kind)], queries(), 50, mask, vectors_of):
            assert sorted(rows.tolist()) == np.flatnonzero(mask).tolist()


def test_nothing_is_found_where_nothing_is_allowed() -> None:
    for scores, rows in search_segments([segment("Flat")], queries(), K, np.zeros(ROWS, bool), vectors_of):
        assert len(scores) == len(rows) == 0


@pytest.mark.parametrize("kind", ["Flat", "IVF1,PQ16x4fs,RFlat"])
def test_no_query_has_no_answer(kind: str) -> None:
    assert search_segments([segment(kind)], queries()[:0], K, None, vectors_of) == []
