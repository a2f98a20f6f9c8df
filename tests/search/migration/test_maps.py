"""Maps between the vectors of two encoders: known maps are found, and ridge regression equals its closed form."""

import numpy as np
import pytest

from indexer.arrays import Float64Array
from search.migration.maps import MAP_KINDS, BothSides, MapKind, fit_map


def drawn(*shape: int) -> Float64Array:
    return np.random.default_rng(len(shape) + sum(shape)).normal(size=shape)


def sides_of(matrix: Float64Array, rows: int = 300) -> BothSides:
    """Return both sides of an exact linear relation, in which documents and questions have other means."""
    documents, questions = drawn(rows, len(matrix)) + 1, drawn(rows - 1, len(matrix)) - 2
    return BothSides(documents, documents @ matrix + 3, questions, questions @ matrix - 5)


@pytest.mark.parametrize("kind", MAP_KINDS)
def test_a_scaled_rotation_is_found(kind: MapKind) -> None:
    sides = sides_of(np.linalg.qr(drawn(6, 6))[0] * 2)
    found, wanted = fit_map(kind, sides)(sides.new_questions), sides.old_questions
    wanted = wanted / np.linalg.norm(wanted, axis=1, keepdims=True)
    assert (found * wanted).sum(axis=1).min() > 0.999


@pytest.mark.parametrize("kind", MAP_KINDS)
@pytest.mark.parametrize("size", [4, 9])
def test_both_sides_can_have_other_numbers_of_dimensions(kind: MapKind, size: int) -> None:
    fitted = fit_map(kind, sides_of(drawn(6, size)))
    assert fitted.matrix.shape == (6, size)
    assert fitted.bias.shape == (size,)


def test_the_affine_map_finds_a_map_that_is_no_rotation_and_is_ridge_regression() -> None:
    matrix = drawn(6, 4) * np.arange(1, 7)[:, None]
    sides = sides_of(matrix)
    fitted = fit_map("affine", sides)
    new = np.concatenate([side - side.mean(axis=0) for side in (sides.new, sides.new_questions)])
    old = np.concatenate([side - side.mean(axis=0) for side in (sides.old, sides.old_questions)])
    gram = new.T @ new
    oracle = np.linalg.solve(gram + fitted.penalty * np.trace(gram) / 6 * np.eye(6), new.T @ old)
    assert np.allclose(fitted.matrix, oracle)
    assert np.allclose(fitted.matrix, matrix, rtol=0.01, atol=0.01)


def test_noise_gets_a_larger_penalty_than_an_exact_relation() -> None:
    exact = sides_of(drawn(40, 8), 60)
    noise = BothSides(exact.new, drawn(60, 8), exact.new_questions, drawn(59, 8))
    assert fit_map("affine", noise).penalty > fit_map("affine", exact).penalty


@pytest.mark.parametrize("kind", MAP_KINDS)
def test_mapped_questions_have_the_mean_of_the_old_ones(kind: MapKind) -> None:
    sides = sides_of(drawn(6, 4))
    fitted = fit_map(kind, sides)
    mapped = sides.new_questions @ fitted.matrix + fitted.bias
    assert np.allclose(mapped.mean(axis=0), sides.old_questions.mean(axis=0))


@pytest.mark.parametrize("kind", MAP_KINDS)
def test_constant_rows_give_finite_maps(kind: MapKind) -> None:
    ones = np.ones((20, 3))
    assert np.isfinite(fit_map(kind, BothSides(ones, ones, ones, ones)).matrix).all()
