"""The benchmark of BM25 on disk runs, at toy size, and both ways answer the same questions."""

import json
from pathlib import Path

from click.testing import CliRunner

from benchmarks import hybrid
from tests.documents import DOCUMENTS


def test_the_command_prints_a_table_and_saves_it(tmp_path: Path) -> None:
    rows = [{"id": document.id, "title": document.title, "text": document.text} for document in DOCUMENTS]
    corpus = tmp_path / "docs.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    arguments = [str(corpus), "--documents", "50", "--queries", "3", "-o", str(tmp_path / "out.json")]
    done = CliRunner().invoke(hybrid.main, arguments)
    assert done.exit_code == 0, done.output
    assert "query ms" in done.output
    saved = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert saved["documents"] == 50
    assert [len(row) for row in saved["results"]] == [7, 7]
    assert all(row["MB / 100k"] > 0 for row in saved["results"])


def test_a_small_corpus_is_repeated_under_other_ids_and_texts(tmp_path: Path) -> None:
    corpus = tmp_path / "docs.jsonl"
    corpus.write_text('{"id": "a", "text": "whale"}\n{"id": "b", "text": "song"}\n', encoding="utf-8")
    texts = hybrid._repeated(str(corpus))
    assert [next(texts) for _ in range(5)] == [
        ("a", "whale"), ("b", "song"), ("a 1", "whale 1"), ("b 1", "song 1"), ("a 2", "whale 2"),
    ]  # fmt: skip
    assert hybrid._questions(str(corpus), 1) == ["whale"]
