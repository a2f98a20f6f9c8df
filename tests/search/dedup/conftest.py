"""Fixtures of every test of near-duplicates."""

from collections.abc import Iterator

import pytest

from search.dedup.join import codes


@pytest.fixture(scope="package", autouse=True)
def _int8_products_are_exact() -> Iterator[None]:
    """On every processor. One without VNNI saturates sums, and `choose_kernel` takes no int8 there."""
    with pytest.MonkeyPatch.context() as patch:
        if not codes.int8_is_exact():  # in float64: the sums are whole numbers far below 2^53
            patch.setattr(codes, "_int8_products", lambda left, right: (left.double() @ right.double().T).int())
        yield
