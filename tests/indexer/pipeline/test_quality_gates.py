"""Build gates and the figures behind them."""

import dataclasses
import json

import numpy as np
import numpy.typing as npt
import pytest

from indexer.errors import QualityError
from indexer.moments import Moments
from indexer.pipeline.steps.quality_gates import (
    COVARIANCE_LIMIT,
    Gate,
    covariance_deviation,
    held_out_deviation,
    require_all,
    require_nonzero_finite,
    self_hits,
)
from indexer.recipe.config import WhiteningConfig
from indexer.transforms import Whitening, fit_whitening

Vectors = npt.NDArray[np.float32]
Found = tuple[Vectors, npt.NDArray[np.int64]]
NAN = float("nan")


def correlated_rows(count: int, dim: int, seed: int = 0, rank: int = 0) -> Vectors:
    """Rows with a mean far from zero and a steep spectrum, like embeddings."""
    random = np.random.default_rng(seed)
    mix = random.normal(size=(rank or dim, dim)) * np.geomspace(1, 0.01, rank or dim)[:, None]
    rows: Vectors = (random.normal(size=(count, rank or dim)) @ mix + random.normal(size=dim)).astype(np.float32)
    return rows


def fit(rows: Vectors, config: WhiteningConfig) -> Whitening:
    whitening = fit_whitening(Moments.of(rows), config)
    assert isinstance(whitening, Whitening)
    return whitening


# --- gates


@pytest.mark.parametrize(
    ("value", "at_most", "at_least"),
    [
        (0.0, True, False),
        (0.5, True, True),  # the limit itself is allowed
        (1.0, False, True),
        (float("inf"), False, True),
        (float("-inf"), True, False),
        (NAN, False, False),
    ],
)
def test_a_gate_holds_its_figure_to_its_limit(value: float, at_most: bool, at_least: bool) -> None:
    assert Gate("figure", value, 0.5).passed is at_most
    assert Gate("figure", value, 0.5, at_least=True).passed is at_least


def test_a_figure_of_numpy_gives_a_plain_answer() -> None:
    assert Gate("figure", np.float32(0.25), 0.5).passed is True  # type: ignore[arg-type]


def test_gates_that_pass_are_given_as_json() -> None:
    figures = require_all([Gate("low", 0.0, 1.0), Gate("high", 1.0, 0.95, at_least=True)])
    assert json.loads(json.dumps(figures)) == {
        "low": {"value": 0.0, "limit": 1.0, "passed": True},
        "high": {"value": 1.0, "limit": 0.95, "passed": True},
    }
    assert require_all([]) == {}


def test_every_gate_that_failed_is_named_and_none_that_passed() -> None:
    gates = [
        Gate("lost", 3, 0, meaning="rows that are lost"),
        Gate("fine", 0, 0, meaning="all is well"),
        Gate("found", 0.9, 0.95, at_least=True, meaning="share found"),
        Gate("broken", NAN, 1.0, meaning="no figure"),
    ]
    with pytest.raises(QualityError) as caught:
        require_all(gates)
    message = str(caught.value)
    assert "not published" in message
    assert "lost is 3, expected at most 0 (rows that are lost)" in message
    assert "found is 0.9, expected at least 0.95 (share found)" in message
    assert "broken is nan, expected at most 1 (no figure)" in message
    assert "fine" not in message


@pytest.mark.parametrize(("not_finite", "zero"), [(1, 0), (0, 1), (1200, 3)])
def test_embeddings_that_cannot_be_used_are_counted(not_finite: int, zero: int) -> None:
    require_nonzero_finite(0, 0)
    with pytest.raises(
        QualityError, match=f"{not_finite:,} embeddings contain NaN or infinity and {zero} are all zero"
    ):
        require_nonzero_finite(not_finite, zero)


# --- the covariance of the sample

FULL = WhiteningConfig(strength=1.0)
CONFIGS = [
    WhiteningConfig(strength=strength, shrinkage=shrinkage, dim=dim)
    for strength in (0.0, 0.25, 1.0)
    for shrinkage in (0.0, 0.3)
    for dim in (0, 5)
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.strength}-{config.shrinkage}-{config.dim}")
@pytest.mark.parametrize("rank", [12, 9])
def test_a_right_whitening_deviates_by_rounding_only(config: WhiteningConfig, rank: int) -> None:
    rows = correlated_rows(600, 12, rank=rank)
    whitening = fit(rows, config)
    assert whitening.dim == (config.dim or rank)
    assert covariance_deviation(whitening, config, [rows]) < 1e-7 < COVARIANCE_LIMIT


def test_the_sample_may_come_in_any_pieces() -> None:
    rows = correlated_rows(600, 12)
    whitening = fit(rows, FULL)
    pieces = [rows[:1], rows[1:1], rows[1:500], rows[500:]]
    assert covariance_deviation(whitening, FULL, iter(pieces)) < 1e-7


def test_the_mean_has_no_part_in_the_covariance() -> None:
    rows = correlated_rows(600, 12)
    whitening = fit(rows, WhiteningConfig(strength=1.0))
    for mean in (np.zeros(12), whitening.mean + 5):
        assert covariance_deviation(dataclasses.replace(whitening, mean=mean), FULL, [rows]) < 1e-7


