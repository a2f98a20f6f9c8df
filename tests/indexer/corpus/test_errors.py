"""Every kind of bad input: refused with file, line, id and the way out, or left out, counted and listed."""

import bz2
import gzip
import json
import os
import re
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.config import CorpusConfig
from indexer.corpus import Document, read_corpus, streams
from indexer.corpus.corpus import validated_documents
from indexer.corpus.streams import MAX_LINE_BYTES
from indexer.corpus.text_formats import _csv_records, _CsvLines
from indexer.errors import ConfigError, CorpusError

GOOD = ('{"_id": "a", "text": "first"}', '{"_id": "c", "text": "last"}')


def write(folder: Path, name: str, data: bytes | bytearray | str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def jsonl(folder: Path, bad: bytes | str) -> Path:
    """A file whose second line is bad and whose first and third are good."""
    bad = bad.encode() if isinstance(bad, str) else bad
    return write(folder, "docs.jsonl", GOOD[0].encode() + b"\n" + bad + b"\n" + GOOD[1].encode() + b"\n")


def refusal(*sources: Path, **options: Any) -> str:
    with pytest.raises(CorpusError) as caught:
        list(read_corpus(*sources, **options))
    return str(caught.value)


def without_bad_rows(*sources: Path, **options: Any) -> tuple[list[str], dict[str, int], list[dict[str, Any]]]:
    """Ids kept, reasons counted, and the entries of the rejects file, which must agree."""
    rejects = sources[0].parent / "rejects.jsonl"
    corpus = read_corpus(*sources, on_error="skip", rejects=rejects, **options)
    kept = [document.id for document in corpus]
    assert corpus.report.rejects_file == str(rejects)
    assert corpus.report.documents == len(kept)
    entries = [json.loads(line) for line in rejects.read_text(encoding="utf-8").splitlines()]
    assert sum(corpus.report.rejected.values()) == len(entries)
    assert sorted(path.name for path in rejects.parent.glob(".*")) == [], "no temporary file is left"
    return kept, dict(corpus.report.rejected), entries


def check(
    path: Path,
    reason: str,
    what: str,
    *,
    line: int = 2,
    document_id: str | None = None,
    way_out: str = "",
    kept: list[str] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """One bad row, in both modes; returns its entry in the rejects file."""
    message = refusal(path, **options)
    whose = f' (id "{document_id}")' if document_id is not None else ""
    assert message.startswith(f"{path}:{line}: "), message
    assert what + whose + ". Way out: " + way_out in message, message
    assert message.endswith(", or pass --on-error skip to leave such rows out and list them."), message
    ids, reasons, entries = without_bad_rows(path, **options)
    assert ids == (["a", "c"] if kept is None else kept)
    assert reasons == {reason: 1}
    (entry,) = entries
    assert set(entry) == {"file", "line", "id", "reason", "message", "raw"}
    assert (entry["file"], entry["line"], entry["id"], entry["reason"]) == (str(path), line, document_id, reason)
    assert what in entry["message"]
    return entry


# --- JSON


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        ('{"_id": "b", "text": "cut', "Unterminated string starting at (character 22)"),
        ('{"_id": "b"} {"_id": "d"}', "Extra data (character 14)"),
        ("plain words", "Expecting value (character 1)"),
        ('"only text"', "expected a JSON object, found a string"),
        ("[1, 2]", "expected a JSON object, found an array"),
        ("null", "expected a JSON object, found null"),
        ('{"_id": "b", "text": "x", "score": NaN}', "NaN is not a JSON number"),
        ('{"_id": "b", "text": "x", "score": -Infinity}', "-Infinity is not a JSON number"),
        ('{"_id": "b", "text": "x", "score": 1e999}', "1e999 is beyond the range of a 64-bit float"),
        ('{"_id": "b", "text": "x", "n": ' + "9" * 5000 + "}", "not valid JSON: Exceeds the limit"),
        ('{"_id": "b", "text": "x", "_id": "a"}', 'not valid JSON: one object has the key "_id" twice'),
        (
            '{"_id": "b", "text": "x", "m": [{"k": 1, "\\u006b": 1}]}',
            'not valid JSON: one object has the key "k" twice',
        ),
    ],
)
def test_malformed_json(tmp_path: Path, bad: str, what: str) -> None:
    path = jsonl(tmp_path, bad)
    assert what in refusal(path)
    ids, reasons, entries = without_bad_rows(path)
    assert (ids, reasons) == (["a", "c"], {"malformed": 1})
    assert entries[0]["raw"] == bad[:2000]
    assert entries[0]["line"] == 2


