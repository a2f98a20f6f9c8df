"""Facets equal counts by hand, and filters find exactly the counted documents."""

import json
import random
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.corpus.columns import STORED_NAMES
from indexer.corpus.document import Document
from indexer.errors import ConfigError
from search.filters import facets
from search.filters.columns import RESERVED
from search.filters.facets import ColumnFacet, column_facets
from search.filters.filters import MetadataFilter
from tests.stored import open_index, write_index

if TYPE_CHECKING:
    from search.index import Index

ODD_NAMES = [
    "plain", "two words", 'q"q', '"', "Year", "year", "YEAR", "from", "Select", "between", "true", "Größe", "हिन्दी",
    "a.b", "1st", "-", "it's", "id2", "position", ";--", "?", "$1", " ", "\n", "x\ty", "\u017f", "K", "k", "İ",
    "current_date", "date", "interval", "row", "exists", "array", "“curly”", "/* */", "count(*)", "*", "\U0001f40b",
]  # fmt: skip


def opened(index: Path, parts: Sequence[Sequence[Document]], live: Sequence[int] | None = None) -> "Index":
    """Return an index of documents only; `live` are stored numbers, None: all."""
    return cast("Index", SimpleNamespace(documents=open_index(index, write_index(index, parts), live)))


def of_rows(folder: Path, *parts: Sequence[dict[str, Any]]) -> "Index":
    """Return an index of documents with these metadata."""
    documents = [
        [Document(f"{number}-{place}", "text", metadata=row) for place, row in enumerate(part)]
        for number, part in enumerate(parts)
    ]
    return opened(folder, documents)


def facet_of(index: "Index", name: str, most_values: int = 50) -> ColumnFacet:
    (found,) = [one for one in column_facets(index, most_values) if one.name == name]
    return found


def quoted(value: object) -> str:
    """Return a value as SQL."""
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def test_each_kind_of_column_is_told_with_what_it_holds(tmp_path: Path) -> None:
    moment = datetime(2020, 1, 1, 1, tzinfo=timezone(timedelta(hours=2)))
    first: list[dict[str, Any]] = [
        {
            "lang": "en",
            "year": 2020,
            "score": 0.5,
            "even": True,
            "day": date(2020, 5, 1),
            "at": moment,
            "clock": time(8),
        },
        {"lang": "la", "year": 2019, "score": 2.5, "even": False, "day": date(2019, 5, 1), "raw": b"a"},
        {},
    ]
    second: list[dict[str, Any]] = [
        {"lang": "la", "year": 2020, "score": 1, "tags": ["a", "b", "a", None], "price": Decimal("1.50")},
        {"lang": "fr", "tags": [], "at": datetime(2021, 1, 1, tzinfo=UTC), "clock": time(7, 30)},
        {"tags": ["b"], "deep": [[1]], "parts": [{"n": 1}], "by": {"name": "Eve", "of": {"from": 7}}, "nulls": [None]},
    ]
    found = {one.name: one.to_dict() for one in column_facets(of_rows(tmp_path, first, second))}
    assert json.loads(json.dumps(found, allow_nan=False)) == found

    def told(name: str) -> tuple[Any, ...]:
        one = found[name]
        values = [(value["value"], value["count"]) for value in one["values"]]
        return one["kind"], one["documents"], one["distinct"], values, one["least"], one["most"]

    assert told("lang") == ("text", 4, 3, [("la", 2), ("en", 1), ("fr", 1)], None, None)
    assert told("year") == ("numbers", 3, 2, [(2020, 2), (2019, 1)], 2019, 2020)
    assert told("score") == ("numbers", 3, 3, [], 0.5, 2.5)
    assert told("price") == ("numbers", 1, 1, [], 1.5, 1.5)
    assert told("even") == ("true or false", 2, 2, [(False, 1), (True, 1)], None, None)
    assert told("day") == ("dates", 2, 2, [], "2019-05-01", "2020-05-01")
    assert told("at") == ("dates with a time of day", 2, 2, [], "2019-12-31T23:00:00", "2021-01-01T00:00:00")
    assert told("clock") == ("times of day", 2, 2, [], "07:30:00", "08:00:00")
    assert told("tags") == ("lists", 3, 2, [("b", 2), ("a", 1)], None, None)
    assert told("raw") == ("bytes", 1, None, [], None, None)
    assert told("deep") == ("lists", 1, None, [], None, None)
    assert told("by.name") == ("text", 1, 1, [("Eve", 1)], None, None)
    assert told("by.of.from") == ("numbers", 1, 1, [(7, 1)], 7, 7)
    elements = {name: one["elements"] for name, one in found.items() if one["kind"] == "lists"}
    assert elements == {"tags": "text", "deep": "lists", "parts": "objects", "nulls": "nothing"}
    assert (found["lang"]["sql"], found["by.of.from"]["sql"]) == ("lang", '"by".of."from"')
    assert not {"by", "id", "title", "text"} & set(found)


