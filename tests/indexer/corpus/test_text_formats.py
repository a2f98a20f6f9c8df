"""Malformed JSON, CSV, TSV and plain text: errors with file and line, and no other row is lost."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.corpus.corpus import read_corpus
from indexer.corpus.readers.streams import MAX_LINE_BYTES
from indexer.corpus.readers.text import _csv_records, _CsvLines
from tests.indexer.corpus.corpus_files import check, jsonl, refusal, without_bad_rows, write

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
    entry = check(path, "encoding", "the row contains bytes that are not UTF-8", line=3)
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
    what = f'column "{column}" contains half of a character'
    path = jsonl(tmp_path, row)
    assert what in refusal(path)
    ids, reasons, entries = without_bad_rows(path)
    assert (ids, reasons, entries[0]["id"]) == (["a", "c"], {"surrogate": 1}, document_id)


@pytest.mark.parametrize(
    "row", ['{"_id": "b", "text": "\\u0000"}', '{"_id": "b", "text": "x", "m": {"k": ["\\u0000"]}}']
)
def test_nul_characters_anywhere(tmp_path: Path, row: str) -> None:
    check(jsonl(tmp_path, row), "nul", "contains a NUL character", document_id="b")


def test_nul_characters_in_plain_text(tmp_path: Path) -> None:
    kept = [document.id for document in read_corpus(write(tmp_path, "good.txt", "a\n"))]
    check(write(tmp_path, "docs.txt", "a\nb\0b\n"), "nul", 'column "text" contains a NUL character', kept=kept)


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
            "the quote opened on line 3 is not closed; lines 4 to 5 are read again",
            [3],
        ),
        (['b,"open'], "the quote opened on line 3 is not closed", [3]),
        (
            ['b,"open', "c,last", 'd,"quoted"', "e,more"],
            "',' expected after '\"' on line 5, in the field of the quote opened on line 3; lines 4 to 5 are read",
            [3],
        ),
        # the record begins on line 3, its open quote on line 4
        (
            ['"b', 'c","open', "c,last"],
            "the quote opened on line 4 is not closed (the row is lines 3 to 4); line 5 is read again",
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
    monkeypatch.setattr("indexer.corpus.readers.text.MAX_LINE_BYTES", 1000)
    rows = [f"d{number},some text" for number in range(200)]
    path = write(tmp_path, "docs.csv", "\n".join(["id,text", 'a,"open', *rows]))
    assert "opened on line 2 is not closed; lines 3 to 79 are read again" in refusal(path)
    assert without_bad_rows(path)[:2] == ([f"d{number}" for number in range(200)], {"malformed": 1})
    # lines that leave a quote open both inside and outside of a quoted field
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
        patch.setattr("indexer.corpus.readers.text._CsvLines", Counting)
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
    assert "Fix: " in message