@pytest.mark.parametrize("depth", [100, 100_000])
def test_deeply_nested_json(tmp_path: Path, depth: int) -> None:
    path = jsonl(tmp_path, '{"_id": "b", "text": "x", "deep": ' + "[" * depth + "]" * depth + "}")
    assert "nested" in refusal(path)
    ids, reasons, _ = without_bad_rows(path)
    assert (ids, reasons) == (["a", "c"], {"malformed": 1})


def test_a_json_array_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    path = write(tmp_path, "docs.json", '\n [{"_id": "a", "text": "x"}]')
    for on_error in ("fail", "skip"):
        message = refusal(path, on_error=on_error)
        assert message.startswith(f"{path}:2: the file is one JSON array")
        assert f"jq -c '.[]' {path} > docs.jsonl" in message


# --- text, title, id


@pytest.mark.parametrize(
    ("row", "what", "way_out"),
    [
        ('{"_id": "b", "text": null}', '"text" is null', "fix the row"),
        ('{"_id": "b", "text": 5}', '"text" is a number, not text', "pass --column text:string"),
        ('{"_id": "b", "text": ["x"]}', '"text" is a list, not text', "pass --column text:string"),
        ('{"_id": "b", "body": "x"}', 'columns found: "_id", "body"', "pass --text-column"),
    ],
)
def test_text_that_is_not_text(tmp_path: Path, row: str, what: str, way_out: str) -> None:
    check(jsonl(tmp_path, row), "text", what, document_id="b", way_out=way_out)


def test_a_refused_row_reads_as_one_sentence_and_the_way_out(tmp_path: Path) -> None:
    path = jsonl(tmp_path, '{"_id": "a17", "text": null}')
    assert refusal(path) == (
        f'{path}:2: "text" is null (id "a17"). '
        "Way out: fix the row, or pass --on-error skip to leave such rows out and list them."
    )


@pytest.mark.parametrize("row", ['{"_id": "b", "text": ""}', '{"_id": "b", "title": "\\t", "text": " \\u3000"}'])
def test_blank_documents(tmp_path: Path, row: str) -> None:
    check(jsonl(tmp_path, row), "blank", 'nothing but blanks in "title" and "text"', document_id="b")


