"""The folder in which examples run."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.playground import lay_out


@pytest.fixture
def playground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the names in the examples, some of which start Ray."""
    lay_out(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    if (ray := sys.modules.get("ray")) is not None:
        ray.shutdown()
