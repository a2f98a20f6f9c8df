"""The priority order: its kinds, ties, missing values, and errors."""

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer import BuildConfig, Document, build_index
from indexer.errors import ConfigError
from search.dedup.priority import priority, ranks
from search.index import Index
from tests.dedup_oracles import missing_last

Opener = Callable[[list[Document]], Index]


@pytest.fixture
def index_of(tiny_config: BuildConfig, tmp_path: Path) -> Opener:
    """Build an index of documents in parts of four and open it."""

    def make(documents: list[Document]) -> Index:
        build_index(documents, tmp_path / "index", tiny_config)
        return Index.open(tmp_path / "index")

    return make


def with_values(values: list[Any], name: str = "x") -> list[Document]:
    return [
        Document(f"d{n}", f"text {n}", metadata={} if value is None else {name: value})
        for n, value in enumerate(values)
    ]


def in_order(index: Index, prefer: str) -> list[int]:
    """Return the documents in priority order."""
    rank = priority(index, prefer)
    assert rank.dtype == np.int64
    assert sorted(rank.tolist()) == list(range(len(rank)))
    found: list[int] = np.argsort(rank).tolist()
    return found


def test_first_and_last_are_the_corpus_order_and_its_reverse(index_of: Opener) -> None:
    index = index_of(with_values([None] * 6))
    assert in_order(index, "first") == [0, 1, 2, 3, 4, 5]
    assert in_order(index, "last") == [5, 4, 3, 2, 1, 0]


def test_longest_goes_by_characters_of_title_and_text_as_they_are_encoded(index_of: Opener) -> None:
    texts = [("", "four"), ("a title", "four"), ("", "  four  "), ("", "éééééé"), ("", "sixsix")]
    index = index_of([Document(str(n), text, title=title) for n, (title, text) in enumerate(texts)])
    assert in_order(index, "longest") == [1, 3, 4, 0, 2]


@pytest.mark.parametrize(
    ("values", "ascending", "descending"),
    [
        ([3, None, -1, 3, 10], [2, 0, 3, 4, 1], [4, 0, 3, 2, 1]),
        ([2**53, 2**53 + 1, 2**53 - 1], [2, 0, 1], [1, 0, 2]),
        ([1.5, 9.0, -2, None, 7.25], [2, 0, 4, 1, 3], [1, 4, 0, 2, 3]),
        (["b", "B", "\u00e9", None, "a", "b"], [1, 4, 0, 5, 2, 3], [2, 0, 5, 4, 1, 3]),
        ([True, False, None, True], [1, 0, 3, 2], [0, 3, 1, 2]),
        ([date(2024, 5, 1), None, date(1999, 1, 1)], [2, 0, 1], [0, 2, 1]),
        ([datetime(2024, 5, 1, tzinfo=UTC), datetime(1999, 1, 1, tzinfo=UTC)], [1, 0], [0, 1]),
        ([Decimal("1.10"), Decimal("-3")], [1, 0], [0, 1]),
    ],
)
def test_a_column_orders_by_value_with_ties_in_corpus_order_and_missing_last(
    values: list[Any], ascending: list[int], descending: list[int], index_of: Opener
) -> None:
    index = index_of(with_values(values))
    assert in_order(index, "column:x") == in_order(index, "column:x:asc") == ascending
    assert in_order(index, "column:x:desc") == descending


def test_only_the_last_word_of_a_column_name_is_a_direction(index_of: Opener) -> None:
    index = index_of(with_values([1, 3, 2], name="dc:date"))
    assert in_order(index, "column:dc:date") == [0, 2, 1]
    assert in_order(index, "column:dc:date:desc") == [1, 2, 0]


def test_a_column_whose_name_ends_like_a_direction_is_named_with_one_more(index_of: Opener) -> None:
    index = index_of(with_values([1, 3, 2], name="x:desc"))
    assert in_order(index, "column:x:desc:asc") == [0, 2, 1]


def test_ids_and_titles_are_columns(index_of: Opener) -> None:
    named = [("b", "one"), ("a", None), ("c", "alpha")]
    index = index_of([Document(name, f"text of {name}", title=title) for name, title in named])
    assert in_order(index, "column:id") == [1, 0, 2]
    assert in_order(index, "column:title") == [2, 0, 1]


@pytest.mark.parametrize(
    ("prefer", "said"),
    [
        ("longst", 'prefer is "longst"; did you mean "longest"\\? expected first, last, longest, column:NAME'),
        ("", 'prefer is ""; expected first'),
        ("year", 'prefer is "year"; expected first'),
        ("column:yaer", 'no column "yaer"; did you mean "year"\\? it has id, title, made, tags, year'),
        ("column:", 'no column ""; it has id, title'),
        ("column:tags", 'column "tags" contains lists, which have no order'),
        ("column:made:desc", 'column "made" contains objects, which have no order'),
    ],
)
def test_what_names_no_order_is_refused(prefer: str, said: str, index_of: Opener) -> None:
    metadata = {"year": 1999, "tags": ["a"], "made": {"by": "hand"}}
    index = index_of([Document("a", "text", metadata=metadata)])
    with pytest.raises(ConfigError, match=said):
        priority(index, prefer)


def test_values_that_cannot_be_compared_are_refused(index_of: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store rejects such columns, but other indexes may contain them."""
    index = index_of(with_values([1, 2]))
    monkeypatch.setattr(index.documents, "all_documents", lambda: iter(with_values([1, "two"])))
    with pytest.raises(ConfigError, match='values of column "x" cannot be compared with each other'):
        priority(index, "column:x")


@given(st.lists(st.none() | st.sampled_from([1.0, 2.0, -0.0, 0.0, float("nan"), float("-inf")])), st.booleans())
def test_ranks_equal_the_statement(values: list[float | None], descending: bool) -> None:
    assert np.argsort(ranks(values, descending)).tolist() == missing_last(values, descending)
