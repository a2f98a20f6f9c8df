"""The suites of other packages run in `make check`. `make test` does not even load these packages, which takes long."""

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore the test files if tests with the mark `check` are left out."""
    is_test = collection_path.name.startswith("test_")
    return True if is_test and config.option.markexpr == "not check" else None
