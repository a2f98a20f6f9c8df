"""A question with a name finds its definition first, by hybrid search of source code."""

from pathlib import Path

import pytest

from indexer.corpus.document import Document
from indexer.corpus.files.outline_code import definitions_of
from indexer.recipe.ranking import OF_CODE, HybridConfig
from search.ranking.bm25 import BM25, BM25Ranking
from search.ranking.definitions import Definitions
from search.ranking.exact import id_order

COLUMNS = ("title", "text")
DEFINING = '''"""Files."""


def read_file(path):
    """Read it whole."""
    return open(path).read()


def close(handle):
    handle.close()
'''
USING = "from files import read_file\n\nread_file(1)\nread_file(2)\nread_file(3)\nhandle.close()\n"
FILES = {
    "files.py": DEFINING,
    "use.py": USING,
    "notes.md": "# How read_file works\n\nread_file reads, read_file ends.\n",
}


def document(name: str, text: str) -> Document:
    return Document(name, text, title=name, metadata={"suffix": Path(name).suffix})


def ranking(with_definitions: bool = True) -> tuple[list[str], BM25Ranking]:
    documents = [document(name, text) for name, text in FILES.items()]
    if not definitions_of(DEFINING, "python"):
        pytest.skip("the grammar of python is not installed")
    whole = [f"{each.title} {each.text.strip()}" for each in documents]
    if with_definitions:
        whole = [Definitions(each, COLUMNS).of(text, 0) for each, text in zip(documents, whole, strict=True)]
    ids = [each.id for each in documents]
    return ids, BM25Ranking.of(whole, id_order(ids), HybridConfig(**OF_CODE), "hybrid")


@pytest.mark.parametrize("question", ["read_file", "where is read_file defined", "what does read_file do"])
def test_the_file_that_defines_a_name_is_first(question: str) -> None:
    for with_definitions in (True, False):
        ids, by_words = ranking(with_definitions)
        (found,) = by_words.search([question], 1)
        assert (ids[found[1][0]] == "files.py") == with_definitions


def test_an_ordinary_word_that_is_defined_somewhere_does_not_count_in_a_question() -> None:
    _, by_words = ranking()
    assert by_words._named("close")
    assert by_words._named("closes the handle quickly")  # few texts have it
    texts = ["close"] * 20 + [
        Definitions(document("files.py", DEFINING), COLUMNS).of(f"files.py {DEFINING.strip()}", 0)
    ]
    many = BM25Ranking(
        BM25.of(texts, "hybrid", HybridConfig(**OF_CODE)), id_order([]), HybridConfig(**OF_CODE), "hybrid"
    )
    assert many._named("close")
    assert not many._named("when do I close it")
    assert len(many._named("when is read_file called")) == 1


def test_a_window_has_the_names_that_it_defines() -> None:
    if not definitions_of(DEFINING, "python"):
        pytest.skip("the grammar of python is not installed")
    joined = f"files.py {DEFINING.strip()}"
    names, cut = Definitions(document("files.py", DEFINING), COLUMNS), joined.index("def close")
    assert names.of(joined[:cut], 0).split()[-2:] == ["\u02d0read_file"] * 2
    assert names.of(joined[cut:], cut).split()[-2:] == ["\u02d0close"] * 2
    assert Definitions(document("notes.md", FILES["notes.md"]), COLUMNS).of("a", 0) == "a"
