"""Moments: exact, mergeable in any grouping, the same bits for any number of threads."""

import io
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from threadpoolctl import threadpool_limits

from indexer.moments import BLOCK_ROWS, Moments, tree_sum

Rows = npt.NDArray[np.float64]
some_rows = arrays(np.float64, st.tuples(st.integers(0, 30), st.just(4)), elements=st.floats(-1e3, 1e3, width=32))


def assert_close(a: Moments, b: Moments) -> None:
    assert a.count == b.count
    np.testing.assert_allclose(a.mean, b.mean, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(a.scatter, b.scatter, rtol=1e-9, atol=1e-6)


@given(some_rows, some_rows, some_rows)
def test_merge_is_the_same_in_any_grouping(a: Rows, b: Rows, c: Rows) -> None:
    x, y, z = Moments.of(a), Moments.of(b), Moments.of(c)
    assert_close((x + y) + z, x + (y + z))
    assert_close(x + y, y + x)
    assert_close(tree_sum([x, y, z]), Moments.of(np.concatenate([a, b, c])))


@given(some_rows.filter(len))
def test_moments_are_those_of_the_definition(rows: Rows) -> None:
    moments = Moments.of(rows)
    centred = rows - rows.mean(axis=0)
    np.testing.assert_allclose(moments.mean, rows.mean(axis=0), atol=1e-9)
    np.testing.assert_allclose(moments.scatter, centred.T @ centred, rtol=1e-9, atol=1e-6)


def test_no_rows_are_the_neutral_element() -> None:
    moments = Moments.of(np.random.default_rng(0).normal(size=(10, 3)))
    assert moments + Moments.zero(3) is moments
    assert Moments.zero(3) + moments is moments
    assert Moments.of(np.zeros((0, 3))).count == 0
    assert Moments.of(np.zeros((0, 3))).mean.shape == (3,)
    assert not Moments.zero(2).covariance.any()


def test_moments_of_two_points_are_those_worked_out_by_hand() -> None:
    one, two = Moments.of(np.array([[1.0, 4.0]])), Moments.of(np.array([[3.0, 0.0], [5.0, 2.0]]))
    both = one + two
    assert (both.count, both.mean.tolist()) == (3, [3.0, 2.0])
    assert both.scatter.tolist() == [[8.0, -4.0], [-4.0, 8.0]]
    np.testing.assert_array_equal(both.covariance, np.array([[8.0, -4.0], [-4.0, 8.0]]) / 3)


def test_rows_that_are_not_finite_make_no_noise() -> None:
    """The build gate rejects such rows."""
    assert not np.isfinite(Moments.of(np.array([[np.inf, 1.0], [0.0, 1.0]])).covariance[0, 0])


def test_a_large_mean_costs_no_precision() -> None:
    """The un-centred float32 covariance of such rows is not even positive definite."""
    spread = np.random.default_rng(0).normal(size=(5000, 8))
    near, far = Moments.of(spread), Moments.of(spread + 1e4)
    np.testing.assert_allclose(far.covariance, near.covariance, atol=1e-8)
    uncentred = (spread + 1e4).astype(np.float32)
    naive = uncentred.T @ uncentred / 5000 - np.outer(uncentred.mean(axis=0), uncentred.mean(axis=0))
    assert np.linalg.eigvalsh(naive).min() < 0


@pytest.mark.parametrize("size", [1, BLOCK_ROWS - 1, BLOCK_ROWS, 2 * BLOCK_ROWS + 5])
def test_blocks_do_not_show(size: int) -> None:
    rows = np.random.default_rng(1).normal(size=(size, 5)).astype(np.float32) + 3
    np.testing.assert_allclose(Moments.of(rows).covariance, np.cov(rows.T, bias=True, dtype=np.float64), atol=1e-10)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 3))
def test_bits_do_not_depend_on_threads(threads: int) -> None:
    rows = np.random.default_rng(2).normal(size=(3000, 64)).astype(np.float32)
    with threadpool_limits(limits=threads):
        assert Moments.of(rows).to_bytes() == _reference(rows)


def test_file_round_trip_is_exact() -> None:
    moments = Moments.of(np.random.default_rng(3).normal(size=(20, 4)))
    again = Moments.from_bytes(moments.to_bytes())
    assert again.to_bytes() == moments.to_bytes()
    assert (again.scatter == moments.scatter).all()


def packed(compressed: bool = False, **changes: Any) -> bytes:
    arrays: dict[str, Any] = {"count": np.int64(3), "mean": np.zeros(2), "scatter": np.zeros((2, 2)), **changes}
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(
        file, **{name: array for name, array in arrays.items() if array is not None}
    )
    return file.getvalue()


def test_a_file_of_moments_is_read_as_it_is() -> None:
    assert Moments.from_bytes(packed()).count == 3


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"junk", "not a zip file"),
        (packed()[:-30], "not a zip file"),
        (packed(scatter=None), "scatter"),
        (packed(count=np.int32(3)), r"int32 \(\); expected int64 \(\)"),
        (packed(count=np.zeros(1, np.int64)), r"int64 \(1,\); expected int64 \(\)"),
        (packed(mean=np.zeros(2, np.float32)), r"float32 \(2,\); expected float64 \(2,\)"),
        (packed(mean=np.zeros((2, 1))), r"float64 \(2, 1\); expected float64 \(2,\)"),
        (packed(mean=np.float64(1)), "expected float64"),
        (packed(scatter=np.zeros((2, 3))), r"float64 \(2, 3\); expected float64 \(2, 2\)"),
        (packed(scatter=np.zeros((2, 2), np.int64)), "int64"),
        (packed(scatter=np.zeros((2, 2, 2))), r"\(2, 2, 2\)"),
        (packed(compressed=True, mean=np.zeros(500), scatter=np.zeros((500, 500))), "it is compressed"),
    ],
)
def test_other_bytes_are_no_moments(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Moments.from_bytes(data)


def _reference(rows: npt.NDArray[Any]) -> bytes:
    with threadpool_limits(limits=1):
        return Moments.of(rows).to_bytes()
