"""A corpus is cut into parts, which a thread places while the next parts are read."""

import threading
from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.corpus.document import Document, text_bytes
from indexer.pipeline.steps import ingest
from indexer.pipeline.steps.ingest import cut_into_parts, place_while_reading

PARTS = [[Document(str(number), "text")] for number in range(5)]


@given(st.lists(st.integers(0, 30), max_size=40), st.integers(1, 6))
def test_a_part_has_at_most_so_many_documents_and_so_much_text(lengths: list[int], most: int) -> None:
    documents = [Document(str(number), "é" * (length // 2)) for number, length in enumerate(lengths)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ingest, "PART_BYTES", 40)
        parts = list(cut_into_parts(documents, most))
        by_count = list(cut_into_parts(documents, most, range(len(documents))))
    assert [document for part in parts for document in part] == documents
    sizes = [sum(map(text_bytes, part)) for part in parts]
    assert all(len(part) <= most and (size <= 40 or len(part) == 1) for part, size in zip(parts, sizes, strict=True))
    for part, size, follower in zip(parts, sizes, parts[1:], strict=False):
        assert len(part) == most or size + text_bytes(follower[0]) > 40
    assert [len(part) for part in by_count[:-1]] == [most] * (len(by_count) - 1)


def test_all_strings_of_a_document_are_counted() -> None:
    metadata = {"a": "1234", "b": ["56", {"c": "7é"}, None, 8.5], "raw": b"89", "day": date(2001, 2, 3)}
    assert text_bytes(Document("id", "tëxt", "title", metadata)) == 2 + 5 + 5 + 4 + 2 + 3 + 2


def test_parts_come_in_order_with_their_documents() -> None:
    def place(documents: list[Document], position: int) -> Any:
        return position, documents[0].id, threading.current_thread().name

    found: Any = list(place_while_reading(place, iter(PARTS)))
    assert [documents for documents, _ in found] == PARTS
    assert [part[:2] for _, part in found] == [(number, str(number)) for number in range(5)]
    assert threading.current_thread().name not in {part[2] for _, part in found}


def test_the_next_part_is_read_while_one_is_placed() -> None:
    read = threading.Event()

    def parts() -> Iterator[list[Document]]:
        yield PARTS[0]
        read.set()
        yield PARTS[1]

    def place(documents: list[Document], position: int) -> Any:
        assert read.wait(60)
        return position

    placed: list[Any] = [part for _, part in place_while_reading(place, parts())]
    assert placed == [0, 1]


def test_what_was_read_is_placed_before_a_failure_of_reading_is_told() -> None:
    placed = []

    def parts() -> Iterator[list[Document]]:
        yield from PARTS[:2]
        raise ValueError("a bad row")

    def place(documents: list[Document], position: int) -> Any:
        placed.append(position)

    with pytest.raises(ValueError, match="a bad row"):
        list(place_while_reading(place, parts()))
    assert placed == [0, 1]


def test_a_failure_of_placing_comes_before_one_of_reading_the_next_part() -> None:
    def parts() -> Iterator[list[Document]]:
        yield PARTS[0]
        raise ValueError("a bad row")

    def place(documents: list[Document], position: int) -> Any:
        raise OSError("a full disk")

    with pytest.raises(OSError, match="a full disk"):
        list(place_while_reading(place, parts()))


def test_no_documents_make_no_parts() -> None:
    assert list(place_while_reading(lambda documents, position: pytest.fail("asked"), iter([]))) == []
