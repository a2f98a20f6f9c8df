"""Lists of queries and ids: the same rules of lines and characters as for a corpus."""

import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.corpus.query_file import read_id_file, read_query_file, read_query_lines
from indexer.errors import ConfigError

BOM = b"\xef\xbb\xbf"


def lines_of(data: bytes) -> list[tuple[int, str]]:
    return list(read_query_lines(io.BytesIO(data), "stdin", ConfigError))


def test_a_byte_order_mark_is_no_part_of_the_first_query_and_a_newline_alone_ends_a_line() -> None:
    assert lines_of(BOM + "whales\r\n\n  bread\u2028butter\r \nlast\x0c".encode()) == [
        (1, "whales"),
        (2, ""),
        (3, "bread\u2028butter"),
        (4, "last"),
    ]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"good\ncaf\xe9\n", "stdin:2: byte 4 of the line, 0xe9, is not UTF-8"),
        ("good".encode("utf-16"), r"stdin:1: byte 1 of the line, 0xff, is not UTF-8 \(the file looks like UTF-16\)"),
        (b"good\ncut \xf0\x9f", "stdin:2: byte 5 of the line, 0xf0, is not UTF-8"),
    ],
)
def test_queries_that_are_not_utf8_are_an_error_that_names_line_and_byte(data: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        lines_of(data)


def test_a_line_without_end_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("indexer.corpus.readers.streams.MAX_LINE_BYTES", 100)
    with pytest.raises(ConfigError, match="stdin:2: the line is longer than 100 bytes"):
        lines_of(b"x" * 99 + b"\n" + b"x" * 1000)


def test_a_query_is_given_before_the_next_one_arrives() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream, os.fdopen(writing, "wb", buffering=0) as source:
        source.write(b"first\n")
        queries = read_query_lines(stream, "stdin", ConfigError)
        assert next(queries) == (1, "first")


@given(st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"])), max_size=5))
def test_a_file_and_a_stream_hold_the_same_queries(texts: list[str]) -> None:
    data = "".join(f"{text}\n" for text in texts).encode()
    expected = [text.strip() for text in texts]
    if expected:
        expected[0] = texts[0].removeprefix("\ufeff").strip()
    assert [text for _, text in lines_of(data)] == expected


@pytest.mark.parametrize("read", [lambda path: read_query_file(path, ConfigError), read_id_file])
@pytest.mark.parametrize("special", ["pipe", "/dev/zero"])
def test_a_list_that_is_no_regular_file_is_refused_and_nothing_hangs(
    read: Callable[[Path], object], special: str, tmp_path: Path
) -> None:
    path = Path(special)
    if special == "pipe":
        path = tmp_path / "pipe"
        os.mkfifo(path)
    with pytest.raises(ConfigError, match=r"cannot be read: it is a pipe, socket or device; expected a regular file"):
        read(path)


def test_ids_that_are_not_utf8_are_an_error_that_names_line_and_byte(tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_bytes(b"d1\n\nd\xe9\n")
    with pytest.raises(ConfigError, match=r"ids\.txt:3: byte 2 of the line, 0xe9, is not UTF-8"):
        read_id_file(tmp_path / "ids.txt")
    (tmp_path / "ids.txt").write_bytes(BOM + " d1\u2028\r\n\r\nd2".encode())
    assert read_id_file(tmp_path / "ids.txt") == [" d1\u2028", "d2"]
