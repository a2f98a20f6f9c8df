"""Retrieval measures and their paired comparisons, by hand and by the definitions."""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.errors import ConfigError, MachineError
from indexer.recipe.config import WhiteningConfig
from search.evaluation.retrieval.metrics import MeasuredRun, compare, measure, measure_names
from search.evaluation.retrieval.retrieval import RetrievalOptions
from search.evaluation.sweep import Setting


def of(relevances: dict[str, int], ranked: Sequence[str], *cutoffs: int) -> dict[str, float]:
    """The measures of one query."""
    return {name: float(values[0]) for name, values in measure({"q": relevances}, {"q": ranked}, cutoffs).items()}


def test_a_ranking_computed_by_hand() -> None:
    found = of({"a": 2, "b": 1, "c": 1, "never found": 1}, ["x", "a", "y", "b", "c"], 3, 10)
    ideal = 2 + 1 / math.log2(3) + 1 / math.log2(4)
    assert found == pytest.approx(
        {
            "nDCG@3": (2 / math.log2(3)) / ideal,
            "nDCG@10": (2 / math.log2(3) + 1 / math.log2(5) + 1 / math.log2(6)) / (ideal + 1 / math.log2(5)),
            "MAP": (1 / 2 + 2 / 4 + 3 / 5) / 4,
            "R@3": 1 / 4,
            "R@10": 3 / 4,
            "MRR": 1 / 2,
        }
    )


def test_the_ideal_ranking_counts_every_judged_document_and_only_up_to_k() -> None:
    assert of({"a": 1, "b": 3}, ["a"], 1)["nDCG@1"] == pytest.approx(1 / 3)
    assert of({"a": 1, "b": 3}, ["b"], 1)["nDCG@1"] == 1
    assert of({"a": 1, "b": 3}, ["b"], 2)["nDCG@2"] == pytest.approx(3 / (3 + 1 / math.log2(3)))


@pytest.mark.parametrize("ranked", [["a", "b"], ["b", "a"]])
def test_the_order_given_is_the_order_judged_whatever_the_ids(ranked: list[str]) -> None:
    """trec_eval would rank the larger id of a tie first."""
    assert of({"a": 1}, ranked, 1)["MRR"] == 1 / (1 + ranked.index("a"))


def test_scores_of_zero_and_below_are_not_relevant() -> None:
    found = of({"a": 0, "b": -2, "c": 1}, ["a", "b", "c"], 3)
    assert [found["MRR"], found["MAP"], found["R@3"]] == pytest.approx([1 / 3, 1 / 3, 1])
    assert found["nDCG@3"] == pytest.approx(1 / math.log2(4))


def test_a_query_that_found_nothing_or_was_never_asked_counts_zero() -> None:
    judgements = {"empty": {"a": 1}, "asked": {"a": 1}, "absent": {"a": 1}}
    for values in measure(judgements, {"asked": ["a"], "empty": []}, [10]).values():
        assert values.tolist() == [0, 1, 0]


def test_values_stand_in_the_order_of_the_judgements() -> None:
    names = [f"q{number}" for number in (10, 9, 2, 1)]
    judgements = {name: {"a": 1} for name in names}
    ranked = {name: [f"x{i}" for i in range(place)] + ["a"] for place, name in enumerate(names)}
    assert measure(judgements, ranked, [10])["MRR"] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])


def test_measures_are_named_for_their_k() -> None:
    assert measure_names((10, 100)) == ["nDCG@10", "nDCG@100", "MAP", "R@10", "R@100", "MRR"]
    assert list(measure({"q": {"a": 1}}, {}, (10, 100))) == measure_names((10, 100))


@given(
    relevances=st.dictionaries(st.sampled_from("abcdefgh"), st.integers(-1, 3), min_size=1),
    ranked=st.permutations("abcdefghij").flatmap(lambda order: st.integers(0, 10).map(lambda n: order[:n])),
    k=st.integers(1, 12),
)
def test_measures_follow_their_definitions(relevances: dict[str, int], ranked: list[str], k: int) -> None:
    gains = [max(relevances.get(name, 0), 0) for name in ranked]
    relevant = sorted((value for value in relevances.values() if value > 0), reverse=True)
    hits = [rank for rank, gain in enumerate(gains, start=1) if gain]
    precisions = [found / rank for found, rank in enumerate(hits, start=1)]
    expected = {
        f"nDCG@{k}": dcg(gains[:k]) / dcg(relevant[:k]) if relevant else 0,
        "MAP": sum(precisions) / len(relevant) if relevant else 0,
        f"R@{k}": sum(rank <= k for rank in hits) / len(relevant) if relevant else 0,
        "MRR": 1 / hits[0] if hits else 0,
    }
    assert of(relevances, ranked, k) == pytest.approx(expected)


