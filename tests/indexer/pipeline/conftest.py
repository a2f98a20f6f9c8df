"""Fixtures: an index in object storage, and machines that share only the object storage."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.object_storage import Storage, use_cache


@pytest.fixture
def url(storage: Storage) -> str:
    """The URL of an index that does not exist yet."""
    return f"{storage.bucket()}/indexes/mine"


@pytest.fixture
def machine(tmp_path: Path, storage: Storage) -> Callable[[str], None]:
    """Make this process behave like another machine."""
    return lambda name: use_cache(tmp_path / "machines" / name)