def test_what_is_told_finds_what_was_counted(tmp_path: Path) -> None:
    """Return a condition of each kind, as the page writes it."""
    rows = [
        {
            "n": n % 4,
            "lang": "ab"[n % 2],
            "even": n % 2 == 0,
            "tags": ["x", "y", "x"][: n % 4],
            "by": {"who": f"w{n % 3}"},
        }
        | {"at": datetime(2020, 1, 1 + n, 12, tzinfo=UTC), "day": date(2020, 1, 1 + n)}
        for n in range(20)
    ]
    index = of_rows(tmp_path, rows[:7], rows[7:])
    found = MetadataFilter(index)
    asked = 0
    for one in column_facets(index):
        assert len(found.documents(f"{one.sql} IS NOT NULL")) == one.documents
        for value, count in one.values:
            condition = f"list_contains({one.sql}, {quoted(value)})" if one.kind == "lists" else None
            assert len(found.documents(condition or f"{one.sql} = {quoted(value)}")) == count
            asked += 1
        if one.least is not None:
            plain = one.to_dict()
            ends = (str(plain[name]) for name in ("least", "most"))
            between = " AND ".join(quoted(end) if one.kind != "numbers" else end for end in ends)
            assert len(found.documents(f"{one.sql} BETWEEN {between}")) == one.documents
    assert asked == 4 + 2 + 2 + 2 + 3


@pytest.mark.parametrize("share", [10, pytest.param(1, marks=pytest.mark.check)])
def test_every_name_is_written_so_that_a_filter_finds_that_column(share: int, tmp_path: Path) -> None:
    """Return one of `share` keywords and unusual names."""
    known = duckdb.connect().execute("SELECT keyword_name FROM duckdb_keywords()").fetchall()
    keywords = [word for (word,) in known[::share]]
    both = (*keywords, *(word.upper() for word in RESERVED))
    names = list(dict.fromkeys(name for name in (*ODD_NAMES, *both) if name not in (*STORED_NAMES, "in", "all")))
    rows: list[dict[str, Any]] = [
        {name: f"{number} {name}" for number, name in enumerate(names)},
        {"in": {name: f"in {name}" for name in names}, "all": {"or": {"of": {"and": {'a "b"': "deep"}}}}},
    ]
    index = of_rows(tmp_path, rows)
    found = MetadataFilter(index)
    every = column_facets(index)
    assert {one.name for one in every} == {*names, *(f"in.{name}" for name in names), 'all.or.of.and.a "b"'}
    for number, inner in enumerate((False, True)):
        some = [one for one in every if one.name.startswith(("in.", "all.")) == inner]
        assert [one.documents for one in some] == [1] * len(some)
        for start in range(
            0, len(some), 150
        ):  # columns have distinct values, so all conditions hold only if each column is found
            conditions = [f"{one.sql} = {quoted(one.values[0][0])}" for one in some[start : start + 150]]
            assert found.documents(" AND ".join(conditions)).tolist() == [number]
            assert found.documents(" OR ".join(conditions)).tolist() == [number]


ANY_NAME = st.sampled_from(ODD_NAMES) | st.text(
    st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=8
)
ODD_VALUES = st.sampled_from(["", " ", "a", "A", "it's", "ä", '"', "%", "\\", "a\nb", "1"])


