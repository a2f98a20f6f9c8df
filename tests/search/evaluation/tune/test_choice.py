"""The choice of a setting: ties, significance, and limits of the choice."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.recipe.config import WhiteningConfig
from search.evaluation.sweep import Setting
from search.evaluation.tune.choice import MeasuredSetting, choose
from search.evaluation.tune.tune import DEFAULT_CENTRES


def candidate(
    score: float, strength: Any, centre: str = "role", noise: int = 0, layers: tuple[int, ...] = (-1,)
) -> Any:
    """A setting with mean value `score` and independent noise unless 0."""
    spread = np.random.default_rng(noise).normal(0, 0.3, 400) if noise else np.zeros(400)
    values = score + spread - spread.mean()
    whitening = WhiteningConfig(strength=strength, centre=centre)  # type: ignore[arg-type]
    return MeasuredSetting(Setting("mean", layers, whitening), values, 384)


def test_raw_is_taken_when_nothing_can_be_told_from_it() -> None:
    raw, soft = candidate(0.500, "none", "none", 1), candidate(0.505, 0.25, noise=2)
    choice = choose([raw, soft])
    assert choice.best is soft
    assert choice.taken is raw
    assert "whitening shows no measurable gain" in choice.reason


def test_raw_that_scores_highest_is_taken_and_said_to_be_best() -> None:
    raw = candidate(0.6, "none", "none")
    choice = choose([raw, candidate(0.5, 0.25), candidate(0.4, 1.0)])
    assert choice.taken is choice.best is choice.raw is raw
    assert "raw embeddings scored highest" in choice.reason
    assert choice.gain.value == 0


def test_a_setting_that_is_clearly_best_is_taken() -> None:
    best = candidate(0.7, 1.0, "common")
    choice = choose([candidate(0.5, "none", "none"), candidate(0.6, 0.25), best])
    assert choice.taken is best
    assert choice.reason == "it scored highest"
    assert choice.gain.value == pytest.approx(0.2)
    assert choice.gain.decided
    assert best.bytes == 4 * 384  # of float32


def test_the_recipes_own_stays_unless_another_can_be_told_to_be_better() -> None:
    raw, own = candidate(0.5, "none", "none"), candidate(0.697, 0.25, "common", noise=5)
    close, better = candidate(0.699, 0.5, noise=6), candidate(0.75, 0.5)
    choice = choose([raw, own, close], own.setting)
    assert choice.taken is choice.own is own
    assert choice.reason == "it is the recipe's own, and no setting is significantly better"
    assert choose([raw, own, close]).taken is close  # without a recipe's setting
    assert choose([raw, own, better], own.setting).taken is better
    assert choose([raw, close], own.setting).own is None


def test_nobody_whitens_for_nothing_though_the_recipe_does() -> None:
    raw, own = candidate(0.505, "none", "none", 1), candidate(0.500, 0.25, noise=2)
    assert choose([raw, own, candidate(0.506, 0.5, noise=3)], own.setting).taken is raw


def test_nothing_below_the_recipes_own_is_taken() -> None:
    raw, own = candidate(0.500, "none", "none", 1), candidate(0.505, 0.25, noise=2)
    assert choose([raw, own], own.setting).taken is own
    best, low = (
        candidate(0.512, 0.5, noise=2),
        candidate(0.504, 0.75, noise=7),
    )  # best is significantly better than own, but not than raw
    choice = choose([raw, own, low, best], own.setting)
    assert any(one is raw for one in choice.tied)
    assert choice.taken is best


def test_another_centre_than_the_recipes_needs_the_margin() -> None:
    raw, own = candidate(0.4, "none", "none"), candidate(0.5, 0.5, "none", noise=1)
    better, other_layers = candidate(0.53, 0.5, noise=1), candidate(0.3, 0.5, noise=1, layers=(1,))
    choice = choose([raw, own, better, other_layers], own.setting, margin=0.04)
    assert choice.taken is own
    assert not any(one is better for one in choice.candidates)
    assert any(one is other_layers for one in choice.candidates)  # no setting with the recipe's centre has these layers
    assert choose([raw, own, better], own.setting, margin=0.02).taken is better
    assert choose([raw, own, better], own.setting).taken is better
    noisy = candidate(0.55, 0.5, noise=2)  # the interval of its gain includes the margin
    assert choose([raw, own, noisy], own.setting, margin=0.04).taken is own
    assert choose([raw, better], own.setting, margin=0.04).taken is better  # no other centre was measured


def test_a_reason_does_not_call_what_is_taken_the_highest_when_it_is_not() -> None:
    raw, own, better = candidate(0.4, "none", "none"), candidate(0.45, 0.25, "none"), candidate(0.5, 0.5, "none")
    choice = choose([raw, own, better, candidate(0.51, 0.5)], own.setting, margin=0.04)
    assert (choice.taken, choice.reason) == (better, "it scored highest with the recipe's centre")


def test_the_raw_embeddings_compared_with_are_the_best_of_several_layers() -> None:
    low, high = candidate(0.4, "none", "none", layers=(1,)), candidate(0.5, "none", "none", layers=(-1,))
    for raws in ([low, high], [high, low]):
        assert choose([*raws, candidate(0.7, 0.5)]).raw is high


def test_of_settings_that_cannot_be_told_apart_the_middle_strength_with_role_means_is_taken() -> None:
    raw, middle = candidate(0.5, "none", "none"), candidate(0.698, 0.375, noise=3)
    soft, hard = candidate(0.697, 0.25, noise=5), candidate(0.699, 0.5, noise=6)
    choice = choose([raw, candidate(0.7, 0.5, "none", noise=4), hard, soft, middle])
    assert choice.taken is middle
    assert "the middle of the plainest of 4 settings" in choice.reason
    assert choose([raw, candidate(0.7, 0.5, "none", noise=4), hard, soft]).taken is soft


def test_what_is_taken_is_told_from_raw_also_when_the_middle_is_not() -> None:
    """Role means are the plainest, but here they do not help."""
    raw, best = candidate(0.5, "none", "none"), candidate(0.52, 0.5, "common", noise=4)
    noisy = candidate(0.5, 0.25, noise=5)
    choice = choose([raw, best, noisy])
    assert any(one is noisy for one in choice.tied)
    assert choice.taken is best
    assert choice.gain.value > 0


@given(st.integers(0, 10_000))
@settings(max_examples=25)
def test_nothing_below_raw_is_ever_taken(seed: int) -> None:
    chance = np.random.default_rng(seed)
    kinds: list[Any] = [("none", "none"), *((s, c) for s in (0.0, 0.25, 0.5, 1.0) for c in DEFAULT_CENTRES)]
    measured = [
        MeasuredSetting(Setting("mean", (-1,), WhiteningConfig(strength=s, centre=c)), chance.random(60) ** 2, 8)
        for s, c in kinds
    ]
    choice = choose(measured)
    assert choice.taken.score >= choice.raw.score
    assert choice.taken is choice.raw or choice.significant(choice.raw, choice.taken)


def test_layers_are_those_of_the_best() -> None:
    raw = candidate(0.3, "none", "none")
    best, other = candidate(0.7, 0.75, noise=4, layers=(1, -1)), candidate(0.699, 0.25, noise=5)
    assert choose([raw, best, other]).taken is best
