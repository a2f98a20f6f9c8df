"""Query files: every format, ids and numbers, and faults reported with their line."""

import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from indexer.corpus.query_file import read_query_file
from indexer.errors import ConfigError, EvaluationError
from search.queries import read_queries, read_query_embeddings

DIM = 3
LINES = b'{"_id": "a", "text": "deep sea"}\n{"_id": 7, "title": "Stars", "text": " old star "}\n'


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", ["queries.jsonl", "Q.JSONL", "q.ndjson", "queries.jsonl.gz"])
def test_json_lines_give_ids_and_texts_with_their_titles(name: str, tmp_path: Path) -> None:
    data = gzip.compress(LINES, mtime=0) if name.endswith(".gz") else LINES
    queries = read_queries(write(tmp_path / name, data), DIM)
    assert (queries.ids, queries.texts) == (("a", "7"), ("deep sea", "Stars old star"))
    assert queries.files == {name: hashlib.sha256(data).hexdigest()}
    assert (queries.origin, queries.drawn_from.tolist(), queries.embeddings) == ("file", [-1, -1], None)


def test_a_beir_folder_is_its_queries(tmp_path: Path) -> None:
    file = write(tmp_path / "queries.jsonl", LINES)
    assert read_queries(tmp_path, DIM).texts == read_queries(file, DIM).texts
    assert read_queries(tmp_path, DIM).files == read_queries(file, DIM).files


def test_plain_lines_are_numbered_and_blank_ones_are_not_counted(tmp_path: Path) -> None:
    file = write(tmp_path / "queries.txt", "\ufeffone\r\n\n  two \u2028 and\r more \nthree".encode())
    queries = read_queries(file, DIM)
    assert (queries.ids, queries.texts) == (("1", "2", "3"), ("one", "two \u2028 and\r more", "three"))
    assert queries.notes == ("1 blank line of queries.txt left out",)
    assert list(queries.texts) == read_query_file(file, ConfigError).texts  # same as in a build


def test_embeddings_are_read_unchanged(tmp_path: Path) -> None:
    rows = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    np.save(tmp_path / "q.npy", rows)
    queries = read_queries(tmp_path / "q.npy", DIM)
    assert queries.embeddings is not None
    np.testing.assert_array_equal(queries.embeddings, rows)
    assert (queries.ids, queries.texts, len(queries)) == (("1", "2"), (), 2)
    with pytest.raises(EvaluationError, match="vectors of 3 numbers; expected 5"):
        read_queries(tmp_path / "q.npy", 5)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("q.jsonl", b'{"_id": "a", "title": "x"}\n', r'q\.jsonl:1: query "a": "text" is missing'),
        ("q.jsonl", b'{"_id": "a", "text": 5}\n', r'q\.jsonl:1: query "a": "text" is of type int; expected text'),
        ("q.jsonl", b'{"_id": "a", "text": " "}\n', r'q\.jsonl:1: query "a" is blank'),
        ("q.jsonl", b'{"_id": true, "text": "x"}\n', r'q\.jsonl:1: the query has no "_id"'),
        ("q.jsonl", LINES + LINES[:32], r'q\.jsonl:3: the query id "a" is used twice'),
        ("q.jsonl", b'{"_id": "a"', r"q\.jsonl:1: .*Fix: "),
        ("q.jsonl", b"", "q.jsonl: contains no queries"),
        ("q.txt.gz", gzip.compress(b"deep sea\n", mtime=0), "q.txt.gz: is compressed.* Fix: unpack it"),
        ("q.txt", b"", "no queries"),
        ("q.txt", b" \n\n", "no queries"),
        ("q.txt", b"good\n\xff\xfe\n", r"q\.txt:2: byte 1 of the line, 0xff, is not UTF-8"),
        ("q.npy", b"text", r"q\.npy: "),
        ("q.txt", None, "cannot be read: no such file or folder"),
        (".", None, "expected a BEIR folder with queries.jsonl, but the file is missing"),
    ],
)
def test_faulty_files_are_refused(name: str, data: bytes | None, message: str, tmp_path: Path) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(EvaluationError, match=message):
        read_queries(tmp_path / name, DIM)


def test_queries_kept_keep_all_that_belongs_to_them(tmp_path: Path) -> None:
    kept = read_queries(write(tmp_path / "q.txt", b"one\ntwo\nthree\n"), DIM).keep(np.array([2, 0]), "why")
    assert (kept.ids, kept.texts, kept.notes) == (("3", "1"), ("three", "one"), ("why",))
    np.save(tmp_path / "q.npy", np.eye(3, dtype=np.float32))
    rows = read_queries(tmp_path / "q.npy", DIM).keep(np.array([1]), "").embeddings
    assert rows is not None
    assert rows.tolist() == [[0, 1, 0]]


def test_embeddings_by_id_come_in_the_order_asked_for(tmp_path: Path) -> None:
    lines = [{"id": name, "text": "x", "vector": [float(number), 1, 0]} for number, name in enumerate("abc")]
    file = write(tmp_path / "v.jsonl", "\n".join(map(json.dumps, lines)).encode())
    assert read_query_embeddings(file, ["c", "a"], DIM).tolist() == [[2, 1, 0], [0, 1, 0]]
    with pytest.raises(EvaluationError, match=r'no vector for 4 of 5 judged queries \("d", "e", "f", ...\)'):
        read_query_embeddings(file, [*"adefg"], DIM)
    with pytest.raises(EvaluationError, match="the vectors have 3 numbers, the embeddings of the index 4"):
        read_query_embeddings(file, ["a"], 4)
