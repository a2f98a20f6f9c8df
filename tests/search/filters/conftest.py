"""Fixtures for tests of filters."""

import threading
from collections.abc import Iterator

import pytest

from search.filters import filters


@pytest.fixture(autouse=True)
def _no_threads_left() -> Iterator[None]:
    yield
    assert "filter-limit" not in {thread.name for thread in threading.enumerate()}


@pytest.fixture(autouse=True)
def _a_busy_machine_may_take_longer() -> Iterator[None]:
    """Raise the time limit; tests of the limit set their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filters, "SECONDS", 60.0)
        yield
