"""Windows by structure, from the build to the place of a hit in its file."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from indexer import BuildConfig, Document, add_documents, build_index, compact_index, delete_documents
from indexer.pipeline.steps import ingest
from indexer.recipe.config import EncoderConfig
from indexer.recipe.corpus_config import ChunkConfig
from indexer.recipe.index_config import StoreConfig
from search import SearchEngine, verify_index
from search.client.answers import ServedResult, decoded
from search.hits import Hit, Place
from tests.life import assert_equals_fresh_build

FOLDER = Path(__file__).parents[2] / "docs"
BOOK = "# Sea\n\nwhale song\n\f## Deep\n\nsinging for data " * 8


def files() -> list[Document]:
    """The pages of the documentation, as files, and a book with pages."""
    pages = [
        Document(path.name, path.read_text(), path.stem, {"path": path.name, "suffix": ".md"})
        for path in sorted(FOLDER.glob("*.md"))
    ]
    return [*pages, Document("book", BOOK, "Sea", {"path": "book.pdf", "suffix": ".pdf", "pages": 9})]


@pytest.fixture(scope="module")
def config(tiny_model: Callable[[str], Path]) -> BuildConfig:
    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=60, precision="float32")
    return BuildConfig(encoder=encoder, store=StoreConfig(part_documents=4), chunk=ChunkConfig(by="structure"))


@pytest.fixture(scope="module")
def index(config: BuildConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("structure") / "index"
    build_index(files(), path, config)
    return path


def test_the_lines_of_a_hit_are_those_of_its_file(index: Path) -> None:
    hits = SearchEngine(index).search("windows of documents", 50)
    assert len(hits) == len(files())
    for hit in hits:
        assert hit.window is not None
        assert hit.place is not None
        if hit.id == "book":
            continue
        assert hit.place.lines is not None
        first, last = hit.place.lines
        lines = (FOLDER / hit.id).read_text().split("\n")[first - 1 : last]
        start, end = hit.window.columns["text"]
        passage = hit.text[start:end].strip()
        assert passage in "\n".join(lines)
        assert (passage.split("\n")[0] in lines[0], passage.split("\n")[-1] in lines[-1]) == (True, True)
        for heading in hit.place.section:
            words = heading.split()
            assert any(line.startswith("#") and words[0] in line for line in hit.text.split("\n"))


def test_a_hit_in_a_book_has_a_page_and_a_section_but_no_lines(index: Path) -> None:
    book = next(hit for hit in SearchEngine(index).search("whale song", 50) if hit.id == "book")
    assert book.window is not None
    assert book.place is not None
    start, _ = book.window.columns["text"]
    assert book.place.page == 1 + BOOK.count("\f", 0, start)
    assert book.place.lines is None
    assert book.place.section[0] == "Sea"


def test_a_place_travels_as_json_and_in_tables(index: Path) -> None:
    hits = SearchEngine(index).search("whale song", 50)
    sent = json.dumps({"query": "q", "hits": [hit.to_dict() for hit in hits]}).encode()
    assert decoded("http://localhost", sent, ServedResult).hits == list(hits)
    rows = hits.to_arrow().to_pylist()
    assert [row["place_line"] for row in rows] == [hit.place and hit.place.lines and hit.place.lines[0] for hit in hits]
    assert {row["place_section"] for row in rows if row["id"] == "book"} <= {"Sea", "Sea > Deep"}
    assert ">section</th>" in (hits[:3]._repr_html_() or "")


@pytest.mark.parametrize("chunk", [ChunkConfig(), ChunkConfig(20, 4)])
def test_rows_without_structure_have_no_place(chunk: ChunkConfig, config: BuildConfig, tmp_path: Path) -> None:
    documents = [Document(f"d{number}", "# Sea\n\nwhale song for data", "Sea") for number in range(3)]
    build_index(documents, tmp_path / "index", replace(config, chunk=chunk))
    assert [hit.place for hit in SearchEngine(tmp_path / "index").search("whale", 3)] == [None] * 3


def test_a_table_by_structure_has_sections_only(config: BuildConfig, tmp_path: Path) -> None:
    build_index([Document("d", "# Sea\n\nwhale song for data")], tmp_path / "index", config)
    hit: Hit = SearchEngine(tmp_path / "index").search("whale", 1)[0]
    assert hit.place == Place(section=("Sea",))


@pytest.mark.parametrize("held", [0, 1 << 26])
def test_an_index_by_structure_that_lived_equals_a_fresh_build(
    held: int, config: BuildConfig, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "_HELD_BYTES", held)
    documents = files()
    build_index(documents[:-2], tmp_path / "index", config)
    add_documents(documents[-2:], tmp_path / "index")
    delete_documents(tmp_path / "index", [documents[0].id])
    compact_index(tmp_path / "index", keep=1, grace=0)
    assert_equals_fresh_build(tmp_path / "index", documents[1:], tmp_path / "fresh", config)
    assert verify_index(tmp_path / "index").passed
