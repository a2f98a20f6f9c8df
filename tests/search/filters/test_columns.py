"""The columns of filters: names, kinds of values, and caches."""

from datetime import UTC, date, datetime, time, timedelta, timezone
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from indexer.corpus.document import Document
from indexer.errors import ConfigError
from search.filters import columns, filters
from search.filters.columns import RESERVED, ColumnNames, LruCache
from search.filters.database import FilterDatabase, FilterError
from search.filters.filters import MetadataFilter
from tests.search.filters.filtered import open_filters
from tests.search.filters.test_filters import PARTS
from tests.search.filters.test_filters import index as index  # a fixture

SCHEMA = pa.schema(
    {"year": pa.int64(), "two words": pa.string(), "at": pa.string(), "meta": pa.struct({"kind": pa.string()})}
)


def test_the_words_that_go_in_quotes_are_those_of_duckdb() -> None:
    database, words = FilterDatabase(), set()
    for (word,) in duckdb.connect().execute("SELECT keyword_name FROM duckdb_keywords()").fetchall():
        try:
            tree = database.parse(f"SELECT 1 WHERE {word} = 1")
        except FilterError:
            words.add(word)
        else:
            left = tree.get("where_clause", {}).get("left", {})
            words |= {word} if left.get("column_names") != [word] else set()
    assert words == RESERVED


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("yaer",), 'no column "yaer" (did you mean year?); the columns are year, "two words", "at", meta'),
        (("YEER",), "(did you mean year?)"),
        (("two wrds",), '(did you mean "two words"?)'),
        (("meta", "knid"), 'no field "meta.knid" (did you mean meta.kind?): its fields are kind'),
        (("meta",), "meta contains objects; name one of their fields, as meta.field: kind"),
        (("year", "x"), "year is not an object"),
        (("x" * 100_000,), 'no column "xxx'),
    ],
)
def test_a_name_that_is_not_there_is_told_with_the_nearest(names: tuple[str, ...], said: str) -> None:
    with pytest.raises(ValueError) as caught:
        ColumnNames(SCHEMA).find(names)
    assert said in str(caught.value)


def test_each_column_has_one_name_in_sql() -> None:
    columns = ColumnNames(SCHEMA)
    found = [columns.find(names)[0] for names in (("year",), ("YEAR",), ("meta", "Kind"), ("year",))]
    assert found == ["c0", "c0", "c1", "c0"]
    assert columns.paths == [("year",), ("meta", "kind")]
    assert columns.kinds == ["numbers", "text"]


def test_what_was_used_longest_ago_goes_first() -> None:
    held: LruCache[str, str] = LruCache(10)
    for name in ("a", "b"):
        held.keep(name, name, 4)
    held.find("a")
    held.keep("c", "c", 4)
    assert [held.find(name) for name in "abc"] == ["a", None, "c"]
    assert held.keep("large", "large", 11) == "large"
    assert [held.find(name) for name in ("a", "c", "large")] == ["a", "c", None]
    held.keep("a", "as large as the room", 10)
    assert [held.find(name) for name in ("a", "c")] == ["as large as the room", None]


# --- kinds of values


def test_times_count_in_utc_whatever_the_zone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    moment = datetime(2020, 1, 1, 1, tzinfo=timezone(timedelta(hours=2)))
    times: list[Any] = [moment, datetime(2020, 1, 1, tzinfo=UTC)]
    found = open_filters(
        tmp_path, [[Document(str(n), "", metadata={"at": at, "times": [at]}) for n, at in enumerate(times)]]
    )
    assert found.documents("at < '2020-01-01'").tolist() == [0]
    assert found.documents("at = TIMESTAMP '2019-12-31 23:00:00'").tolist() == [0]
    assert found.documents("at = '2020-01-01 02:00:00+02'").tolist() == [1]
    assert found.documents("at IN ('2020-01-01T00:00:00Z', '2020-1-1 2:00')").tolist() == [1]
    assert found.documents("at = TIMESTAMP '2020-01-01 13:00:00+13:00'").tolist() == [1]
    assert found.documents("coalesce(at, '2000-01-01 00:00Z') = CAST('2020-01-01 00:00Z' AS TIMESTAMP)").tolist() == [1]
    assert found.documents("year(at) = 2019 AND date_trunc('hour', at) = TIMESTAMP '2019-12-31 23:00:00'").tolist() == [
        0
    ]
    assert found.documents("'2020-01-01 02:00:00+02' IN times").tolist() == [1]


