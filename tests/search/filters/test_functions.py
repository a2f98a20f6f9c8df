"""The allow-list: what may be called, with what, and how large its results may become."""

import re

import duckdb
import pyarrow as pa
import pytest

from search.filters.expressions import (
    DATES,
    INTERVALS,
    MOMENTS,
    MOST_EXTRA,
    MOST_TIMES,
    NUMBERS,
    TIMES,
    TRUTH,
    TypedExpression,
    kind_of,
)
from search.filters.expressions import TEXT as TEXT_KIND
from search.filters.functions import CASTS, FUNCTIONS, call

TEXT = TypedExpression("c0", pa.string(), "c0", 0, 2, column=True, times=1, weight=1)
CLOCK = {"now", "today", "current_date", "current_localtime", "current_localtimestamp", "ago"}


def literal(sql: str, kind: pa.DataType = pa.float64()) -> TypedExpression:  # noqa: B008
    text = sql.strip("'") if kind == pa.string() else None
    return TypedExpression(sql, kind, sql, 0, 0, text=text, literal=True, nodes=0, extra=len(text or ""))


def test_every_function_is_duckdbs_own_and_gives_the_same_each_time() -> None:
    """Those of times with a zone count in the machine's zone, but a filter has no such times."""
    rows = duckdb.connect().execute(
        "SELECT function_name, function_type, stability, parameter_types FROM duckdb_functions()"
    )
    known: dict[str, set[str]] = {}
    for name, kind, stability, given in rows.fetchall():
        zoned = any("TIME ZONE" in (one or "") or "TZ" in (one or "") for one in given)
        if kind in ("scalar", "macro") and not zoned:
            known.setdefault(name.lower(), set()).add("macro" if kind == "macro" else stability)
    for name in set(FUNCTIONS) - {"coalesce"}:
        assert known[name] <= {"macro", "CONSISTENT"}, name
    assert not CLOCK & set(FUNCTIONS)


def test_macros_call_nothing_else() -> None:
    rows = duckdb.connect().execute(
        "SELECT function_name, macro_definition FROM duckdb_functions() WHERE function_type = 'macro'"
    )
    allowed = {*FUNCTIONS, "list_aggr", "coalesce"}
    for name, definition in rows.fetchall():
        if name in FUNCTIONS:
            assert set(re.findall(r"([a-z_]+)\"?\(", definition)) <= allowed, name


@pytest.mark.parametrize("name", list(CASTS))
def test_every_cast_is_to_a_type_of_its_kind(name: str) -> None:
    ((given,),) = duckdb.connect().execute(f"SELECT typeof(NULL::{name})").fetchall()
    named = {"BOOLEAN": TRUTH, "VARCHAR": TEXT_KIND, "DATE": DATES, "TIME": TIMES, "TIMESTAMP": MOMENTS}
    assert kind_of(CASTS[name]) == {**named, "INTERVAL": INTERVALS}.get(given, NUMBERS)


@pytest.mark.check
@pytest.mark.parametrize(
    ("name", "arguments", "value"),
    [
        ("repeat", [literal("100")], "repeat(t, 100)"),
        ("replace", [literal("''", pa.string()), literal("'xyz'", pa.string())], "replace(t, '', 'xyz')"),
        ("replace", [literal("'a'", pa.string()), literal("'xyz'", pa.string())], "replace(t, 'a', 'xyz')"),
        ("lpad", [literal("5000"), literal("'é'", pa.string())], "lpad(t, 5000, 'é')"),
        ("regexp_escape", [], "regexp_escape(t)"),
        ("url_encode", [], "url_encode(t)"),
        ("translate", [literal("'a'", pa.string()), literal("'\U0001f40b'", pa.string())], "translate(t, 'a', '🐋')"),
        ("hex", [], "hex(t)"),
        ("bin", [], "bin(t)"),
        ("upper", [], "upper(t)"),
        ("lower", [], "lower(t)"),
        ("concat", [TEXT, TEXT], "concat(t, t, t)"),
    ],
)
def test_no_result_is_larger_than_was_reckoned(name: str, arguments: list[TypedExpression], value: str) -> None:
    made = call(name, [TEXT, *arguments], "", 0, 0)
    assert made.times <= MOST_TIMES
    assert made.extra <= MOST_EXTRA
    for text in ("", "a", "aaaa" * 100, "....\\\\" * 50, "éß" * 99, "%41" * 50, "ŉŉŉ", "İİ" * 9):
        sql = f"SELECT strlen({value}) FROM (SELECT ? AS t)"  # noqa: S608  # of the table above
        ((size,),) = duckdb.connect().execute(sql, [text]).fetchall()
        assert size <= made.times * max(1, len(text.encode())) + made.extra, (value, text)


def test_what_grows_too_much_is_refused() -> None:
    with pytest.raises(ValueError, match="300 times as long as what a document holds"):
        call("repeat", [TEXT, literal("300")], "", 0, 0)
    with pytest.raises(ValueError, match="a whole number of times was expected"):
        call("repeat", [TEXT, literal("1e9")], "", 0, 0)
