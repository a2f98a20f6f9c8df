"""Races between number types: the faster one wins, and the winner is kept."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from indexer.encoders import product_rates
from indexer.encoders.product_rates import Library, bfloat16_pays, measured_rates, race

LIBRARIES: list[Library] = ["torch", "openvino"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("ISOTROPE_CACHE", str(tmp_path / "cache"))
    product_rates._kept_rates.cache_clear()
    yield tmp_path / "cache"
    product_rates._kept_rates.cache_clear()


def test_a_race_takes_the_best_of_the_runs_after_the_first() -> None:
    """Each product moves a clock by the seconds that its next run takes."""
    seconds = {
        "float32": iter([0.09, 0.02, 0.01, 0.03]),
        "bfloat16": iter([0.09, 0.04, 0.04, 0.02]),
        "int8": iter([0.2]),  # emulated: not run again
        "empty": iter([0.001]),  # wrong: not run again, however fast
        "too small": iter([0.001]),
    }
    matrices = {"empty": np.ones((0, 1536)), "too small": np.full((256, 1536), 256)}
    now = [0.0]

    def runner(kind: str) -> Callable[[], object]:
        def run() -> object:
            now[0] += next(seconds[kind])
            return matrices.get(kind, np.full((256, 1536), 384))

        return run

    rates = race({kind: runner(kind) for kind in seconds}, lambda: now[0])
    flops = 2e-9 * 256 * 384 * 1536
    assert rates == pytest.approx({"float32": flops / 0.01, "bfloat16": flops / 0.02, "int8": flops / 0.2})


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_library_multiplies_float32_and_a_type_that_it_lacks_is_left_out(library: Library) -> None:
    rates = measured_rates(library, ("float32", "bfloat16", "int8"))
    assert rates["float32"] > 0
    assert ("int8" in rates) == (library == "torch")


@pytest.mark.parametrize(
    ("rates", "pays"),
    [
        ({"float32": 90.0, "bfloat16": 700.0}, True),
        ({"float32": 90.0, "bfloat16": 17.0}, False),
        ({"float32": 90.0}, False),
    ],
)
def test_bfloat16_is_used_where_it_is_faster(
    rates: dict[str, float], pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(product_rates, "measured_rates", lambda _: rates)
    assert bfloat16_pays("torch") == pays


def test_what_won_is_kept_for_processes_to_come_until_instructions_are_left_out(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    raced: list[str] = []

    def measured(library: str) -> dict[str, float]:
        raced.append(library)
        return {"float32": 1.0, "bfloat16": 1.0 + len(raced) % 2}

    monkeypatch.setattr(product_rates, "measured_rates", measured)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    for _ in range(3):
        assert bfloat16_pays("torch")
        product_rates._kept_rates.cache_clear()  # as a new process has nothing in memory
    assert raced == ["torch"]
    (kept,) = cache.glob("rates/*/rates.json")
    assert json.loads(kept.read_text(encoding="utf-8")) == {"float32": 1.0, "bfloat16": 2.0}
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert not bfloat16_pays("torch")
    assert raced == ["torch", "torch"]
