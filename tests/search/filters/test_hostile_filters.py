"""Filters that would use unbounded memory, or data beyond one document, are rejected before they run."""

import itertools
import sys

import pytest

from search.filters.database import Tree
from search.filters.filters import MetadataFilter
from tests.search.filters.test_grammar import index as index  # a fixture
from tests.search.filters.test_grammar import refused

BOMBS = [
    # growing values, by functions that are not listed
    "repeat('x', 1000000000) = 'x'",
    "lpad(lang, 1000000, 'x') = 'x'",
    "length(" + "replace(" * 9 + "lang" + ", 'a', 'aa')" * 9 + ") = 1",
    "range(1000000000) IS NULL",
    "list_resize(tags, 1000000000) = tags",
    "printf('%1000000000d', year) = 'x'",
    "lang || lang = 'x'",
    "len(string_split(lang, '')) = 1",
    "len(CAST(lang AS VARCHAR[])) = 1",
    # copies by the parser
    "CASE " * 30 + "year" + " WHEN 1 THEN 1 WHEN 2 THEN 2 END" * 30 + " = 1",
    "CASE 1 + (CASE year WHEN 1 THEN 1 END) WHEN 1 THEN ok END",
    "CASE " + "year + " * 60 + "1 WHEN 1 THEN ok END",
    "CASE year " + "WHEN 1 THEN ok " * 600 + "END",
    "year = 1 GROUP BY CUBE (" + ", ".join(map(str, range(1, 16))) + ")",
    # patterns
    "regexp_matches(lang, '" + "(a?){30}" * 9 + "')",
    "regexp_matches(lang, '(x{100}){100}')",
    "regexp_matches(lang, '(.?){900}y')",
    "regexp_matches(lang, '(\\p{L}?){90}')",
    "regexp_matches(lang, '" + "a|" * 2000 + "b')",
    "regexp_matches(lang, title)",
    "lang ~ title",
    "lang LIKE title",
    "lang SIMILAR TO title",
    "regexp_replace(lang, 'a*b|a', 'x', 'g') = 'x'",
    "lang GLOB title",
    "levenshtein(lang, text) = 1",
    # depth and length
    "[" * 60 + "1" + "]" * 60 + " = 1",
    "{'a': " * 60 + "1" + "}" * 60 + " = 1",
    "[" * 40_000,
    "{" * 40_000,
    "CASE WHEN " * 9_000,
    "- " * 40_000 + "year = 1",
    "year" + " + 1" * 20_000 + " = 1",
    "year" + "[1]" * 20_000 + " = 1",
    "year" + " IS NULL" * 10_000,
    "lang" + " || 'x'" * 10_000 + " = 'x'",
    "ok" + " -> ok" * 10_000,
    "@" * 90_000 + "year = 1",
    " + ".join(["year"] * 600) + " = 1",
    "[" + ", ".join(["year"] * 600) + "] = [1]",
    "upper(" * 49 + "lang" + ")" * 49 + " = 'x' OR upper(lang) = 'y'",
]
OUTSIDE = [
    # machine, clock, session and random numbers
    "getenv('PATH') = 'x'",
    "current_setting('home_directory') = 'x'",
    "now() > day",
    "current_date > day",
    "current_timestamp > day",
    "CURRENT_TIME IS NULL",
    "random() < 0.5",
    "uuid() = 'x'",
    "nextval('s') = 1",
    "pg_sleep(10) IS NULL",
    "error('x') IS NULL",
    # files
    "read_csv('/etc/passwd') IS NULL",
    "read_text('/etc/passwd') = 'x'",
    "glob('*') IS NULL",
    "json_execute_serialized_sql('x') IS NULL",
    "query('select 1') = 1",
    "pragma_table_info('documents') IS NULL",
    "lang IN (FROM read_text('/etc/passwd'))",
    "lang IN (FROM '/etc/passwd')",
    "lang IN (TABLE documents)",
    "lang IN (VALUES ('en'))",
    "lang IN (DESCRIBE documents)",
    "lang IN (SHOW TABLES)",
    "(FROM documents) IS NULL",
    "EXISTS (FROM documents)",
    "NOT EXISTS (SELECT 1)",
    "ARRAY(SELECT 1) IS NULL",
    "year = ANY (FROM documents)",
    "'a' = ANY(tags)",
    "'a' = ALL(tags)",
    "year > (SELECT max(year) FROM documents)",
    "LATERAL (SELECT 1)",
    # other statements
    "ok; COPY documents TO 'x.csv'",
    "ok; PRAGMA enable_profiling",
    "ok; ATTACH 'x.db'",
    "ok; CREATE MACRO f(x) AS x",
    "ok; SET threads = 1",
    "ok; EXPORT DATABASE 'x'",
    "ok;;",
    "; ok",
    "COPY documents TO 'x.csv'",
    "ATTACH 'x.db'",
    "CREATE TABLE x (a INT)",
    "DROP TABLE documents",
    "DELETE FROM documents",
    "UPDATE documents SET year = 1",
    "INSERT INTO documents VALUES (1)",
    "CHECKPOINT",
    "a = 1) OR (b = 2",
    "ok) OR (ok",
    "ok))",
    "ok UNION ALL SELECT 1",
    "ok INTERSECT SELECT 1",
    "ok EXCEPT SELECT 1",
    "ok LIMIT 1",
    "ok LIMIT 50%",
    "ok OFFSET 1",
    "ok FETCH FIRST ROW ONLY",
    "ok ORDER BY ALL",
    "ok GROUP BY ALL",
    "ok GROUP BY ROLLUP (year)",
    "ok HAVING ok",
    "ok QUALIFY row_number() OVER () = 1",
    "ok WINDOW w AS (PARTITION BY year)",
    "ok USING SAMPLE 1",
    "ok TABLESAMPLE 1",
    "ok FOR UPDATE",
    "ok INTO OUTFILE 'x'",
    "ok |> SELECT 1",
    "ok, year",
    "ok AS x",
    "ok x",
    # comments and parameters
    "ok -- x",
    "ok --\nAND ok",
    "ok /* x */",
    "/**/ ok",
    "ok AND /* nested /* */ */ ok",
    "year = $1",
    "year = $x",
    "year = ?1",
    "year = :x",
    "year = @x",
    # stars, windows, aggregates, lambdas, macros, objects
    "COLUMNS('.*') = 1",
    "COLUMNS(*) IS NULL",
    "COLUMNS(lambda c: c = 'year') = 1",
    "*COLUMNS(*) = 1",
    "coalesce(*COLUMNS(*)) = 1",
    "* EXCLUDE (year) = 1",
    "count() = 1",
    "count(DISTINCT year) = 1",
    "string_agg(lang, ',') = 'x'",
    "lag(year) OVER () = 1",
    "rank() OVER (ORDER BY year) = 1",
    "max(year) OVER w = 1",
    "sum(year) FILTER (ok) = 1",
    "list_transform(tags, lambda x: getenv('HOME')) = tags",
    "[getenv(x) FOR x IN tags] = tags",
    "list_aggregate(tags, 'first') = 'a'",
    "main.lower(lang) = 'x'",
    "system.main.lower(lang) = 'x'",
    "pg_catalog.lower(lang) = 'x'",
    "year OPERATOR(pg_catalog.+) 1 = 1",
    "lang.lower() = 'x'",
    "lower(DISTINCT lang) = 'x'",
    "lower(lang ORDER BY lang) = 'x'",
    "lower(lang) FILTER (WHERE ok) = 'x'",
    "lower(ALL lang) OVER () = 'x'",
    "lower(x := lang) = 'x'",
    "lower(lang) IGNORE NULLS = 'x'",
    "unnest(tags) = 'a'",
    "meta -> 'kind' = 'x'",
    "meta ->> 'kind' = 'x'",
    "{'a': year} IS NULL",
    "row(year, lang) IS NULL",
    "(year, lang) = (1, 'x')",
    "MAP {'a': 1} IS NULL",
    "TRY(year) = 1",
    "lang COLLATE de = 'x'",
    "lang::VARCHAR COLLATE nocase = 'x'",
    "TIMESTAMP '2020-01-01' AT TIME ZONE 'UTC' IS NULL",
    "CAST(lang AS TIMESTAMPTZ) IS NULL",
    "CAST(lang AS TIMESTAMP WITH TIME ZONE) IS NULL",
    "CAST(lang AS TIME WITH TIME ZONE) IS NULL",
    "CAST(lang AS JSON) IS NULL",
    "CAST(lang AS main.documents) IS NULL",
    "CAST(lang AS STRUCT(a INTEGER)) IS NULL",
    "CAST(lang AS MAP(VARCHAR, VARCHAR)) IS NULL",
    "CAST(lang AS UNION(a INTEGER)) IS NULL",
    "CAST(lang AS INTEGER[3]) IS NULL",
    "CAST(lang AS DECIMAL(year)) IS NULL",
    "CAST(lang AS ENUM ('a')) IS NULL",
    "CAST(lang AS BIT) IS NULL",
    "CAST(lang AS UUID) IS NULL",
    "CAST(lang AS REGCLASS) IS NULL",
    "CAST(lang AS VARIANT) IS NULL",
    'CAST(lang AS "documents") IS NULL',
    "lang = x'41'",
    "lang = b'1'",
    "lang IN ('a', (SELECT 'b'))",
    "lang IN (" + ", ".join(f"'{n}'" for n in range(100)) + ", getenv('HOME'))",
    "lang IN (" + ", ".join(f"'{n}'" for n in range(100)) + ") UNION SELECT 1",
    "lang IN (" + ", ".join(f"'{n}'" for n in range(100)) + "); DROP TABLE documents",
    "lang IN (" + ", ".join(f"'{n}'" for n in range(100)) + ") OR EXISTS (FROM documents)",
]


@pytest.mark.parametrize("where", BOMBS, ids=range(len(BOMBS)))
def test_what_would_grow_without_bounds_is_refused_before_it_runs(
    index: MetadataFilter, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of calls and the size of the syntax tree are linear in the length of the filter."""
    parse, nodes = index._database.parse, list[str]()

    def parsed(statement: str) -> Tree:
        nodes.append(str(tree := parse(statement)))
        return tree

    monkeypatch.setattr(index._database, "parse", parsed)
    calls = itertools.count()
    sys.setprofile(lambda frame, event, what: next(calls) if event in ("call", "c_call") else None)
    try:
        message = refused(index, where)
    finally:
        sys.setprofile(None)
    assert message.startswith("filter [")
    assert next(calls) < 50_000 + 100 * len(where)
    assert sum(map(len, nodes)) < 3000 + 200 * len(where)


@pytest.mark.parametrize("where", OUTSIDE, ids=range(len(OUTSIDE)))
def test_what_is_not_about_the_values_of_one_document_never_runs(index: MetadataFilter, where: str) -> None:
    message = refused(index, where)
    assert message.startswith("filter [")
    assert len(message) < 1000
