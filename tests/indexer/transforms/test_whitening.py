"""Whitening: the laws of the transform, its edge cases and its file."""

import dataclasses
import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from indexer.errors import ConfigError, CorruptIndexError
from indexer.moments import Moments
from indexer.papers.latte_mix.hellinger import Hellinger
from indexer.recipe.config import Role, WhiteningConfig
from indexer.transforms import (
    Normalisation,
    Transform,
    Whitening,
    fit_whitening,
    transform_from_bytes,
    transform_to_bytes,
)
from tests.oracles import whitening_projection

Rows = npt.NDArray[np.float32]


def correlated_rows(count: int, dim: int, seed: int = 0, rank: int = 0) -> Rows:
    """Rows with a mean far from zero and a steep spectrum, like embeddings."""
    random = np.random.default_rng(seed)
    mix = random.normal(size=(rank or dim, dim)) * np.geomspace(1, 0.01, rank or dim)[:, None]
    rows: Rows = (random.normal(size=(count, rank or dim)) @ mix + random.normal(size=dim)).astype(np.float32)
    return rows


def fit(rows: Rows, **settings: object) -> Whitening:
    whitening = fit_whitening(Moments.of(rows), dataclasses.replace(WhiteningConfig(), **settings))  # type: ignore[arg-type]
    assert isinstance(whitening, Whitening)
    return whitening


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 200), st.integers(2, 12), st.integers(0, 10**6))
def test_strength_one_gives_identity_covariance_on_the_kept_rank(count: int, dim: int, seed: int) -> None:
    rows = correlated_rows(count, dim, seed)
    whitening = fit(rows, strength=1.0)
    projected = whitening.project(rows, "document")
    covariance = np.cov(projected.T, bias=True).reshape(whitening.dim, whitening.dim)
    assert 1 <= whitening.dim <= min(dim, count - 1)
    np.testing.assert_allclose(covariance, np.eye(whitening.dim), atol=1e-3)


@settings(max_examples=25, deadline=None)
@given(st.floats(0, 1), st.integers(0, 8), st.floats(0, 1), st.integers(0, 10**6))
def test_projection_is_that_of_the_definition(strength: float, dim: int, shrinkage: float, seed: int) -> None:
    rows = correlated_rows(100, 8, seed)
    spectrum = np.linalg.eigvalsh(np.cov(rows.T))
    assume(np.diff(spectrum).min() > 1e-3 * spectrum.max() / 100)  # equal eigenvalues have no one direction
    whitening = fit(rows, strength=strength, dim=dim, shrinkage=shrinkage)
    expected = whitening_projection(rows, strength, dim, shrinkage)
    np.testing.assert_allclose(whitening.projection, expected, rtol=1e-4, atol=1e-4)


def test_vectors_are_unit_length_float32() -> None:
    rows = correlated_rows(300, 16)
    vectors = fit(rows).transform(rows, "document")
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_strength_zero_only_centres_and_rotates() -> None:
    rows = correlated_rows(300, 16)
    whitening = fit(rows, strength=0.0)
    centred = rows - rows.mean(axis=0)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    vectors = whitening.transform(rows, "document")
    np.testing.assert_allclose(vectors @ vectors.T, centred @ centred.T, atol=1e-5)


def test_strength_none_only_normalises() -> None:
    rows = correlated_rows(300, 16)
    transform = fit_whitening(Moments.of(rows), WhiteningConfig(strength="none"))
    expected = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(transform.transform(rows, "document"), expected, atol=1e-6)
    np.testing.assert_allclose(transform.transform(rows, "query"), expected, atol=1e-6)


def test_dim_keeps_the_leading_directions() -> None:
    rows = correlated_rows(300, 16)
    full, small = fit(rows), fit(rows, dim=5)
    assert (small.projection == full.projection[:, :5]).all()
    assert small.transform(rows, "query").shape == (300, 5)


def test_directions_under_the_floor_are_dropped_not_amplified() -> None:
    """The output of a LayerNorm lies in a hyperplane, so its last direction is rounding noise."""
    rows = correlated_rows(500, 12, rank=9)
    whitening = fit(rows, strength=1.0)
    assert whitening.dim == 9
    assert np.isfinite(whitening.transform(rows, "document")).all()


def test_shrinkage_does_not_bring_dropped_directions_back() -> None:
    assert fit(correlated_rows(500, 12, rank=9), shrinkage=0.5).dim == 9


def test_each_role_is_centred_by_its_own_mean() -> None:
    rows = correlated_rows(300, 8)
    query_mean = rows.mean(axis=0).astype(np.float64) + 0.5
    whitening = fit(rows).with_query_mean(query_mean)
    shifted = (rows + 0.5).astype(np.float32)
    np.testing.assert_allclose(whitening.transform(rows, "document"), whitening.transform(shifted, "query"), atol=1e-5)


