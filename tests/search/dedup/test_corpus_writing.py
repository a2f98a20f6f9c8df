"""Documents written in any format are read back unchanged, or the format is rejected."""

import tempfile
import tracemalloc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from indexer import Document, read_corpus
from indexer.corpus.schema import drop_nulls, infer_schema
from indexer.errors import ConfigError
from indexer.recipe.corpus_config import CorpusConfig
from indexer.store.files import atomic_write
from search.dedup import corpus_writing as writing
from search.dedup.corpus_writing import check_types, choose_columns, write_documents
from tests.documents import DOCUMENTS


@pytest.fixture(scope="module", autouse=True)
def _pandas_is_imported() -> None:
    """PyArrow imports it for its first array, which takes 25 MB unrelated to these tests."""
    pa.array(["x"])


def fill(path: Path, documents: Iterable[Document], columns: writing.CorpusColumns) -> None:
    kinds = {".parquet": "parquet", ".arrow": "arrow", ".jsonl": "jsonl", ".csv": "csv", ".tsv": "tsv"}
    with atomic_write(path) as file, writing.CompressedWriter(file, "") as sink:
        write_documents(sink, iter(documents), kinds[path.suffix], columns)


def round_trip(
    suffix: str, documents: Sequence[Document], config: CorpusConfig, reading: CorpusConfig | None = None
) -> list[Document]:
    schema = infer_schema(document.metadata for document in documents)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"kept{suffix}"
        check_types(f"--kept {path}", suffix.removeprefix("."), schema)
        fill(path, documents, choose_columns(schema, config, None))
        return list(read_corpus(path, config=reading or config))


def characters(excluded: str = "") -> st.SearchStrategy[str]:
    return st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0" + excluded), max_size=8)


ZONED = st.datetimes(timezones=st.just(UTC))
JSON_SCALARS = st.one_of(
    st.fixed_dictionaries({}, optional={
        "int": st.integers(-(2**63), 2**63 - 1), "note": characters(), "truth": st.booleans(),
        "number": st.floats(allow_nan=False, allow_infinity=False),
        "list": st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), max_size=3),
        "deep": st.fixed_dictionaries({"a b": st.lists(st.fixed_dictionaries({"x": characters()}), min_size=1)}),
        "day": st.dates(), "naive": st.datetimes(), "zoned": ZONED,
    })
)  # fmt: skip
ANYTHING = st.fixed_dictionaries({}, optional={
    "blob": st.binary(max_size=4), "price": st.decimals(-9, 9, places=3), "hour": st.times(),
    "days": st.lists(st.dates(), max_size=2),
})  # fmt: skip
DATES = {"day": "date", "naive": "timestamp", "zoned": "timestamp"}
TYPES = DATES | {"int": "int", "truth": "bool", "number": "float", "list": "json", "deep": "json"}


def corpora(metadata: st.SearchStrategy[Any], excluded: str = "") -> st.SearchStrategy[list[Document]]:
    text = characters(excluded)
    document = st.builds(
        Document, text.filter(bool), text.filter(str.strip), st.none() | text, metadata.map(drop_nulls)
    )
    return st.lists(document, min_size=1, max_size=4, unique_by=lambda document: document.id)


@settings(max_examples=30)
@given(corpora(st.builds(lambda a, b: {**a, **b}, JSON_SCALARS, ANYTHING)))
def test_parquet_and_arrow_hold_every_document(documents: list[Document]) -> None:
    for suffix in (".parquet", ".arrow"):
        assert round_trip(suffix, documents, CorpusConfig()) == documents


@settings(max_examples=30)
@given(corpora(JSON_SCALARS))
@example([Document("\ufeff\u2028", "\x85\r\n\t\"'\\", "", {"deep": {"a b": [{"x": "\r"}]}})])
def test_json_lines_hold_what_json_and_column_types_can_say(documents: list[Document]) -> None:
    assert round_trip(".jsonl", documents, CorpusConfig(), CorpusConfig(columns=DATES)) == documents


def without_empty_texts(document: Document) -> Document:
    metadata = {name: value for name, value in document.metadata.items() if value != ""}
    return replace(document, title=document.title or None, metadata=metadata)


