"""Filters as dicts: the documents that a plain reading of the dict in Python selects."""

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer import Document, build_index
from indexer.errors import ConfigError
from indexer.recipe.config import BuildConfig, EncoderConfig
from search import SearchEngine, SearchOptions
from search.filters.conditions import condition_of
from search.ranking.options import SearchFields

YEARS = [None, 2018, 2019, 2020]
LANGUAGES = [None, "en", "de", "it's"]
ROWS: list[dict[str, Any]] = [
    {"year": year, "lang": lang, "score": 0.5 * place, "tags": ["a", "b"][: place % 3], "author": {"name": str(place)}}
    for place, (year, lang) in enumerate((year, lang) for year in YEARS for lang in LANGUAGES)
]


@pytest.fixture(scope="module")
def engine(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> SearchEngine:
    index = tmp_path_factory.mktemp("conditions") / "index"
    build_index([Document(str(number), f"text {number}", metadata=row) for number, row in enumerate(ROWS)], index,
                BuildConfig(encoder=EncoderConfig(model=str(tiny_model("bert")))))  # fmt: skip
    return SearchEngine(index)


def selected(engine: SearchEngine, where: Mapping[str, Any]) -> set[int]:
    return {int(hit.id) for hit in engine.search("text", k=len(ROWS), where=where, exact=True)}


def matches(row: dict[str, Any], where: Mapping[str, Any]) -> bool:
    """The oracle."""
    return all(_matches(row, key, value) for key, value in where.items())


def _matches(row: dict[str, Any], key: str, value: Any) -> bool:
    if key == "and":
        return all(matches(row, inner) for inner in value)
    if key == "or":
        return any(matches(row, inner) for inner in value)
    if key == "not":
        return not matches(row, value)
    found = row[key]
    if not isinstance(value, dict):
        value = {"in" if isinstance(value, list) else "=": value}
    return all(_compares(found, sign, wanted) for sign, wanted in value.items())


def _compares(found: Any, sign: str, wanted: Any) -> bool:
    if sign in ("=", "!="):
        return bool((found == wanted) == (sign == "="))
    if sign in ("in", "not in"):
        return (found in wanted) == (sign == "in")
    if found is None:
        return False
    return bool({">": found > wanted, ">=": found >= wanted, "<": found < wanted, "<=": found <= wanted}[sign])


_years, _texts = st.sampled_from(YEARS), st.sampled_from(LANGUAGES)
_COMPARISONS = st.one_of(
    st.builds(lambda value: {"year": value}, _years),
    st.builds(lambda values: {"lang": values}, st.lists(_texts, max_size=3)),
    st.builds(lambda sign, value: {"year": {sign: value}}, st.sampled_from([">", ">=", "<", "<="]),
              st.sampled_from([2018, 2019, 2020])),
    st.builds(lambda sign, value: {"lang": {sign: value}}, st.sampled_from(["=", "!="]), _texts),
    st.builds(lambda sign, values: {"year": {sign: values}}, st.sampled_from(["in", "not in"]),
              st.lists(_years, max_size=3)),
    st.builds(lambda low, high: {"score": {">=": low, "<": high}}, st.floats(0, 8), st.floats(0, 8)),
)  # fmt: skip
FILTERS = st.recursive(
    _COMPARISONS,
    lambda inner: st.one_of(
        st.builds(lambda parts: {"and": parts}, st.lists(inner, max_size=3)),
        st.builds(lambda parts: {"or": parts}, st.lists(inner, max_size=3)),
        st.builds(lambda part: {"not": part}, inner),
        st.builds(lambda one, other: {**one, **other}, inner, inner),
    ),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(where=FILTERS)
def test_a_dict_selects_what_it_says(engine: SearchEngine, where: dict[str, Any]) -> None:
    assert selected(engine, where) == {number for number, row in enumerate(ROWS) if matches(row, where)}


def test_lists_fields_and_patterns(engine: SearchEngine) -> None:
    with_b = {number for number, row in enumerate(ROWS) if "b" in row["tags"]}
    assert selected(engine, {"tags": {"contains": "b"}}) == with_b
    assert selected(engine, {"author.name": "3"}) == {3}
    assert selected(engine, {"lang": {"like": "it%"}}) == {number for number in range(16) if number % 4 == 3}
    assert selected(engine, {"lang": {"contains": "'"}}) == {number for number in range(16) if number % 4 == 3}
    assert selected(engine, {"lang": {"icontains": "T'S"}}) == {number for number in range(16) if number % 4 == 3}
    assert selected(engine, {}) == set(range(16))


@pytest.mark.parametrize(
    ("where", "sql"),
    [
        ({"year": 2019, "section": ["math", "science"]}, """("year" = 2019 AND "section" IN ('math', 'science'))"""),
        ({"day": date(2020, 1, 2)}, """"day" = DATE '2020-01-02'"""),
        ({"a": {"icontains": "It's"}}, """contains(lower("a"), lower('It''s'))"""),
        ({"at": {">": datetime(2020, 1, 2, 3, tzinfo=UTC)}}, """"at" > TIMESTAMP '2020-01-02 03:00:00'"""),
        ({"price": Decimal("1.50")}, '"price" = 1.50'),
        ({"n": np.int64(3), "x": np.float32(0.5)}, '("n" = 3 AND "x" = 0.5e0)'),
        ({"n": np.array([1, 2]), "lang": pd.Series(["en"])}, """("n" IN (1, 2) AND "lang" IN ('en'))"""),
        ({'a"b.c': True}, '"a""b"."c" = TRUE'),
    ],
)
def test_the_sql_of_a_dict(where: dict[str, Any], sql: str) -> None:
    assert condition_of(where) == sql
    assert SearchOptions(where=where).condition == sql


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"year": {"=>": 3}}, r"""where\["year"\] has the operator '=>'; did you mean ">="\?"""),
        ({"year": {">>": 3}}, r"""where\["year"\] has the operator '>>'; did you mean ">"\?"""),
        ({"year": {}}, "is an empty dict"),
        ({"year": {"in": 3}}, "compares with 3; expected a list"),
        ({"or": {"year": 3}}, "expected a list of dicts"),
        ({"or": ["year"]}, "expected a list of dicts"),
        ({"not": 3}, "expected a dict"),
        ({3: 3}, "has the key 3; expected the name of a column"),
        ({"year": float("nan")}, "finite number"),
        ({"year": object()}, "of type object; expected text"),
        ({"year": str}, "of type type; expected text"),
    ],
)
def test_a_wrong_dict_is_refused(where: dict[Any, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SearchOptions(where=where)


def test_a_nested_dict_is_refused_at_some_depth() -> None:
    where: dict[str, Any] = {"year": 3}
    for _ in range(100):
        where = {"not": where}
    with pytest.raises(ConfigError, match="nested more than 50"):
        SearchOptions(where=where)


def test_keyword_arguments_are_the_options() -> None:
    options = get_type_hints(SearchOptions)
    assert get_type_hints(SearchFields) == options
