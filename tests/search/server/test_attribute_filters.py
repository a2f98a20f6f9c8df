"""Filters of OpenAI's vector stores, compared with a slow interpreter, and their errors."""

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from indexer import Document
from search.filters.filters import MetadataFilter
from search.server.http.failures import RequestError
from search.server.openai.attribute_filters import ComparisonFilter, CompoundFilter, OutlinedFilter, condition_of
from search.server.openai.vector_stores import attributes_of
from tests.search.filters.filtered import Row, open_filters, row_of

FILTERS: TypeAdapter[ComparisonFilter | CompoundFilter] = TypeAdapter(OutlinedFilter)
TEXTS = ["", "en", "EN", "it's “x”", 'say "no"', "naïve", "玻璃", "\U0001f40b", "\ue000", "--;", "\\"]
NUMBERS = [-3, 0, 1, 2, 7, 2.0, 2.5, -0.5, 0.1, 1e300, 2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 1e-9]


class Endless(list[Any]):
    """A list too long to check element by element."""

    def __init__(self, one: Any) -> None:
        super().__init__([one] * 300_000)

    def __iter__(self) -> Iterator[Any]:
        for number, one in enumerate(super().__iter__()):
            assert number < 1000
            yield one


# --- filters compared with a slow interpreter


def corpus() -> list[list[Document]]:
    """Two parts in which every column has values and gaps."""
    found: list[list[Document]] = [[], []]
    for number in range(40):
        row: dict[str, Any] = {
            "lang": TEXTS[number % len(TEXTS)] if number % 4 else None,
            'we"ird “key”.': TEXTS[number % 5] if number % 3 else None,
            "select": number % 5 if number % 6 else None,
            "whole": NUMBERS[number % 5] if number % 5 else 2**53 + number % 3,
            "largest": 2**63 - 1 if number % 3 else None,
            "float": float(NUMBERS[number % 10]) if number % 7 else None,
            "ok": number % 3 == 0 if number % 5 else None,
            "tags": [TEXTS[number % 11], None, TEXTS[3]][: number % 4] if number % 3 else None,
            "years": [number % 4, 2**53 + 1] if number % 2 else None,
            "ratios": [0.1, float(number % 4)] if number % 2 else None,
            "author": {"name": TEXTS[number % 6], "born": number % 3} if number % 4 else None,
            "a.b": number % 2 if number > 20 else None,
        }
        metadata = {name: value for name, value in row.items() if value is not None}
        title = TEXTS[number % 11] if number % 2 else None
        found[number // 20].append(Document(f"d{number:02}", f"text {number}", title, metadata))
    return found


PARTS = corpus()
ROWS = [row_of(document) for part in PARTS for document in part]
KINDS: dict[str, list[str]] = {
    "text": ["id", "title", "text", "lang", 'we"ird “key”.', "author.name", "tags"],
    "number": ["select", "whole", "largest", "float", "years", "ratios", "author.born", "a.b"],
    "truth": ["ok"],
}
LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "text": st.sampled_from([*TEXTS, "d07", "text 3"]) | st.text(LETTERS, max_size=3),
    "number": st.sampled_from(NUMBERS) | st.integers(-5, 5) | st.floats(-3, 3),
    "truth": st.booleans(),
}


def value_at(row: Row, key: str) -> Any:
    if key in row:
        return row[key]
    first, _, inner = key.partition(".")
    return (row.get(first) or {}).get(inner)


def is_met(asked: dict[str, Any], row: Row) -> bool:
    """Evaluate a filter slowly. In a column of floats, numbers are compared as floats."""
    if asked["type"] in ("and", "or"):
        return (all if asked["type"] == "and" else any)(is_met(inner, row) for inner in asked["filters"])
    held = value_at(row, asked["key"])
    values = asked["value"] if isinstance(asked["value"], list) else [asked["value"]]
    if asked["key"] in ("float", "ratios"):
        values = [float(value) for value in values]
    there = held if isinstance(held, list) else [held]
    equal = any(one is not None and one == value for one in there for value in values)
    if asked["type"] in ("eq", "in"):
        return equal
    if asked["type"] in ("ne", "nin"):
        return not equal
    return held is not None and bool(
        {
            "gt": lambda one, other: one > other,
            "gte": lambda one, other: one >= other,
            "lt": lambda one, other: one < other,
            "lte": lambda one, other: one <= other,
        }[asked["type"]](held, values[0])
    )


