"""Answers as tables of Arrow, pandas and Polars, and in notebooks."""

import copy
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from indexer import BuildConfig, Document, build_index
from indexer.errors import ConfigError, MachineError
from indexer.recipe.config import EncoderConfig
from indexer.store.manifest import SegmentEntry
from search import Index, SearchEngine
from search.hits import Answer, Hit, HybridScores, Window

FIXED = {"rank": pa.int64(), "id": pa.string(), "score": pa.float64(), "title": pa.string(), "text": pa.string()}
HITS = [
    Hit("a", 0.75, "Title", "Text", {"year": 2**60 + 1, "day": date(2020, 1, 2), "price": Decimal("1.50"), "ok": True}),
    Hit("b", 0.5, None, "Other", {"tags": ["x", "y"], "at": datetime(2020, 1, 2, tzinfo=UTC), "by": {"name": "N"}}),
]
HOSTILE = Hit("<i>", 0.25, "<script>alert(1)</script>", '<b>&"\x1b[0m\u202e', {})


def types_of(table: pa.Table) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in table.schema}


def test_a_table_has_a_row_for_each_hit_and_keeps_the_types_of_metadata() -> None:
    table = Answer(HITS).to_arrow()
    metadata = {
        "year": pa.int64(),
        "day": pa.date32(),
        "price": pa.decimal128(3, 2),
        "ok": pa.bool_(),
        "tags": pa.list_(pa.string()),
        "at": pa.timestamp("us", "UTC"),
        "by": pa.struct({"name": pa.string()}),
    }
    assert types_of(table) == FIXED | metadata
    for rank, (row, hit) in enumerate(zip(table.to_pylist(), HITS, strict=True), start=1):
        fixed = {"rank": rank, "id": hit.id, "score": hit.score, "title": hit.title, "text": hit.text}
        assert row == fixed | {name: hit.metadata.get(name) for name in metadata}


def test_an_answer_without_hits_is_a_table_with_the_fixed_columns() -> None:
    assert types_of(Answer[Hit]().to_arrow()) == FIXED
    assert list(Answer[Hit]().to_pandas().columns) == list(Answer[Hit]().to_polars().columns) == list(FIXED)


def test_parts_of_a_hit_are_columns_where_a_hit_has_them() -> None:
    window = Window(3, 7, "text", {"text": (3, 7)})
    hit = Hit("a", 0.5, None, "A text", {}, window, (), 2, HybridScores(0.4, 3.5), 7.25)
    parts = {"rerank_score": 7.25, "vector_score": 0.4, "bm25_score": 3.5, "window_start": 3, "window_end": 7,
             "folded_count": 2}  # fmt: skip
    first, second = Answer([hit, *HITS[1:]]).to_arrow().to_pylist()
    assert {name: first[name] for name in parts} == parts
    assert {name: second[name] for name in parts} == dict.fromkeys(parts)


def test_metadata_with_the_name_of_a_column_gets_a_longer_name() -> None:
    hit = Hit("a", 0.5, None, "x", {"score": "high", "rerank_score": 3, "metadata.score": "low", "text_id": 1})
    (row,) = Answer([hit]).to_arrow().to_pylist()
    assert (row["score"], row["metadata.metadata.score"], row["metadata.score"]) == (0.5, "high", "low")
    assert (row["metadata.rerank_score"], row["text_id"]) == (3, 1)
    assert "rerank_score" not in row


def test_pandas_keeps_whole_numbers_and_booleans_of_columns_with_gaps() -> None:
    pytest.importorskip("pandas")
    frame = Answer(HITS).to_pandas()
    assert {name: str(frame[name].dtype) for name in ("rank", "score", "year", "ok")} == {
        "rank": "int64",
        "score": "float64",
        "year": "Int64",
        "ok": "boolean",
    }
    assert (frame["year"][0], frame["id"].tolist()) == (2**60 + 1, ["a", "b"])
    assert str(Answer(HITS[:1]).to_pandas()["year"].dtype) == "int64"


def test_polars_has_the_types_of_the_table() -> None:
    pl = pytest.importorskip("polars")
    frame = Answer(HITS).to_polars()
    assert (frame.schema["year"], frame.schema["day"], frame.schema["tags"]) == (pl.Int64, pl.Date, pl.List(pl.String))
    assert frame["year"].to_list() == [2**60 + 1, None]


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_missing_package_is_named_with_its_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MachineError, match=rf"needs the package {package}.*isotrope\[{package}\]"):
        getattr(Answer(HITS), f"to_{package}")()


