"""BM25 of an index equals bm25s over its live documents, and is cached until they change."""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from indexer import BuildConfig, Document, add_documents, build_index, delete_documents, refit_index
from indexer.corpus.document import joined_text
from indexer.errors import CorruptIndexError, MachineError
from indexer.recipe.ranking import HybridConfig
from search import SearchEngine, SearchOptions
from search.index import Index
from search.ranking.bm25 import BM25Index, BM25Ranking
from search.ranking.exact import id_order
from tests.documents import DOCUMENTS

QUERIES = ["deep sea sand", "bees dance", "of the", "zeppelin", "sand sand glass"]
Answer = list[tuple[float, str]]


class Watcher:
    """Records the phases, with their expected number of documents."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, int | None]] = []
        self.done = 0

    def phase(self, name: str, total: int | None) -> None:
        self.phases.append((name, total))

    def advance(self, texts: int, tokens: int = 0) -> None:
        self.done += texts


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ISOTROPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "bm25"


@pytest.fixture
def index(tmp_path: Path, tiny_config: BuildConfig) -> Path:
    """An index of nine documents in parts of four."""
    build_index(DOCUMENTS, tmp_path / "index", tiny_config)
    return tmp_path / "index"


def answers(index: Path, k: int = 9, watcher: Watcher | None = None) -> list[Answer]:
    """Return (score, id) of the hits of `QUERIES`."""
    opened = Index.open(index)
    lexical, ids = BM25Index(opened, watcher), list(opened.documents.all_ids())
    found = lexical.search(QUERIES, k)
    assert [sorted(ids)[place] for place in lexical.places] == ids
    return [list(zip(scores.tolist(), (ids[n] for n in numbers), strict=True)) for scores, numbers in found]


def by_bm25s(documents: Sequence[Document], k: int = 9) -> list[Answer]:
    """Return the hits of a bm25s index of only these documents."""
    texts, ids = [joined_text(document, ("title", "text")) for document in documents], [d.id for d in documents]
    found = BM25Ranking.of(texts, id_order(ids), HybridConfig(), "eval").search(QUERIES, k)
    return [list(zip(scores.tolist(), (ids[n] for n in numbers), strict=True)) for scores, numbers in found]


def test_an_index_answers_as_bm25s_does_from_its_documents(index: Path) -> None:
    assert answers(index) == by_bm25s(DOCUMENTS)
    assert answers(index, k=1) == [answer[:1] for answer in by_bm25s(DOCUMENTS)]
    assert [len(answer) for answer in answers(index)] == [3, 1, 0, 0, 2]


def test_an_index_that_grew_and_shrank_answers_as_one_built_at_once(index: Path) -> None:
    changed = dataclasses.replace(DOCUMENTS[3], text="Sand bees: sand, sand and sea.")
    added = [changed, *(Document(f"a{number}", "The deep sea of sand.") for number in range(3))]
    add_documents(added, index)
    delete_documents(index, ["d0", "a1", "d8"])
    left = [document for document in DOCUMENTS if document.id not in ("d0", "d3", "d8")] + [
        document for document in added if document.id != "a1"
    ]
    assert answers(index) == by_bm25s(left)


def test_a_filter_leaves_out_hits_before_they_are_counted(index: Path) -> None:
    delete_documents(index, ["d1"])
    opened = Index.open(index)
    ids, lexical = list(opened.documents.all_ids()), BM25Index(opened)
    allowed = np.array([identity in ("d4", "d6", "d8") for identity in ids])
    (everything,) = lexical.search(["deep sea sand bees"], 9)
    (filtered,) = lexical.search(["deep sea sand bees"], 1, allowed)
    kept = [place for place, number in enumerate(everything[1]) if allowed[number]]
    assert len(kept) == 2 < len(everything[1])
    assert kept[0] > 0  # the best of all is left out
    assert [found.tolist() for found in filtered] == [found[kept[:1]].tolist() for found in everything]


def test_bm25_is_made_once_for_the_same_documents(index: Path, cache: Path) -> None:
    watcher = Watcher()
    first = answers(index, watcher=watcher)
    assert (watcher.phases, watcher.done) == ([("BM25", 9)], 9)
    again = Watcher()
    assert answers(index, watcher=again) == first
    refit_index(index, ["whitening.strength=0.5"])  # other vectors, the same texts
    refit_index(index, ["hybrid.weight=0.5", "hybrid.unit=window"])  # of documents without windows
    assert answers(index, watcher=again) == first
    assert again.phases == []
    assert len(list(cache.iterdir())) == 1


def test_it_is_made_anew_after_a_change_and_only_some_stay_in_the_cache(index: Path, cache: Path) -> None:
    for number in range(6):
        watcher = Watcher()
        answers(index, watcher=watcher)
        assert watcher.phases == [("BM25", 9 + number)]
        add_documents([Document(f"new{number}", "Whales of steel.")], index)
    assert len(list(cache.iterdir())) == 4


def test_a_document_that_is_deleted_after_words_were_asked_is_not_found_again(index: Path) -> None:
    """The cached BM25 contains the documents before the deletion; an open engine keeps using it."""
    question, options = "sand sand glass", SearchOptions(9, hybrid=True, hybrid_weight=0.01)
    assert "d7" in {identity for answer in answers(index) for _, identity in answer}
    left = [document for document in DOCUMENTS if document.id != "d7"]
    with SearchEngine(index) as before:
        asked = [(hit.id, hit.score) for hit in before.search(question, options)]
        assert asked[0][0] == "d7"
        delete_documents(index, ["d7"])
        assert answers(index) == by_bm25s(left)
        with SearchEngine(index) as after:
            found = [hit.id for hit in after.search(question, options)]
        assert sorted(found) == [document.id for document in left]
        assert found[0] == by_bm25s(left)[4][0][1]
        assert [(hit.id, hit.score) for hit in before.search(question, options)] == asked
    add_documents([document for document in DOCUMENTS if document.id == "d7"], index)
    assert {identity for _, identity in answers(index)[4]} == {identity for _, identity in by_bm25s(DOCUMENTS)[4]}


def test_other_columns_of_the_same_documents_are_ranked_apart(
    index: Path, tmp_path: Path, tiny_config: BuildConfig
) -> None:
    build_index(DOCUMENTS, tmp_path / "bodies", tiny_config.with_overrides(['corpus.text=["text"]']))
    title_only = [index, tmp_path / "bodies"]
    found = [BM25Index(Index.open(path)).search(["rivers"], 9)[0][1].tolist() for path in title_only]
    assert found == [[4], [4]]
    found = [BM25Index(Index.open(path)).search(["whales"], 9)[0][0].tolist() for path in title_only]
    assert found[0] != found[1]  # in the title and the text, in the text


def test_other_rules_of_terms_are_another_bm25(index: Path, cache: Path) -> None:
    def found(query: str) -> list[int]:
        return sorted(BM25Index(Index.open(index)).search([query], 9)[0][1].tolist())

    stemmed = found("whale")
    assert stemmed != []
    refit_index(index, ["hybrid.language=none"])
    assert (found("whale"), found("whales")) == ([], stemmed)
    refit_index(index, ["hybrid.language=german"])
    assert found("der Walfang") == []
    assert len(list(cache.iterdir())) == 3


def test_windows_are_counted_apart_and_the_best_of_a_document_counts(tmp_path: Path, tiny_config: BuildConfig) -> None:
    """Oracle: bm25s over the texts of all windows of the remaining documents."""
    config = tiny_config.with_overrides(["chunk.tokens=8", "chunk.overlap=2", "hybrid.unit=window"])
    long = [Document(f"l{n}", f"{document.text} {DOCUMENTS[-n].text}") for n, document in enumerate(DOCUMENTS)]
    build_index(long, tmp_path / "index", config)
    delete_documents(tmp_path / "index", ["l2"])
    opened = Index.open(tmp_path / "index")
    numbering, left = opened.numbering, [one for one in long if one.id != "l2"]
    assert numbering.rows > 2 * len(left)
    spans, owners = numbering.spans(np.arange(numbering.rows)), numbering.documents_of(np.arange(numbering.rows))
    texts = [left[owner].text[start:end] for owner, (start, end) in zip(owners, spans, strict=True)]
    every = BM25Ranking.of(texts, np.arange(len(texts)), HybridConfig(), "eval").scores(QUERIES)
    for scores, expected in zip(BM25Index(opened).scores(QUERIES), every, strict=True):
        assert scores.tolist() == [expected[owners == number].max() for number in range(len(left))]


@pytest.mark.parametrize("damage", [lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda data: data[:50]])
def test_damaged_files_are_made_anew(index: Path, cache: Path, damage: Callable[[bytes], bytes]) -> None:
    first = answers(index)
    for name in ("data.csc.index.npy", "vocab.index.json", "places.npy"):
        (path,) = cache.glob(f"*/{name}")
        path.write_bytes(damage(path.read_bytes()))
        watcher = Watcher()
        assert answers(index, watcher=watcher) == first
        assert watcher.phases == [("BM25", 9)]


def test_damaged_documents_become_no_bm25(index: Path, cache: Path) -> None:
    opened = Index.open(index)
    path = index / "parts/00001/documents.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptIndexError, match=r"parts/00001/documents\.parquet"):
        BM25Index(opened)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("module", ["bm25s", "Stemmer"])
def test_without_the_packages_the_line_that_installs_them_is_shown(
    index: Path, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MachineError, match=r"pip install '.*isotrope\[hybrid\]"):
        BM25Index(Index.open(index))