def test_a_title_that_is_not_text(tmp_path: Path) -> None:
    row = '{"_id": "b", "title": 1984, "text": "x"}'
    check(
        jsonl(tmp_path, row),
        "title",
        '"title" is a number, not text',
        document_id="b",
        way_out="pass --column title:string",
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
    check(path, "no-id", what, line=1, way_out="pass --id-column", kept=[], config=CorpusConfig(id_column="key"))


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
    assert str(caught.value).startswith(f'{path}:2: the id was already used at {other}:4 (id "b"). Way out: give each')
    kept, reasons, entries = without_bad_rows(other, path)
    assert (kept, reasons) == (["x", "b", "a", "c"], {"duplicate-id": 1})
    assert (entries[0]["id"], entries[0]["raw"]) == ("b", '{"_id": "b", "text": "again"}')


def test_the_id_of_a_rejected_row_may_be_used_again(tmp_path: Path) -> None:
    path = write(tmp_path, "docs.jsonl", '{"id": "a", "text": null}\n{"id": "a", "text": "x"}\n')
    assert [document.text for document in read_corpus(path, on_error="skip")] == ["x"]


# --- characters


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    entry = check(
        jsonl(tmp_path, b'{"_id": "b", "text": "caf\xe9"}'),
        "encoding",
        "byte 26 of the line, 0xe9, is not UTF-8",
        way_out="convert the file to UTF-8 (iconv -t UTF-8)",
    )
    assert entry["raw"] == '{"_id": "b", "text": "caf\\xe9"}'


def test_a_csv_row_with_bad_bytes_in_a_quoted_line_break_is_left_out_whole(tmp_path: Path) -> None:
    path = write(tmp_path, "docs.csv", b'id,text\na,first\nb,"one\ncaf\xe9"\nc,last\n')
    entry = check(path, "encoding", "the row holds bytes that are not UTF-8", line=3)
    assert entry["raw"] == 'b,"one\ncaf\\xe9"\n'


@pytest.mark.parametrize("name", ["docs.tsv", "docs.txt"])
def test_bad_bytes_in_other_text_formats(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, name, b"text\nb\xff\nlast\n")
    assert "is not UTF-8" in refusal(path)
    assert without_bad_rows(path)[1] == {"encoding": 1}


def test_utf16_is_recognised(tmp_path: Path) -> None:
    assert "looks like UTF-16" in refusal(write(tmp_path, "docs.txt", "words".encode("utf-16")))


@pytest.mark.parametrize(
    ("row", "column", "document_id"),
    [
        ('{"_id": "b", "text": "\\ud800"}', "text", "b"),
        ('{"_id": "b", "text": "x", "tags": [{"k": "\\udfff"}]}', "tags", "b"),
        ('{"_id": "b", "text": "x", "tags": {"\\ud800": 1}}', "tags", "b"),
        ('{"_id": "\\ud800", "text": "x"}', "_id", "\\ud800"),
        ('{"_id": "b", "text": "x", "\\ud800": 1}', "\\ud800", None),
    ],
)
def test_lone_surrogates_anywhere(tmp_path: Path, row: str, column: str, document_id: str | None) -> None:
    what = f'column "{column}" holds half of a character'
    path = jsonl(tmp_path, row)
    assert what in refusal(path)
    ids, reasons, entries = without_bad_rows(path)
    assert (ids, reasons, entries[0]["id"]) == (["a", "c"], {"surrogate": 1}, document_id)


@pytest.mark.parametrize(
    "row", ['{"_id": "b", "text": "\\u0000"}', '{"_id": "b", "text": "x", "m": {"k": ["\\u0000"]}}']
)
def test_nul_characters_anywhere(tmp_path: Path, row: str) -> None:
    check(jsonl(tmp_path, row), "nul", "holds a NUL character", document_id="b")


def test_nul_characters_in_plain_text(tmp_path: Path) -> None:
    kept = [document.id for document in read_corpus(write(tmp_path, "good.txt", "a\n"))]
    check(write(tmp_path, "docs.txt", "a\nb\0b\n"), "nul", 'column "text" holds a NUL character', kept=kept)


# --- tables


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        ("b,too,many", "the number of fields is 3, but the header has 2"),
        ("b", "the number of fields is 1, but the header has 2"),
        ('b,"x"y', "not valid CSV: ',' expected after '\"'"),
    ],
)
def test_malformed_csv(tmp_path: Path, bad: str, what: str) -> None:
    check(write(tmp_path, "docs.csv", f"id,text\na,first\n{bad}\nc,last\n"), "malformed", what, line=3)


@pytest.mark.parametrize(
    ("lines", "what", "bad"),
    [
        (
            ['b,"open', "c,last", "d,more"],
            "the quote opened on line 3 is not closed; lines 4 to 5 are read anew",
            [3],
        ),
        (['b,"open'], "the quote opened on line 3 is not closed", [3]),
        (
            ['b,"open', "c,last", 'd,"quoted"', "e,more"],
            "',' expected after '\"' on line 5, in the field of the quote opened on line 3; lines 4 to 5 are read anew",
            [3],
        ),
        # the record begins on line 3, its open quote on line 4
        (
            ['"b', 'c","open', "c,last"],
            "the quote opened on line 4 is not closed (the row is lines 3 to 4); line 5 is read anew",
            [3],
        ),
        (['b,"open', 'c,"open', "d,last", 'e,"two', 'lines"', 'f,"open', "g,last"], "line 3", [3, 4, 8]),
    ],
)
def test_a_quote_that_is_not_closed_costs_no_other_row(
    tmp_path: Path, lines: list[str], what: str, bad: list[int]
) -> None:
    path = write(tmp_path, "docs.csv", "\n".join(["id,text", "a,first", *lines, ""]))
    message = refusal(path)
    assert message.startswith(f"{path}:3: not valid CSV: "), message
    assert what in message
    kept, reasons, entries = without_bad_rows(path)
    assert reasons == {"malformed": len(bad)}
    assert [entry["line"] for entry in entries] == bad
    starts = [line.split(",")[0] for number, line in enumerate(lines, 3) if "," in line and number not in bad]
    assert kept == ["a", *(name for name in starts if name.isalpha())]


