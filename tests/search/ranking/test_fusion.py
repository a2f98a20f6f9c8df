"""Fusion: reciprocal ranks in exact fractions, convex combinations per document, and invariances."""

import dataclasses
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.recipe.ranking import HybridConfig
from search.ranking.fusion import (
    RRF_K,
    BothScores,
    Spread,
    describe_fusion,
    drawn_rows,
    fusion_name,
    fusion_parameters,
    list_depth,
    reciprocal_rank_fusion,
)

rankings = st.lists(st.lists(st.integers(0, 30), unique=True, max_size=30), max_size=4)


def exact(lists: list[list[int]], depth: int) -> dict[int, Fraction]:
    """Return Cormack et al. (SIGIR 2009), equation 1, without rounding."""
    scores: dict[int, Fraction] = {}
    for document in {number for ranking in lists for number in ranking[:depth]}:
        ranks = [ranking.index(document) + 1 for ranking in lists if document in ranking[:depth]]
        scores[document] = sum((Fraction(1, RRF_K + rank) for rank in ranks), Fraction())
    return scores


@given(rankings, st.integers(1, 40))
def test_scores_are_sums_of_reciprocal_ranks_best_first(lists: list[list[int]], depth: int) -> None:
    expected = exact(lists, depth)
    found = reciprocal_rank_fusion(lists, depth)
    assert {document for _, document in found} == set(expected)
    assert [score for score, _ in found] == pytest.approx([float(expected[document]) for _, document in found])
    assert found == sorted(found, key=lambda hit: (-hit[0], hit[1]))


@given(rankings, st.integers(1, 40))
def test_equal_sums_are_equal_numbers(lists: list[list[int]], depth: int) -> None:
    """If a sum depended on the order of its terms, the order of the rankings would break ties."""
    scores, expected = (
        {document: score for score, document in reciprocal_rank_fusion(lists, depth)},
        exact(lists, depth),
    )
    for one, value in expected.items():
        for other, same in expected.items():
            if value == same:
                assert scores[one] == scores[other]


def test_ranks_one_two_seven_tie_in_any_order() -> None:
    """Summed in float64 one after another, 1/61 + 1/62 + 1/67 and 1/61 + 1/67 + 1/62 differ."""
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
    """Second and first beats first and third; a document missing in one ranking counts once."""
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
    """Golden: the figures of a stored run never change."""
    assert RRF_K == 60
    found = reciprocal_rank_fusion([[7, 3, 5], [3, 9, 7]], depth=2)
    assert found == [(0.03252247488101534, 3), (0.01639344262295082, 7), (0.016129032258064516, 9)]


values = st.integers(-64, 64).map(lambda number: number / 64)  # whose sums and products are exact
tables = st.integers(1, 12).flatmap(lambda n: st.tuples(*[st.lists(values, min_size=n, max_size=n)] * 2))


@given(tables, values, st.sampled_from([0.0, 0.25]), st.sampled_from([0.0, 0.25, 0.5, 1.0]))
def test_from_what_chance_gives_to_the_best(
    table: tuple[list[float], list[float]], floor: float, deviation: float, weight: float
) -> None:
    """The formula for each document. The best is at least a deviation above the floor, which keeps the order of lower
    scores; without a deviation such a list has no effect."""
    near, words = table[0], [max(value, 0.0) for value in table[1]]

    def part(own: list[float], low: float, least: float, value: float) -> float:
        height = max(max(own) - low, least)
        return (value - low) / height if height > 0 else 0.0

    config = HybridConfig(weight=weight)
    found = BothScores(np.array(near), np.array(words), Spread(floor, deviation), Spread(9.0, 9.0)).combined(config)
    expected = [
        weight * part(near, floor, deviation, one) + (1 - weight) * part(words, 0.0, 0.0, other)
        for one, other in zip(near, words, strict=True)
    ]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@given(tables, st.sampled_from([0.0, 0.3, 1.0]))
def test_in_deviations_from_the_mean(table: tuple[list[float], list[float]], weight: float) -> None:
    near, words = np.array(table[0]), np.array(table[1])
    config = HybridConfig(weight=weight, scaling="zscore")
    found = BothScores(near, words, Spread(0.25, 0.5), Spread(0.5, 0.0)).combined(config)
    np.testing.assert_allclose(found, weight * (near - 0.25) / 0.5, atol=1e-12)  # all of one score: it says nothing


@given(tables, st.sampled_from(["minmax", "zscore"]))
def test_many_queries_at_once_are_each_on_their_own(table: tuple[list[float], list[float]], scaling: Any) -> None:
    both, config = np.array(table), HybridConfig(weight=0.5, scaling=scaling)
    together = BothScores(both, both[::-1], Spread.of(both), Spread.of(both[::-1])).combined(config)
    for number in range(2):
        one, other = both[number], both[1 - number]
        alone = BothScores(one, other, Spread.of(one), Spread.of(other)).combined(config)
        np.testing.assert_allclose(together[number], alone, atol=1e-12)


def test_no_documents_have_no_spread() -> None:
    assert (Spread.of([]).mean, Spread.of([]).deviation) == (0.0, 0.0)
    none = np.zeros(0)
    assert BothScores(none, none, Spread.of(none), Spread.of(none)).combined(HybridConfig()).shape == (0,)


@pytest.mark.parametrize("rows", [0, 1, 2, 999, 1000, 1001, 54_321])
def test_rows_are_drawn_evenly(rows: int) -> None:
    drawn = drawn_rows(rows)
    assert len(drawn) == min(rows, 1000)
    assert set(drawn[[0, -1]] if rows else ()) == ({0, rows - 1} if rows else set())
    if rows > 2000:
        assert np.ptp(np.diff(drawn)) <= 1


def test_parameters_are_told() -> None:
    config = HybridConfig(weight=0.45, scaling="zscore")
    convex, ranks = fusion_parameters(config), fusion_parameters(dataclasses.replace(config, fusion="rrf"))
    assert convex == {"method": "convex combination", "weight": 0.45, "scaling": "zscore", "depth": 1000}
    assert ranks == {"method": "reciprocal rank", "constant": 60, "depth": 1000}
    assert [fusion_name(convex), fusion_name(ranks)] == ["0.45", "rrf"]
    assert describe_fusion(ranks) == (
        "hybrid: the first 1,000 of the vectors and of BM25, fused by reciprocal rank with constant 60 "
        "(Cormack et al., 2009)"
    )
    assert "convex combination (zscore, weight of the vectors 0.45; Bruch et al., 2023)" in describe_fusion(convex)
