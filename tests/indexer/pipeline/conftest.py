"""An index in object storage, and machines that share nothing else."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.object_storage import Storage, use_cache


@pytest.fixture
def url(storage: Storage) -> str:
    """Where nothing is yet."""
    return f"{storage.bucket()}/indexes/mine"


@pytest.fixture
def machine(tmp_path: Path, storage: Storage) -> Callable[[str], None]:
    """From now on this process is another machine."""
    return lambda name: use_cache(tmp_path / "machines" / name)
