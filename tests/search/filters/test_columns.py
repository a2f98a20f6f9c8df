"""The columns of filters: names, and values that are kept."""

import duckdb
import pyarrow as pa
import pytest

from search.filters.columns import RESERVED, ColumnNames, LruCache
from search.filters.database import FilterDatabase, FilterError

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
        (("yaer",), 'no column "yaer" (did you mean year?); there are year, "two words", "at", meta'),
        (("YEER",), "(did you mean year?)"),
        (("two wrds",), '(did you mean "two words"?)'),
        (("meta", "knid"), 'no field "meta.knid" (did you mean meta.kind?): its fields are kind'),
        (("meta",), "meta holds objects; name one of their fields, as meta.field: kind"),
        (("year", "x"), "year is no object"),
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
    held: LruCache[str, bytearrays] = LruCache(10)
    for name in ("a", "b"):
        held.keep(name, bytearrays(4))
    held.find("a")
    held.keep("c", bytearrays(4))
    assert [held.find(name) is not None for name in "abc"] == [True, False, True]
    assert held.keep("large", bytearrays(11)).nbytes == 11
    assert [held.find(name) is not None for name in ("a", "c", "large")] == [True, True, False]


def test_long_keys_take_room_too() -> None:
    held: LruCache[str, bytearrays] = LruCache(10, len)
    held.keep("aaaa", bytearrays(1))
    held.keep("bbbb", bytearrays(1))
    held.keep("c" * 10, bytearrays(1))
    assert [held.find(name) is not None for name in ("aaaa", "bbbb", "c" * 10)] == [True, True, False]
    held.keep("d", bytearrays(0))
    assert [held.find(name) is not None for name in ("aaaa", "bbbb", "d")] == [False, True, True]


class bytearrays:  # noqa: N801
    """Something of a size."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