@settings(max_examples=30)
@given(corpora(JSON_SCALARS))
@example([Document('"', "a\rb", '\n"', {"note": "\r"})])
def test_csv_holds_the_same_but_for_empty_texts(documents: list[Document]) -> None:
    expected = list(map(without_empty_texts, documents))
    typed = CorpusConfig(columns=TYPES)
    assert round_trip(".csv", documents, CorpusConfig(), typed) == expected
    # TSV has no tabs and line breaks; JSON escapes them
    if not any(sign in f"{d.id}{d.title}{d.text}{d.metadata.get('note')}" for sign in "\t\r\n" for d in documents):
        assert round_trip(".tsv", documents, CorpusConfig(), typed) == expected


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".parquet", ".arrow"])
def test_settings_of_the_index_read_the_file_back(suffix: str) -> None:
    """Draw names and types of columns; texts in a JSON column are JSON."""
    config = CorpusConfig(
        id_column="key", title_column="head", text_column="body",
        columns={"day": "date", "any": "json", "number": "float", "body": "string"},
    )  # fmt: skip
    documents = [
        Document("a", "whale", None, {"day": date(2020, 1, 2), "any": 'a "text"', "number": 3.0, "_id": "of old"}),
        Document("b", "bee", "Bees", {"any": "7"}),
    ]
    assert round_trip(suffix, documents, config) == documents


def test_metadata_that_would_be_taken_for_the_id_is_refused() -> None:
    documents = [Document("a", "whale", metadata={"_id": 5})]
    with pytest.raises(
        ConfigError, match="from the columns id, title, text, _id, the settings of the index would read other columns"
    ):
        round_trip(".jsonl", documents, CorpusConfig())


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv"])
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (b"\0", "binary"),
        (Decimal("1.50"), "decimal"),
        (time(1), "time64"),
        ([date(2020, 1, 1)], "date32"),
        ({"a": [{"b": b""}]}, "binary"),
    ],
)
def test_types_that_would_not_come_back_are_refused(suffix: str, value: Any, kind: str) -> None:
    message = rf'--kept .*kept{suffix}: the metadata column "x" contains .*{kind}.*name a \.parquet or \.arrow file'
    with pytest.raises(ConfigError, match=message):
        round_trip(suffix, [Document("a", "whale", metadata={"x": value})], CorpusConfig())


@pytest.mark.parametrize(
    ("suffix", "document", "message"),
    [
        (".jsonl", Document("a", "x", metadata={"n": float("nan")}), 'document "a" contains a number that is NaN'),
        (".csv", Document("a", "x", metadata={"n": [float("inf")]}), 'document "a" contains a number that is NaN'),
        (".tsv", Document("a", "x\ty"), 'document "a" contains a tab or .* in the column "text".*name a .csv'),
        (".tsv", Document("a\r", "x"), "contains a tab or a line break"),
        (".tsv", Document("a", "x", metadata={"b\tc": "y"}), "the name contains a tab"),
        (".csv", Document("a", "x", metadata={"": "y"}), "a metadata column has an empty name"),
        (".tsv", Document("a", "x", metadata={"": "y"}), "a metadata column has an empty name"),
    ],
)  # fmt: skip
def test_values_that_a_format_cannot_hold_are_refused(suffix: str, document: Document, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        round_trip(suffix, [document], CorpusConfig())


def test_groups_of_a_table_are_bounded_and_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_GROUP_ROWS", 3)
    monkeypatch.setattr(writing, "_HELD_BYTES", 10)
    columns = choose_columns(infer_schema(document.metadata for document in DOCUMENTS), CorpusConfig(), None)
    monkeypatch.setattr(writing, "_BATCH", 2)
    path = tmp_path / "kept.parquet"
    fill(path, DOCUMENTS, columns)
    assert [pq.ParquetFile(path).metadata.row_group(n).num_rows for n in range(3)] == [4, 4, 1]
    assert list(read_corpus(path)) == DOCUMENTS


@pytest.mark.check
@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet", ".arrow"])
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setattr(writing, "_HELD_BYTES", 1 << 18)
    monkeypatch.setattr(writing, "_GROUP_BYTES", 1 << 20)
    many = (Document(str(number), f"{number} whale " * 300) for number in range(15_000))
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    fill(tmp_path / f"kept{suffix}", watched(many, before), choose_columns(pa.schema([]), CorpusConfig(), None))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24 << 20, "the texts are 52 MB; reading back takes 16"


def watched(documents: Iterable[Document], before: int) -> Iterator[Document]:
    for document in documents:
        assert pa.total_allocated_bytes() - before < 10 << 20
        yield document