def test_a_record_of_csv_is_bounded_and_so_is_the_work_for_open_quotes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexer.corpus.text_formats.MAX_LINE_BYTES", 1000)
    rows = [f"d{number},some text" for number in range(200)]
    path = write(tmp_path, "docs.csv", "\n".join(["id,text", 'a,"open', *rows]))
    assert "opened on line 2 is not closed; lines 3 to 79 are read anew" in refusal(path)
    assert without_bad_rows(path)[:2] == ([f"d{number}" for number in range(200)], {"malformed": 1})
    # lines that leave a quote open whether they are met inside one or outside
    hostile = write(tmp_path, "hostile.csv", "id,text\n" + 'a","b\n' * 2000 + "c,last\n")
    kept, _, entries = without_bad_rows(hostile)
    assert kept == ["c"]
    assert "opened on line 201 is not closed (the row is lines 2 to 201)" in entries[0]["message"]


@given(st.lists(st.text('a,"', max_size=8), max_size=30))
def test_no_line_of_csv_is_read_more_than_twice(lines: list[str]) -> None:
    fed = Counter[int]()

    class Counting(_CsvLines):
        def __next__(self) -> str:
            text = super().__next__()
            fed[self.lines[-1][0]] += 1
            return text

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("indexer.corpus.text_formats._CsvLines", Counting)
        numbered = [(number, line.encode()) for number, line in enumerate(lines, 1)]
        found = list(_csv_records(iter(numbered)))
    assert set(fed) == set(range(1, len(lines) + 1))
    assert max(fed.values(), default=0) <= 2
    assert len(found) <= len(lines)


def test_a_line_that_is_too_long_ends_an_open_quote(tmp_path: Path) -> None:
    long = b"y" * (MAX_LINE_BYTES + 1)
    path = write(tmp_path, "docs.csv", b'id,text\na,first\nb,"open\nc,last\n' + long + b"\nd,more\n")
    kept, _, entries = without_bad_rows(path)
    assert kept == ["a", "c", "d"]
    assert [(entry["line"], entry["reason"]) for entry in entries] == [(3, "malformed"), (5, "long-line")]


def test_a_tsv_row_with_a_missing_field(tmp_path: Path) -> None:
    path = write(tmp_path, "docs.tsv", "id\ttext\na\tfirst\nb\nc\tlast\n")
    check(path, "malformed", "the number of fields is 1, but the header has 2", line=3)


@pytest.mark.parametrize(
    ("header", "what"),
    [
        ("id,text,text", '"text" twice'),
        ("id,,text", "column 2 of the header has no name"),
        ("id,body", 'no text column (text, contents, document_text); columns found: "id", "body"'),
        ("_id,id,text", 'column "id" cannot be metadata: the id comes from "_id"'),
    ],
)
def test_headers_that_cannot_be_used_are_refused_even_when_skipping(tmp_path: Path, header: str, what: str) -> None:
    path = write(tmp_path, "docs.csv", header + "\n1,2,3\n")
    message = refusal(path, on_error="skip")
    assert message.startswith(str(path))
    assert what in message
    assert "Way out: " in message


def test_metadata_columns_with_a_stored_name_clash(tmp_path: Path) -> None:
    path = jsonl(tmp_path, '{"_id": "b", "id": 5, "text": "x"}')
    check(
        path,
        "id",
        'column "id" cannot be metadata: the id comes from "_id"',
        document_id="b",
        way_out="pass --id-column id, or --drop-column id",
    )


# --- types


