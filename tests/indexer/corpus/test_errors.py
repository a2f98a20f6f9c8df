"""Every kind of bad row: an error with file, line, id and fix, or skipped, counted and listed."""

import json
import tempfile
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.corpus.corpus import read_corpus
from indexer.corpus.document import Document
from indexer.corpus.records import documents_of
from indexer.errors import ConfigError, CorpusError
from indexer.recipe.corpus_config import CorpusConfig
from tests.indexer.corpus.corpus_files import GOOD, check, jsonl, refusal, without_bad_rows, write
from tests.indexer.corpus.test_streams import PACK

# --- text, title, id


@pytest.mark.parametrize(
    ("row", "what", "way_out"),
    [
        ('{"_id": "b", "text": null}', '"text" is null', "correct the row"),
        ('{"_id": "b", "text": 5}', '"text" is a number, not text', 'set corpus.columns = {"text": "string"}'),
        ('{"_id": "b", "text": ["x"]}', '"text" is a list, not text', 'set corpus.columns = {"text": "string"}'),
        ('{"_id": "b", "body": "x"}', 'columns found: "_id", "body"', "set the argument text_column, or corpus."),
    ],
)
def test_text_that_is_not_text(tmp_path: Path, row: str, what: str, way_out: str) -> None:
    check(jsonl(tmp_path, row), "text", what, document_id="b", way_out=way_out)


def test_a_refused_row_reads_as_one_sentence_and_the_way_out(tmp_path: Path) -> None:
    path = jsonl(tmp_path, '{"_id": "a17", "text": null}')
    assert refusal(path) == (
        f'{path}:2: "text" is null (id "a17"). Fix: correct the row, or pass on_error="skip" to skip such rows.'
    )


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ('{"_id": "b", "text": ""}', '"text"'),
        ('{"_id": "b", "title": "\\t", "text": " \\u3000"}', '"title" and "text"'),
        ('{"_id": "b", "contents": " "}', '"contents"'),
    ],
)
def test_blank_documents(tmp_path: Path, row: str, columns: str) -> None:
    check(jsonl(tmp_path, row), "blank", f"no text in {columns}", document_id="b")


def test_a_title_that_is_not_text(tmp_path: Path) -> None:
    row = '{"_id": "b", "title": 1984, "text": "x"}'
    check(
        jsonl(tmp_path, row),
        "title",
        '"title" is a number, not text',
        document_id="b",
        way_out='set corpus.columns = {"title": "string"}',
    )
    assert [d.title for d in read_corpus(jsonl(tmp_path, row), config=CorpusConfig(columns={"title": "string"}))][
        1
    ] == "1984"


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("null", 'the id "_id" is null'),
        ('""', 'the id "_id" is empty'),
        ("1.5", 'the id "_id" is a number; expected text or a whole number'),
        ("true", 'the id "_id" is true or false; expected text or a whole number'),
        ("[1]", 'the id "_id" is a list; expected text or a whole number'),
    ],
)
def test_ids_that_are_not_ids(tmp_path: Path, value: str, what: str) -> None:
    check(jsonl(tmp_path, f'{{"_id": {value}, "text": "x"}}'), "id", what)


def test_a_row_without_the_id_its_first_row_has(tmp_path: Path) -> None:
    check(jsonl(tmp_path, '{"text": "x"}'), "no-id", "the row has no id, but the first row of the file has one")


def test_a_row_without_the_id_column_that_was_named(tmp_path: Path) -> None:
    path = write(tmp_path, "docs.jsonl", '{"text": "x", "keys": 1}')
    what = 'the id column "key" is missing (did you mean "keys"?); columns found: "text", "keys"'
    check(
        path,
        "no-id",
        what,
        line=1,
        way_out="set the argument id_column, or corpus.",
        kept=[],
        config=CorpusConfig(id_column="key"),
    )


def test_a_skipped_row_changes_no_made_id_of_another(tmp_path: Path) -> None:
    path = write(tmp_path, "docs.jsonl", '{"text": "one"}\nbroken\n\n{"text": null}\n{"text": "five"}\n')
    corpus = read_corpus(path, on_error="skip")
    expected = list(read_corpus(write(tmp_path, "good.txt", "one\nfive\n")))
    assert list(corpus) == expected
    assert corpus.report.made_ids == 2
    assert corpus.report.rejects_file is None


def test_duplicate_ids_name_both_places(tmp_path: Path) -> None:
    other = write(tmp_path, "other.csv", 'id,text\nx,"two\nlines"\nb,first\n')
    path = jsonl(tmp_path, '{"_id": "b", "text": "again"}')
    with pytest.raises(CorpusError) as caught:
        list(read_corpus(other, path))
    assert str(caught.value).startswith(f'{path}:2: the id was already used at {other}:4 (id "b"). Fix: give each')
    kept, reasons, entries = without_bad_rows(other, path)
    assert (kept, reasons) == (["x", "b", "a", "c"], {"duplicate-id": 1})
    assert (entries[0]["id"], entries[0]["raw"]) == ("b", '{"_id": "b", "text": "again"}')


