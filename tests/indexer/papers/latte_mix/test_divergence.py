"""Divergences of texts equal their definitions and lie within their bounds."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.errors import ConfigError, EvaluationError
from indexer.papers.latte_mix.divergence import js_similarities, js_similarity, mixture_l2, negative_l2
from indexer.papers.latte_mix.hellinger import Hellinger
from tests.indexer.papers import oracles_lattemix as oracle
from tests.indexer.papers.latte_mix.small_mixtures import Doubles, held_out, made_texts, trained


@st.composite
def text_pairs(draw: st.DrawFn) -> tuple[Doubles, Doubles, int]:
    """Two texts of `dims` distributions each, with classes of zero, tiny and large probability."""
    dims, classes = draw(st.integers(1, 4)), draw(st.integers(2, 6))
    weight = st.one_of(st.just(0.0), st.just(5e-324), st.floats(1e-300, 1e-10), st.floats(1e-3, 1.0), st.just(1.0))
    texts = []
    for _ in range(2):
        rows = np.array(draw(st.lists(weight, min_size=dims * classes, max_size=dims * classes))).reshape(dims, classes)
        rows[rows.max(axis=1) < 1e-3, draw(st.integers(0, classes - 1))] = 1.0
        texts.append((rows / rows.sum(axis=1, keepdims=True)).ravel())
    if draw(st.booleans()):
        texts[1] = 0.999999 * texts[0] + 0.000001 * texts[1]
    return texts[0], texts[1], dims


@given(text_pairs())
@settings(max_examples=300)
def test_a_divergence_lies_within_the_bounds_of_the_inner_product_of_roots(pair: tuple[Doubles, Doubles, int]) -> None:
    p, q, dims = pair
    inner = float(np.sqrt(p / dims) @ np.sqrt(q / dims))
    assert inner == pytest.approx(oracle.bhattacharyya(p, q, dims), abs=1e-12)
    nats = (1 - oracle.js_similarity(p, q, dims)) * math.log(2)
    assert math.log(2) * (1 - inner) - 1e-12 <= nats <= 1 - inner + 1e-12
    found = js_similarity(p[None], q[None], dims)[0]
    assert 1 - (1 - inner) / math.log(2) - 1e-12 <= found <= inner + 1e-12
    left, right = Hellinger(len(p)).transform(np.stack([p, q]), "document")
    assert left @ right == pytest.approx(inner, abs=1e-6)


def test_the_bound_on_a_similarity_is_reached_where_texts_share_a_class_fully_or_not_at_all() -> None:
    p, q = np.array([[0.75, 0.25, 0.0]]), np.array([[0.75, 0.0, 0.25]])
    assert js_similarity(p, q, 1) == pytest.approx(np.sqrt(p) @ np.sqrt(q)[0])


@given(text_pairs())
def test_js_similarity_is_that_of_the_definition_and_alike_both_ways(pair: tuple[Doubles, Doubles, int]) -> None:
    p, q, dims = pair
    found = js_similarity(p[None], q[None], dims)[0]
    assert found == pytest.approx(oracle.js_similarity(p, q, dims), abs=1e-9)
    assert found == js_similarity(q[None], p[None], dims)[0]
    assert 0 <= found <= 1
    assert js_similarity(p[None], p[None], dims)[0] == 1


def test_texts_without_a_class_in_common_have_the_similarity_0() -> None:
    p, q = np.array([[1.0, 0, 0, 0, 0.5, 0.5]]), np.array([[0, 0.5, 0.5, 1, 0, 0]])
    assert js_similarity(p, q, 2) == pytest.approx([0])
    left, right = Hellinger(6).transform(np.concatenate([p, q]), "document")
    assert left @ right == 0


def test_a_table_of_similarities_is_that_of_its_pairs() -> None:
    rows = trained().posterior(made_texts(50, seed=4)[0])
    left, right = rows[:3], rows[3:153]
    table = js_similarities(left, right, 4)
    assert table.shape == (3, 150)
    for number in range(3):
        np.testing.assert_allclose(table[number], js_similarity(np.repeat(left[number : number + 1], 150, 0), right, 4))
    assert js_similarities(left[:0], right, 4).shape == (0, 150)
    assert js_similarities(left, right[:0], 4).shape == (3, 0)
    assert js_similarity(left[:0], right[:0], 4).shape == (0,)


def test_roots_are_unit_vectors() -> None:
    roots = Hellinger(20).project(trained().posterior(held_out()), "document") / np.sqrt(4)
    np.testing.assert_allclose(np.linalg.norm(roots, axis=1), 1, atol=1e-6)


def test_l2_is_the_distance_of_rows() -> None:
    random = np.random.default_rng(0)
    left, right = random.normal(size=(2, 7, 20))
    expected = [
        -math.sqrt(sum((a - b) ** 2 for a, b in zip(*rows, strict=True))) for rows in zip(left, right, strict=True)
    ]
    np.testing.assert_allclose(negative_l2(left, right), expected)


@pytest.mark.parametrize("shapes", [((2, 20), (3, 20)), ((2, 20), (2, 15)), ((2, 18), (2, 18)), ((20,), (20,))])
def test_rows_that_cannot_be_compared_are_refused(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    with pytest.raises(ConfigError, match="cannot be compared in 4 dimensions"):
        js_similarity(np.zeros(shapes[0]), np.zeros(shapes[1]), 4)


@pytest.mark.parametrize("tokens", [(1, 1), (3, 2), (2, 5)])
def test_the_distance_of_normal_mixtures_is_that_of_the_integral(tokens: tuple[int, int]) -> None:
    random = np.random.default_rng(sum(tokens))
    left, right = ((random.normal(size=(count, 3)), random.uniform(0.2, 2, (count, 3))) for count in tokens)
    assert mixture_l2(left, right) == pytest.approx(oracle.mixture_l2(left, right), abs=1e-10)
    assert mixture_l2(left, right) == pytest.approx(oracle.mixture_l2_by_quadrature(left, right), abs=1e-5)
    assert mixture_l2(left, right) == pytest.approx(mixture_l2(right, left), abs=1e-12)


def test_a_mixture_is_at_no_distance_from_itself_in_another_order() -> None:
    mean, deviation = trained("normal").normal(held_out()[:6])
    assert mixture_l2((mean, deviation), (mean[::-1], deviation[::-1])) == pytest.approx(0, abs=1e-7)


def test_a_text_without_tokens_has_no_mixture() -> None:
    some, none = (np.zeros((2, 3)), np.ones((2, 3))), (np.zeros((0, 3)), np.ones((0, 3)))
    with pytest.raises(EvaluationError, match="at least one token"):
        mixture_l2(some, none)
