"""Fixtures for tests of near-duplicates."""

from collections.abc import Iterator

import pytest

from search.dedup.join import quantised as codes


@pytest.fixture(scope="package", autouse=True)
def _int8_products_are_exact() -> Iterator[None]:
    """Make int8 products exact on every processor; without VNNI sums saturate, so `choose_kernel` rejects int8."""
    with pytest.MonkeyPatch.context() as patch:
        if not codes.int8_is_exact():  # float64 is exact: sums are whole numbers far below 2^53
            patch.setattr(codes, "_int8_products", lambda left, right: (left.double() @ right.double().T).int())
        yield
