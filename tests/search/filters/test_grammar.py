"""The grammar of filters: only listed SQL reaches DuckDB, and errors name the position."""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.corpus.document import Document
from indexer.errors import ConfigError
from search.filters.database import Condition
from search.filters.filters import MetadataFilter
from search.filters.functions import FUNCTIONS
from search.filters.scanner import DEEPEST, LONGEST
from tests.search.filters.filtered import open_filters

ROWS: list[dict[str, Any]] = [
    {"year": 2020, "lang": "en", "ok": True, "tags": ["a"], "meta": {"kind": "x", "deep": {"n": 1}}, "day": "2020"},
    {"year": 2021, "lang": "de", "names": [["a"]], "select": "1"},
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> MetadataFilter:
    documents = [Document(str(number), "text", metadata=row) for number, row in enumerate(ROWS)]
    return open_filters(tmp_path_factory.mktemp("syntax"), [documents])


def refused(index: MetadataFilter, where: str) -> str:
    """Return the error of a filter; fail the test if DuckDB runs anything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index._database, "matches", pytest.fail)
        with pytest.raises(ConfigError) as caught:
            index.documents(where)
    return str(caught.value)


HOSTILE = [
    # another statement
    "1=1) union select 1 --",
    "1=1) union select id from documents where (1=1",
    "1=1 union select 1",
    "1=1; drop table documents",
    "1=1;",
    "TRUE; ATTACH '/tmp/x.db'",
    "1=1) ; COPY documents TO '/tmp/stolen.csv' ; select (1",
    "year = 1 GROUP BY year",
    "year = 1 ORDER BY year LIMIT 1",
    "year = 1 OFFSET 1",
    "year = 1 HAVING 1=1",
    "SELECT 1",
    "FROM documents",
    "PRAGMA database_list",
    "SET threads = 9",
    "INSTALL httpfs",
    "CALL pragma_version()",
    "EXPLAIN year = 1",
    # subqueries
    "id IN (SELECT id FROM documents)",
    "(SELECT TRUE)",
    "EXISTS (SELECT 1)",
    "EXISTS(SELECT 1)",
    "year = ANY (SELECT 1)",
    "year > ALL (SELECT year FROM documents)",
    "year = (WITH x AS (SELECT 1) SELECT * FROM x)",
    "year IN (VALUES (1))",
    "year IN (TABLE documents)",
    "id IN (FROM documents)",
    # comments
    "year = 2020 -- comment",
    "year = 2020 --",
    "year /* comment */ = 2020",
    "year = 2020 /* unfinished",
    "-- year",
    # settings, parameters, variables
    "year = ?",
    "year = $1",
    "year = $name",
    "year = :name",
    "getvariable('x') = 1",
    "current_setting('threads') = 1",
    "getenv('HOME') = 'x'",
    # files and tables
    "id IN (read_text('/etc/passwd'))",
    "read_csv('/etc/passwd') = 1",
    "read_parquet('x.parquet') IS NULL",
    "read_blob('/etc/passwd') IS NOT NULL",
    "glob('/*') IS NULL",
    "query('select 1') = 1",
    "query_table('documents') = 1",
    "parquet_scan('x') = 1",
    "sniff_csv('x') = 1",
    "'/etc/passwd'.id = 'x'",
    "documents.year = 2020",
    "main.documents.year = 2020",
    "information_schema.tables.table_name = 'x'",
    "rowid = 1",
    "position = 1",
    "c0 = 1",
    # every column, windows, lambdas, and the rest of SQL
    "COLUMNS(*) = 1",
    "COLUMNS('y.*') = 1",
    "COLUMNS(c -> c LIKE 'y%') = 1",
    "* = 1",
    "* LIKE 'x'",
    "documents.* = 1",
    "#1 = 1",
    "count(*) > 1",
    "sum(year) > 1",
    "row_number() OVER () = 1",
    "sum(year) OVER (PARTITION BY lang) > 1",
    "max(year) FILTER (WHERE ok) = 1",
    "list_filter(tags, x -> x = 'a') IS NOT NULL",
    "list_transform(tags, lambda x: x) IS NOT NULL",
    "len([x FOR x IN tags IF x = 'a']) = 1",
    "meta = {'kind': 'x'}",
    "MAP {'a': 1}['a'] = 1",
    "lang COLLATE NOCASE = 'EN'",
    "year AT TIME ZONE 'UTC' = 1",
    "day > INTERVAL 1 DAY",
    "day > current_date - INTERVAL '1' DAY",
    "now() > day",
    "random() < 0.5",
    "uuid() = 'x'",
    "sleep_ms(100000) = 1",
    "repeat('x', 1000000000) = 'x'",
    "range(1000000000) IS NULL",
    "unnest(tags) = 'a'",
    "struct_extract(meta, 'kind') = 'x'",
    "printf('%s', lang) = 'en'",
    "error('x') = 1",
    "CAST(year AS BLOB) = 1",
    "CAST(year AS INTEGER[]) = 1",
    "CAST(lang AS documents) = 1",
    "CAST(year AS ENUM('a')) = 1",
    "year::regclass = 1",
    "lang LIKE lower('E%')",
    "lang LIKE title",
    "year = DEFAULT",
    "year IS NOT",
    "year NOT = 1",
    "year = 2020 = TRUE",
    "year < 2020 < 2030",
    "lang = x'41'",
    "lang = U&'a'",
    "lang = 'en",
    '"year = 2020',
    '"" = 1',
    "lang = `en`",
    "lang = ‘en’",  # noqa: RUF001
    "lang = “en”",
    "lang = 'a\0b'",
    "lang = 'a\ud800'",
    "lang = \\'en\\'",
    "year = 0x1F",
    "year = 12abc",
    "year = 1e",
    "year = --5",
    "year = -'5'",
    "year = -lang",
    "year in ()",
    "year in 1",
    "year in (1",
    "year between 1",
    "year between 1 and",
    "year =",
    "= 1",
    "year 1",
    "year year",
    "(year = 1",
    "year = 1)",
    "()",
    "AND",
    "year = 1 AND",
    "OR year = 1",
    "NOT",
    "lower()",
    "lower(lang, lang) = 'x'",
    "lower(lang",
    "round(year, 1, 2) = 1",
    "coalesce() = 1",
    ".year = 1",
    "year. = 1",
    "meta..kind = 1",
    "a.b.c.d.e.f = 1",
    # not a condition, or not comparable
    "year",
    "lang",
    "1",
    "'x'",
    "NULL",
    "year = 1 OR lang",
    "NOT year",
    "lower(lang)",
    "CAST(year AS VARCHAR)",
    "year = NULL",
    "NULL = year",
    "year IN (1, NULL)",
    "lang = 5",
    "lang = year",
    "year = lower(lang)",
    "year IN (1, lang)",
    "lang BETWEEN 1 AND 2",
    "year LIKE '2%'",
    "tags LIKE 'a%'",
    "tags = 'a'",
    "'a' IN lang",
    "1 IN tags",
    "list_contains(tags, 1)",
    "list_contains(lang, 'e')",
    "meta = 'x'",
    "meta IS NULL",
    "meta.deep = 1",
    "meta.kind.x = 1",
    "year.x = 1",
    "names = 'a'",
    "list_contains(names, 'a')",
    "year IS TRUE",
    "year(lang) = 2020",
    "length(year) = 4",
    "abs(lang) = 1",
    "coalesce(year, lang) = 1",
    "coalesce(tags, tags) = 1",
    # too short and too long
    "",
    "  \n\t ",
    "(" * 60 + "ok" + ")" * 60,
    "(" * 30_000,
    "NOT " * 60 + "ok",
    "NOT " * 20_000 + "ok",
    "lower(" * 60 + "lang" + ")" * 60 + " = 'x'",
    "year" + "::INTEGER" * 5000 + " = 1",
    " OR ".join(["year = 1"] * 300),
    "coalesce(" + ", ".join(["year"] * 600) + ") = 1",
    "meta" + ".x" * 20_000 + " = 1",
    "year = " + "9" * LONGEST,
    "ok AND " * 20_000 + "ok",
]


@pytest.mark.parametrize("where", HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_not_on_the_list_never_reaches_duckdb(index: MetadataFilter, where: str) -> None:
    message = refused(index, where)
    assert message.startswith("filter [")
    assert len(message) < 1000
    assert not re.search(r"[\0-\x1f\ud800-\udfff]", message)


WORDS = [*FUNCTIONS, "coalesce", "year", "lang", "ok", "tags", "meta", "kind", "day", "id", '"select"', "'en'", "'%'",
         "5", "-", "2.5", "(", ")", ",", ".", "::", "=", "<>", "<", "AND", "OR", "NOT", "IN", "IS", "NULL", "TRUE",
         "LIKE", "ESCAPE", "BETWEEN", "CAST", "AS", "INTEGER", "DATE", "DISTINCT", "FROM", "SELECT", "*", ";", "--",
         "?"]  # fmt: skip


@settings(max_examples=300)
@given(st.text(max_size=30) | st.lists(st.sampled_from(WORDS), max_size=10).map(" ".join))
def test_any_text_is_a_filter_or_is_refused(index: MetadataFilter, where: str) -> None:
    with suppress(ConfigError):
        assert set(index.documents(where).tolist()) <= {0, 1}


def test_sql_is_written_anew(index: MetadataFilter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only function and type names, numbers and quoted text of the filter are run."""
    asked: list[str] = []

    def matches(condition: Condition, *_: Any) -> npt.NDArray[np.int64]:
        asked.append(condition.sql)
        return np.zeros(0, np.int64)

    monkeypatch.setattr(index._database, "matches", matches)
    index.documents("""not Year=2020 aNd"lang"  in('it''s' ,'--')
                       OR meta.KIND like '%;' escape '!' AND (ok)""")
    assert asked == ["""(((NOT (c0 = 2020)) AND (c1 IN ('it''s', '--'))) OR ("like_escape"(c2, '%;', '!') AND c3))"""]


def test_limits_leave_room(index: MetadataFilter) -> None:
    deep = DEEPEST - 1
    assert index.documents("(" * deep + "ok" + ")" * deep).tolist() == [0]
    assert index.documents(" OR ".join(f"year = {number}" for number in range(1800, 2021))).tolist() == [0]
    assert index.documents("year IN (" + ", ".join(map(str, range(10_000))) + ")").tolist() == [0, 1]


# --- errors


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("", "filter []: it is empty; expected a condition such as year > 2019 AND lang = 'en'."),
        ("yaer > 2019", 'at character 1: no column "yaer" (did you mean year?); the columns are id, title, text, year, '
                        'lang, ok, tags, meta, day, names, "select".'),
        ("lang = en", "at character 8: no column \"en\"; the columns are id, title, text, year, lang, ok, tags, meta, "
                      "day, names, \"select\"; for text, use single quotes: 'en'."),
        ('lang = "de"', "text needs single quotes: 'de'."),
        ("ok AND meta = 'x'", "at character 8: meta contains objects; name one of their fields, as meta.field: kind,"),
        ("meta.size = 1", 'no field "meta.size": its fields are kind, deep.'),
        ("lang.size = 1", 'no field "lang.size": lang is not an object.'),
        ("lang = 5", "lang (text) cannot be compared with 5 (numbers); write '5' in quotes to compare text, "
                     'lang::double in SQL for numbers, or build with corpus.columns = {"lang": "int"}.'),
        ("lower(lang) = 0.5", "write '0.5' in quotes to compare text, lower(lang)::double in SQL for numbers."),
        ('"yaer" = 5', 'no column "yaer" (did you mean year?); the columns are id, title, text, year, lang, ok, tags, '
                       'meta, day, names, "select".'),
        ('lang IN ("yaer")', "text needs single quotes: 'yaer'."),
        ("tags = 'a'", "tags (lists) cannot be compared with 'a' (text); write list_contains(tags, 'a')."),
        ("list_contains(tags, 5)", "tags contains lists of text, not 5 (numbers)."),
        ("lang = year", "lang (text) cannot be compared with year (numbers); write CAST(... AS ...) of one of them."),
        ("year LIKE '20%'", "LIKE takes text, not year (numbers); write CAST(year AS VARCHAR) LIKE ...."),
        ("lang LIKE 5", "LIKE takes a pattern in single quotes, such as 'whale%', not 5 (numbers)."),
        ("year", "year (numbers) is not a condition; compare it with a value."),
        ("CAST(year AS VARCHAR)", "at character 1: CAST(year AS VARCHAR) (text) is not a condition; compare it"),
        ("DATE '2020-01-01' = 1", "at character 1: DATE '2020-01-01' (dates) cannot be compared with 1 (numbers)"),
        ("year = NULL", "at character 8: nothing equals NULL; write IS NULL or IS NOT NULL."),
        ("ok OR now() > day", "at character 7: a filter has no function now; it has lower, upper, "),
        ("list_filter(tags, x -> x = 'a') = []", "a filter has no function list_filter; it has "),
        ("count(*) > 1", "a filter has no function count_star"),
        ("year % 0 = 1", "Division by zero in expression (year % 0) (year: numbers)."),
        ("lenght(lang) = 2", "a filter has no function lenght (did you mean length?); it has lower, upper, "),
        ("year(lang) = 2", "year() takes dates or dates with a time of day, not lang (text); write lang::date in SQL, "
                           'or build with corpus.columns = {"lang": "date"}.'),
        ("lang + 5 > 3", "or intervals or numbers or times of day, not lang (text)."),
        ("lang >= DATE '2025-06-01'", "lang (text) cannot be compared with DATE '2025-06-01' (dates); write "
                                      'lang::date in SQL, or build with corpus.columns = {"lang": "date"}.'),
        ("round() = 2", "round() takes 1 to 2 arguments, not 0."),
        ("lower(lang, 'x') = 'x'", "lower() takes 1 argument, not 2."),
        ("coalesce(lang, 5) = 'x'", "coalesce() takes values of one kind, not lang (text) and 5 (numbers)."),
        ("CAST(year AS BLOB) = 1", "at character 14: found BLOB; expected a type: BOOLEAN, INTEGER,"),
        ("year > 2019 AND", "at character 13: the filter ends after AND; a filter is one condition such as"),
        ("year > 2019 lang", "at character 13: unexpected lang; a filter is one condition such as"),
        ("id IN (SELECT id)", "at character 8: SELECT is not allowed: a filter is one condition, without subque"),
        ("1=1) union select 1", "at character 6: UNION is not allowed: a filter is one condition, without"),
        ("ok; DROP TABLE x", "at character 3: a filter is one condition, not several statements."),
        ("ok -- x", "at character 4: filters do not support comments."),
        ("1=1) OR (1=1", "at character 4: unexpected ); a filter is one condition such as"),
        ("lang = 'en", "at character 8: this text has no closing quote"),
        ("ok\nAND\tyear > x", "filter [ok\\nAND\\tyear > x]: at character 15: no column"),
        ("ok AND lang = '" + "y" * 300 + "' AND x", "filter [...yyy"),
        ("year = '" + "x" * 50_000 + "'", "xxx... (year: numbers)."),
        ("year = 'many'", "Could not convert string 'many' to INT64 (year: numbers)."),
        ("CAST(lang AS INTEGER) = 1", "Could not convert string 'en' to INT32 when casting from source column lang "
                                      "(lang: text)."),
        ("meta.kind::DATE > '2020-01-01'", "(meta.kind: text)."),
        ("lang LIKE 'a!!!' ESCAPE '!'", "at character 11: the pattern ends with !, which escapes no character."),
        ("lang LIKE 'a' ESCAPE '!!'", "at character 22: ESCAPE takes one character."),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_place_and_the_way_out(index: MetadataFilter, where: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        index.documents(where)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_text_that_is_no_time_is_told(tmp_path: Path) -> None:
    from datetime import datetime

    found = open_filters(tmp_path, [[Document("a", "", metadata={"at": datetime(2020, 1, 1)})]])
    for text in ("yesterday", "2020-01-01 02:00 Europe/Berlin", "2020-01-01 02:00+2"):
        with pytest.raises(
            ConfigError, match=re.escape(f"'{text}' is not a date with a time; write '2020-12-31 23:59:59'")
        ):
            found.documents(f"at > '{text}'")
    assert found.documents("'2020-01-01 02:00:00+02:00' = at").tolist() == [0]  # on either side
    with pytest.raises(
        ConfigError, match=r"at \(dates with a time of day\) .* such as '2020-12-31', or compare year\(at\)"
    ):
        found.documents("at > 2020")
    with pytest.raises(ConfigError, match=r'field value out of range: "2020-13-01" \(at: dates with a time of day\)'):
        found.documents("at > '2020-13-01'")


def test_a_filter_that_failed_spoils_nothing(index: MetadataFilter) -> None:
    for _ in range(2):  # failures are not cached
        with pytest.raises(ConfigError):
            index.documents("CAST(lang AS INTEGER) = 1")
        assert index.documents("lang = 'en'").tolist() == [0]