def test_the_id_of_a_rejected_row_may_be_used_again(tmp_path: Path) -> None:
    path = write(tmp_path, "docs.jsonl", '{"id": "a", "text": null}\n{"id": "a", "text": "x"}\n')
    assert [document.text for document in read_corpus(path, on_error="skip")] == ["x"]


def test_metadata_columns_with_a_stored_name_clash(tmp_path: Path) -> None:
    path = jsonl(tmp_path, '{"_id": "b", "id": 5, "text": "x"}')
    check(
        path,
        "id",
        'column "id" cannot be metadata: the id comes from "_id"',
        document_id="b",
        way_out='set corpus.id_column = "id", or corpus.drop = ["id"]',
    )


# --- types


def test_types_that_conflict_name_both_places(tmp_path: Path) -> None:
    other = write(tmp_path, "other.jsonl", '{"_id": "o", "text": "x", "year": 1999}\n')
    path = jsonl(tmp_path, '{"_id": "b", "text": "x", "year": "n/a"}')
    message = refusal(other, path)
    assert message.startswith(
        f'{path}:2: metadata column "year" contains text at {path}:2, but whole numbers at {other}:1 (id "b"). '
        'Fix: set corpus.columns = {"year": "string"}'
    )
    kept, reasons, _ = without_bad_rows(other, path)
    assert (kept, reasons) == (["o", "a", "c"], {"type": 1})
    config = CorpusConfig(columns={"year": "string"})
    assert [d.metadata.get("year") for d in read_corpus(other, path, config=config)] == ["1999", None, "n/a", None]


def test_the_types_of_a_rejected_row_do_not_bind_later_ones(tmp_path: Path) -> None:
    path = write(tmp_path, "docs.jsonl", '{"id": "a", "text": "", "n": "x"}\n{"id": "b", "text": "x", "n": 1}\n')
    assert [document.metadata for document in read_corpus(path, on_error="skip")] == [{"n": 1}]


@pytest.mark.parametrize("cell", ["12.5", "twelve", "1_000", "\N{ARABIC-INDIC DIGIT ONE}"])
def test_cells_that_are_not_of_the_type_asked_for(tmp_path: Path, cell: str) -> None:
    path = write(tmp_path, "docs.csv", f"id,text,n\na,x,1\nb,y,{cell}\nc,z,\n")
    what = f'column "n" contains "{cell}", which cannot be read as int'
    check(path, "type", what, line=3, config=CorpusConfig(columns={"n": "int"}))


def test_times_with_nanoseconds_are_not_cut(tmp_path: Path) -> None:
    path = write(
        tmp_path, "docs.csv", "id,text,t\na,x,2020-01-01T00:00:00.123456000\nb,x,2020-01-01T00:00:00.123456789\n"
    )
    config = CorpusConfig(columns={"t": "timestamp"})
    check(path, "type", "cannot be read as timestamp", line=3, kept=["a"], config=config)


@pytest.mark.parametrize(
    ("number", "name"), [(float("nan"), "NaN"), (float("inf"), "infinity"), (-float("inf"), "infinity")]
)
def test_metadata_that_is_no_number_is_a_bad_row_in_every_format(tmp_path: Path, number: float, name: str) -> None:
    what = f'column "n" contains {name}'
    columns = {"id": ["a", "b", "c"], "text": ["x", "x", "x"], "n": [1.5, number, None]}
    pq.write_table(pa.table(columns), tmp_path / "docs.parquet")
    for values in (
        columns,
        columns | {"n": [[1.5], [2.5, number], None]},
        columns | {"n": [{"k": 1.5}, {"k": number}, None]},
    ):
        with (
            pa.OSFile(str(tmp_path / "docs.arrow"), "wb") as sink,
            pa.ipc.new_file(sink, pa.table(values).schema) as file,
        ):
            file.write_table(pa.table(values))
        for path in (tmp_path / "docs.parquet", tmp_path / "docs.arrow"):
            check(path, "number", what, document_id="b", way_out="write null instead")
    config = CorpusConfig(columns={"n": "float"})
    cells = write(tmp_path, "docs.csv", f"id,text,n\na,x,1.5\nb,x,{number}\nc,x,\n")
    check(cells, "type", "which cannot be read as float", line=3, document_id=None, config=config)
    handed = [Document("a", "x", metadata={"n": 1.5}), Document("b", "x", metadata={"n": number})]
    with pytest.raises(CorpusError, match=rf'document 2 \(id "b"\): {what}.*Fix: write null'):
        list(documents_of(handed, CorpusConfig()))