def dcg(gains: Sequence[int]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))


@pytest.mark.parametrize("cutoffs", [(), (0,), (10, -1)])
def test_cutoffs_that_are_no_ranks_are_refused(cutoffs: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="expected whole numbers above 0"):
        RetrievalOptions(Path("beir"), cutoffs=cutoffs)


def test_without_the_package_the_line_that_installs_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ir_measures", None)
    with pytest.raises(MachineError, match=r"pip install '.*isotrope\[eval\]"):
        measure({"q": {"a": 1}}, {}, [10])


def test_many_queries_are_judged_at_once() -> None:
    judgements = {f"q{n}": {f"d{n}": 1} for n in range(500)}
    found = measure(judgements, {name: list(of) for name, of in judgements.items()}, [1])
    assert np.array_equal(found["R@1"], np.ones(500))


def test_without_raw_the_first_setting_is_the_reference_and_layers_have_their_own_raw() -> None:
    def one(layer: int, strength: Any) -> MeasuredRun:
        whitening = WhiteningConfig(strength=strength, centre="none" if strength == "none" else "common")
        setting = Setting("mean", (layer,), whitening)
        return MeasuredRun(setting.label, setting, {"MRR": np.array([0.0, strength != "none", layer])}, {})

    def pairs(*measured: MeasuredRun) -> list[tuple[str, str]]:
        return [(pair["setting"], pair["against"]) for pair in compare(measured)[1]]

    assert pairs(one(1, 0.0), one(1, 1.0)) == [("mean 1 strength 1 common", "mean 1 strength 0 common")]
    assert pairs(one(1, "none"), one(2, "none"), one(2, 1.0), one(3, 1.0)) == [
        ("mean 2 raw", "mean 1 raw"),
        ("mean 2 strength 1 common", "mean 2 raw"),
        ("mean 3 strength 1 common", "mean 1 raw"),
    ]


def test_a_hybrid_is_compared_with_its_own_vectors_and_each_with_bm25_once() -> None:
    values = {"MRR": np.array([0.0, 0.5, 1.0])}
    settings = [Setting("mean", (1,), WhiteningConfig(strength=strength)) for strength in (0.0, 1.0)]
    vectors = [MeasuredRun(setting.label, setting, values, {}) for setting in settings]
    hybrids = [MeasuredRun(f"hybrid {one.label}", one.setting, values, {}, hybrid="0.3") for one in vectors]
    _, compared = compare([*vectors, *hybrids, MeasuredRun("BM25", None, values, {})])
    first, second = (one.label for one in vectors)
    assert [(pair["setting"], pair["against"]) for pair in compared] == [
        (first, "BM25"),
        (second, first),
        (second, "BM25"),
        (f"hybrid {first}", first),
        (f"hybrid {first}", "BM25"),
        (f"hybrid {second}", second),
        (f"hybrid {second}", "BM25"),
    ]


def test_differences_computed_by_hand() -> None:
    setting = Setting("mean", (1,), WhiteningConfig())
    first = MeasuredRun("one", setting, {"MRR": np.array([0.5, 0.5, 1.0, 0.0])}, {})
    baseline = MeasuredRun("BM25", None, {"MRR": np.array([0.25, 0.5, 0.0, 0.5])}, {})
    _, (pair,) = compare([first, baseline])
    found = pair["measure"]["MRR"]
    assert (found["value"], found["won"], found["tied"], found["lost"]) == (0.1875, 2, 1, 1)
    assert (found["decided"], found["low"] < 0 < found["high"]) == (False, True)


def test_differences_are_of_the_same_queries_in_every_resample() -> None:
    """A constant gain for every query is the gain in every resample."""
    values = np.array([0.1, 0.9, 0.3, 0.5, 0.0])
    better = MeasuredRun("one", Setting("mean", (1,), WhiteningConfig()), {"MRR": values + 0.0625}, {})
    _, (pair,) = compare([better, MeasuredRun("BM25", None, {"MRR": values}, {})])
    found = pair["measure"]["MRR"]
    assert (found["low"], found["high"]) == pytest.approx((0.0625, 0.0625))
    assert (found["better"], found["decided"]) == (1.0, True)
