"""Reading good corpora: formats, compressions, columns, ids."""

import bz2
import csv
import gzip
import io
import json
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, date, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.corpus.corpus import read_corpus
from indexer.corpus.document import Document, joined_text
from indexer.errors import ConfigError, CorpusError
from indexer.recipe.corpus_config import CorpusConfig
from tests.indexer.corpus.corpus_files import write
from tests.indexer.corpus.test_streams import zstd

FRUIT = [
    Document("a", "A round fruit.", "Apple", {"colour": "red"}),
    Document("b", "A long fruit.", None, {"colour": "yellow"}),
    Document("c", "", "Cherry", {}),
]


def row(document: Document) -> dict[str, Any]:
    return {"id": document.id, "title": document.title, "text": document.text, **document.metadata}


def cells(documents: list[Document]) -> list[list[str]]:
    names = ["id", "title", "text", *sorted({name for document in documents for name in document.metadata})]
    return [names, *([row(document).get(name) or "" for name in names] for document in documents)]


def jsonl_bytes(documents: Iterable[Document]) -> bytes:
    return b"".join(json.dumps(row(document), ensure_ascii=False).encode() + b"\n" for document in documents)


def csv_bytes(documents: list[Document]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(cells(documents))
    return text.getvalue().encode()


def tsv_bytes(documents: list[Document]) -> bytes:
    return "".join("\t".join(line) + "\n" for line in cells(documents)).encode()


def table(documents: list[Document]) -> pa.Table:
    names = cells(documents)[0]
    return pa.table({name: [row(document).get(name) for document in documents] for name in names})


def parquet_bytes(documents: list[Document]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table(documents), sink)
    return sink.getvalue()


def ipc_bytes(documents: list[Document], stream: bool = False) -> bytes:
    sink = io.BytesIO()
    data = table(documents)
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, data.schema) as writer:
        writer.write_table(data)
    return sink.getvalue()


WRITERS: dict[str, Callable[[list[Document]], bytes]] = {
    "fruit.jsonl": jsonl_bytes,
    "fruit.ndjson": jsonl_bytes,
    "fruit.json": jsonl_bytes,
    "fruit.jsonl.gz": lambda documents: gzip.compress(jsonl_bytes(documents)),
    "fruit.jsonl.bz2": lambda documents: bz2.compress(jsonl_bytes(documents)),
    "fruit.jsonl.zst": lambda documents: zstd(jsonl_bytes(documents)),
    "fruit.csv": csv_bytes,
    "fruit.csv.gz": lambda documents: gzip.compress(csv_bytes(documents)),
    "fruit.parquet": parquet_bytes,
    "fruit.pq.zst": lambda documents: zstd(parquet_bytes(documents)),
    "fruit.arrow": ipc_bytes,
    "fruit.feather": ipc_bytes,
    "fruit.ipc": lambda documents: ipc_bytes(documents, stream=True),
    "fruit.arrow.gz": lambda documents: gzip.compress(ipc_bytes(documents, stream=True)),
}
LINE_WRITERS: dict[str, Callable[[list[Document]], bytes]] = {
    "fruit.tsv": tsv_bytes,
    "fruit.tsv.bz2": lambda documents: bz2.compress(tsv_bytes(documents)),
}


def ids(*sources: str | Path, **options: Any) -> list[str]:
    return [document.id for document in read_corpus(*sources, **options)]


@pytest.mark.parametrize(("name", "writer"), [*WRITERS.items(), *LINE_WRITERS.items()])
def test_every_format_gives_the_same_documents(
    tmp_path: Path, name: str, writer: Callable[[list[Document]], bytes]
) -> None:
    corpus = read_corpus(write(tmp_path, name, writer(FRUIT)))
    assert list(corpus) == FRUIT
    assert corpus.report.documents == 3
    assert list(corpus) == FRUIT
    assert corpus.report.documents == 3, "the report starts anew with each pass"


def characters(excluded: str) -> st.SearchStrategy[str]:
    return st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0" + excluded), max_size=12)


def corpora(excluded: str = "") -> st.SearchStrategy[list[Document]]:
    text = characters(excluded)
    some = text.filter(bool)
    document = st.builds(
        Document,
        some,
        text,
        st.none() | some,
        st.fixed_dictionaries({}, optional={"colour": some, "the kind": some}),
    )
    kept = document.filter(lambda document: bool(joined_text(document, ["title", "text"])))
    return st.lists(kept, min_size=1, max_size=5, unique_by=lambda document: document.id)