def test_what_is_no_document_is_refused_with_the_way_to_make_one() -> None:
    for corpus, name in ({"id": "a", "text": "x"}, "dict"), (b"text", "bytes"), (None, "NoneType"), (3, "int"):
        with pytest.raises(ConfigError, match=f"the corpus is of type {name}; expected a list of texts, dicts or"):
            documents_of(corpus, CorpusConfig())  # type: ignore[arg-type]
    for item, name in ((3, "int"), (b"text", "bytes"), (None, "NoneType"), (["text"], "list")):
        with pytest.raises(CorpusError, match=f"document 2 is of type {name}; expected a text, a dict, an indexer"):
            list(documents_of(["a text", item], CorpusConfig()))  # type: ignore[list-item]


def test_a_cell_of_json_with_a_key_twice(tmp_path: Path) -> None:
    path = write(tmp_path, "docs.tsv", 'id\ttext\tm\na\tx\t{"k": 1}\nb\tx\t{"k": 1, "k": 2}\n')
    config = CorpusConfig(columns={"m": "json"})
    check(path, "type", 'contains "{"k": 1, "k": 2}", which cannot be read as json', line=3, kept=["a"], config=config)


@pytest.mark.parametrize(
    ("rules", "what"),
    [
        (CorpusConfig(title_column="text"), 'no text column: "text" is the title (corpus.title_column)'),
        (CorpusConfig(id_column="text"), 'no text column: "text" is the id (corpus.id_column)'),
        (CorpusConfig(drop=("text",), text=("title",)), 'no text column: "text" is dropped (corpus.drop)'),
    ],
)
def test_a_text_column_that_is_there_but_used_otherwise_is_said_to_be(
    tmp_path: Path, rules: CorpusConfig, what: str
) -> None:
    for path in (
        write(tmp_path, "docs.jsonl", '{"id": "a", "text": "x"}\n'),
        write(tmp_path, "docs.csv", "id,text\na,x\n"),
    ):
        assert f'{what}; columns found: "id", "text"' in refusal(path, config=rules)


@settings(max_examples=100, deadline=None)
@given(
    st.binary(max_size=60) | st.sampled_from(GOOD).map(str.encode),
    st.sampled_from(["jsonl", "csv", "tsv", "txt", "parquet", "arrow"]),
    st.sampled_from(["", ".gz", ".bz2", ".zst"]),
    st.booleans(),
)
def test_any_bytes_are_read_or_refused_as_a_corpus(data: bytes, suffix: str, compression: str, packed: bool) -> None:
    if packed and compression:
        data = PACK[compression[1:]](data)
    with tempfile.TemporaryDirectory() as folder, suppress(CorpusError):
        corpus = read_corpus(write(Path(folder), f"docs.{suffix}{compression}", data), on_error="skip")
        assert sum(1 for _ in corpus) == corpus.report.documents


# --- the rejects file and the machine


def test_the_rejects_file_keeps_the_order_and_is_written_when_the_caller_stops_early(tmp_path: Path) -> None:
    path = write(tmp_path, "docs.jsonl", f'nope\n{{"_id": "b", "text": ""}}\n{GOOD[0]}\nnever reached\n')
    rejects = tmp_path / "rejects.jsonl"
    documents = iter(read_corpus(path, on_error="skip", rejects=rejects))
    next(documents)
    assert not rejects.exists()
    documents.close()  # type: ignore[attr-defined]
    assert [json.loads(line)["line"] for line in rejects.read_text().splitlines()] == [1, 2]


def test_without_bad_rows_there_is_no_rejects_file(tmp_path: Path) -> None:
    corpus = read_corpus(write(tmp_path, "docs.jsonl", GOOD[0]), on_error="skip", rejects=tmp_path / "rejects.jsonl")
    assert len(list(corpus)) == 1
    assert corpus.report.rejects_file is None
    assert not (tmp_path / "rejects.jsonl").exists()


def test_the_folder_of_the_rejects_file_is_made(tmp_path: Path) -> None:
    rejects = tmp_path / "new" / "rejects.jsonl"
    assert len(list(read_corpus(jsonl(tmp_path, "nope"), on_error="skip", rejects=rejects))) == 2
    assert rejects.is_file()


def test_a_rejects_file_that_cannot_be_written_is_an_error_before_anything_is_read(tmp_path: Path) -> None:
    path = jsonl(tmp_path, "nope")
    with pytest.raises(ConfigError, match=r"rejects .* cannot be created: .*docs.jsonl is a file"):
        read_corpus(path, on_error="skip", rejects=path / "rejects.jsonl")


def test_a_file_the_machine_cannot_read_is_fatal_even_when_skipping(tmp_path: Path) -> None:
    for name in ("docs.jsonl", "docs.parquet", "docs.csv.gz"):
        path = write(tmp_path, name, b"x")
        corpus = read_corpus(path, on_error="skip")
        path.unlink()
        with pytest.raises(CorpusError, match=f"{name}: cannot be read: No such file or directory"):
            list(corpus)
