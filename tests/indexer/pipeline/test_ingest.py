"""Parts are placed in a thread while the next ones are read."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from indexer.corpus.document import Document
from indexer.pipeline.ingest import place_while_reading

PARTS = [[Document(str(number), "text")] for number in range(5)]


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
