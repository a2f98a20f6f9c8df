"""Drift: figures computed by hand, expected figures, and the limits for advising a refit."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.moments import Moments
from indexer.pipeline.drift import AddedSince, measure_drift
from indexer.recipe.config import WhiteningConfig
from indexer.store.quality import Drift
from indexer.transforms import Whitening, fit_whitening

# The sample has mean (3, 1, 0), variance 4 along the second axis, 1 along the first, and almost none along the
# third. The projection has some strength.
FITTED = Whitening(
    mean=np.array([3.0, 1.0, 0.0]),
    query_mean=np.array([7.0, 7.0, 7.0]),
    projection=np.array([[0.0, 0.5, 0.0], [0.25, 0.0, 0.0], [0.0, 0.0, 9.0]]),
    spectrum=np.array([4.0, 1.0, 4e-9]),
)
COVARIANCE = np.array([[0.5, 0.3, 0.0], [0.3, 12.0, 0.1], [0.0, 0.1, 5.0]])
ADDED = Moments(8, np.array([0.0, 3.0, 50.0]), 8 * COVARIANCE)


def test_the_figures_are_those_worked_out_by_hand() -> None:
    """The added documents lie 2 / sqrt(4) = 1 and -3 / sqrt(1) from the mean, and vary 12 / 4 = 3 and 0.5 times."""
    drift = measure_drift(FITTED, ADDED)
    assert drift is not None
    assert drift.rows == 8
    assert drift.mean_shift == pytest.approx(np.sqrt((1 + 9) / 2), rel=1e-12)
    assert drift.covariance == pytest.approx(np.sqrt((2**2 + 0.5**2) / 2), rel=1e-12)
    assert drift.expected_mean_shift == pytest.approx(np.sqrt(1 / 8), rel=1e-12)
    assert drift.expected_covariance == pytest.approx(np.sqrt(2 / 8), rel=1e-12)


def test_another_mean_of_the_sample_may_be_named() -> None:
    drift = measure_drift(FITTED, ADDED, np.array([0.0, 3.0, 0.0]))
    assert drift is not None
    assert drift.mean_shift == 0


def test_a_direction_counts_whose_variance_is_above_the_floor() -> None:
    kept = dataclasses.replace(FITTED, spectrum=np.array([4.0, 1.0, 4.1e-9]))
    drift = measure_drift(kept, ADDED)
    assert drift is not None
    assert drift.mean_shift == pytest.approx(np.sqrt((1 + 9 + 50**2 / 4.1e-9) / 3), rel=1e-12)


def test_directions_that_the_whitening_left_out_do_not_count() -> None:
    one = dataclasses.replace(FITTED, projection=FITTED.projection[:, :1])
    drift = measure_drift(one, ADDED)
    assert drift is not None
    assert (drift.mean_shift, drift.covariance) == (1, 2)


@pytest.mark.parametrize("strength", [0.0, 0.25, 1.0])
def test_documents_of_the_very_same_kind_drift_as_much_as_chance_says(strength: float) -> None:
    """Independent of strength and shrinkage, which only change the length of a direction."""
    random = np.random.default_rng(1)
    mix = random.normal(size=(200, 200)) * np.geomspace(1, 0.1, 200)
    fitted = fit_whitening(
        Moments.of(random.normal(size=(20_000, 200)) @ mix + 5), WhiteningConfig(strength=strength, shrinkage=0.1)
    )
    assert isinstance(fitted, Whitening)
    drift = measure_drift(fitted, Moments.of(random.normal(size=(50, 200)) @ mix + 5))
    assert drift is not None
    assert drift.mean_shift == pytest.approx(drift.expected_mean_shift, rel=0.15)
    assert drift.covariance == pytest.approx(drift.expected_covariance, rel=0.15)
    assert not drift.refit_advised


def test_one_document_has_no_variance_and_two_have() -> None:
    rows = np.array([[0.0, 1.0, 2.0], [3.0, 4.0, 6.0]])
    assert measure_drift(FITTED, Moments.of(rows[:1])) is None
    drift = measure_drift(FITTED, Moments.of(rows))
    assert drift is not None
    assert drift.rows == 2


@pytest.mark.parametrize(
    ("shift", "by_chance", "covariance", "covariance_by_chance", "advised"),
    [
        (0.25, 0.0, 0.5, 0.0, False),  # at the limits
        (0.2501, 0.0, 0.0, 0.0, True),
        (0.0, 0.0, 0.5001, 0.0, True),
        (0.5, 0.4, 0.5, 0.3, True),  # 0.3 beyond chance: squares add up
        (0.5, 0.45, 0.5, 0.3, False),  # 0.218
        (0.1, 0.2, 1.29, 1.2, False),  # 0.473, and less than chance
        (0.1, 0.2, 1.31, 1.2, True),  # 0.526
        (0.1, 9.0, 0.1, 9.0, False),
    ],
)
def test_a_refit_is_advised_on_what_is_beyond_chance(
    shift: float, by_chance: float, covariance: float, covariance_by_chance: float, advised: bool
) -> None:
    drift = Drift(100, shift, by_chance, covariance, covariance_by_chance)
    assert drift.refit_advised == advised
    assert drift.to_dict() == {
        "rows": 100,
        "mean_shift": shift,
        "expected_mean_shift": by_chance,
        "covariance": covariance,
        "expected_covariance": covariance_by_chance,
        "share": 1.0,
        "refit_advised": advised,
    }


def test_no_refit_is_advised_for_a_few_documents_among_many() -> None:
    for stored, advised in ((8, True), (160, True), (161, False)):
        drift = measure_drift(FITTED, ADDED, stored=stored)
        assert drift is not None
        assert (drift.share, drift.refit_advised) == (8 / stored, advised)


def published(parts: list[int], since: Any = None, drift: Any = None) -> Any:
    """The fields of a manifest that say where the added documents begin."""
    measured = SimpleNamespace(added_since=since, drift=drift)
    return SimpleNamespace(parts=[SimpleNamespace(rows=rows) for rows in parts], measured=measured)


def test_added_documents_begin_where_the_manifest_says_and_else_after_all_parts() -> None:
    assert AddedSince.of(published([4, 4, 1])) == AddedSince(3, 0)
    assert AddedSince.of(published([4, 4, 1], SimpleNamespace(part=1, row=2))) == AddedSince(1, 2)
    # the form of manifests before an addition could begin within a part
    assert AddedSince.of(published([4, 4, 1], drift=SimpleNamespace(since_part=2))) == AddedSince(2, 0)
    assert AddedSince.of(published([4, 4, 1], drift=SimpleNamespace(since_part=None))) == AddedSince(3, 0)
    assert AddedSince(1, 2).figures() == {"added_since": {"part": 1, "row": 2}}


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(1, 6), st.data())
def test_a_compaction_moves_the_place_with_the_rows(parts: list[int], size: int, data: st.DataObject) -> None:
    live = data.draw(st.lists(st.booleans(), min_size=sum(parts), max_size=sum(parts)))
    part = data.draw(st.integers(0, len(parts)))
    row = data.draw(st.integers(0, parts[part] - 1)) if part < len(parts) else 0
    numbering: Any = SimpleNamespace(stored_rows=None if all(live) else np.flatnonzero(live))
    before = sum(live[: sum(parts[:part]) + row])  # live rows at the fit
    rows = [min(size, sum(live) - first) for first in range(0, sum(live), size)]
    # after the last row: the start of the next part
    expected = AddedSince(len(rows)) if before == sum(live) else AddedSince(*divmod(before, size))
    assert AddedSince(part, row).compacted(published(parts), numbering, rows) == expected
