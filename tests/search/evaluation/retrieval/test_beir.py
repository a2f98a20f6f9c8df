"""Reading BEIR folders: queries and judgements, notes, and errors with their place."""

import gzip
import json
from pathlib import Path

import pytest

from indexer.errors import EvaluationError
from search.evaluation.retrieval.beir import JudgedQueries, read_judged

HEADER = "query-id\tcorpus-id\tscore\n"
QUERIES: list[dict[str, object]] = [
    {"_id": "q1", "text": "whale song"},
    {"_id": "q2", "text": "steel bridges"},
    {"_id": "q3", "text": "bees"},
]


def folder(path: Path, qrels: str, queries: list[dict[str, object]] | str | None = None, split: str = "test") -> Path:
    """A BEIR folder without a corpus, which `read_judged` does not read."""
    given = QUERIES if queries is None else queries
    text = given if isinstance(given, str) else "".join(json.dumps(query) + "\n" for query in given)
    (path / "qrels").mkdir(exist_ok=True)
    (path / "queries.jsonl").write_text(text, encoding="utf-8")
    (path / "qrels" / f"{split}.tsv").write_text(qrels, encoding="utf-8")
    return path


def refusal(path: Path, split: str = "test") -> str:
    with pytest.raises(EvaluationError) as caught:
        read_judged(path, split)
    return str(caught.value)


def test_queries_and_graded_judgements_are_read(tmp_path: Path) -> None:
    judged = read_judged(folder(tmp_path, HEADER + "q2\td1\t2\nq1\td1\t1\nq1\td2\t0\n"))
    assert judged.queries == {"q1": "whale song", "q2": "steel bridges"}
    assert judged.judgements == {"q1": {"d1": 1, "d2": 0}, "q2": {"d1": 2}}
    assert list(judged.judgements) == list(judged.queries), "both in the order of the queries"


@pytest.mark.parametrize(
    "lines",
    [
        HEADER + "q1\td 1\t1\n",
        "q1\td 1\t1\n",
        "query_id\tdoc_id\trelevance\r\nq1\td 1\t1\r\n",
        "q1\t0\td 1\t1\n",
        "q1\tQ0\td 1\t1\n\n  \n",
    ],
    ids=["header", "no header", "other header, Windows", "TREC by tabs", "blank lines"],
)
def test_the_usual_forms_of_qrels_are_the_same(lines: str, tmp_path: Path) -> None:
    assert read_judged(folder(tmp_path, lines)).judgements == {"q1": {"d 1": 1}}


def test_trec_qrels_by_spaces_and_in_a_txt_file_are_read(tmp_path: Path) -> None:
    folder(tmp_path, "")
    (tmp_path / "qrels/dev.txt").write_text("q1 0 d1 1\nq1 0 d2 -1\n")
    assert read_judged(tmp_path, "dev").judgements == {"q1": {"d1": 1, "d2": -1}}


def test_compressed_files_are_read(tmp_path: Path) -> None:
    folder(tmp_path, HEADER + "q1\td1\t1\n")
    for name in ("queries.jsonl", "qrels/test.tsv"):
        path = tmp_path / name
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    judged = read_judged(tmp_path)
    assert judged.queries == {"q1": "whale song"}
    assert set(judged.files) == {"queries.jsonl.gz", "qrels/test.tsv.gz"}


def test_a_title_stands_before_the_text_and_ids_may_be_numbers(tmp_path: Path) -> None:
    queries: list[dict[str, object]] = [{"_id": 1, "title": " Whales ", "text": " sing "}, {"id": "2", "text": "a"}]
    judged = read_judged(folder(tmp_path, "1\td1\t1\n2\td1\t1\n", queries))
    assert judged.queries == {"1": "Whales sing", "2": "a"}


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    judged = read_judged(folder(tmp_path, HEADER + "q1\td1\t1\nq1\td1\t1\nq2\td1\t0\n"))
    assert list(judged.queries) == ["q1"]
    assert judged.notes == (
        "1 of 3 queries left out, without a judgement in qrels/test.tsv",
        "1 query left out of the means, without a relevant document in qrels/test.tsv",
        "qrels/test.tsv repeats 1 line",
    )


def test_every_file_is_hashed(tmp_path: Path) -> None:
    first = read_judged(folder(tmp_path, HEADER + "q1\td1\t1\n")).files
    second = read_judged(folder(tmp_path, HEADER + "q1\td1\t2\n")).files
    assert first["queries.jsonl"] == second["queries.jsonl"]
    assert first["qrels/test.tsv"] != second["qrels/test.tsv"]