def test_no_centring_subtracts_nothing_but_uses_the_centred_covariance() -> None:
    rows = correlated_rows(300, 8)
    plain, centred = fit(rows, centre="none"), fit(rows, centre="common")
    assert not plain.mean.any()
    assert not plain.query_mean.any()
    assert (plain.projection == centred.projection).all()


@pytest.mark.parametrize("role", ["document", "query"])
def test_the_affine_layers_do_what_project_does(role: Role) -> None:
    rows = correlated_rows(300, 8)
    whitening = fit(rows, dim=5).with_query_mean(np.arange(8.0))
    (layer,) = whitening.affine_layers(role)
    np.testing.assert_allclose(rows @ layer.matrix + layer.bias, whitening.project(rows, role), atol=1e-9)
    assert Normalisation(8).affine_layers(role) == []
    roots: Transform = Hellinger(8)
    assert roots.affine_layers(role) is None


def test_the_largest_entry_of_each_direction_is_positive() -> None:
    """Eigenvectors have no defined sign; without this rule the file would depend on the library."""
    projection = fit(correlated_rows(300, 8, seed=4)).projection
    assert (projection[np.abs(projection).argmax(axis=0), np.arange(8)] > 0).all()


def test_a_direction_is_kept_whose_variance_is_above_the_floor() -> None:
    moments = Moments(1000, np.zeros(4), 1000 * np.diag([4.0, 4.4e-9, 3.6e-9, 1e-9]))
    assert fit_whitening(moments, WhiteningConfig()).dim == 2


@pytest.mark.parametrize("remove", [1, 3])
def test_leading_directions_of_the_second_moment_are_taken_out(remove: int) -> None:
    rows = correlated_rows(400, 6).astype(np.float64)
    leading = np.linalg.eigh(rows.T @ rows)[1][:, -remove:]
    left = rows - rows @ leading @ leading.T
    plain = fit_whitening(Moments.of(rows), WhiteningConfig(strength="none"), remove)
    assert isinstance(plain, Whitening)
    assert plain.dim == 6 - remove
    assert not plain.mean.any()
    assert not plain.query_mean.any()
    np.testing.assert_allclose(plain.project(rows, "query") @ plain.projection.T, left, atol=1e-9)
    whitened = fit_whitening(Moments.of(rows), WhiteningConfig(strength=1.0), remove)
    assert isinstance(whitened, Whitening)
    assert whitened.dim == 6 - remove
    np.testing.assert_allclose(leading.T @ whitened.projection, 0, atol=1e-9)
    np.testing.assert_allclose(Moments.of(whitened.project(rows, "document")).covariance, np.eye(6 - remove), atol=1e-6)


def test_all_directions_cannot_be_taken_out() -> None:
    moments = Moments.of(correlated_rows(400, 6))
    assert fit_whitening(moments, WhiteningConfig(), 5).dim == 1
    with pytest.raises(ConfigError, match=r"whitening\.remove is 6, .* 6 dimensions; expected at most 5"):
        fit_whitening(moments, WhiteningConfig(), 6)


def test_a_note_says_when_there_are_fewer_than_four_texts_a_dimension() -> None:
    assert fit(correlated_rows(24, 6)).note == ""
    assert fit(correlated_rows(23, 6)).note.startswith("fitted on 23 texts for 6 dimensions; below about 24 the fit")
    assert fit(correlated_rows(23, 6), strength=0.0).note == ""
    one = fit_whitening(Moments.of(correlated_rows(1, 6)), WhiteningConfig())
    assert one.note == "a sample of one document: nothing to fit, vectors are only normalised"


def test_square_roots_of_probabilities_are_unit_vectors() -> None:
    hellinger = Hellinger(4)
    rows = np.array([[0.25, 0.75, 1.0, 0.0], [0.5, 0.5, 0.36, 0.64], [-1e-9, 1.0, 0.0, 1.0]])
    roots = np.array([[0.5, np.sqrt(0.75), 1, 0], [np.sqrt(0.5), np.sqrt(0.5), 0.6, 0.8], [0, 1, 0, 1]])
    np.testing.assert_allclose(hellinger.project(rows, "query"), roots, rtol=1e-12)
    np.testing.assert_allclose(hellinger.transform(rows, "document"), roots / np.sqrt(2), rtol=1e-6)
    assert hellinger.query_mean is None
    assert hellinger.with_query_mean(np.ones(4)) is hellinger
    assert (hellinger.input_dim, hellinger.dim, hellinger.settings()) == (4, 4, {"dim": 4, "note": ""})
    again = transform_from_bytes(transform_to_bytes(dataclasses.replace(hellinger, note="why")), "somewhere")
    assert again == Hellinger(4, "why")


def test_a_row_of_zeros_stays_zero_and_no_rows_are_none() -> None:
    vectors = Normalisation(2).transform(np.array([[0.0, 0.0], [3.0, 4.0]]), "document")
    np.testing.assert_allclose(vectors, np.array([[0, 0], [0.6, 0.8]]), rtol=1e-6)
    assert Normalisation(2).transform(np.zeros((0, 2)), "document").shape == (0, 2)