def test_repr_shows_the_first_hits() -> None:
    assert repr(Answer()) == "Answer(0 hits)"
    assert repr(Answer(HITS[:1])) == 'Answer(1 hit: 0.750 a "Title")'
    lost = (SegmentEntry("index.00000001.faiss", 0, 3, "Flat"),)
    assert repr(Answer(HITS * 2, lost)) == (
        'Answer(4 hits: 0.750 a "Title", 0.500 b "Other", 0.750 a "Title", ..., 1 segment missing)'
    )
    long = repr(Answer([Hit("i" * 900, 0.5, " ", "word " * 100_000, {})] * 900))
    assert len(long) < 400
    assert "\x1b" not in repr(Answer([HOSTILE]))
    assert Answer(HITS) == HITS


class Cells(HTMLParser):
    """The tags and the texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.texts = set[str](), list[str]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


TAGS = {"table", "caption", "thead", "tbody", "tr", "th", "td"}


def test_a_notebook_shows_a_table_of_escaped_texts() -> None:
    page = Cells(Answer([*HITS, HOSTILE])._repr_html_() or "")
    assert page.tags == TAGS
    assert page.texts == ["3 hits", "score", "id", "title", "text", "1", "0.750", "a", "Title", "Text", "2", "0.500",
                          "b", "Other", "3", "0.250", "<i>", HOSTILE.title, '<b>&"\\x1b[0m\\u202e']  # fmt: skip
    reranked = Hit("a", 0.5, None, "A text", {}, Window(2, 6, "text", {"text": (2, 6)}), rerank_score=2)
    assert Cells(Answer([reranked])._repr_html_() or "").texts == [
        *("1 hit", "rerank score", "score", "id", "text"),
        *("1", "2.000", "0.500", "a", "text"),
    ]
    assert Cells(Answer(HITS * 50)._repr_html_() or "").texts[0] == "100 hits, the first 20 shown"
    assert Cells(Answer()._repr_html_() or "").texts == ["0 hits"]


@pytest.fixture(scope="module")
def index(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("an <index>") / "index"
    documents = [Document(f"d{number}", f"Text {number}", metadata={"n": number}) for number in range(1200)]
    build_index(documents, folder, BuildConfig(encoder=EncoderConfig(model=str(tiny_model("bert")), max_length=16)))
    return folder


def test_ranked_documents_have_no_texts_for_a_table(index: Path) -> None:
    with SearchEngine(index) as engine:
        (ranked,) = engine.rank(["text 3"], 2)
        (hits,) = engine.hits([ranked])
        assert repr(ranked).startswith("Answer([RankedDocument(")
        assert ranked._repr_html_() is None
        with pytest.raises(ConfigError, match=r"without texts; expected hits\. Fix: call SearchEngine\.hits"):
            ranked.to_arrow()  # type: ignore[misc]
        assert hits.to_arrow()["n"].to_pylist() == [hit.metadata["n"] for hit in hits]


def test_an_answer_makes_its_hits_once_and_equals_the_list_of_them(index: Path) -> None:
    with SearchEngine(index) as engine:
        answer, other = engine.search_many(["text 3", "text 30"], 3)
    assert len(answer) == 3
    assert answer[0] is answer[0]
    assert answer == list(answer) == copy.copy(answer) == copy.deepcopy(answer)
    assert answer[1:] == [answer[1], answer[2]] == [*answer][1:]
    assert answer != other
    assert answer[0] in answer
    assert answer != (answer[0],)


def test_an_answer_of_an_index_without_hits_has_its_metadata_columns(index: Path) -> None:
    with SearchEngine(index) as engine:
        none = engine.search("text 3", where="n < 0")
        assert types_of(none.to_arrow()) == types_of(none[:3].to_arrow()) == FIXED | {"n": pa.int64()}
        some = engine.search("text 3", k=2)
    pd = pytest.importorskip("pandas")
    titled = Answer([Hit("t", 0.5, "A title", "Text", {"n": 1})])
    table = pd.concat(
        [answer.to_pandas().assign(query=name) for name, answer in {"a": none, "b": some, "c": titled}.items()]
    )
    assert (list(table.columns), table["query"].tolist()) == ([*FIXED, "n", "query"], ["b", "b", "c"])
    assert table["title"].isna().tolist() == [True, True, False]
    assert str(table["n"].dtype) == "int64"


def test_an_index_and_its_engine_show_their_main_facts(index: Path) -> None:
    opened = Index.open(index)
    facts = {
        "path": str(index),
        "generation": "1",
        "documents": "1,200",
        "dimensions": f"{opened.transform.dim:,}",
        "model": opened.manifest.encoder["model"],
        "search": "Flat",
        "recall@10": "1.000",
    }
    rest = ", ".join(f"{name} {fact}" for name, fact in list(facts.items())[1:])
    assert repr(opened) == f'Index("{index}", {rest})'
    page = Cells(opened._repr_html_())
    assert page.tags == TAGS - {"thead", "th"}
    assert page.texts == ["Index", *(text for fact in facts.items() for text in fact)]
    with SearchEngine(index) as engine:
        assert repr(engine) == f"SearchEngine({opened!r})"
        assert engine._repr_html_() == opened._repr_html_()
