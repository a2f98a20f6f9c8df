"""The allow-list has deterministic functions of DuckDB whose results are not much longer than the arguments."""

import duckdb
import pytest

from search.filters.expressions import Kind, kind_of
from search.filters.functions import CASTS, FUNCTIONS, NAMES


def test_every_function_is_duckdbs_own_and_gives_the_same_each_time() -> None:
    """Functions of times with a zone use the machine's zone, but filters have no such times."""
    rows = duckdb.connect().execute(
        "SELECT function_name, function_type, stability, parameter_types FROM duckdb_functions()"
    )
    known: dict[str, set[str]] = {}
    for name, kind, stability, given in rows.fetchall():
        zoned = any("TIME ZONE" in (one or "") or "TZ" in (one or "") for one in given)
        if kind in ("scalar", "macro") and not zoned:
            known.setdefault(name.lower(), set()).add("macro" if kind == "macro" else stability)
    for name in set(FUNCTIONS) - {"coalesce"}:
        assert known[name] == {"CONSISTENT"}, name  # not a macro, which would copy its arguments


@pytest.mark.parametrize("name", list(CASTS))
def test_every_cast_is_to_a_type_of_its_kind(name: str) -> None:
    ((given,),) = duckdb.connect().execute(f"SELECT typeof(NULL::{name})").fetchall()
    named = {
        "BOOLEAN": Kind.TRUTH,
        "VARCHAR": Kind.TEXT,
        "DATE": Kind.DATES,
        "TIME": Kind.TIMES,
        "TIMESTAMP": Kind.MOMENTS,
    }
    assert kind_of(CASTS[name]) == {**named, "INTERVAL": Kind.INTERVALS}.get(given, Kind.NUMBERS)


def test_no_text_grows_by_more_than_half() -> None:
    """So nested functions give values about as large as the document."""
    gives_text = {name for name in NAMES for form in FUNCTIONS[name] if form.gives == "text"}
    assert gives_text == {"lower", "upper", "trim"}
    letters = "".join(map(chr, [*range(1, 0xD800), *range(0xE000, 0x20000)]))
    sql = "SELECT max(strlen(lower(upper(lower(t)))) / strlen(t)), max(strlen(upper(lower(upper(t)))) / strlen(t)) "
    (ratios,) = duckdb.connect().execute(sql + "FROM (SELECT unnest(string_split(?, '')) AS t)", [letters]).fetchall()
    assert max(ratios) == 1.5
