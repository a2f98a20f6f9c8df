"""From rows to documents and groups, compared with lists sorted by hand."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer import ann
from indexer.errors import ConfigError
from search.ranking.documents import UNGROUPED, Groups, RankedDocument, best_rows, break_ties, group_codes

IDS = ["e", "c", "a", "d", "b", "f", "g", "h", "i", "j"]


def ids_of(numbers: Sequence[int]) -> list[str]:
    return [IDS[number] for number in numbers]


def numbering(document_of: list[int] | None) -> Any:
    """A numbering whose rows are documents, or windows of these documents."""
    if document_of is None:
        return SimpleNamespace(one_to_one=True, documents_of=lambda rows: rows)
    return SimpleNamespace(
        one_to_one=False, documents=len(IDS), documents_of=lambda rows: np.array(document_of, np.int64)[rows]
    )


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0.25, 0.5, 1.0])), max_size=20))
def test_a_document_is_ranked_by_its_best_row_and_ties_by_id(rows: list[tuple[int, float]]) -> None:
    order = sorted(range(len(rows)), key=lambda row: (-rows[row][1], row))
    scores = np.array([rows[row][1] for row in order], np.float32)
    of_rows = numbering([document for document, _ in rows])
    found, none, again = best_rows(
        [(scores, np.array(order, np.int64)), ann.nothing(), (scores, np.array(order, np.int64))], of_rows, ids_of
    )
    best: dict[int, tuple[float, int]] = {}
    for row in order:
        best.setdefault(rows[row][0], (rows[row][1], row))
    expected = sorted(best, key=lambda document: (-best[document][0], IDS[document]))
    assert found == again == [RankedDocument(document, *best[document]) for document in expected]
    assert none == []


def test_rows_that_are_documents_stay_as_they_are() -> None:
    rows = np.array([0.75, 0.5, 0.5], np.float32), np.array([3, 1, 2])
    (found,) = best_rows([rows], numbering(None), ids_of)
    assert found == [RankedDocument(3, 0.75, 3), RankedDocument(2, 0.5, 2), RankedDocument(1, 0.5, 1)]


def test_ids_are_looked_up_only_where_they_decide() -> None:
    asked: list[int] = []

    def ids(numbers: Sequence[int]) -> list[str]:
        asked.extend(numbers)
        return ids_of(numbers)

    apart = [RankedDocument(0, 3.0, 0), RankedDocument(1, 2.0, 1)]
    assert break_ties([apart], ids) == [apart]
    assert asked == []
    tied = [*apart, RankedDocument(3, 1.0, 3), RankedDocument(2, 1.0, 2)]
    unchanged, found = break_ties([apart, tied], ids)
    assert (unchanged, [hit.document for hit in found]) == (apart, [0, 1, 2, 3])
    assert sorted(asked) == [2, 3]


@given(
    st.lists(st.sampled_from([UNGROUPED, 0, 1, 2]), min_size=10, max_size=10),
    st.lists(st.booleans(), min_size=10, max_size=10) | st.none(),
    st.booleans(),
)
def test_as_many_groups_are_counted_as_allowed_documents_fall_into(
    codes: list[int], allowed: list[bool] | None, grouped: bool
) -> None:
    mask = None if allowed is None else np.array(allowed)
    groups = Groups(np.array(codes, np.int64) if grouped else None, 10, mask)
    there = [number for number in range(10) if allowed is None or allowed[number]]
    first = groups.first_of([RankedDocument(number, 1.0, number) for number in there])
    assert groups.count == len(first)
    values = [codes[found.document] for found in first]
    if grouped:
        assert all(values.count(code) == 1 for code in values if code != UNGROUPED)
        assert values.count(UNGROUPED) == sum(codes[number] == UNGROUPED for number in there)
    else:
        assert [found.document for found in first] == there


def test_the_first_document_of_a_group_stands_for_it() -> None:
    groups = Groups(np.array([1, 0, 1, UNGROUPED, UNGROUPED]), 5)
    order = [RankedDocument(number, 1.0, number) for number in (2, 0, 4, 1, 3)]
    assert [found.document for found in groups.first_of(order)] == [2, 4, 1, 3]


def index_of(parts: list[pa.ChunkedArray], kind: pa.DataType) -> Any:
    documents = SimpleNamespace(
        schema=pa.schema([("id", pa.string()), ("colour", kind)]), columns=lambda part, paths: [parts[part]]
    )
    return SimpleNamespace(documents=documents, manifest=SimpleNamespace(parts=parts))


def test_values_are_numbered_through_all_parts_and_nothing_is_no_value() -> None:
    parts = [pa.chunked_array([["red", None]]), pa.chunked_array([["blue"], ["red", "green"]])]
    codes = group_codes(index_of(parts, pa.string()), "colour")
    assert codes.dtype == np.int64
    assert codes.tolist() == [0, -1, 1, 0, 2]
    assert UNGROUPED == -1  # never the code of a value
    assert group_codes(index_of([], pa.string()), "colour").tolist() == []


def test_a_column_that_is_not_there_or_is_no_plain_value_is_refused() -> None:
    with pytest.raises(ConfigError, match='no such column; did you mean "colour"'):
        group_codes(index_of([], pa.string()), "color")
    with pytest.raises(ConfigError, match="no such column; it has id, colour"):
        group_codes(index_of([], pa.string()), "zzz")
    with pytest.raises(ConfigError, match=r"contains list<.*expected one plain value per document"):
        group_codes(index_of([], pa.list_(pa.string())), "colour")
