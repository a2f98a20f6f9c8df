"""The tail of the scores of random pairs: what it is fitted to, what it is not, and what it foretells."""

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import betainc
from threadpoolctl import threadpool_limits

from indexer.arrays import Float64Array, RowIds, Vectors
from indexer.errors import EvaluationError
from search.dedup import chance as module
from search.dedup.chance import FEWEST, FLOOR, ChancePairs, choose_floor, count_scores, estimate_chance_pairs, fit_tail
from search.dedup.distinct import find_distinct

SCORES = np.linspace(-1, 1, module._BINS + 1)


def unit(rows: npt.NDArray[np.floating]) -> Vectors:
    units: Vectors = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return units


def sphere(count: int, dim: int, seed: int = 0) -> Vectors:
    """Vectors spread evenly over all directions."""
    return unit(np.random.default_rng(seed).standard_normal((count, dim)))


def pairs_on_sphere(count: int, dim: int, threshold: float) -> float:
    """How many pairs of so many such vectors are to be expected at or above a threshold: the area of a cap."""
    return float(count * (count - 1) / 2 * betainc((dim - 1) / 2, (dim - 1) / 2, (1 - threshold) / 2))


def near(vectors: Vectors, rows: RowIds, noise: float, seed: int = 1) -> Vectors:
    """Something near to each of these rows."""
    drawn = np.random.default_rng(seed).standard_normal((len(rows), vectors.shape[1]))
    return unit(vectors[rows] + noise / np.sqrt(vectors.shape[1]) * drawn)


def unlike(vectors: Vectors, ceiling: float) -> RowIds:
    """Rows that no earlier row scores the ceiling with."""
    alike = np.tril(vectors.astype(np.float64) @ vectors.T.astype(np.float64) >= ceiling, -1)
    return np.flatnonzero(~alike.any(axis=1))


def measured(vectors: Vectors, ceiling: float = 0.79, seed: int = 0) -> ChancePairs:
    return estimate_chance_pairs(vectors, unlike(vectors, ceiling), len(vectors), ceiling, seed)


@given(st.floats(1.5, 60), st.floats(0.3, 0.99))
def test_a_tail_that_is_a_power_is_found_and_carried_on(exponent: float, ceiling: float) -> None:
    above: Float64Array = 1e9 * ((1 - SCORES) / 2) ** exponent
    tail = fit_tail(np.random.default_rng(0).poisson(-np.diff(above)), ceiling)
    assert tail is not None
    width = math.log((1 - tail.start) / (1 - tail.ceiling))
    assert tail.exponent == pytest.approx(exponent, abs=5 * max(exponent, 12**0.5 / width) / tail.pairs**0.5)
    assert tail.above(tail.start) == pytest.approx(np.interp(tail.start, SCORES, above), rel=0.5)
    halfway = (tail.start + 1) / 2
    assert tail.above(halfway) == pytest.approx(tail.above(tail.start) / 2**tail.exponent)


@given(st.lists(st.floats(0.8, 1), max_size=50))
def test_what_scores_above_the_ceiling_does_not_matter(scores: list[float]) -> None:
    vectors = sphere(200, 12).astype(np.float64)
    counts = count_scores((vectors @ vectors.T)[np.triu_indices(200, 1)])
    found, without = (fit_tail(counts + extra, 0.8) for extra in (count_scores(np.array(scores)), 0))
    assert found is not None
    assert found == without


def test_scores_on_the_edge_of_a_bin_belong_to_the_bin_above() -> None:
    for score in (-1.0, -0.3, 0.29, 0.57, 0.79, 0.8, 0.9999):
        assert count_scores(np.array([score]))[module._bin(score)] == 1
        assert module._score(module._bin(score)) == pytest.approx(score, abs=1e-12)
    assert count_scores(np.array([1.0, 1.0000001]))[-1] == 2


@pytest.mark.parametrize(("count", "dim"), [(1500, 10), (1500, 16), (600, 12)])
def test_vectors_in_all_directions_are_foretold_as_geometry_has_it(count: int, dim: int) -> None:
    for seed in range(3):
        background = measured(sphere(count, dim, seed), 0.79, seed)
        for threshold in (0.8, 0.85, 0.9):
            low, high = background.interval(threshold) or (0.0, 0.0)
            assert low < background.expected(threshold) < high
            assert low / 1.5 < pairs_on_sphere(count, dim, threshold) < high * 1.5


def test_mean_and_deviation_are_those_of_the_scores() -> None:
    vectors = unit(sphere(300, 12) + np.full(12, 0.1, np.float32))
    scores = (vectors.astype(np.float64) @ vectors.T.astype(np.float64))[np.triu_indices(300, 1)]
    found = measured(vectors, 0.999)
    assert (found.mean, found.deviation) == pytest.approx((scores.mean(), scores.std()), abs=1e-4)


@pytest.mark.parametrize("copies", [1, 5])
@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3])
def test_planted_near_duplicates_change_nothing_but_the_number_of_pairs(noise: float, copies: int) -> None:
    vectors = sphere(600, 16)
    rows = np.repeat(np.arange(0, 600, 10), copies)
    planted = measured(np.concatenate([vectors, near(vectors, rows, noise)]))
    alone = measured(vectors)
    assert (planted.tail, planted.left) == (alone.tail, alone.left)
    more = len(vectors) + len(rows)
    assert planted.expected(0.9) == pytest.approx(alone.expected(0.9) * more * (more - 1) / (600 * 599))


