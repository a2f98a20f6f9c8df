"""DuckDB has no files and no settings to give, whatever reached it."""

from pathlib import Path

import pytest

from search.filters.database import Condition, FilterDatabase, FilterError


@pytest.mark.parametrize(
    "condition",
    [
        "EXISTS (SELECT * FROM read_text('/etc/passwd'))",
        "EXISTS (SELECT * FROM '/etc/passwd')",
        "EXISTS (SELECT * FROM glob('/*'))",
        "EXISTS (SELECT * FROM ROWS)",
        "TRUE; SET enable_external_access = true",
        "TRUE; ATTACH 'x.db' AS x",
        "TRUE; COPY (SELECT 1) TO 'stolen.csv'",
        "TRUE; INSTALL httpfs",
        "TRUE; LOAD httpfs",
    ],
)
def test_duckdb_is_given_no_files_and_no_settings(
    condition: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FilterError):
        FilterDatabase().matches(Condition(condition), [], 2, 10.0)
    assert list(tmp_path.iterdir()) == []
