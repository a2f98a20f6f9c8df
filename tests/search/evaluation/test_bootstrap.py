"""Bootstrap intervals: counts equal explicitly drawn resamples, with ties, and settings pair."""

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata, spearmanr

from indexer.arrays import Float64Array
from search.evaluation.bootstrap import (
    LEVEL,
    RESAMPLES,
    Difference,
    Interval,
    difference,
    draw_counts,
    interval,
    mean_of,
    resampled_mean,
    resampled_ranks,
    resampled_spearman,
)

FEW = st.lists(st.integers(0, 4).map(float), min_size=2, max_size=12)  # few values, so that many tie
PAIRS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=12)


def drawn(values: Float64Array, counts: Float64Array) -> Float64Array:
    """A resample with each value repeated by its count."""
    return np.repeat(values, counts.astype(int))


def correlation(first: Float64Array, second: Float64Array) -> float:
    """SciPy's correlation, NaN if one side is constant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(spearmanr(first, second).statistic)


def test_every_resample_draws_as_many_items_as_there_are() -> None:
    counts = draw_counts(7, "x")
    assert counts.shape == (RESAMPLES, 7)
    assert set(counts.sum(axis=1)) == {7.0}
    assert abs(counts.mean() - 1) < 1e-12
    assert np.allclose(counts.mean(axis=0), 1, atol=0.15)  # no item is favoured


def test_the_same_name_draws_the_same_and_another_name_draws_others() -> None:
    assert np.array_equal(draw_counts(20, "sts STS12 MSRpar"), draw_counts(20, "sts STS12 MSRpar"))
    assert not np.array_equal(draw_counts(20, "sts STS12 MSRpar"), draw_counts(20, "sts STS12 MSRvid"))


def test_what_a_name_draws_never_changes() -> None:
    """Published intervals are of 1000 such resamples."""
    assert draw_counts(6, "golden", 3).tolist() == [[2, 0, 1, 0, 2, 1], [1, 1, 1, 2, 0, 1], [0, 0, 2, 2, 2, 0]]
    assert draw_counts(3, "sts STS12 MSRpar").sum(axis=0).tolist() == [1017, 1015, 968]
    assert RESAMPLES == 1000


@settings(max_examples=25)
@given(FEW, st.integers(0, 99))
def test_ranks_are_those_of_the_resample_written_out(values: list[float], name: int) -> None:
    items = np.array(values)
    counts = draw_counts(len(items), str(name), 12)
    for row, of_row in zip(resampled_ranks(items, counts), counts, strict=True):
        assert np.array_equal(drawn(row, of_row), rankdata(drawn(items, of_row)))


@settings(max_examples=25)
@given(PAIRS, st.integers(0, 99))
def test_spearman_is_that_of_the_resample_written_out(pairs: list[tuple[int, int]], name: int) -> None:
    first, second = np.array(pairs, dtype=np.float64).T
    counts = draw_counts(len(pairs), str(name), 12)
    found = resampled_spearman(resampled_ranks(first, counts), resampled_ranks(second, counts), counts)
    expected = [correlation(drawn(first, row), drawn(second, row)) for row in counts]
    np.testing.assert_allclose(found, expected, atol=1e-12)  # NaN is NaN


def test_spearman_of_many_pairs_with_and_without_ties() -> None:
    random = np.random.default_rng(0)
    human = random.integers(0, 26, 400) / 5
    predicted = human + random.normal(0, 2, 400)
    counts = draw_counts(400, "many", 70)  # more than two blocks, and a part of one
    found = resampled_spearman(resampled_ranks(human, counts), resampled_ranks(predicted, counts), counts)
    expected = [correlation(drawn(human, row), drawn(predicted, row)) for row in counts]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_ranks_by_hand() -> None:
    counts = np.array([[2.0, 1.0, 0.0, 1.0]])
    ranks = resampled_ranks(np.array([0.5, 0.1, 0.9, 0.1]), counts)  # drawn: 0.5 0.5 0.1 0.1
    assert ranks[0][[0, 1, 3]].tolist() == [3.5, 1.5, 1.5]


@settings(max_examples=25)
@given(FEW)
def test_the_mean_is_that_of_the_resample_written_out(values: list[float]) -> None:
    counts = draw_counts(len(values), "mean", 20)
    expected = [drawn(np.array(values), row).mean() for row in counts]
    np.testing.assert_allclose(resampled_mean(np.array(values), counts), expected)


def test_the_interval_is_the_middle_95_percent() -> None:
    found = interval(0.5, np.linspace(0, 1, 1001))
    assert (found.value, LEVEL) == (0.5, 0.95)
    assert (found.low, found.high) == pytest.approx((0.025, 0.975))
    assert found.to_dict() == {"value": 0.5, "low": found.low, "high": found.high}


@pytest.mark.parametrize(("undefined", "has_ends"), [(50, True), (51, False)])
def test_more_than_five_percent_of_undefined_resamples_leave_no_interval(undefined: int, has_ends: bool) -> None:
    resampled = np.linspace(0, 1, 1000)
    resampled[:undefined] = np.nan
    assert (interval(0.5, resampled).low is not None) == has_ends
    found = difference(0.1, 0.2, resampled, resampled + 1)
    assert (found.low is not None, found.better is not None, found.decided) == (has_ends,) * 3


def test_a_difference_without_any_defined_resample_is_undecided() -> None:
    nothing = np.full(1000, np.nan)
    assert difference(0.1, 0.3, nothing, nothing) == Difference(0.3 - 0.1, None, None, None)


def test_a_difference_is_second_less_first_and_paired() -> None:
    random = np.random.default_rng(0)
    first = random.normal(0, 10, 1000)  # each side varies far more than their difference
    found = difference(1.0, 3.0, first, first + random.normal(2, 0.5, 1000))
    assert found.value == 2.0
    assert found.low is not None
    assert found.high is not None
    assert 0.8 < found.low < 1.2 < 2.8 < found.high < 3.2
    assert (found.better, found.decided) == (1.0, True)
    assert found.to_dict()["decided"] is True


def test_a_setting_does_not_differ_from_itself() -> None:
    values = draw_counts(9, "any").mean(axis=1)
    assert difference(1.0, 1.0, values, values) == Difference(0.0, 0.0, 0.0, 0.0)
    assert not difference(1.0, 1.0, values, values).decided


@pytest.mark.parametrize(("ends", "decided"), [((0.1, 0.2), True), ((-0.2, -0.1), True), ((-0.1, 0.1), False)])
def test_a_difference_is_decided_when_the_interval_leaves_out_zero(ends: Any, decided: bool) -> None:
    low, high = ends
    assert Difference(0.0, low, high, 0.5).decided == decided


def test_a_weighted_mean_of_subsets() -> None:
    first, second = np.array([1.0, 2.0]), np.array([3.0, 6.0])
    assert mean_of([first, second]).tolist() == [2.0, 4.0]
    assert mean_of([first, second], [3, 1]).tolist() == [1.5, 3.0]


def test_an_interval_covers_the_value_of_many_samples() -> None:
    """95 % intervals of a mean contain the true mean about 95 times in 100."""
    random = np.random.default_rng(1)
    held = 0
    for number in range(200):
        values = random.normal(0, 1, 60)
        found = interval(values.mean(), resampled_mean(values, draw_counts(60, str(number), 200)))
        assert isinstance(found, Interval)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0 <= found.high
    assert 180 <= held <= 198