def test_a_zone_counts_wherever_a_time_of_day_is_compared(tmp_path: Path) -> None:
    """The first value may be a date, which would read the text as a day."""
    row = {"day": date(2020, 1, 1), "at": datetime(1999, 5, 5, 5, tzinfo=UTC)}
    found = open_filters(tmp_path, [[Document("a", "", metadata=row)]])
    assert found.documents("day IN (at, '2020-01-01 02:00:00+02:00')").tolist() == [0]
    assert found.documents("day IN (at, '2020-01-01 00:00:00+02:00')").tolist() == []
    assert found.documents("day BETWEEN at AND '2019-12-31 23:00:00-01:00'").tolist() == [0]


def test_every_kind_of_column_can_be_asked(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"clock": time(8, 30), "raw": b"a", "big": 2**63 - 1, "nulls": [None], "nan": float("nan"), "deep": [[1]]},
        {"clock": time(9), "raw": b"\xff", "big": -(2**63), "nan": 1.5, "objects": [{"a": 1}]},
        {},
    ]
    found = open_filters(tmp_path, [[Document(str(n), "", metadata=row) for n, row in enumerate(rows)]])
    answers = {
        "clock > '08:30:00'": [1],
        r"raw = '\xFF'": [1],
        "big = 9223372036854775807": [0],
        "big < -9223372036854775807": [1],
        "len(nulls) = 1": [0],
        "list_contains(nulls, 'x')": [],
        "nan > 1e300": [],  # NaN is null, as in JSON
        "nan IS NULL": [0, 2],
        "nan = nan": [1],
        "len(deep) = 1 OR len(objects) = 1": [0, 1],
    }
    assert {sql: found.documents(sql).tolist() for sql in answers} == answers


def test_numbers_that_are_not_finite_are_null_wherever_they_stand(tmp_path: Path) -> None:
    nan, infinity = float("nan"), float("inf")
    rows: list[dict[str, Any]] = [
        {"f": nan, "fs": [1.5, nan], "in": {"f": infinity}},
        {"f": infinity, "fs": [2.5], "in": {"f": 1.5}},
        {"f": 200.5, "fs": [-infinity, None], "in": {"f": nan}},
        {"f": -infinity, "fs": []},
    ]
    found = open_filters(tmp_path, [[Document(str(n), "", metadata=row) for n, row in enumerate(rows)]])
    answers = {
        "f > 100": [2],
        "f < 0 OR f >= 0": [2],
        "f IS NULL": [0, 1, 3],
        "coalesce(f, 7) = 7": [0, 1, 3],
        '"in".f IS NULL': [0, 2, 3],
        "list_contains(fs, 1.5)": [0],
        "len(fs) = 2": [0, 2],
    }
    assert {sql: found.documents(sql).tolist() for sql in answers} == answers


def test_names_in_another_case_are_found_unless_two_would_do(tmp_path: Path) -> None:
    rows = [{"Year": 1, "year": 2, "Größe": 1, "from": 1, "two words": 1, "a.b": 1, 'q"q': 1, "हिन्दी": 1}]
    found = open_filters(tmp_path, [[Document("a", "", metadata=row) for row in rows]])
    for sql in ("Year = 1", "year = 2", '"year" = 2', "gRÖße = 1", '"from" = 1',
                '"TWO words" = 1', '"a.b" = 1', '"q""q" = 1', "हिन्दी = 1"):  # fmt: skip
        assert found.documents(sql).tolist() == [0], sql
    with pytest.raises(ConfigError, match='no column "YEAR"'):
        found.documents("YEAR = 1")
    with pytest.raises(ConfigError, match=r'no column "a\.b" \(did you mean "a\.b", in double quotes\?\)'):
        found.documents("a.b = 1")


# --- memory


@pytest.mark.parametrize(("held", "batch"), [(0, 1), (1, 1 << 20), (700, 1500), (1 << 20, 1)])
def test_what_is_kept_in_memory_changes_no_answer(
    held: int, batch: int, index: MetadataFilter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "HELD_BYTES", held)
    monkeypatch.setattr(columns, "BATCH_BYTES", batch)
    monkeypatch.setattr(filters, "ANSWER_BYTES", held)
    found = open_filters(tmp_path, PARTS)
    for sql in ("year > 2018 AND Lang = 'en'", "TRUE", "meta.n = 1 OR score > 4", "Lang IS NULL AND year > 2017") * 2:
        assert found.documents(sql).tolist() == index.documents(sql).tolist()
        assert found._values._held._bytes <= held
        assert found._answers._bytes <= held


def test_a_filter_asked_again_reads_nothing_and_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = open_filters(tmp_path, PARTS)
    first = found.documents("year > 2018")
    first[:] = -1  # belongs to the caller
    other = found.documents("year > 2019")
    monkeypatch.setattr(found._documents, "columns", None)
    assert found.documents("year <= 2019").size > 0  # the column is cached
    monkeypatch.setattr(found, "_database", None)
    assert found.documents("year > 2019").tolist() == other.tolist()
    assert found.documents("year > 2018").min() >= 0