def test_types_that_conflict_name_both_places(tmp_path: Path) -> None:
    other = write(tmp_path, "other.jsonl", '{"_id": "o", "text": "x", "year": 1999}\n')
    path = jsonl(tmp_path, '{"_id": "b", "text": "x", "year": "n/a"}')
    message = refusal(other, path)
    assert message.startswith(
        f'{path}:2: metadata column "year" holds text at {path}:2, but whole numbers at {other}:1 (id "b"). '
        "Way out: pass --column year:string"
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
    what = f'column "n" holds "{cell}", which cannot be read as int'
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
    what = f'column "n" holds {name}, which is no number'
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
            check(path, "number", what, document_id="b", way_out="write null where there is no number")
    config = CorpusConfig(columns={"n": "float"})
    cells = write(tmp_path, "docs.csv", f"id,text,n\na,x,1.5\nb,x,{number}\nc,x,\n")
    check(cells, "type", "which cannot be read as float", line=3, document_id=None, config=config)
    handed = [Document("a", "x", metadata={"n": 1.5}), Document("b", "x", metadata={"n": number})]
    with pytest.raises(CorpusError, match=rf'document 2 \(id "b"\): {what}.*Way out: write null'):
        list(validated_documents(handed, CorpusConfig()))


def test_a_cell_of_json_with_a_key_twice(tmp_path: Path) -> None:
    path = write(tmp_path, "docs.tsv", 'id\ttext\tm\na\tx\t{"k": 1}\nb\tx\t{"k": 1, "k": 2}\n')
    config = CorpusConfig(columns={"m": "json"})
    check(path, "type", 'holds "{"k": 1, "k": 2}", which cannot be read as json', line=3, kept=["a"], config=config)


# --- long lines


def test_a_line_of_100_megabytes_is_passed_over_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    with path.open("wb") as file:
        file.write(GOOD[0].encode() + b'\n{"_id": "b", "text": "')
        file.truncate(100_000_000)  # a hole: no disk is used
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + GOOD[1].encode() + b"\n")
    tracemalloc.start()
    ids, reasons, entries = without_bad_rows(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MAX_LINE_BYTES + (8 << 20)
    assert (ids, reasons) == (["a", "c"], {"long-line": 1})
    assert entries[0]["raw"].startswith('{"_id": "b", "text": "')
    assert len(entries[0]["raw"]) == 2000
    assert re.match(
        rf"{re.escape(str(path))}:2: the line has 99,9\d\d,\d\d\d bytes; the limit is 33,554,432", refusal(path)
    )


def test_a_long_line_of_csv_is_passed_over(tmp_path: Path) -> None:
    data = b"id,text\na,first\nb," + b"x" * (MAX_LINE_BYTES + 1) + b"\nc,last\n"
    assert without_bad_rows(write(tmp_path, "docs.csv", data))[:2] == (["a", "c"], {"long-line": 1})


# --- sources


@pytest.mark.parametrize("name", ["docs.jsonl", "docs.csv.gz", "docs.parquet", "docs.arrow.zst", "docs.npy"])
@pytest.mark.parametrize("way", ["named", "folder", "glob"])
def test_a_pipe_is_no_source_and_nothing_waits_for_its_writer(tmp_path: Path, name: str, way: str) -> None:
    os.mkfifo(tmp_path / name)
    write(tmp_path, "docs.ids.txt", "a\n")
    source = {"named": f"{tmp_path}/{name}", "folder": f"{tmp_path}", "glob": f"{tmp_path}/docs*"}[way]
    config = CorpusConfig(vector_column="v" if name.endswith("npy") else "")
    with pytest.raises(CorpusError, match=rf"{name}: (cannot be read: it )?is a pipe, socket or device"):
        list(read_corpus(source, config=config))


def test_a_device_is_no_source() -> None:
    with pytest.raises(CorpusError, match=r"/dev/zero: is a pipe, socket or device.*Way out: pipe its content in"):
        read_corpus("/dev/zero", format="text")


def test_an_index_is_no_source(tmp_path: Path) -> None:
    (tmp_path / "my-index/manifests").mkdir(parents=True)
    with pytest.raises(CorpusError, match=r"my-index: is an index, not a corpus. Way out: name the files that it was"):
        read_corpus(tmp_path / "my-index")


def test_a_folder_that_cannot_be_listed_is_named_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "docs/locked/a.txt", "x")
    original = os.scandir

    def scandir(path: Any) -> Any:  # the tests may run as root, who may list everything
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return original(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(CorpusError, match=r"docs/locked: cannot be looked at: Permission denied"):
        read_corpus(tmp_path / "docs")


@pytest.mark.parametrize(
    ("rules", "what"),
    [
        (CorpusConfig(title_column="text"), 'no text column: "text" is the title (--title-column)'),
        (CorpusConfig(id_column="text"), 'no text column: "text" is the id (--id-column)'),
        (CorpusConfig(drop=("text",), text=("title",)), 'no text column: "text" is left out (--drop-column)'),
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


# --- compression


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue().to_pybytes())


PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": partial(bz2.compress, compresslevel=1),
    "zst": zstd,
}


@pytest.fixture
def small_bombs(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 MB are a bomb already: 64 take a second to pack."""
    monkeypatch.setattr(streams, "BOMB_BYTES", 4 << 20)


@pytest.mark.parametrize("suffix", PACK)
def test_a_bomb_ends_its_file_and_the_next_is_read(tmp_path: Path, suffix: str, small_bombs: None) -> None:
    block = b"x" * 65_535 + b"\n"
    bomb = write(tmp_path, f"bomb.txt.{suffix}", PACK[suffix](block * 140))
    after = write(tmp_path, "docs.jsonl", GOOD[0])
    message = refusal(bomb)
    assert re.search(r"bomb\.txt\.\w+:\d+: the \w+ stream unfolds to [\d]+ times its size; the limit is 250", message)
    assert message.endswith("or pass --on-error skip to leave out the rest of such files.")
    corpus = read_corpus(bomb, after, on_error="skip")
    count = sum(1 for _ in corpus)
    assert corpus.report.rejected == {"bomb": 1}
    assert 60 < count < 80, "what came before the limit is kept, and so is the next file"


def test_a_bomb_of_one_line_is_met_in_bounded_memory(tmp_path: Path) -> None:
    bomb = write(tmp_path, "bomb.jsonl.gz", gzip.compress(bytes(100 << 20)))
    tracemalloc.start()
    assert "the gzip stream unfolds" in refusal(bomb)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MAX_LINE_BYTES + (8 << 20)


def test_a_parquet_file_inside_a_bomb_is_refused(tmp_path: Path) -> None:
    bomb = write(tmp_path, "bomb.parquet.gz", gzip.compress(bytes(100 << 20)))
    assert "the gzip stream unfolds" in refusal(bomb)


@pytest.mark.parametrize("suffix", PACK)
def test_well_compressed_text_below_the_limit_is_no_bomb(tmp_path: Path, suffix: str, small_bombs: None) -> None:
    path = write(tmp_path, f"a.txt.{suffix}", PACK[suffix]((b"x" * 300_000 + b"\n") * 10))
    assert path.stat().st_size * 250 < 3_000_000
    assert sum(1 for _ in read_corpus(path)) == 10


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("damage", ["cut short", "corrupt"])
def test_a_broken_stream_keeps_what_came_before(tmp_path: Path, suffix: str, damage: str) -> None:
    lines = [json.dumps({"id": n, "text": os.urandom(20).hex()}).encode() + b"\n" for n in range(6_000)]
    if damage == "cut short":
        packed = PACK[suffix](b"".join(lines))[:-1000]
    else:
        packed = PACK[suffix](b"".join(lines[:4_500])) + b"garbage" + PACK[suffix](b"".join(lines[4_500:]))
    broken = write(tmp_path, f"docs.jsonl.{suffix}", packed)
    after = write(tmp_path, "after.jsonl", '{"id": "z", "text": "x"}')
    assert re.search(rf":\d+: the \w+ stream is {damage}.*Way out: fetch the file again", refusal(broken))
    ids, reasons, entries = without_bad_rows(broken, after)
    assert reasons == {"compression": 1}
    assert ids[-1] == "z"
    assert ids[:-1] == [str(n) for n in range(len(ids) - 1)]
    assert len(ids) > 3_000
    assert entries[0]["line"] == len(ids)
    assert "the rest of the file is left out" in entries[0]["message"]


def test_a_file_that_is_not_compressed_at_all(tmp_path: Path) -> None:
    for suffix in PACK:
        assert "is corrupt" in refusal(write(tmp_path, f"docs.jsonl.{suffix}", GOOD[0]))


# --- Parquet and Arrow


def test_files_that_are_not_parquet_or_arrow(tmp_path: Path) -> None:
    for name in ("docs.parquet", "docs.arrow"):
        path = write(tmp_path, name, b"PAR1 certainly not" * 10)
        assert re.match(rf"{re.escape(str(path))}:1: not a readable \w+ file: ", refusal(path))
        ids, reasons, _ = without_bad_rows(path, write(tmp_path, "docs.jsonl", GOOD[0]))
        assert (ids, reasons) == (["a"], {"malformed": 1})


def test_a_parquet_file_damaged_in_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "docs.parquet"
    rows = pa.table({"text": [os.urandom(20).hex() for _ in range(5_000)]})
    pq.write_table(rows, path, row_group_size=1000, write_page_checksum=True, use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    ids, reasons, _ = without_bad_rows(path)
    assert reasons == {"malformed": 1}
    texts = rows.column("text").to_pylist()[: len(ids)]
    assert ids == [document.id for document in read_corpus(write(tmp_path, "same.txt", "\n".join(texts)))]


def test_only_the_row_with_bad_bytes_is_left_out_of_an_arrow_file(tmp_path: Path) -> None:
    text = pa.array([b"first", b"caf\xe9", b"last"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"id": ["a", "b", "c"], "text": text}), tmp_path / "docs.parquet")
    entry = check(
        tmp_path / "docs.parquet",
        "encoding",
        'column "text" holds bytes that are not UTF-8: unexpected end of data at byte 4',
        way_out="write the column as UTF-8",
    )
    assert json.loads(entry["raw"]) == {"id": "b", "text": None}


def test_bad_bytes_are_found_in_nested_and_dictionary_columns(tmp_path: Path) -> None:
    bad = pa.array([b"x", b"\xff", b"z"], pa.binary()).view(pa.string())
    columns = [pa.StructArray.from_arrays([bad], ["name"]), pa.ListArray.from_arrays(pa.array([0, 1, 2, 3]), bad)]
    for column in (*columns, pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), bad)):
        table = pa.table({"id": ["a", "b", "c"], "text": ["x"] * 3, "tags": column})
        with pa.ipc.new_file(tmp_path / "docs.arrow", table.schema) as writer:
            writer.write_table(table)
        ids, reasons, _ = without_bad_rows(tmp_path / "docs.arrow")
        assert (ids, reasons) == (["a", "c"], {"encoding": 1}), column.type


def ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue().to_pybytes())


@pytest.mark.parametrize(("name", "pack"), [("docs.arrow", ipc), ("docs.parquet", parquet)])
def test_flipped_bits_are_rejected_and_never_followed(
    tmp_path: Path, name: str, pack: Callable[[pa.Table], bytes]
) -> None:
    names = [f"d{number}" for number in range(50)]
    nested = [{"n": 1, "tags": ["a", "b"]}] * 50
    good = pack(pa.table({"id": names, "text": names, "nested": nested, "k": pa.array(names).dictionary_encode()}))
    random = Random(0)
    for _ in range(150):
        data = bytearray(good)
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        corpus = read_corpus(write(tmp_path, name, data), on_error="skip")
        try:
            count = sum(1 for _ in corpus)
        except CorpusError:
            continue  # a column name that is no longer what it was
        assert count <= 50


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


def test_nanoseconds_that_do_not_fit_are_never_rounded(tmp_path: Path) -> None:
    stamps = pa.array([0, 1, 1000], pa.timestamp("ns"))
    pq.write_table(pa.table({"id": ["a", "b", "c"], "text": ["x"] * 3, "t": stamps}), tmp_path / "docs.parquet")
    check(tmp_path / "docs.parquet", "type", "would lose data: 1", way_out="pass --column t:string to read it as text")


def test_rows_of_parquet_are_named_by_their_number(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["a", "b", "c"], "text": ["x", None, "z"]}), tmp_path / "docs.parquet")
    entry = check(tmp_path / "docs.parquet", "text", '"text" is null', document_id="b")
    assert json.loads(entry["raw"]) == {"id": "b", "text": None}


def test_types_that_cannot_be_stored(tmp_path: Path) -> None:
    for values in (pa.array([10**19], pa.uint64()), pa.array([5], pa.duration("s"))):
        pq.write_table(pa.table({"id": ["a"], "text": ["x"], "v": values}), tmp_path / "docs.parquet")
        assert 'metadata column "v" holds' in refusal(tmp_path / "docs.parquet")
        (document,) = read_corpus(tmp_path / "docs.parquet", config=CorpusConfig(columns={"v": "string"}))
        assert document.metadata["v"] in ("10000000000000000000", "0:00:05")


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
    with pytest.raises(ConfigError, match=r"--rejects .* cannot be made, for .*docs.jsonl is a file"):
        read_corpus(path, on_error="skip", rejects=path / "rejects.jsonl")


def test_a_file_the_machine_cannot_read_is_fatal_even_when_skipping(tmp_path: Path) -> None:
    for name in ("docs.jsonl", "docs.parquet", "docs.csv.gz"):
        path = write(tmp_path, name, b"x")
        corpus = read_corpus(path, on_error="skip")
        path.unlink()
        with pytest.raises(CorpusError, match=f"{name}: cannot be read: No such file or directory"):
            list(corpus)