def test_the_number_of_expected_pairs_is_that_of_the_corpus_though_few_documents_are_drawn() -> None:
    vectors = sphere(3000, 12)
    few = estimate_chance_pairs(vectors, np.arange(3000), 3000, 0.9, drawn=400)
    assert (few.drawn, few.pairs, few.left) == (400, 400 * 399 // 2, 3000)
    low, high = few.interval(0.9) or (0.0, 0.0)
    assert low < pairs_on_sphere(3000, 12, 0.9) < high


def test_leaving_out_a_group_is_counting_without_its_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GROUPS", 4)
    vectors, order = sphere(30, 5), np.random.default_rng(0).permutation(30)
    counts, without = module._count(vectors, order)
    assert counts.tolist() == pair_counts(vectors)
    for group, found in zip(np.array_split(order, 4), without, strict=True):
        assert found.tolist() == pair_counts(np.delete(vectors, group, axis=0))


def pair_counts(vectors: Vectors) -> list[int]:
    rows = vectors.astype(np.float64)
    counts = [0] * module._BINS
    for one in range(len(rows)):
        for other in range(one):
            counts[int(module._bin(rows[one] @ rows[other]))] += 1
    return counts


def test_the_lowest_threshold_is_the_first_step_with_fewer_than_one() -> None:
    background = measured(sphere(800, 12))
    step = background.lowest()
    assert background.expected(step) < 1 <= background.expected(step - 0.001)
    assert background.lowest(100) < step < background.lowest(0.01)


def test_the_upper_part_of_a_tail_is_foretold_by_the_lower() -> None:
    background = measured(sphere(1500, 10))
    check = background.check
    assert check is not None
    assert background.tail.start < check.start < check.end == background.tail.ceiling
    scores = np.triu(sphere(1500, 10).astype(np.float64) @ sphere(1500, 10).astype(np.float64).T, 1)
    assert background.left == len(unlike(sphere(1500, 10), 0.79)) < 1500
    assert check.found <= np.count_nonzero((scores >= check.start) & (scores < check.end))
    assert 0.6 < check.foretold / check.found < 1.6


def test_documents_related_below_the_ceiling_show_in_the_check() -> None:
    vectors = sphere(600, 64)
    related = np.concatenate([vectors, near(vectors, np.arange(600), 1.0)])  # they score 0.71
    check = measured(related).check
    assert check is not None
    assert not 0.5 < check.found / check.foretold < 2


def test_where_pairs_do_not_get_fewer_there_is_no_background() -> None:
    related = np.repeat(sphere(60, 256), 4, axis=0)
    vectors = near(related, np.arange(240), 0.53)  # those of a group score 0.78, others about 0
    rows = unlike(vectors, 0.85)
    with pytest.raises(EvaluationError, match=r"pairs hardly get fewer towards 0\.78, .* lower floor"):
        estimate_chance_pairs(vectors, rows, 240, 0.78)


@pytest.mark.parametrize("count", [0, 1, 2, FEWEST - 1])
def test_too_few_documents_have_no_background(count: int) -> None:
    with pytest.raises(EvaluationError, match=f"Too few documents for a background: {count} .* at least {FEWEST}"):
        estimate_chance_pairs(sphere(200, 8), np.arange(count), 200, 0.8)


def test_the_least_number_of_documents_has_one() -> None:
    assert estimate_chance_pairs(sphere(FEWEST, 16), np.arange(FEWEST), FEWEST, 0.9).interval(0.9) is not None


def test_a_seed_says_which_documents_are_drawn() -> None:
    vectors = sphere(500, 12)
    one, again, other = (estimate_chance_pairs(vectors, np.arange(500), 500, 0.9, seed, 300) for seed in (1, 1, 2))
    assert one == again
    assert one.tail != other.tail


def test_the_number_of_threads_changes_nothing() -> None:
    vectors = sphere(2000, 32)
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            found.append(measured(vectors, 0.7))
    assert found[0] == found[1]


def test_the_floor_is_a_little_below_the_lowest_usual_candidate() -> None:
    vectors = sphere(2000, 20)
    assert choose_floor(vectors, find_distinct(vectors)) == FLOOR


def test_few_documents_have_the_usual_floor() -> None:
    for count in (0, 1, 10):
        vectors = sphere(count, 64)
        assert choose_floor(vectors, find_distinct(vectors)) == FLOOR


def test_the_floor_is_lower_where_chance_ends_lower() -> None:
    vectors = sphere(1000, 256)
    floor = choose_floor(vectors, find_distinct(vectors))
    by_geometry = next(step for step in np.arange(1, 0, -0.05) if pairs_on_sphere(1000, 256, step) > 1)
    assert floor == pytest.approx(by_geometry - 0.01, abs=0.051)
    assert measured(vectors, floor).lowest() == pytest.approx(floor, abs=0.07)


def test_the_floor_is_higher_where_all_documents_are_alike() -> None:
    vectors = unit(sphere(1000, 64) + np.full(64, 2 / 8, np.float32))  # random pairs score about 0.8
    floor = choose_floor(vectors, find_distinct(vectors))
    assert 0.8 < floor < 0.95
    assert len(unlike(vectors, floor)) > 300


def test_a_corpus_of_copies_has_the_highest_floor_that_is_left() -> None:
    base = sphere(60, 64)
    vectors = near(base[:1].repeat(60, axis=0), np.arange(60), 0.01)
    assert choose_floor(vectors, find_distinct(vectors)) == 0.98