@settings(max_examples=30, deadline=None)
@given(corpora())
def test_any_unicode_survives_every_format(documents: list[Document]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, writer in WRITERS.items():
            assert list(read_corpus(write(Path(folder), name, writer(documents)))) == documents, name


@settings(max_examples=30, deadline=None)
@given(corpora(excluded="\t\r\n"))
def test_any_unicode_without_tabs_and_line_breaks_survives_tsv(documents: list[Document]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, writer in LINE_WRITERS.items():
            assert list(read_corpus(write(Path(folder), name, writer(documents)))) == documents, name


@settings(max_examples=60, deadline=None)
@given(st.lists(characters("\r\n"), max_size=6))
def test_plain_text_is_one_document_a_line_whatever_the_characters(lines: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), "lines.txt", "".join(line + "\n" for line in lines))
        corpus = read_corpus(path)
        # a byte order mark at the start of a file is not content
        expected = [line.removeprefix("\ufeff") if number == 0 else line for number, line in enumerate(lines)]
        documents = list(corpus)
        assert [document.text for document in documents] == [line for line in expected if line.strip()]
        assert len({document.id for document in documents}) == len(documents)
        assert corpus.report.blank_lines + corpus.report.documents == len(lines)


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    text = "form\x0cfeed, next\x85line, line\u2028separator, lone\rreturn"
    path = write(tmp_path, "lines.txt", text + "\nsecond")
    assert [document.text for document in read_corpus(path)] == [text, "second"]


@pytest.mark.parametrize("name", ["fruit.jsonl", "fruit.csv", "fruit.tsv"])
def test_byte_order_mark_and_crlf_are_not_content(tmp_path: Path, name: str) -> None:
    data = {**WRITERS, **LINE_WRITERS}[name](FRUIT).replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    assert list(read_corpus(write(tmp_path, name, b"\xef\xbb\xbf" + data))) == FRUIT


def test_crlf_ends_a_line_of_plain_text(tmp_path: Path) -> None:
    assert [d.text for d in read_corpus(write(tmp_path, "a.txt", "one\r\ntwo\r\n"))] == ["one", "two"]


def test_quotes_are_literal_in_tsv_and_quoting_in_csv(tmp_path: Path) -> None:
    tsv = write(tmp_path, "a.tsv", 'id\ttext\n1\t"Hi," she said\n')
    table = write(tmp_path, "a.csv", 'id,text\r\n1,"""Hi,"" she said\r\nand left"\r\n')
    assert [d.text for d in read_corpus(tsv)] == ['"Hi," she said']
    assert [d.text for d in read_corpus(table)] == ['"Hi," she said\r\nand left']


def test_csv_fields_may_be_longer_than_the_csv_modules_default_limit(tmp_path: Path) -> None:
    long = "word " * 100_000
    assert [d.text for d in read_corpus(write(tmp_path, "a.csv", f"id,text\n1,{long}\n"))] == [long]


def test_empty_files_of_every_format_hold_no_documents(tmp_path: Path) -> None:
    for name in [*WRITERS, *LINE_WRITERS, "fruit.txt"]:
        assert list(read_corpus(write(tmp_path, name, b""))) == [], name


def test_blank_lines_are_counted_and_left_out(tmp_path: Path) -> None:
    corpus = read_corpus(write(tmp_path, "a.jsonl", b'\n{"id": "a", "text": "x"}\n  \r\n\n{"id": "b", "text": "y"}'))
    assert [document.id for document in corpus] == ["a", "b"]
    assert corpus.report.blank_lines == 3


def test_concatenated_compressed_files_are_read_to_the_end(tmp_path: Path) -> None:
    halves = jsonl_bytes(FRUIT[:1]), jsonl_bytes(FRUIT[1:])
    for name, pack in (("a.jsonl.gz", gzip.compress), ("a.jsonl.bz2", bz2.compress), ("a.jsonl.zst", zstd)):
        assert list(read_corpus(write(tmp_path, name, pack(halves[0]) + pack(halves[1])))) == FRUIT, name


# --- columns


@pytest.mark.parametrize(
    "row",
    [
        {"_id": "a", "contents": "x"},
        {"id": "a", "document_text": "x"},
        {"docid": "a", "text": "x"},
        {"docid": "a", "title": None, "text": "x", "nothing": None, "empty": {"inner": None}},
    ],
)
def test_usual_column_names_are_found(tmp_path: Path, row: dict[str, Any]) -> None:
    assert list(read_corpus(write(tmp_path, "a.jsonl", json.dumps(row)))) == [Document("a", "x")]


def test_named_columns_are_used_and_the_rest_is_metadata(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "key,headline,body,year\n7,Head,Body,1999\n")
    config = CorpusConfig(id_column="key", title_column="headline", text_column="body", columns={"year": "int"})
    assert list(read_corpus(path, config=config)) == [Document("7", "Body", "Head", {"year": 1999})]


def test_a_column_named_for_one_role_is_not_taken_for_another(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "id,title\n1,Whales\n")
    assert list(read_corpus(path, config=CorpusConfig(text_column="title"))) == [Document("1", "Whales")]


def test_whole_number_ids_become_text(tmp_path: Path) -> None:
    assert ids(write(tmp_path, "a.jsonl", '{"id": 7, "text": "x"}\n{"id": "007", "text": "y"}')) == ["7", "007"]


def test_dropped_and_unused_columns(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", '{"_id": "a", "id": 1, "text": "x", "year": 1}')
    config = CorpusConfig(drop=("id", "gone"), columns={"when": "date"}, text=("title", "text", "summary"))
    corpus = read_corpus(path, config=config)
    assert list(corpus) == [Document("a", "x", None, {"year": 1})]
    assert corpus.report.unused_columns == ["summary", "when", "gone"]


def test_columns_are_read_as_the_type_asked_for(tmp_path: Path) -> None:
    header = "id,text,whole,fraction,truth,time,day,nested,code\n"
    row = '1,x, 12,1e3,TRUE,2020-01-02T03:04:05Z,2020-01-02,"[1, null]",007\n'
    path = write(tmp_path, "a.csv", header + row + "2,y,,,,,,,\n")
    types = {"whole": "int", "fraction": "float", "truth": "bool", "time": "timestamp", "day": "date", "nested": "json"}
    first, second = read_corpus(path, config=CorpusConfig(columns=types))
    assert first.metadata == {
        "whole": 12,
        "fraction": 1000.0,
        "truth": True,
        "time": datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC),
        "day": date(2020, 1, 2),
        "nested": [1, None],
        "code": "007",
    }
    assert second.metadata == {}


def test_anything_can_be_read_as_text(tmp_path: Path) -> None:
    values: list[Any] = [1, 1.5, True, {"a": [1, None]}, "as is"]
    lines = [json.dumps({"id": n, "text": "x", "v": value}) for n, value in enumerate(values)]
    corpus = read_corpus(write(tmp_path, "a.jsonl", "\n".join(lines)), config=CorpusConfig(columns={"v": "string"}))
    assert [d.metadata["v"] for d in corpus] == ["1", "1.5", "true", '{"a": [1, null]}', "as is"]


def test_unknown_types_of_columns_are_refused() -> None:
    with pytest.raises(ConfigError, match='"year" has the unknown type "integer"; expected one of string, int'):
        read_corpus(".", config=CorpusConfig(columns={"year": "integer"}))


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_a_named_column_missing_from_a_header_is_refused_even_when_skipping(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, name, {"a.csv": csv_bytes, "a.parquet": parquet_bytes}[name](FRUIT))
    for role in ("id", "title", "text"):
        config = replace(CorpusConfig(), **{f"{role}_column": "colours"})  # type: ignore[arg-type]
        with pytest.raises(CorpusError, match=f'the {role} column "colours" is missing .did you mean "colour"'):
            list(read_corpus(path, config=config, on_error="skip"))


def test_a_title_column_found_in_no_row_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", '{"id": "a", "text": "x", "headline": "y"}')
    with pytest.raises(CorpusError, match=r'title column "headlines" is missing .did you mean "headline"\?'):
        list(read_corpus(path, config=CorpusConfig(title_column="headlines")))


def test_blankness_is_judged_after_joining_the_columns_that_are_encoded(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", '{"id": "a", "text": "", "summary": "short"}')
    assert ids(path, config=CorpusConfig(text=("text", "summary"))) == ["a"]


# --- the package


def test_importing_the_package_loads_no_numerical_library() -> None:
    code = "import indexer.corpus, sys; sys.exit(bool({'numpy', 'pyarrow'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_reading_streams_the_corpus(tmp_path: Path) -> None:
    path = tmp_path / "big.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for number in range(2_000):
            file.write(json.dumps({"id": number, "text": f"{number} " * 2_000}).encode() + b"\n")
    tracemalloc.start()
    assert sum(1 for _ in read_corpus(path)) == 2_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20, "the text alone is about 20 MB"


# --- real corpora


@pytest.mark.parametrize(("name", "count"), [("cacm", 3_204), ("scifact", 5_183)])
def test_beir_collections_are_read_whole(shared: Path, name: str, count: int) -> None:
    corpus = read_corpus(shared / "data" / name)
    documents = list(corpus)
    assert len(documents) == len({document.id for document in documents}) == count
    assert not corpus.report.rejected
    with (shared / "data" / name / "corpus.jsonl").open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    assert [(d.id, d.title, d.text) for d in documents] == [(r["_id"], r["title"], r["text"]) for r in rows]


@pytest.mark.check
def test_debian_is_read_whole_and_in_flat_memory(shared: Path) -> None:
    documents = iter(read_corpus(shared / "data" / "debian"))
    held: list[int] = []
    tracemalloc.start()
    for _ in range(4):
        assert sum(1 for _ in islice(documents, 4_000)) == 4_000
        held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert held[-1] - held[0] < 4 << 20, "what grows are ids in a dict of at most 65,536"
    assert 16_000 + sum(1 for _ in documents) == 63_905


def test_a_column_without_a_name_is_metadata_too(tmp_path: Path) -> None:
    (tmp_path / "docs.jsonl").write_text('{"id": "k", "text": "t", "": 1, "a.b": 2}\n')
    assert next(iter(read_corpus(tmp_path / "docs.jsonl"))).metadata == {"": 1, "a.b": 2}