def test_scale_of_the_covariance_does_not_matter() -> None:
    rows = correlated_rows(200, 6)
    moments = Moments.of(rows)
    scaled = Moments(moments.count, moments.mean, moments.scatter * 1e4)
    one, other = (fit_whitening(m, WhiteningConfig()) for m in (moments, scaled))
    np.testing.assert_allclose(one.transform(rows, "query"), other.transform(rows, "query"), atol=1e-6)


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_rows_are_only_normalised(count: int) -> None:
    transform = fit_whitening(Moments.of(correlated_rows(count, 6)), WhiteningConfig(strength=1.0))
    assert isinstance(transform, Normalisation)
    assert "document" in transform.note
    assert np.isfinite(transform.transform(correlated_rows(3, 6), "query")).all()


def test_rows_that_are_all_alike_are_only_normalised() -> None:
    transform = fit_whitening(Moments.of(np.ones((5, 4), np.float32)), WhiteningConfig())
    assert isinstance(transform, Normalisation)
    assert "all alike" in transform.note


@pytest.mark.parametrize("count", [2, 5, 15])
def test_fewer_rows_than_dimensions_stay_finite_and_say_so(count: int) -> None:
    rows = correlated_rows(count, 16)
    whitening = fit(rows, strength=1.0)
    assert whitening.dim == count - 1
    assert f"fitted on {count}" in whitening.note
    assert np.isfinite(whitening.transform(correlated_rows(50, 16, seed=1), "query")).all()


def test_asking_for_more_directions_than_the_sample_spans_is_said() -> None:
    assert "the sample spans only 4" in fit(correlated_rows(5, 16), dim=10).note


def test_asking_for_more_directions_than_the_encoder_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="embeddings have 16 dimensions"):
        fit(correlated_rows(100, 16), dim=17)


def test_one_row_and_many_rows_give_the_same_vector() -> None:
    rows = correlated_rows(9000, 8)
    whitening = fit(rows)
    together = whitening.transform(rows, "document")
    for row in (0, 17, 4095, 4096, 8999):
        np.testing.assert_allclose(whitening.transform(rows[row : row + 1], "document")[0], together[row], atol=1e-7)


def test_file_round_trip_is_exact_and_deterministic() -> None:
    whitening = fit(correlated_rows(50, 6)).with_query_mean(np.arange(6.0))
    data = transform_to_bytes(whitening)
    again = transform_from_bytes(data, "somewhere")
    assert transform_to_bytes(again) == data == transform_to_bytes(whitening)
    assert isinstance(again, Whitening)
    assert (again.query_mean == np.arange(6.0)).all()
    plain = Normalisation(6, "why")
    assert transform_from_bytes(transform_to_bytes(plain), "somewhere") == plain


@pytest.mark.parametrize("data", [b"", b"\x08\x00\x00\x00\x00\x00\x00\x00{}      ", b"junk" * 10])
def test_other_bytes_are_refused_naming_the_file(data: bytes) -> None:
    with pytest.raises(CorruptIndexError, match="somewhere"):
        transform_from_bytes(data, "somewhere")


def resettled(transform: Whitening | Normalisation, **changes: Any) -> bytes:
    """A transform's file with other settings or arrays (by name; "kind" is its kind)."""
    arrays = transform.arrays()
    settings = transform.settings() | {name: value for name, value in changes.items() if name not in arrays}
    arrays |= {name: value for name, value in changes.items() if name in arrays}
    metadata = {"kind": changes.get("kind", transform.kind), "settings": json.dumps(settings)}
    return save(arrays, metadata={"isotrope": json.dumps(metadata)})


@pytest.mark.parametrize(
    "changes",
    [
        {"note": 1},
        {"dim": "six"},
        {"kind": 3},
        {"kind": "flow", "levels": 10**9, "depth": 10**9},
        {"kind": "flow", "levels": -1, "depth": 1},
        {"mean": np.zeros(5)},
        {"mean": np.zeros((6, 1))},
        {"projection": np.zeros((5, 6))},
        {"projection": np.zeros(6)},
        {"spectrum": np.zeros(7)},
    ],
)
def test_a_file_whose_parts_do_not_fit_together_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(CorruptIndexError, match="somewhere: not a transform file"):
        transform_from_bytes(resettled(fit(correlated_rows(50, 6)), **changes), "somewhere")


def test_settings_nested_too_deeply_are_refused() -> None:
    for metadata in ("[" * 100_000, json.dumps({"kind": "whitening", "settings": "[" * 100_000})):
        data = save({"dim": np.zeros(1)}, metadata={"isotrope": metadata})
        with pytest.raises(CorruptIndexError, match="nested deeper"):
            transform_from_bytes(data, "somewhere")
