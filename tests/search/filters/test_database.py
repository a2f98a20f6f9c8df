"""DuckDB has no access to files and settings, and limited time, for any statement."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from indexer.corpus.document import Document
from indexer.errors import ConfigError
from indexer.store import documents
from search.filters import columns, database, filters
from search.filters.database import Condition, FilterDatabase, FilterError, TimeLimitError
from search.filters.filters import MetadataFilter
from tests.search.filters.filtered import open_filters
from tests.search.filters.test_filters import index as index  # a fixture


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


def test_a_million_documents_take_no_second() -> None:
    count = 1_000_000
    numbers = pa.chunked_array([pa.array(range(count))])
    sql = "(c0 % 10 = 3) AND (c0 IN (SELECT value FROM list0))"
    found = database.FilterDatabase().matches(
        database.Condition(sql, (pa.array(range(0, count, 2)[:5000]),), 5), [numbers], count, 5.0
    )
    assert found.tolist() == []
    found = database.FilterDatabase().matches(database.Condition("(c0 % 10 = 3)", weight=3), [numbers], count, 1.0)
    assert found.size == count // 10


@pytest.fixture(scope="module")
def long_index(tmp_path_factory: pytest.TempPathFactory) -> MetadataFilter:
    """Filters over long texts."""
    return open_filters(tmp_path_factory.mktemp("long"), [[Document(str(n), "ab" * 2000) for n in range(3000)]])


def test_a_filter_that_takes_too_long_is_stopped(long_index: MetadataFilter, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = " OR ".join(f"lower(upper(text)) LIKE '%a_b{n}%'" for n in range(120))
    monkeypatch.setattr(filters, "SECONDS", 0.1)
    with pytest.raises(ConfigError, match=r"not evaluated within 0\.1 s over 3,000 documents\. Fix: simplify"):
        long_index.documents(slow)
    monkeypatch.undo()
    assert long_index.documents("id = '7'").tolist() == [7]  # the connection still works


def test_reading_more_than_is_kept_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that counts 0.3 s for each stretch of a file."""
    clock, read = SimpleNamespace(now=0.0), pq.ParquetFile.read_row_groups

    def slowly(*given: Any, **named: Any) -> Any:
        clock.now += 0.3
        return read(*given, **named)

    monkeypatch.setattr(filters, "SECONDS", 1.0)
    monkeypatch.setattr(filters, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", slowly)
    monkeypatch.setattr(documents, "STRETCH_BYTES", 1)
    monkeypatch.setattr(columns, "part_threads", lambda _: 1)
    parts = [[Document(f"{part}-{n}", "ab" * 1000) for n in range(320)] for part in range(3)]  # 10 row groups each
    long = open_filters(tmp_path, parts)
    assert len(long.documents("text LIKE 'a%'")) == 960  # all of it is cached
    assert clock.now == pytest.approx(9.0)
    monkeypatch.setattr(filters, "HELD_BYTES", 200_000)  # three row groups
    again = open_filters(tmp_path / "again", parts)
    with pytest.raises(ConfigError, match="not evaluated within 1 s over 960 documents"):
        again.documents("text LIKE 'a%'")
    assert clock.now == pytest.approx(9.0 + 7 * 0.3)


def test_an_interrupt_before_the_start_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_AGAIN", 0.001)
    texts = pa.chunked_array([pa.array(["ab" * 2000] * 3000)])
    slow = " OR ".join(f"lower(upper(c0)) LIKE '%b_a{n}%'" for n in range(120))
    with pytest.raises(TimeLimitError):
        FilterDatabase().matches(Condition(slow, weight=500), [texts], 3000, -1.0)


def test_reading_a_condition_counts_too(long_index: MetadataFilter, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that counts two seconds for parsing."""
    clock, parse = SimpleNamespace(now=0.0), long_index._database.parse

    def slowly(statement: str) -> database.Tree:
        clock.now += 2.0
        return parse(statement)

    monkeypatch.setattr(filters, "SECONDS", 1.0)
    monkeypatch.setattr(filters, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(long_index._database, "parse", slowly)
    monkeypatch.setattr(long_index._database, "matches", pytest.fail)
    with pytest.raises(ConfigError, match="not evaluated within 1 s"):
        long_index.documents("id = '70'")


@pytest.mark.parametrize("word", ["LIKE", "ILIKE"])
@pytest.mark.parametrize("pattern", ["%a_" * 12 + "c", "%_a" * 12 + "%c", "a%" * 40 + "c", "%ba_%" * 9 + "c"])
def test_no_pattern_makes_matching_take_forever(long_index: MetadataFilter, word: str, pattern: str) -> None:
    """Backtracking over these patterns would never end, and DuckDB cannot interrupt a single match."""
    assert long_index.documents(f"text {word} '{pattern}' AND id < '2'").tolist() == []


def test_long_lists_are_no_rarity(index: MetadataFilter) -> None:
    listed = ", ".join(f"'d{number:05}'" for number in range(8000))
    assert index.documents(f"id IN ({listed}, 'd07', 'd11')").tolist() == [7, 11]
    assert len(index.documents(f"id NOT IN ({listed}, 'd07', 'd11')")) == 58
