"""Corpora that a program passes in: every form gives the documents that a file with the same rows gives."""

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from indexer import Document, IsotropeError
from indexer.corpus.corpus import read_corpus
from indexer.corpus.records import Record, documents_of
from indexer.errors import ConfigError, CorpusError
from indexer.recipe.corpus_config import CorpusConfig

ROWS: list[dict[str, Any]] = [
    {"id": "a", "title": "One", "text": "the first", "year": 2019, "tags": ["x"], "author": {"name": "Ann"}},
    {"id": "b", "title": None, "text": "the second", "year": None, "tags": [], "author": {"name": "Bob"}},
    {"id": "c", "title": "Three", "text": "the third", "year": 2021, "tags": ["x", "y"], "author": {"name": "Cy"}},
]
RULES = CorpusConfig()
FORMS: dict[str, Callable[[], Any]] = {
    "dicts": lambda: ROWS,
    "a generator": lambda: (row for row in ROWS),
    "Arrow": lambda: pa.Table.from_pylist(ROWS),
    "an Arrow batch": lambda: pa.RecordBatch.from_pylist(ROWS),
    "pandas": lambda: pd.DataFrame(ROWS).astype({"year": "Int64"}),
    "pandas with an index": lambda: pd.DataFrame(ROWS, index=["r", "s", "t"]).astype({"year": "Int64"}),
    "polars": lambda: pl.DataFrame(ROWS),
    "tables and dicts": lambda: [pa.Table.from_pylist(ROWS[:2]), ROWS[2]],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_documents_of_the_file(form: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    expected = list(read_corpus(file))
    assert list(documents_of(FORMS[form](), RULES)) == expected
    assert list(documents_of(expected, RULES)) == expected
    assert list(documents_of(file, RULES)) == expected
    assert list(documents_of(str(file), RULES)) == expected


def test_texts_have_the_ids_of_the_lines_of_a_file(tmp_path: Path) -> None:
    texts = ["one", "two", "one", "three"]
    (tmp_path / "lines.txt").write_text("\n".join(texts))
    documents = list(documents_of(texts, RULES))
    assert documents == list(read_corpus(tmp_path / "lines.txt"))
    for series in (pd.Series(texts), pl.Series(texts)):
        assert list(documents_of(series, RULES)) == documents
    assert documents[2].id == f"{documents[0].id}-2"


def test_column_rules_apply() -> None:
    rules = CorpusConfig(id_column="sku", text_column="review", columns={"stars": "string"}, drop=("price",))
    frame = pd.DataFrame({"sku": [7, 8], "review": ["good", "bad"], "stars": [5, 1], "price": [1.0, 2.0]})
    expected = [Document("7", "good", metadata={"stars": "5"}), Document("8", "bad", metadata={"stars": "1"})]
    assert list(documents_of(frame, rules)) == expected
    assert list(documents_of(frame.to_dict("records"), rules)) == expected


def test_values_of_numpy_and_pandas_are_plain() -> None:
    when = datetime(2020, 1, 2, 3, tzinfo=UTC)
    row = {"text": "x", "n": np.int64(3), "f": np.float32(0.5), "ok": np.True_, "list": np.array([1, 2]), "t": ("a",),
           "at": pd.Timestamp(when), "day": date(2020, 1, 2), "inner": {"n": np.int8(1)}}  # fmt: skip
    expected = {"n": 3, "f": 0.5, "ok": True, "list": [1, 2], "t": ["a"], "at": when, "day": date(2020, 1, 2),
                "inner": {"n": 1}}  # fmt: skip
    given = {name: value for name, value in row.items() if name != "text"}
    for record in (row, Document("a", "x", metadata=given)):
        (document,) = documents_of([record], RULES)
        assert document.metadata == expected
        assert [type(value) for value in document.metadata.values() if not isinstance(value, datetime)] == [
            type(value) for value in expected.values() if not isinstance(value, datetime)
        ]


@pytest.mark.parametrize("make", [np.asarray, list, lambda vectors: vectors.tolist()])
def test_vectors_belong_to_the_documents_in_order(make: Callable[[Any], Any]) -> None:
    rules, vectors = CorpusConfig(vector_column="vector"), np.arange(12, dtype=np.float32).reshape(4, 3) + 1
    records: list[Record] = ["a text", {"id": "b"}, Document("c", ""), {"id": "d", "text": "x"}]
    documents = list(documents_of(records, rules, make(vectors)))
    np.testing.assert_array_equal([document.vector for document in documents], vectors)
    assert [document.id for document in documents[1:]] == ["b", "c", "d"]


@pytest.mark.parametrize(
    ("records", "vectors", "error", "message"),
    [
        (["a", "b"], np.ones((3, 2)), CorpusError, "3 vectors for 2 documents; expected one for each"),
        (["a", "b"], np.ones((1, 2)), CorpusError, "1 vectors for 2 or more documents"),
        (["a"], np.ones(2), ConfigError, r"an array of float64, \(2,\); expected numbers, \(n, d\)"),
        (["a"], [["x"]], ConfigError, "expected numbers"),
        (["a", "b"], [[1.0], [1.0, 2.0]], ConfigError, "different lengths"),
        (["a"], [[0.0, 0.0]], CorpusError, "document 1: .* is all zero"),
    ],
)
def test_wrong_vectors_are_refused(records: Any, vectors: Any, error: type[IsotropeError], message: str) -> None:
    with pytest.raises(error, match=message):
        list(documents_of(records, CorpusConfig(vector_column="vector"), vectors))


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([{"id": "a", "text": "x"}, {"id": "a", "text": "y"}], r'document 2 \(id "a"\): .* used at document 1'),
        ([{"id": "a", "text": "x"}, {"text": "y"}], "document 2: the row has no id"),
        ([{"id": "a", "text": "x"}, {"id": "b"}], r'document 2 \(id "b"\): no text column'),
        ([{"id": "a", "text": " "}], r'document 1 \(id "a"\): no text'),
        ([{3: "x"}], "document 1: it has the key 3; expected column names as text"),
        ([Document("a", "x", metadata={3: "x"})], "document 1 .*: it has the key 3"),  # type: ignore[dict-item]
        ([""], "document 1: nothing to encode"),
        (["x", {"text": "y", "n": object()}], "document 2: .*object"),
        ([{"text": "x", "n": 1}, {"text": "y", "n": "one"}], "document 2.*n"),
        (pd.DataFrame({"text": ["x", "y"], "n": [1, "one"]}), "the DataFrame cannot be read as an Arrow table"),
    ],
)
def test_wrong_records_are_refused(records: Any, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        list(documents_of(records, RULES))


def test_a_corpus_of_other_rules_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("review\nx\n")
    corpus = read_corpus(tmp_path / "rows.csv", config=CorpusConfig(text_column="review"))
    with pytest.raises(ConfigError, match="other column rules"):
        documents_of(corpus, RULES)
    with pytest.raises(ConfigError, match="read from files"):
        documents_of(corpus, RULES, np.ones((1, 2)))