@pytest.mark.parametrize(
    ("lines", "place", "what"),
    [
        (HEADER + "q1\td1\n", ":2:", "found 2 columns; expected three"),
        (HEADER + "q1\td1\t1\nq1 d2\n", ":3:", "found 2 columns"),
        ("q1\t\t1\n", ":1:", "found 2 columns"),
        (HEADER + "q1\td1\t0.5\n", ":2:", 'the score is "0.5"; expected a whole number'),
        ("q1\td1\thigh\n", ":1:", 'the score is "high"'),
        (HEADER + HEADER, ":2:", 'the score is "score"'),
        (HEADER + "q1\td1\t1\nq1\td1\t2\n", ":3:", "have score 2 here and 1 in line 2"),
    ],
)
def test_a_bad_line_is_named(lines: str, place: str, what: str, tmp_path: Path) -> None:
    message = refusal(folder(tmp_path, lines))
    assert f"test.tsv{place}" in message
    assert what in message


def test_a_qrels_line_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    folder(tmp_path, "")
    (tmp_path / "qrels/test.tsv").write_bytes(b"q1\td1\t1\nq\xff\td1\t1\n")
    assert "test.tsv:2: byte 2 of the line, 0xff, is not UTF-8" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("queries", "place", "what"),
    [
        ('{"_id": "q1", "text": "a"}\nnot json\n', ":2:", "not a JSON object"),
        ('{"text": "a"}\n', ":1:", 'no "_id"'),
        ('{"_id": true, "text": "a"}\n', ":1:", 'no "_id"'),
        ('{"_id": "q1", "_id": "q2", "text": "a"}\n', ":1:", 'one object has the key "_id" twice'),
        ('{"_id": "q1"}\n', ":1:", '"text" is missing or null'),
        ('{"_id": "q1", "text": 5}\n', ":1:", '"text" is of type int'),
        ('{"_id": "q1", "text": " "}\n', ":1:", "is blank"),
        ('{"_id": "q1", "text": "a"}\n{"_id": "q1", "text": "b"}\n', ":2:", "is used twice"),
    ],
)
def test_a_bad_query_is_named(queries: str, place: str, what: str, tmp_path: Path) -> None:
    message = refusal(folder(tmp_path, "q1\td1\t1\n", queries))
    assert f"queries.jsonl{place}" in message
    assert what in message


def test_judged_queries_without_a_text_are_counted_and_the_first_is_named(tmp_path: Path) -> None:
    lines = "".join(f"{query}\td1\t1\n" for query in ("q1", "x1", "x2", "x3", "x4"))
    message = refusal(folder(tmp_path, lines))
    assert "test.tsv:2: 4 of 5 judged queries (x1, x2, x3, ...) are not in" in message


@pytest.mark.parametrize(
    ("lines", "what"), [("", "contains no judgements"), (HEADER, "no judgements"), ("q1\td1\t0\n", "judged relevant")]
)
def test_an_empty_task_is_refused(lines: str, what: str, tmp_path: Path) -> None:
    assert what in refusal(folder(tmp_path, lines))


def test_a_missing_split_names_those_that_are_there(tmp_path: Path) -> None:
    assert 'the folder has dev. Fix: pass split="dev"' in refusal(folder(tmp_path, "q1\td1\t1\n", split="dev"))


def test_a_folder_that_is_none_or_not_beirs_is_refused(tmp_path: Path) -> None:
    assert "there is no such folder" in refusal(tmp_path / "absent")
    assert "expected a BEIR folder with queries.jsonl, but the file is missing" in refusal(tmp_path)
    (tmp_path / "queries.jsonl").write_text('{"_id": "q1", "text": "a"}\n')
    assert "the folder has no qrels" in refusal(tmp_path)


def test_missing_documents_are_noted_unless_all_are(tmp_path: Path) -> None:
    judged = read_judged(folder(tmp_path, "q1\td1\t1\nq1\td2\t1\nq1\td3\t0\n"))
    assert judged.match({"d1", "d2", "d3"}) == ()
    assert judged.match({"d1"}) == (
        "2 of 3 judged documents are not among the searched documents (d2, d3); the relevant ones count as not found",
    )
    with pytest.raises(EvaluationError, match=r"none of the 3 judged documents \(d1, d2, d3\) .* the ids do not match"):
        judged.match({"1", "2"})


def test_the_collections_at_hand_are_read_whole(shared: Path) -> None:
    cacm, scifact = (read_judged(shared / "data" / name) for name in ("cacm", "scifact"))
    assert (len(cacm.queries), judgement_count(cacm)) == (52, 796)
    assert (len(scifact.queries), judgement_count(scifact)) == (300, 339)


def judgement_count(judged: JudgedQueries) -> int:
    return sum(map(len, judged.judgements.values()))
