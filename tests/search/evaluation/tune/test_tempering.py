"""A strength in closed form: the formula by hand, what it may not depend on, and what `tune` makes of it."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.arrays import Float64Array
from indexer.config import BuildConfig, EncoderConfig, StoreConfig, WhiteningConfig
from indexer.moments import Moments
from search.evaluation.settings import Setting, Sweep
from search.evaluation.target import Target
from search.evaluation.tune.tempering import tempered, tempered_strength
from search.evaluation.tune.tune import TuneOptions, run_tune
from tests.search.cli.test_cli import isotrope
from tests.search.evaluation.tune.tuned_corpora import corpus, judged, written


def decaying(size: int, rate: float, floor: float = 0.01) -> Float64Array:
    """A spectrum that falls to a floor of noise."""
    values: Float64Array = np.exp(-rate * np.arange(size) / size) + floor
    return values


def by_hand(spectrum: Float64Array, dim: int) -> float:
    """For a curve that bends one way alone, whose knee is the point farthest below the line between its ends."""
    signal = spectrum[: int(0.9 * len(spectrum))]
    snr = signal / spectrum[len(signal) :].mean() - 1
    line = np.linspace(snr[0], snr[-1], len(snr))
    return float(min(1.0, snr[dim - 1] / snr[(line - snr).argmax()]))


@pytest.mark.parametrize("rate", [5.0, 20.0, 60.0])
@pytest.mark.parametrize("dim", [1, 5, 20, 50, 90])
def test_the_strength_is_the_signal_at_the_last_direction_by_that_at_the_knee(rate: float, dim: int) -> None:
    spectrum = decaying(100, rate)
    assert tempered_strength(spectrum, dim) == pytest.approx(by_hand(spectrum, dim))


@given(
    st.lists(st.floats(1e-3, 1e3), min_size=10, max_size=60),
    st.sampled_from([2.0**-20, 2.0, 2.0**30]),
)
def test_it_depends_on_no_scale_falls_with_dimensions_and_lies_from_0_to_1(values: list[float], scale: float) -> None:
    spectrum = np.array(sorted(values, reverse=True), np.float64)
    found = [tempered_strength(spectrum, dim) for dim in range(1, len(values) + 1)]
    assert found == [tempered_strength(scale * spectrum, dim) for dim in range(1, len(values) + 1)]
    strengths = [one for one in found if one is not None]
    assert len(strengths) in (0, len(values))
    assert strengths == sorted(strengths, reverse=True)
    assert all(0 <= one <= 1 for one in strengths)
    assert tempered_strength(spectrum) == found[-1]


def test_directions_without_variance_are_no_noise() -> None:
    spectrum = decaying(100, 20.0)
    assert tempered_strength(np.concatenate([spectrum, np.zeros(50)]), 20) == tempered_strength(spectrum, 20)


def test_there_is_none_without_a_tenth_or_a_knee() -> None:
    assert tempered_strength(decaying(9, 5.0), 2) is None
    assert tempered_strength(np.ones(50), 5) is None
    assert tempered_strength(np.linspace(2.0, 1.0, 50), 5) is None  # a straight line
    own = Setting("mean", (-1,), WhiteningConfig())
    assert tempered(own, Moments.of(np.ones((5, 16), np.float32))) == []


def test_a_setting_is_tempered_without_shrinkage() -> None:
    rows = (np.random.default_rng(0).standard_normal((500, 40)) * np.sqrt(decaying(40, 20.0))).astype(np.float32)
    own = Setting("mean", (-1,), WhiteningConfig(strength=0.75, shrinkage=0.5, centre="common"))
    moments = Moments.of(rows)
    (found,) = tempered(own, moments, 10)
    spectrum = np.asarray(np.linalg.eigvalsh(moments.covariance)[::-1], np.float64)
    expected = tempered_strength(spectrum, 10)
    assert expected is not None
    assert found.whitening == WhiteningConfig(strength=round(expected, 3), dim=10, centre="common")


@pytest.fixture
def config(tiny_model: Callable[[str], Path]) -> BuildConfig:
    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=64, precision="float32")
    return BuildConfig(encoder=encoder, store=StoreConfig(part_documents=50))


def test_tune_tries_it_for_all_dimensions_and_for_fewer(config: BuildConfig, tmp_path: Path) -> None:
    folder = judged(corpus(120), tmp_path / "beir")
    target, cache = Target.of_recipe(config), tmp_path / "cache"
    for beir in (None, folder):
        result = run_tune(target, TuneOptions((str(folder),), beir=beir), Sweep(), cache).to_dict()
        rows = [row for row in result["results"] if row["closed_form"]]
        dims = {row["dim"] for row in result["results"]}
        assert {row["dim"] for row in rows} == dims
        assert len(rows) == len(dims)
        strengths = {row["dim"] or row["dimensions"]: row["strength"] for row in rows}
        assert list(strengths.values()) == sorted(strengths.values(), key=float)
        given = run_tune(target, TuneOptions((str(folder),), beir=beir), Sweep(strengths=(0.5,)), cache).to_dict()
        assert not any(row["closed_form"] for row in given["results"])
        assert not any("closed form" in note for note in given["notes"])


def marks_one(page: str) -> bool:
    return any(line.rstrip().endswith("closed form") for line in page.splitlines())


def test_without_the_package_tune_says_that_it_is_not_tried(
    config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = written(corpus(60), tmp_path / "docs.jsonl")
    encoder = ("--set", f"encoder.model={config.encoder.model}", "--set", "encoder.max_length=64")
    command = ("tune", source, *encoder, "--cache", tmp_path / "cache")
    assert marks_one(isotrope(*command).stdout)
    monkeypatch.setitem(sys.modules, "kneed", None)
    shown = isotrope(*command)
    assert shown.returncode == 0
    assert not marks_one(shown.stdout)
    assert "no strength in closed form was tried" in shown.stderr
    assert "(the extra isotrope[eval])" in shown.stderr
