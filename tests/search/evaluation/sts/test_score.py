"""Cosines of pairs, their rank correlation with human scores, and the protocols, by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.arrays import Float64Array
from indexer.errors import EvaluationError
from indexer.transforms import Normalisation
from search.evaluation.sts.data import Task
from search.evaluation.sts.readers import Subset
from search.evaluation.sts.score import Protocol, cosines, spearman, task_estimates, why_undefined

PROTOCOLS: tuple[Protocol, ...] = ("mean", "wmean", "all")


# Cosines and their correlation


def test_equal_sentences_tie_exactly_at_one_and_a_swapped_pair_with_itself() -> None:
    vectors = np.random.default_rng(0).normal(size=(300, 97)) * 10.0 ** np.arange(-3, 0, 0.01)[:, None]
    rows, others = np.arange(300), np.arange(300)[::-1]
    assert set(cosines(vectors, rows, rows)) == {1.0}
    assert np.array_equal(cosines(vectors, rows, others), cosines(vectors, others, rows))


def test_cosines_are_told_apart_below_the_rounding_of_float32() -> None:
    vectors = np.array([[1.0, 0.0], [1.0, 1e-5], [1.0, 2e-5]])
    first, second = np.array([0, 0]), np.array([1, 2])
    near, far = cosines(vectors, first, second)
    assert near > far
    assert np.float32(near) == np.float32(far)


def test_a_row_of_zeros_has_cosine_zero() -> None:
    assert cosines(np.array([[0.0, 0.0], [1.0, 2.0]]), np.array([0, 0]), np.array([1, 0])).tolist() == [0.0, 0.0]


def test_raw_embeddings_are_projected_as_they_are() -> None:
    rows = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    found = Normalisation(3).project(rows, "document")
    assert found.dtype == np.float64
    assert np.array_equal(found, rows)


def test_spearman_averages_ties() -> None:
    human, predicted = np.array([1.0, 2.0, 2.0, 4.0]), np.array([0.1, 0.1, 0.9, 0.5])
    # ranks 1, 2.5, 2.5, 4 and 1.5, 1.5, 4, 3: covariance 2.25, variances 4.5 and 4.5
    assert spearman(predicted, human, "x") == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("predicted", "human", "message"),
    [
        ([0.5, 0.5], [1.0, 2.0], r'"x": all 2 cosines are 0.5, so the correlation is undefined'),
        ([0.5, float("nan")], [3.0, 1.0], r'"x": 1 of 2 scores are NaN or infinite'),
    ],
)
def test_an_undefined_correlation_is_an_error(predicted: list[float], human: list[float], message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        spearman(np.array(predicted), np.array(human), '"x"')


# Protocols


def hand_made() -> tuple[Task, list[Float64Array]]:
    """Two subsets: three pairs in the right order, two in the wrong one."""
    names = ("p", "q", "r", "s", "t")
    task = Task("STS13", (Subset("A", np.array([1.0, 2, 3]), names[:3], names[:3]),
                          Subset("B", np.array([4.0, 5]), names[3:], names[3:])))  # fmt: skip
    return task, [np.array([0.1, 0.2, 0.3]), np.array([0.9, 0.8])]


def test_the_three_protocols_by_hand() -> None:
    task, scores = hand_made()
    found = task_estimates(task, [scores], ["s"], PROTOCOLS)
    # A 1, B -1; over all five pairs the ranks 1 2 3 5 4 against 1 2 3 4 5: 1 - 6 * 2 / (5 * 24)
    assert {name: estimates[0].value for name, estimates in found.items()} == pytest.approx(
        {"mean": 0.0, "wmean": 0.2, "all": 0.9}
    )


def test_one_subset_is_the_same_under_every_protocol() -> None:
    task, scores = hand_made()
    task = Task("SICK", task.subsets[:1])
    found = task_estimates(task, [scores[:1]], ["s"], PROTOCOLS)
    assert {estimates[0].value for estimates in found.values()} == {1.0}
    assert all(np.array_equal(found["mean"][0].resampled, found[p][0].resampled, equal_nan=True) for p in PROTOCOLS)


def test_a_constant_subset_has_no_mean_but_the_concatenation_is_defined() -> None:
    task, scores = hand_made()
    scores[1][:] = 0.9
    with pytest.raises(EvaluationError, match=r'STS13, subset "B", setting "raw": all 2 cosines are 0.9'):
        task_estimates(task, [scores], ["raw"], ["mean"])
    assert task_estimates(task, [scores], ["raw"], ["all"])["all"][0].value > 0.9


def test_a_setting_is_undefined_where_its_protocols_look() -> None:
    task, (first, second) = hand_made()
    alike = np.full(2, 0.9)
    assert why_undefined(task, [first, second], "raw", PROTOCOLS) == ""
    assert why_undefined(task, [first, alike], "raw", ["all"]) == ""
    assert 'STS13, subset "B", setting "raw"' in why_undefined(task, [first, alike], "raw", ["all", "wmean"])
    every = [np.full(3, 0.9), alike]
    assert "STS13, all subsets together" in why_undefined(task, every, "raw", ["all"])
    assert 'subset "A"' in why_undefined(task, every, "raw", ["mean"])
    assert why_undefined(Task("B", task.subsets[1:]), [alike], "raw", ["all"]).startswith('B, subset "B"')


@settings(max_examples=25)
@given(st.lists(st.integers(0, 5), min_size=4, max_size=10).filter(lambda values: len(set(values)) > 1))
def test_resamples_of_a_task_are_drawn_within_its_subsets(values: list[int]) -> None:
    """All pairs of A score below all of B: no correlation within the subsets, full correlation between them."""
    size = len(values)
    texts = tuple(map(str, range(size)))
    human = np.array(values, dtype=np.float64)
    task = Task("STS12", (Subset("A", human, texts, texts), Subset("B", human + 10, texts, texts)))
    step = [np.zeros(size), np.ones(size)]
    (estimate,) = task_estimates(task, [step], ["s"], ["all"])["all"]
    # a resample that drew pairs from both together would sometimes draw one subset only, and have no value
    assert np.isfinite(estimate.resampled).all()
    assert estimate.resampled.min() > 0.5


def test_subsets_of_the_same_name_are_resampled_by_their_task() -> None:
    task, scores = hand_made()
    estimates = [task_estimates(Task(name, task.subsets), [scores], ["s"], ["all"]) for name in ("STS13", "STS14")]
    first, second = (found["all"][0].resampled for found in estimates)
    assert not np.array_equal(first, second, equal_nan=True)
