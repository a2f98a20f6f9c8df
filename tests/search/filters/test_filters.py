"""MetadataFilter returns exactly the documents for which an SQL condition is true."""

import json
import operator
import re
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.corpus.document import Document
from indexer.errors import ConfigError
from search.filters.filters import MetadataFilter
from tests.search.filters.expressions import Expressions
from tests.search.filters.filtered import Row, Truth, and_, compared, is_like, not_, open_filters, or_, row_of

TEXTS = ["", "en", "EN", "naïve ÉTÉ", "it's 100%", "a_b", "line\nbreak", "--;", "\U0001f40b"]
DAYS = [date(1999, 12, 31), date(2020, 2, 29), date(2021, 1, 1)]


def corpus() -> list[list[Document]]:
    """Return three parts; each column has values and nulls, and is absent or of another type in one part."""
    found: list[list[Document]] = [[], [], []]
    for number in range(60):
        part = number // 20
        row: dict[str, Any] = {
            "year": 2015 + number % 9 if number % 4 else None,
            "score": number / 8 if part else number,  # whole numbers in the first part
            "Lang": TEXTS[number % len(TEXTS)] if number % 5 else None,
            "ok": (number % 3 == 0) if number % 7 else None,
            "day": DAYS[number % 3] if number % 6 else None,
            "tags": [TEXTS[number % 9], None, "x"][: number % 4] if part != 1 else None,
            "meta": {"Kind": TEXTS[number % 4], "n": number % 3} if part == 2 else None,
            "price": Decimal(number) / 4 if number % 2 else None,
            "moment": datetime(2019, 12, 31, 23, number) if number % 3 else None,
        }
        metadata = {name: value for name, value in row.items() if value is not None}
        title = TEXTS[number % 4] if number % 3 else None
        found[part].append(Document(f"d{number:02}", f"text {number} {TEXTS[number % 9]}", title, metadata))
    return found


PARTS = corpus()
ROWS = [row_of(document) for part in PARTS for document in part]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> MetadataFilter:
    return open_filters(tmp_path_factory.mktemp("filters"), PARTS)


def expected(truth: Callable[[Row], Truth]) -> list[int]:
    return [number for number, row in enumerate(ROWS) if truth(row) is True]