@given(
    names=st.lists(ANY_NAME.filter(lambda name: name not in STORED_NAMES), min_size=1, max_size=4, unique=True),
    values=st.lists(st.lists(ODD_VALUES | st.none(), min_size=4, max_size=4), min_size=1, max_size=12),
    cut=st.integers(0, 12),
    gone=st.sets(st.integers(0, 11)),
    asked=st.none() | st.sets(st.integers(0, 11)),
)
@settings(max_examples=20)
def test_each_value_is_counted_as_a_filter_counts_it(
    names: list[str],
    values: list[list[str | None]],
    cut: int,
    gone: set[int],
    asked: set[int] | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    rows = [{name: value for name, value in zip(names, row, strict=False) if value is not None} for row in values]
    documents = [Document(str(n), "text", metadata=row) for n, row in enumerate(rows)]
    live = [number for number in range(len(rows)) if number not in gone]
    parts = [part for part in (documents[:cut], documents[cut:]) if part]
    index = opened(tmp_path_factory.mktemp("facets"), parts, live)
    found = MetadataFilter(index)
    among = None if asked is None else np.array([number in asked for number in live], bool)
    for one in column_facets(index, among=among):
        counted = [number for number in live if asked is None or number in asked]
        expected = Counter(rows[number][one.name] for number in counted if one.name in rows[number])
        assert list(one.values) == sorted(expected.items(), key=lambda pair: (-pair[1], pair[0]))
        assert (one.documents, one.distinct) == (expected.total(), len(expected))
        for value, count in one.values:
            numbers = found.documents(f"{one.sql} = {quoted(value)}")
            assert numbers.tolist() == [place for place, n in enumerate(live) if rows[n].get(one.name) == value]
            assert sum(live[place] in counted for place in numbers) == count


def test_the_most_frequent_come_first_and_equals_in_order(tmp_path: Path) -> None:
    drawn = random.Random(5).choices([f"v{n:03}" for n in range(300)], k=4000)
    index = of_rows(
        tmp_path, *([{"v": value} for value in drawn[start : start + 500]] for start in range(0, 4000, 500))
    )
    expected = sorted(Counter(drawn).items(), key=lambda pair: (-pair[1], pair[0]))
    for most in (1, 7, 50, 1000):
        assert list(facet_of(index, "v", most).values) == expected[:most]


def test_whole_numbers_are_listed_where_all_can_be(tmp_path: Path) -> None:
    index = of_rows(tmp_path, [{"n": n % 5, "mixed": n} for n in range(20)], [{"n": None, "mixed": 0.5}])
    assert facet_of(index, "n", 5).values == ((0, 4), (1, 4), (2, 4), (3, 4), (4, 4))
    short = facet_of(index, "n", 4)
    assert (short.values, short.distinct, short.least, short.most) == ((), 5, 0, 4)
    mixed = facet_of(index, "mixed")
    assert (mixed.values, mixed.distinct, mixed.most) == ((), 21, 19.0)


def test_too_many_values_are_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"id2": f"v{n}", "n": n, "few": "ab"[n % 2], "tags": [f"t{n}"]} for n in range(100)]
    index = of_rows(tmp_path, *(rows[start : start + 10] for start in range(0, 100, 10)))
    monkeypatch.setattr(facets, "MOST_DISTINCT", 99)
    for name in ("id2", "tags"):
        many = facet_of(index, name)
        assert (many.documents, many.distinct, many.values) == (100, None, ())
    numbers = facet_of(index, "n")
    assert (numbers.distinct, numbers.least, numbers.most) == (None, 0, 99)
    assert facet_of(index, "few").values == (("a", 50), ("b", 50))
    monkeypatch.setattr(facets, "MOST_DISTINCT", 100)
    assert facet_of(index, "id2").distinct == 100
    monkeypatch.setattr(facets, "MOST_BYTES", 500)
    assert facet_of(index, "id2").distinct is None
    assert facet_of(index, "few").distinct == 2


def test_long_texts_are_not_listed(tmp_path: Path) -> None:
    index = of_rows(tmp_path, [{"v": "ä" * 1000}, {"v": "b" * 1001}, {"v": "b" * 1001}])
    found = facet_of(index, "v")
    assert (found.values, found.distinct, found.documents) == ((("ä" * 1000, 1),), 2, 3)


def test_deleted_documents_are_not_counted(tmp_path: Path) -> None:
    documents = [Document(str(n), "", metadata={"v": "ab"[n % 2], "n": n, "by": {"x": n}, "l": [n]}) for n in range(10)]
    index = opened(tmp_path, [documents[:4], documents[4:8], documents[8:]], [1, 2, 3, 9])
    assert facet_of(index, "v").values == (("b", 3), ("a", 1))
    ends = [facet_of(index, name) for name in ("n", "by.x")]
    assert [(one.least, one.most, one.documents) for one in ends] == [(1, 9, 4)] * 2
    assert facet_of(index, "l").values == ((1, 1), (2, 1), (3, 1), (9, 1))
    nothing = [
        (one.documents, one.distinct, one.values, one.least) for one in column_facets(opened(tmp_path, [documents], []))
    ]
    assert nothing == [(0, 0, (), None)] * 4


def test_numbers_that_are_none_count_as_absent(tmp_path: Path) -> None:
    index = of_rows(tmp_path, [{"f": float("nan"), "fs": [float("inf"), 1.5]}, {"f": 2.5}, {"f": float("-inf")}])
    found = facet_of(index, "f")
    assert (found.documents, found.distinct, found.least, found.most) == (1, 1, 2.5, 2.5)
    assert facet_of(index, "fs").distinct == 1


def test_a_column_without_a_name_is_left_out(tmp_path: Path) -> None:
    assert [one.name for one in column_facets(of_rows(tmp_path, [{"": 1, "a": 2, "in": {"": 1, "b": 1}}]))] == [
        "a",
        "in.b",
    ]
    assert column_facets(of_rows(tmp_path, [{}])) == []


def test_some_columns_are_counted_and_not_for_longer_than_asked(tmp_path: Path) -> None:
    index = of_rows(tmp_path, [{"a": "x", "in": {"b": "y"}}], [{"a": "x"}])
    assert [(one.name, one.documents) for one in column_facets(index, names=["in.b"])] == [("in.b", 1)]
    with pytest.raises(ConfigError, match=r'columns: "in" is not a metadata column; expected some of: a, in\.b\.'):
        column_facets(index, names=["in", "in.b"])
    with pytest.raises(ConfigError, match=r"the values of 2 documents cannot be counted within -1 s\."):
        column_facets(index, seconds=-1)


@pytest.mark.parametrize("wrong", [0, -1, True, 2.5, "5"])
def test_how_many_values_is_a_whole_number(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"most_values is .*; expected a whole number, at least 1"):
        column_facets(of_rows(tmp_path, [{"a": 1}]), wrong)
