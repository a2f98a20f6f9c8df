"""Reciprocal rank fusion: its formula in exact fractions, and what may not matter."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.ranking.fusion import (
    FUSION_PARAMETERS,
    RRF_K,
    describe_hybrid,
    fuse_top_k,
    list_depth,
    reciprocal_rank_fusion,
)

rankings = st.lists(st.lists(st.integers(0, 30), unique=True, max_size=30), max_size=4)


def exact(lists: list[list[int]], depth: int, constant: int) -> dict[int, Fraction]:
    """Cormack et al. (SIGIR 2009), equation 1, without rounding."""
    scores: dict[int, Fraction] = {}
    for document in {number for ranking in lists for number in ranking[:depth]}:
        ranks = [ranking.index(document) + 1 for ranking in lists if document in ranking[:depth]]
        scores[document] = sum((Fraction(1, constant + rank) for rank in ranks), Fraction())
    return scores


@given(rankings, st.integers(1, 40), st.sampled_from([0, 1, 60]))
def test_scores_are_sums_of_reciprocal_ranks_best_first(lists: list[list[int]], depth: int, constant: int) -> None:
    expected = exact(lists, depth, constant)
    found = reciprocal_rank_fusion(lists, depth, constant)
    assert {document for _, document in found} == set(expected)
    assert [score for score, _ in found] == pytest.approx([float(expected[document]) for _, document in found])
    assert found == sorted(found, key=lambda hit: (-hit[0], hit[1]))


@given(rankings, st.integers(1, 40))
def test_equal_sums_are_equal_numbers(lists: list[list[int]], depth: int) -> None:
    """A sum that depended on the order of its terms would settle ties by which ranking came first."""
    scores, expected = (
        {document: score for score, document in reciprocal_rank_fusion(lists, depth)},
        exact(lists, depth, 60),
    )
    for one, value in expected.items():
        for other, same in expected.items():
            if value == same:
                assert scores[one] == scores[other]


def test_ranks_one_two_seven_tie_in_any_order() -> None:
    """Added up one after another in float64, 1/61 + 1/62 + 1/67 and 1/61 + 1/67 + 1/62 differ."""
    assert 1 / 61 + 1 / 62 + 1 / 67 != 1 / 61 + 1 / 67 + 1 / 62
    first, last = 100, 99
    found = {document: score for score, document in reciprocal_rank_fusion([
        [first, last, 1, 2, 3, 4, 5],
        [11, first, 12, 13, 14, 15, last],
        [last, 22, 23, 24, 25, 26, first],
    ], depth=7)}  # fmt: skip
    assert found[first] == found[last]
    swapped = reciprocal_rank_fusion([[first], [1, 2, 3, 4, 5, 6, first], [1, first]], depth=7)
    assert next(score for score, document in swapped if document == first) == found[first]


@given(rankings, st.integers(1, 40), st.randoms(use_true_random=False))
def test_the_order_of_the_rankings_does_not_matter(lists: list[list[int]], depth: int, random: object) -> None:
    shuffled = list(lists)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert reciprocal_rank_fusion(shuffled, depth) == reciprocal_rank_fusion(lists, depth)


def test_a_worked_example() -> None:
    """Second and first beats first and third; what one ranking lacks counts once."""
    found = reciprocal_rank_fusion([[7, 3, 5], [3, 9, 7]], depth=1000)
    expected = [(1 / 62 + 1 / 61, 3), (1 / 61 + 1 / 63, 7), (1 / 62, 9), (1 / 63, 5)]
    assert [document for _, document in found] == [document for _, document in expected]
    assert [score for score, _ in found] == pytest.approx([score for score, _ in expected])


def test_what_lies_below_the_depth_does_not_count() -> None:
    assert reciprocal_rank_fusion([[1, 2, 3], [3, 2, 1]], depth=2) == reciprocal_rank_fusion([[1, 2], [3, 2]], depth=2)


def test_up_to_a_thousand_hits_the_first_ones_are_the_same_however_many_are_asked_for() -> None:
    assert {list_depth(k) for k in (1, 10, 999, 1000)} == {1000}
    assert list_depth(1001) == 1001


def test_scores_of_the_papers_constant_are_these_numbers() -> None:
    """Golden: a run that was written once is judged the same for ever."""
    assert RRF_K == 60
    found = reciprocal_rank_fusion([[7, 3, 5], [3, 9, 7]], depth=2)
    assert found == [(0.03252247488101534, 3), (0.01639344262295082, 7), (0.016129032258064516, 9)]


def test_both_rankings_of_a_query_are_fused_with_ties_by_id() -> None:
    near = (np.array([0.9, 0.8, 0.7], np.float32), np.array([0, 1, 2]))
    words = (np.array([5.0, 3.0], np.float32), np.array([1, 0]))
    places = np.array([3, 2, 1, 0])  # of the documents, in the order of their ids
    ((scores, numbers),) = fuse_top_k([near], [words], places, 2)
    assert numbers.tolist() == [1, 0]  # one sum, and 1 comes before 0
    assert scores.tolist() == [float(np.float32(1 / 61 + 1 / 62))] * 2
    assert scores.dtype == np.float32
    ((scores, numbers),) = fuse_top_k([near], [words], places, 9)
    assert numbers.tolist() == [1, 0, 2]


def test_its_parameters_are_told() -> None:
    assert FUSION_PARAMETERS == {"method": "reciprocal rank", "constant": 60, "depth": 1000}
    assert describe_hybrid() == (
        "hybrid: the first 1,000 of the vectors and of BM25, fused by reciprocal rank with constant 60 "
        "(Cormack et al., 2009)"
    )