Condition = tuple[str, Callable[[Row], Truth]]
COMPARISONS = {"=": operator.eq, "==": operator.eq, "<>": operator.ne, "!=": operator.ne,
               "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}  # fmt: skip
META: dict[str, Callable[[Row], Any]] = {
    "meta.Kind": lambda row: (row.get("meta") or {}).get("Kind"),
    "META.n": lambda row: (row.get("meta") or {}).get("n"),
}


def column(*names: str) -> st.SearchStrategy[tuple[str, Callable[[Row], Any]]]:
    return st.sampled_from([(name, META.get(name, lambda row, name=name: row.get(name.strip('"')))) for name in names])


def quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


TEXT_COLUMNS = column("Lang", '"Lang"', "id", "title", "text", "meta.Kind")
NUMBER_COLUMNS = column("year", "score", "META.n", "price")
TEXT_VALUES = st.sampled_from([*TEXTS, "d07"])
NUMBER_VALUES = st.integers(-3, 2030) | st.sampled_from([0.5, 2.25, 7.0, 1e3])
PATTERNS = st.text(st.sampled_from("%_en ïéÉ0!"), max_size=5)


@st.composite
def comparisons(draw: st.DrawFn) -> Condition:
    sign = draw(st.sampled_from(list(COMPARISONS)))
    if draw(st.booleans()):
        (name, get), value = draw(TEXT_COLUMNS), draw(TEXT_VALUES)
        return f"{name} {sign} {quoted(value)}", lambda row: compared(get(row), value, COMPARISONS[sign])
    if draw(st.integers(0, 3)) == 0:
        day = draw(st.sampled_from(DAYS))
        word = draw(st.sampled_from(["", "DATE ", "date"]))
        return f"day {sign} {word}'{day}'", lambda row: compared(row.get("day"), day, COMPARISONS[sign])
    (name, get), number = draw(NUMBER_COLUMNS), draw(NUMBER_VALUES)
    return f"{name} {sign} {number}", lambda row: compared(get(row), number, COMPARISONS[sign])


@st.composite
def memberships(draw: st.DrawFn) -> Condition:
    (name, get), chosen = draw(NUMBER_COLUMNS), draw(st.lists(NUMBER_VALUES, min_size=1, max_size=4))
    word = draw(st.sampled_from(["", "NOT "]))
    sign: Callable[[Truth], Truth] = not_ if word else lambda truth: truth
    if draw(st.booleans()):
        bounds = chosen[0], chosen[-1]
        between: Callable[[Any, Any], bool] = lambda value, ends: ends[0] <= value <= ends[1]  # noqa: E731
        return f"{name} {word}BETWEEN {bounds[0]} AND {bounds[1]}", lambda row: sign(
            compared(get(row), bounds, between)
        )
    listed = ", ".join(map(str, chosen))
    return f"{name} {word}in ({listed})", lambda row: sign(compared(get(row), chosen, lambda one, all_: one in all_))


@st.composite
def patterns(draw: st.DrawFn) -> Condition:
    (name, get), pattern = draw(TEXT_COLUMNS), draw(PATTERNS)
    word, negated, escaped = draw(st.sampled_from(["LIKE", "ilike"])), draw(st.booleans()), draw(st.booleans())
    if escaped and re.search(r"(?<!!)(!!)*!$", pattern):
        pattern += "!"
    sql = f"{name} {'NOT ' if negated else ''}{word} {quoted(pattern)}{' ESCAPE ' + quoted('!') if escaped else ''}"

    def truth(row: Row) -> Truth:
        found = is_like(get(row), pattern, "!" if escaped else "", word == "ilike")
        return not_(found) if negated else found

    return sql, truth


@st.composite
def states(draw: st.DrawFn) -> Condition:
    name, get = draw(TEXT_COLUMNS | NUMBER_COLUMNS | column("ok", "day", "tags"))
    if draw(st.booleans()):
        return f"{name} IS NULL", lambda row: get(row) is None
    return f"{name} is not null", lambda row: get(row) is not None


@st.composite
def truths(draw: st.DrawFn) -> Condition:
    value = draw(st.booleans())
    conditions: list[Condition] = [
        ("ok", lambda row: row.get("ok")),
        (f"ok = {value}", lambda row: compared(row.get("ok"), value, operator.eq)),
        (f"ok IS {value}", lambda row: row.get("ok") is value),
        (f"ok IS NOT {value}", lambda row: row.get("ok") is not value),
        (f"ok IS DISTINCT FROM {value}", lambda row: row.get("ok") is not value),
        (f"{value}", lambda row: value),
        ("'x' IN tags", lambda row: compared(row.get("tags"), "x", lambda tags, tag: tag in tags)),
        ("starts_with(text, 'text 1')", lambda row: row["text"].startswith("text 1")),
        ("length(id) = len(id)", lambda row: True),
        ("coalesce(year, 0) = 0", lambda row: row.get("year") is None),
        ("year(day) = 2020", lambda row: compared(row.get("day"), 2020, lambda day, year: day.year == year)),
    ]
    return draw(st.sampled_from(conditions))


def combined(inner: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
    def negation(one: Condition) -> Condition:
        return f"NOT ({one[0]})", lambda row: not_(one[1](row))

    def joined(some: list[Condition], word: str) -> Condition:
        join = and_ if word.upper() == "AND" else or_
        return f" {word} ".join(f"({sql})" for sql, _ in some), lambda row: join(*(truth(row) for _, truth in some))

    words = st.sampled_from(["AND", "or", "And", "OR"])
    return inner.map(negation) | st.builds(joined, st.lists(inner, min_size=1, max_size=3), words)


ATOMS = comparisons() | memberships() | patterns() | states() | truths()


@settings(max_examples=100)
@given(st.recursive(ATOMS, combined, max_leaves=6))
def test_exactly_the_documents_for_which_a_condition_is_true_are_found(
    index: MetadataFilter, condition: Condition
) -> None:
    sql, truth = condition
    assert index.documents(sql).tolist() == expected(truth)


@st.composite
def loose(draw: st.DrawFn) -> str:
    """Draw conditions without parentheses, which depend on precedence."""
    words = [draw(ATOMS)[0]]
    for _ in range(draw(st.integers(1, 4))):
        words += [draw(st.sampled_from(["AND", "OR"])), draw(st.sampled_from(["", "NOT", "NOT NOT"])), draw(ATOMS)[0]]
    return " ".join(words)


@pytest.fixture(scope="module")
def by_duckdb(index: MetadataFilter) -> Iterator[Callable[[str], list[int]]]:
    """Evaluate the original text of a filter with DuckDB."""
    names = index._documents.schema.names
    (batch,) = index._values.batches([(name,) for name in names])
    columns = dict(zip(names, batch.columns, strict=True))
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        connection.register("documents", pa.table(columns | {"number": list(range(batch.count))}))
        query = "SELECT number FROM documents WHERE "
        yield lambda sql: sorted(number for (number,) in connection.execute(query + sql).fetchall())


@settings(max_examples=60)
@given(loose())
def test_a_filter_means_what_duckdb_takes_it_to_mean(
    index: MetadataFilter, by_duckdb: Callable[[str], list[int]], sql: str
) -> None:
    assert index.documents(sql).tolist() == by_duckdb(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "NOT ok = TRUE AND year > 2018 OR Lang = 'en'",
        "year BETWEEN 2016 AND 2018 AND ok",
        "NOT year IN (2016, 2017) OR NOT Lang LIKE 'e%'",
        "score > - 5 AND year > 2018",
        "(year) = (2018)",
        "(year > 2018) = (ok IS NULL)",
        "CAST(year AS VARCHAR) LIKE '201%' AND TRY_CAST(Lang AS INTEGER) IS NULL",
        "score > 1. AND score < 1.2e1 AND score <> .5e1 AND score <> 6",
        "score::INTEGER::varchar = '5'",
        "abs(score) >= 5 AND round(score, 1) = 5.2 OR floor(score) = 7 OR ceil(score) = 4",
        "lower(Lang) = 'en' OR upper(title) = 'EN' OR trim(Lang) = ''",
        "month(day) = 2 OR day(day) = 31",
        "contains(text, '100%') OR ends_with(id, '7')",
        "list_contains(tags, 'en') OR len(tags) = 3",
        "price = 1.25 OR price > 10 AND price <= 12.5",
        "coalesce(Lang, title, 'none') = 'none'",
        "meta.kind = 'en' AND meta.N <> 1",
        "day = '2020-02-29' OR day < TIMESTAMP '2000-01-01 00:00:00'",
    ],
)
def test_every_form_means_what_duckdb_takes_it_to_mean(
    index: MetadataFilter, by_duckdb: Callable[[str], list[int]], sql: str
) -> None:
    found = index.documents(sql).tolist()
    assert found == by_duckdb(sql)
    assert 0 < len(found) < len(ROWS)


# Each kind and form of node in DuckDB's syntax tree, because fields change between major releases.
NODES = {
    "COLUMN_REF": ["ok", "meta.Kind = 'en'", "\"Lang\" = 'en'", "META.kind = 'en'"],
    "COMPARISON": [
        *(f"year {sign} 2018" for sign in COMPARISONS),
        "year IS DISTINCT FROM 2018",
        "year IS NOT DISTINCT FROM 2018",
        "ok IS TRUE",
        "ok IS NOT FALSE",
        "title IS NOT DISTINCT FROM Lang",
    ],
    "CONJUNCTION": ["ok AND year > 2018", "ok OR year > 2018 OR Lang = 'en'"],
    "BETWEEN": ["year BETWEEN 2016 AND 2018", "year NOT BETWEEN 2016 AND 2018"],
    "CASE": [
        "CASE WHEN ok THEN year ELSE 0 END > 2018",
        "CASE year WHEN 2018 THEN 'a' WHEN 2019 THEN NULL ELSE 'b' END = 'b'",
        "CASE WHEN year > 2018 THEN ok END",
    ],
    "CAST": [
        "CAST(score AS INTEGER) = 5",
        "score::VARCHAR LIKE '5%'",
        "TRY_CAST(Lang AS DOUBLE) IS NULL AND ok",
        "score::DECIMAL(6, 2) = 5.25",
        "tags::VARCHAR = '[en, NULL]' OR ok",
        "DATE '2020-02-29' = day",
        "moment < TIMESTAMP '2019-12-31 23:30:00'",
        "moment::TIME > TIME '23:30:00'",
    ],
    "OPERATOR": [
        "NOT ok",
        "year IS NULL",
        "year IS NOT NULL",
        "year NOTNULL",
        "ok IS UNKNOWN",
        "year IN (2018, 2019)",
        "year NOT IN (2018, 2019)",
        "Lang IN ('en', title)",
        "coalesce(year, 2018) = 2018",
        "ifnull(year, 2018) = 2018",
    ],
    "FUNCTION": [
        "[year, 5] = [2018, 5]",
        "year % 10 = 8",
        "-year < -2018",
        "(year - 2000) * 2 + 1 >= 37 AND year // 2 = 1009",
        "score / 2 > 2 AND score ** 2 < 40 AND score ^ 2 < 40",
        "Lang LIKE 'e%' OR Lang NOT LIKE '%n' AND ok",
        "Lang ILIKE 'e_' OR title NOT ILIKE 'E_'",
        "Lang LIKE 'a!_b' ESCAPE '!'",
        "Lang NOT LIKE 'a!_b' ESCAPE '!'",
        "Lang ILIKE 'A!_B' ESCAPE '!'",
        "Lang NOT ILIKE 'A!_B' ESCAPE '!'",
        "'x' IN tags",
        "Lang IN tags OR ok",
        "regexp_matches(text, '(1|2)[0-9] ', 'i')",
        "date_trunc('year', day) = DATE '2020-01-01'",
        "day + INTERVAL 1 DAY = '2020-03-01'",
        "day - INTERVAL '1' MONTH < '2020-01-01'",
        "moment - TIMESTAMP '2019-12-31 23:00:00' > INTERVAL 30 MINUTE",
        "trim(both 'd' FROM id) = '07'",
        "len(tags) = 2",
        "list_contains(tags, 'x')",
        "list_has_any(tags, ['x', 'en'])",
        "round(score) = 5",
    ],
    "CONSTANT": [
        "year = 2_018",
        "score = .5e1",
        "Lang = E'e\\x6e'",
        "Lang = $$en$$",
        "title = 'it''s 100%' OR Lang = 'it''s 100%'",
        "TRUE AND ok",
        "year = '2018'",
    ],
}


@pytest.mark.parametrize("sql", [sql for forms in NODES.values() for sql in forms])
def test_each_kind_of_node_means_what_duckdb_takes_it_to_mean(
    index: MetadataFilter, by_duckdb: Callable[[str], list[int]], sql: str
) -> None:
    found = index.documents(sql).tolist()
    assert found == by_duckdb(sql)
    assert 0 < len(found) < len(ROWS)


def test_each_kind_of_node_is_of_that_kind(index: MetadataFilter) -> None:
    """A release of DuckDB that parses one differently fails here."""
    for kind, forms in NODES.items():
        for sql in forms:
            assert f'"class": "{kind}"' in json.dumps(index._database.parse(f"SELECT 1 WHERE {sql}")), sql


@settings(max_examples=80)
@given(st.integers(0, 2**32))
def test_any_expression_of_the_functions_allowed_means_what_duckdb_takes_it_to_mean(
    index: MetadataFilter, by_duckdb: Callable[[str], list[int]], seed: int
) -> None:
    sql = Expressions(seed).condition()
    try:
        expected = by_duckdb(sql)
    except duckdb.Error:
        with pytest.raises(ConfigError):
            index.documents(sql)
        return
    try:
        found = index.documents(sql).tolist()
    except ConfigError as error:  # kinds that DuckDB would compare by implicit casts
        said = str(error)
        assert "cannot be compared" in said or "is no condition" in said or "take" in said, sql
    else:
        assert found == expected


@pytest.mark.parametrize(("word", "count"), [("in", 63), ("IN", 64), ("NOT IN", 63), ("NOT IN", 64), ("NOT IN", 5000)])
def test_long_lists_mean_the_same_as_short_ones(
    index: MetadataFilter, by_duckdb: Callable[[str], list[int]], word: str, count: int
) -> None:
    texts = ", ".join(f"'d{number:02}'" for number in range(5, count))
    numbers = ",".join(str(number) for number in range(-5, count))
    days = ", ".join(f"'{date(2020, 1, 1) + timedelta(number)}'" for number in range(count))
    for sql in (
        f"id {word} ({texts}, 'it''s', 'naïve ÉTÉ')",
        f"Lang {word}\n( {texts} , 'en' ) OR ok",
        f"year {word} ({numbers}, 2018)",
        f"score {word} ({numbers})",
        f"price {word} ({numbers})",
        f"day {word} ({days})",
        f"CASE WHEN ok THEN id {word} ({texts}) ELSE year {word} ({numbers}) END",
        f"coalesce(Lang, 'en') {word} ({texts}, 'en') AND lower(id) {word} ({texts})",
    ):
        assert index.documents(sql).tolist() == by_duckdb(sql), sql[:40]


def test_filters_number_live_documents(tmp_path: Path) -> None:
    live = [number for number in range(60) if number % 3]
    found = open_filters(tmp_path, PARTS, live).documents("year >= 2020 OR Lang = 'en'")
    wanted = expected(lambda row: or_(compared(row.get("year"), 2020, operator.ge),
                                      compared(row.get("Lang"), "en", operator.eq)))  # fmt: skip
    assert [live[number] for number in found] == [number for number in wanted if number in live]


def test_a_deleted_document_makes_no_mistakes(tmp_path: Path) -> None:
    documents = [Document("a", "", metadata={"n": "1"}), Document("b", "", metadata={"n": "many"})]
    assert open_filters(tmp_path, [documents], [0]).documents("CAST(n AS INTEGER) = 1").tolist() == [0]
    with pytest.raises(ConfigError, match="many"):
        open_filters(tmp_path, [documents]).documents("CAST(n AS INTEGER) = 1")


def test_an_index_may_have_no_live_documents(tmp_path: Path) -> None:
    assert open_filters(tmp_path, PARTS, []).documents("year > 2015 OR TRUE").tolist() == []
