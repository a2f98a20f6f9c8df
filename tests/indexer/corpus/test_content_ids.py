"""Documents without ids get a hash of their content: the same tomorrow, in another file and in another order."""

import csv
import io
import json
import tempfile
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer import add_documents, build_index
from indexer.corpus.corpus import read_corpus
from indexer.corpus.document import Document
from indexer.corpus.ids import content_id
from indexer.errors import CorpusError
from indexer.pipeline.add import AddReport
from indexer.recipe.config import BuildConfig
from indexer.recipe.corpus_config import CorpusConfig
from search.index import Index

TAGGED = {"year": 2020, "lang": "fr", "tags": ["a", None, 1.5], "deep": {"b": True, "a": 2.0}}
TYPED = {
    "at": datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC),
    "day": date(2020, 1, 2),
    "price": Decimal("1.50"),
    "raw": b"\x00\xff",
    "noon": time(12),
}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        # b2sum -l 128 of: [null,"Whales sing.",{}]
        (Document("", "Whales sing."), "015326357a78060400d5e207d435bc4f"),
        (Document("", "Whales sing.", "Whales"), "f8b0a876e0f3de65a3306ed7a4309929"),
        (Document("", "Whales sing.", ""), "b69253dbb8a7625791a576fffa7d4e27"),
        (Document("", 'crème \u2028 "brûlée"', None, TAGGED), "67795fb3bd486e495125186e043d7cc1"),
        (Document("", "t", None, TYPED), "ff9a91b8f983bad98bb42b43c4498211"),
        (Document("", "", vector=np.array([0.5, -1.25, 3], np.float32)), "ef1c241a45e27c8b7b89175aacc22330"),
    ],
)
def test_the_id_of_a_content_never_changes(document: Document, expected: str) -> None:
    assert content_id(document) == expected


def test_the_id_does_not_hang_on_how_a_content_is_written() -> None:
    one = Document("", "t", None, {"a": 1, "b": {"x": 2.5, "y": Decimal("100")}, "c": 0})
    other = Document("", "t", None, {"c": -0.0, "b": {"y": Decimal("1E2"), "x": 2.5}, "a": 1.0})
    assert one == other
    assert content_id(one) == content_id(other)
    contents = [None, "x", 1, True, 1.5, "1", ["x"], {"x": 1}, b"x", date(2020, 1, 1), datetime(2020, 1, 1)]
    assert len({content_id(Document("", "t", None, {"a": value})) for value in contents}) == len(contents)


# --- reading


def write(path: Path, lines: Iterable[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def ids(*sources: Path, **options: Any) -> list[str]:
    return [document.id for document in read_corpus(*sources, **options)]


def test_the_same_row_has_the_same_id_in_every_format(tmp_path: Path) -> None:
    rows = [{"text": "one", "n": 1.5}, {"text": "two", "n": 2.0}]
    write(tmp_path / "a.jsonl", map(json.dumps, rows))
    with (tmp_path / "a.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ["n", "text"])
        table.writeheader()
        table.writerows(rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    expected = [content_id(Document("", "one", None, {"n": 1.5})), content_id(Document("", "two", None, {"n": 2}))]
    for name in ("a.jsonl", "a.csv", "a.parquet"):
        assert ids(tmp_path / name, config=CorpusConfig(columns={"n": "float"})) == expected


@given(st.lists(st.sampled_from(["one", "two", "three"]), max_size=40), st.integers(1, 4))
def test_equal_rows_are_numbered_in_their_order_and_none_is_lost(lines: list[str], remembered: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("indexer.corpus.ids._REMEMBERED", remembered)
        corpus = read_corpus(write(Path(folder, "lines.txt"), lines))
        met: Counter[str] = Counter()
        expected = []
        for line in lines:
            met[line] += 1
            made = content_id(Document("", line))
            expected.append(made if met[line] == 1 else f"{made}-{met[line]}")
        assert [document.id for document in corpus] == expected
        assert corpus.report.repeated == len(lines) - len(met)


def test_an_id_that_was_given_is_not_taken_by_a_row_without(tmp_path: Path) -> None:
    made = content_id(Document("", "one"))
    given_first = write(tmp_path / "a.jsonl", [json.dumps({"id": made, "text": "other"})])
    without = write(tmp_path / "b.txt", ["one", "two"])
    with pytest.raises(CorpusError, match=r"b\.txt:1: the row has no id, and the hash of its content is the id at"):
        ids(given_first, without)
    with pytest.raises(CorpusError, match=r"a\.jsonl:1: the id was already used at .*b\.txt:1"):
        ids(without, given_first)
    assert ids(given_first, without, on_error="skip") == [made, content_id(Document("", "two"))]


# --- the life of an index


def stored(index: Path) -> list[str]:
    return sorted(document.text for document in Index.open(index).documents.all_documents())


def added(index: Path, file: Path) -> AddReport:
    return add_documents(read_corpus(file), index)


def test_an_added_file_of_the_same_name_replaces_nothing(tiny_config: BuildConfig, tmp_path: Path) -> None:
    index = tmp_path / "index"
    january = write(tmp_path / "jan/notes.txt", ["whales sing", "bees dance"])
    february = write(tmp_path / "feb/notes.txt", ["bread rises", "bees dance", "bread rises"])
    build_index(read_corpus(january), index, tiny_config)
    report = added(index, february)
    assert (report.added, report.replaced, report.unchanged) == (2, 0, 1)
    assert stored(index) == ["bees dance", "bread rises", "bread rises", "whales sing"]
    for _ in range(2):
        again = added(index, february)
        assert (again.added, again.replaced, again.unchanged, again.documents) == (0, 0, 3, 4)
    third = added(index, write(tmp_path / "all.txt", ["bees dance"] * 3))
    assert (third.added, third.replaced, third.unchanged) == (2, 0, 1)


def test_a_made_id_never_replaces_a_document_that_was_edited(tiny_config: BuildConfig, tmp_path: Path) -> None:
    index, notes = tmp_path / "index", write(tmp_path / "notes.txt", ["whales sing", "bees dance"])
    build_index(read_corpus(notes), index, tiny_config)
    edited = {"id": content_id(Document("", "bees dance")), "text": "bees dance in circles"}
    assert added(index, write(tmp_path / "edited.jsonl", [json.dumps(edited)])).replaced == 1
    with pytest.raises(CorpusError, match="came without an id, and the id made from its content belongs to"):
        added(index, notes)
    assert stored(index) == ["bees dance in circles", "whales sing"]


def test_lines_of_standard_input_are_documents_of_their_own(
    tiny_config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "index"

    def piped(lines: str) -> Any:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
        return read_corpus("-", format="text")

    build_index(piped("whales sing\n"), index, tiny_config)
    assert add_documents(piped("bread rises\n"), index).added == 1
    assert stored(index) == ["bread rises", "whales sing"]