@pytest.mark.parametrize("strength", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("shrinkage", [0.0, 0.3])
def test_a_wrong_projection_is_far_from_its_covariance(strength: float, shrinkage: float) -> None:
    rows = correlated_rows(600, 12)
    config = WhiteningConfig(strength=strength, shrinkage=shrinkage)
    whitening = fit(rows, config)
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(12, 12)))[0]
    wrong = [
        2 * whitening.projection,  # another scale
        rotation @ whitening.projection,  # other directions
        fit(correlated_rows(600, 12, seed=1), WhiteningConfig(strength=strength)).projection,
        fit(rows, WhiteningConfig(strength=0.5, shrinkage=0.1)).projection,  # right directions, another strength
    ]
    for projection in wrong:
        assert covariance_deviation(dataclasses.replace(whitening, projection=projection), config, [rows]) > 0.1


def test_another_sample_than_the_fitted_one_is_noticed() -> None:
    whitening = fit(correlated_rows(600, 12), WhiteningConfig(strength=1.0))
    assert covariance_deviation(whitening, FULL, [correlated_rows(600, 12, seed=1)]) > 0.1


def test_a_projection_of_nan_fails_its_gate() -> None:
    rows = correlated_rows(600, 12)
    whitening = fit(rows, WhiteningConfig(strength=1.0))
    broken = dataclasses.replace(whitening, projection=whitening.projection * NAN)
    deviation = covariance_deviation(broken, FULL, [rows])
    assert np.isnan(deviation)
    assert not Gate("covariance", deviation, COVARIANCE_LIMIT).passed


def test_no_sample_at_all_fails_the_gate() -> None:
    whitening = fit(correlated_rows(600, 12), WhiteningConfig(strength=1.0))
    assert not Gate("covariance", covariance_deviation(whitening, FULL, []), COVARIANCE_LIMIT).passed


# --- rows the fit has not seen


@pytest.mark.parametrize("scales", [np.ones(100), np.geomspace(1, 0.01, 100)])
def test_ideal_data_deviates_as_much_as_expected(scales: npt.NDArray[np.float64]) -> None:
    random = np.random.default_rng(0)
    fitted, held_out = (Moments.of(random.normal(size=(count, 100)) * scales + 3) for count in (1000, 20_000))
    figures = held_out_deviation(fitted, held_out, 100)
    assert (figures["fitted"], figures["held_out"]) == (1000, 20_000)
    assert figures["expected"] == 1000 / 899
    assert figures["mean_variance"] == pytest.approx(figures["expected"], abs=0.02)


def test_the_rows_fitted_themselves_do_not_deviate() -> None:
    moments = Moments.of(correlated_rows(500, 12))
    assert held_out_deviation(moments, moments, 12)["mean_variance"] == pytest.approx(1)


def test_rows_of_another_spread_deviate_by_it() -> None:
    rows = correlated_rows(500, 12)
    figures = held_out_deviation(Moments.of(rows), Moments.of(3 * rows), 5)
    assert figures["mean_variance"] == pytest.approx(9, rel=1e-5)


@pytest.mark.parametrize("count", [2, 12, 13])
def test_too_few_rows_leave_nothing_to_expect(count: int) -> None:
    fitted, held_out = Moments.of(correlated_rows(count, 12)), Moments.of(correlated_rows(50, 12, seed=1))
    figures = held_out_deviation(fitted, held_out, 12)
    assert figures["expected"] is None
    assert np.isfinite(figures["mean_variance"])


def test_one_row_more_leaves_something_to_expect() -> None:
    moments = Moments.of(correlated_rows(14, 12))
    assert held_out_deviation(moments, moments, 12)["expected"] == 14.0


def test_held_out_figures_are_json() -> None:
    moments = Moments.of(correlated_rows(50, 12))
    figures = held_out_deviation(moments, moments, 12)
    assert json.loads(json.dumps(figures)) == figures


# --- self-hits


def found(*best: tuple[float, int]) -> Found:
    return np.array([score for score, _ in best], np.float32), np.array([row for _, row in best], np.int64)


def one_vector() -> Vectors:
    vector = np.random.default_rng(0).normal(size=(1, 8)).astype(np.float32)
    unit: Vectors = vector / np.linalg.norm(vector)
    return unit


@pytest.mark.parametrize(
    ("best", "hits"),
    [
        ([(1.0, 7)], 1),  # its own row
        ([(1.0, 3), (1.0, 7)], 1),  # its own row among equal rows
        ([(0.4, 7)], 1),  # its own row, scored coarsely by an approximate index
        ([(1.0, 3)], 1),  # a duplicate
        ([(1 - 5e-7, 3)], 1),  # a duplicate that differs by rounding
        ([(1 - 1e-5, 3)], 0),  # another row, only close
        ([(0.4, 3)], 0),
        ([], 0),
    ],
)
def test_a_hit_is_the_own_row_or_one_with_an_equal_score(best: list[tuple[float, int]], hits: int) -> None:
    assert self_hits([found(*best)], one_vector(), [7]) == hits


def test_hits_are_counted_over_all_vectors() -> None:
    vectors = np.repeat(one_vector(), 4, axis=0)
    answers = [found((1.0, 10)), found((0.3, 0)), found(), found((1.0, 13))]
    assert self_hits(answers, vectors, np.array([10, 11, 12, 13])) == 2
    assert self_hits([], vectors[:0], []) == 0


def test_vectors_and_answers_must_be_as_many() -> None:
    with pytest.raises(ValueError, match="longer"):
        self_hits([], one_vector(), [7])
