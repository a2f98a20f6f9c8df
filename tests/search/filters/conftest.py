"""What holds for every test of filters."""

import threading
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_threads_left() -> Iterator[None]:
    yield
    assert "filter-limit" not in {thread.name for thread in threading.enumerate()}