@st.composite
def comparisons(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(list(KINDS)))
    key, value = (
        draw(st.sampled_from(KINDS[kind])),
        VALUES[kind].filter(lambda one: one != "\0" and "\0" not in str(one)),
    )
    ordered = key not in ("ok", "tags", "years", "ratios")
    sign = draw(st.sampled_from(["eq", "ne", "in", "nin", *(["gt", "gte", "lt", "lte"] if ordered else [])]))
    given = draw(st.lists(value, max_size=4) if sign in ("in", "nin") else value)
    return {"type": sign, "key": key, "value": given}


def compounds(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    kinds, lists = st.sampled_from(["and", "or"]), st.lists(inner, min_size=1, max_size=3)
    return st.builds(lambda kind, filters: {"type": kind, "filters": filters}, kinds, lists)


@pytest.fixture(scope="module")
def filters(tmp_path_factory: pytest.TempPathFactory) -> MetadataFilter:
    return open_filters(tmp_path_factory.mktemp("filters"), PARTS)


def found_by(filters: MetadataFilter, asked: dict[str, Any]) -> list[int]:
    """Return the numbers of the matching documents of a filter that passes through JSON."""
    parsed = FILTERS.validate_json(json.dumps(asked))
    found: list[int] = filters.documents(condition_of(parsed, filters._documents.schema)).tolist()
    return found


@given(asked=st.recursive(comparisons(), compounds, max_leaves=6))
def test_a_filter_equals_a_slow_reading_of_it(filters: MetadataFilter, asked: dict[str, Any]) -> None:
    assert found_by(filters, asked) == [number for number, row in enumerate(ROWS) if is_met(asked, row)]


@pytest.mark.check
def test_every_comparison_equals_a_slow_reading_of_it(filters: MetadataFilter) -> None:
    texts = [*TEXTS, "d07"]
    for kind, values in (("text", texts), ("number", NUMBERS), ("truth", [True, False])):
        for key in KINDS[kind]:
            signs = ["eq", "ne"] if key in ("ok", "tags", "years", "ratios") else ["eq", "ne", "gt", "gte", "lt", "lte"]
            several = [
                {"type": sign, "key": key, "value": [one, values[0]]} for one in values for sign in ("in", "nin")
            ]
            for asked in [{"type": sign, "key": key, "value": one} for sign in signs for one in values] + several:
                expected = [number for number, row in enumerate(ROWS) if is_met(asked, row)]
                assert found_by(filters, asked) == expected, asked


MOMENT = datetime(2020, 1, 1, 12, 30)
DATED: dict[str, Any] = {
    "day": date(2020, 1, 1),
    "moment": MOMENT,
    "hour": time(1, 2, 3),
    "price": Decimal("0.10"),
    "raw": b"\x01",
    "days": [date(2020, 1, 1)],
    "empty": [None],
    "author": {"name": "x"},
}


@pytest.fixture(scope="module")
def dated(tmp_path_factory: pytest.TempPathFactory) -> MetadataFilter:
    """One document with a value of every rare type, and one without."""
    return open_filters(tmp_path_factory.mktemp("dated"), [[Document("a", "t", metadata=DATED), Document("b", "t")]])


@pytest.mark.parametrize(
    ("sign", "key", "value", "expected"),
    [
        ("eq", "day", "2020-01-01", [0]),
        ("gt", "day", "2019-12-31", [0]),
        ("nin", "day", ["2020-01-01", "2020-01-02"], [1]),
        ("eq", "moment", "2020-01-01T12:30:00", [0]),
        ("eq", "moment", "2020-01-01T13:30:00+01:00", [0]),
        ("lt", "moment", "2020-01-01T12:30:00Z", []),
        ("lte", "hour", "01:02:03", [0]),
        ("eq", "price", 0.1, [0]),
        ("gt", "price", 1e200, []),
        ("lt", "price", 1, [0]),
        ("eq", "empty", "x", []),
        ("ne", "empty", 1, [0, 1]),
    ],
)
def test_dates_and_decimals(dated: MetadataFilter, sign: str, key: str, value: Any, expected: list[int]) -> None:
    assert found_by(dated, {"type": sign, "key": key, "value": value}) == expected


def test_attributes_are_what_filters_take(dated: MetadataFilter) -> None:
    zoned = datetime(2020, 1, 1, 13, 30, tzinfo=timezone(timedelta(hours=1)))
    attributes = attributes_of(DATED | {"year": 7, "ok": True, "zoned": zoned.astimezone(UTC)})
    assert attributes == {
        "day": "2020-01-01",
        "moment": "2020-01-01T12:30:00",
        "hour": "01:02:03",
        "price": 0.1,
        "raw": '"01"',
        "days": '["2020-01-01"]',
        "empty": "[null]",
        "author": '{"name": "x"}',
        "year": 7,
        "ok": True,
        "zoned": "2020-01-01T12:30:00+00:00",
    }
    for key in ("day", "moment", "hour", "price"):
        assert found_by(dated, {"type": "eq", "key": key, "value": attributes[key]}) == [0]


@pytest.mark.parametrize(
    ("sign", "key", "value", "message"),
    [
        ("eq", "select", True, '"select" contains numbers; expected a number, found true or false.'),
        ("eq", "select", "1", '"select" contains numbers; expected a number, found text.'),
        ("in", "ok", [True, 1], '"ok" contains true or false; expected true or false, found a number.'),
        ("eq", "lang", 1, '"lang" contains text; expected text, found a number.'),
        ("gt", "ok", True, '"ok" contains true or false, which have no order'),
        ("gt", "tags", "a", '"tags" contains lists, which have no order'),
        ("eq", "author", "x", '"author" contains objects, which filters cannot compare'),
        ("eq", "lnag", "en", 'no document has an attribute "lnag"; did you mean "lang"?'),
        ("eq", "author.nmae", "en", 'no document has an attribute "author.nmae"'),
    ],
)
def test_a_filter_that_fits_nothing_is_a_mistake(
    filters: MetadataFilter, sign: str, key: str, value: Any, message: str
) -> None:
    with pytest.raises(RequestError) as caught:
        found_by(filters, {"type": sign, "key": key, "value": value})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("day", "yesterday", "expected a date as text: \"2020-12-31\", found text that is invalid: 'yesterday'."),
        ("day", 20200101, '"day" contains dates; expected a date as text'),
        ("moment", "0001-01-01T00:00:00+10:00", "expected a date with a time as text"),
        ("hour", "01:02:03+01:00", "expected a time as text"),
        ("raw", "01", '"raw" contains bytes, which filters cannot compare'),
        ("days", "2020-01-01", '"days" contains lists of dates, which filters cannot compare'),
    ],
)
def test_values_of_rarer_kinds_are_checked(dated: MetadataFilter, key: str, value: Any, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        found_by(dated, {"type": "eq", "key": key, "value": value})
    assert message in str(caught.value)


def test_large_filters_are_taken_up_to_a_limit(filters: MetadataFilter) -> None:
    one: dict[str, Any] = {"type": "nin", "key": "tags", "value": ["en", "x"]}
    expected = found_by(filters, one)
    assert found_by(filters, {"type": "and", "filters": [one] * 64}) == expected
    with pytest.raises(RequestError, match="more than 64 comparisons; expected at most 64"):
        found_by(filters, {"type": "and", "filters": [one] * 65})
    ids = [f"d{number:02}" for number in range(1000)]
    assert found_by(filters, {"type": "in", "key": "id", "value": ids}) == list(range(40))
    with pytest.raises(RequestError, match="characters as SQL; expected at most"):
        found_by(filters, {"type": "in", "key": "id", "value": ids * 4})
    deep = one
    for _ in range(9):
        deep = {"type": "or", "filters": [deep]}
    assert found_by(filters, deep) == expected
    for _ in range(200):
        deep = {"type": "or", "filters": [deep]}
        with pytest.raises(RequestError, match="more than 10 deep"):
            FILTERS.validate_python(deep)


COMPARISON = {"type": "eq", "key": "select", "value": 1}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"type": "or", "filters": Endless({"type": "eq"})}, "more than 64 comparisons"),
        ({"type": "or", "filters": [{"type": "and", "filters": Endless({})}]}, "more than 64 comparisons"),
        ({"type": "or", "filters": [{"type": "and", "filters": [COMPARISON] * 9}] * 9}, "more than 64 comparisons"),
        ({"type": "or", "filters": [COMPARISON, *[{"type": "eq"}] * 60]}, '"eq" needs key and value, but'),
        (COMPARISON | {f"no{n}": n for n in range(300_000)}, '"eq" needs key and value; "no0" is unknown'),
        ({"type": "in", "key": "select", "value": Endless(None)}, "contains 300,000 values; expected at most 6,666"),
    ],
)  # fmt: skip
def test_filters_are_refused_at_the_first_fault(asked: dict[str, Any], message: str) -> None:
    """Only a few parts are checked, however many there are."""
    with pytest.raises(RequestError) as caught:
        FILTERS.validate_python(asked)
    assert message in str(caught.value)
    assert caught.value.__cause__ is None
