"""Hybrid search compared with an oracle that scores every document in both lists; filters, windows, indexes, ties."""

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer import BuildConfig, Document, build_index, delete_documents, refit_index
from indexer.errors import ConfigError
from indexer.recipe.config import EncoderConfig
from indexer.recipe.index_config import StoreConfig
from indexer.recipe.ranking import HybridConfig
from search import SearchEngine
from search.hits import Hit
from search.index import Index
from search.ranking import fusion
from search.ranking.bm25 import BM25Index
from search.ranking.ranker import DocumentRanker

QUERIES = ["whales deep in the sea", "bread", "sand glass bees", "zzz", "of the"]
WORDS = ["whale", "sea", "sand", "bread", "bees", "glass", "steel", "bridge", "deep", "song", "river", "stone"]


def documents(count: int = 90) -> list[Document]:
    """Return random sentences; every third is a copy of the one before, with a random id."""
    rng = np.random.default_rng(7)
    texts = [" ".join(rng.choice(WORDS, rng.integers(2, 30))) for _ in range(count)]
    texts = [texts[number - 1] if number % 3 == 2 else text for number, text in enumerate(texts)]
    return [
        Document(f"{number * 37 % count:02}", text, metadata={"year": 1900 + number})
        for number, text in enumerate(texts)
    ]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], Path]) -> Path:
    path = tmp_path_factory.mktemp("hybrid") / "index"
    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=40, precision="float32")
    build_index(documents(), path, BuildConfig(encoder=encoder, store=StoreConfig(part_documents=40)))
    delete_documents(path, ["05", "37", "88"])
    return path


@pytest.fixture
def index(base: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(base, tmp_path / "index"))


def oracle(engine: SearchEngine, query: str, config: HybridConfig, allowed: Any = None) -> list[tuple[float, str]]:
    """Score every document in both lists, one after another, with the random documents of the index."""
    index = engine.index
    ids, numbering = list(index.documents.all_ids()), index.numbering
    vector = np.asarray(engine.embed([query]))[0].astype(np.float64)
    rows = index.vectors(np.arange(numbering.rows)).astype(np.float64) @ vector
    drawn = rows[fusion.drawn_rows(numbering.rows)]
    owners = numbering.documents_of(np.arange(numbering.rows))
    near = np.array([rows[owners == number].max() for number in range(len(ids))], np.float32).astype(float)
    (words,) = BM25Index(index).scores([query])
    left = [number for number in range(len(ids)) if allowed is None or allowed(number)]
    found = [number for number in left if config.weight or words[number] > 0]
    if config.scaling == "minmax":
        a = (near - drawn.mean()) / max(near[left].max() - drawn.mean(), drawn.std())
        b = words / words[left].max() if words[left].max() else np.zeros(len(ids))
    else:
        a = (near - drawn.mean()) / drawn.std()
        b = (words - words.mean(dtype=float)) / words.std(dtype=float) if words.any() else np.zeros(len(ids))
    total = config.weight * a + (1 - config.weight) * b
    return sorted(
        ((float(total[number]), ids[number]) for number in found), key=lambda hit: (-round(hit[0], 9), hit[1])
    )


def found(hits: Sequence[Hit]) -> list[tuple[float, str]]:
    return [(hit.score, hit.id) for hit in hits]


def assert_same(hits: Sequence[Hit], expected: list[tuple[float, str]]) -> None:
    assert [hit.id for hit in hits] == [name for _, name in expected]
    np.testing.assert_allclose([hit.score for hit in hits], [score for score, _ in expected], atol=1e-6)


@pytest.mark.parametrize("scaling", ["minmax", "zscore"])
@pytest.mark.parametrize("weight", [0.0, 0.3, 0.5, 1.0])
def test_every_candidate_is_scored_in_both_lists(index: Path, scaling: Any, weight: float) -> None:
    refit_index(index, [f"hybrid.scaling={scaling}", f"hybrid.weight={weight}"])
    engine, config = SearchEngine(index), HybridConfig(scaling=scaling, weight=weight)
    for query in QUERIES:
        assert_same(engine.search(query, 200, hybrid=True), oracle(engine, query, config))
        assert_same(engine.search(query, 7, hybrid=True), oracle(engine, query, config)[:7])


def test_a_document_that_one_list_missed_has_both_its_scores(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With lists of four, the order of at most eight documents is that of all documents, restricted to these."""
    monkeypatch.setattr(fusion, "DEPTH", 4)
    engine = SearchEngine(index)
    every = {name: score for score, name in oracle(engine, QUERIES[0], HybridConfig())}
    hits = engine.search(QUERIES[0], 4, hybrid=True)
    near = {hit.id for hit in engine.search(QUERIES[0], 4)}
    assert {hit.id for hit in hits} - near != set()
    for hit in hits:
        assert hit.score == pytest.approx(every[hit.id], abs=1e-6)
        assert hit.parts is not None
        assert hit.parts.vector == pytest.approx(
            next(other.score for other in engine.search(QUERIES[0], 200) if other.id == hit.id), abs=1e-6
        )


@pytest.mark.parametrize("factory", ["HNSW8", "IVF4,SQ8"])
def test_kinds_of_index_differ_in_nothing_where_all_is_reached(index: Path, factory: str) -> None:
    refit_index(index, ["index.type=flat"])  # of the documents that are left, as the next one is
    engine = SearchEngine(index)
    expected = [found(engine.search(query, 200, hybrid=True)) for query in QUERIES]
    refit_index(index, [f"index.type={factory}", "index.recall=0.2"])
    engine = SearchEngine(index)
    for query, hits in zip(QUERIES, expected, strict=True):
        assert_same(engine.search(query, 200, hybrid=True), hits)
        assert_same(engine.search(query, 200, hybrid=True, exact=True), hits)


def test_a_filter_leaves_documents_out_of_both_lists(index: Path) -> None:
    engine = SearchEngine(index)
    years = [document.metadata["year"] for document in engine.index.documents.all_documents()]
    expected = oracle(engine, QUERIES[2], HybridConfig(), lambda number: years[number] > 1930)
    assert_same(engine.search(QUERIES[2], 200, hybrid=True, where="year > 1930"), expected)


def test_by_z_scores_a_filter_changes_no_order(index: Path) -> None:
    refit_index(index, ["hybrid.scaling=zscore"])
    engine = SearchEngine(index)
    every = [hit for hit in engine.search(QUERIES[2], 200, hybrid=True) if hit.metadata["year"] > 1930]
    assert found(engine.search(QUERIES[2], 200, hybrid=True, where="year > 1930")) == found(every)


@pytest.mark.parametrize("unit", ["document", "window"])
def test_of_windows_the_closest_counts_and_is_shown(tmp_path: Path, tiny_config: BuildConfig, unit: str) -> None:
    config = tiny_config.with_overrides(["chunk.tokens=10", "chunk.overlap=3", f"hybrid.unit={unit}"])
    build_index(documents(40), tmp_path / "index", config)
    engine = SearchEngine(tmp_path / "index")
    assert engine.index.numbering.rows > 60
    for query in QUERIES:
        hits = engine.search(query, 200, hybrid=True)
        assert_same(hits, oracle(engine, query, HybridConfig()))
        windows = {hit.id: hit.window for hit in engine.search(query, 200)}
        assert {hit.id: hit.window for hit in hits} == windows


@pytest.mark.parametrize("fusion_name", ["convex", "rrf"])
def test_the_weight_of_a_question_is_that_of_a_recipe(index: Path, fusion_name: str) -> None:
    refit_index(index, ["hybrid.weight=0.8", f"hybrid.fusion={fusion_name}"])
    engine = SearchEngine(index)
    if fusion_name == "rrf":
        with pytest.raises(ConfigError, match='the recipe fuses by "rrf", which has no weight'):
            engine.check(hybrid=True, hybrid_weight=0.5)  # before anything is encoded
        return
    other = engine.search("bread", 9, hybrid=True, hybrid_weight=0.1)
    assert other != engine.search("bread", 9, hybrid=True)
    refit_index(index, ["hybrid.weight=0.1"])
    assert SearchEngine(index).search("bread", 9, hybrid=True) == other


def test_reciprocal_ranks_have_both_parts_too(index: Path) -> None:
    refit_index(index, ["hybrid.fusion=rrf"])
    engine = SearchEngine(index)
    hits = engine.search(QUERIES[0], 200, hybrid=True)
    near = {hit.id: (rank, hit.score) for rank, hit in enumerate(engine.search(QUERIES[0], 200), start=1)}
    ids = list(engine.index.documents.all_ids())
    scores, numbers = BM25Index(engine.index).search([QUERIES[0]], 200)[0]
    words = {ids[n]: (rank, score) for rank, (n, score) in enumerate(zip(numbers, scores, strict=True), start=1)}
    for hit in hits:
        rank, score = near[hit.id]
        other, bm25 = words.get(hit.id, (None, 0.0))
        assert hit.score == pytest.approx(1 / (60 + rank) + (1 / (60 + other) if other else 0))
        assert hit.parts is not None
        assert dataclasses.astuple(hit.parts) == (score, pytest.approx(bm25))
    assert hits == sorted(hits, key=lambda hit: (-hit.score, hit.id))


def test_vectors_alone_and_words_alone(index: Path) -> None:
    """Also with a filter that leaves only documents below the mean of random documents."""
    engine = SearchEngine(index)
    near = engine.search(QUERIES[0], 200)
    assert [hit.id for hit in engine.search(QUERIES[0], 200, hybrid=True, hybrid_weight=1)] == [hit.id for hit in near]
    years = ", ".join(str(hit.metadata["year"]) for hit in near[-20:])
    last = engine.search(QUERIES[0], 200, hybrid=True, hybrid_weight=1, where=f"year IN ({years})")
    assert [hit.id for hit in last] == [hit.id for hit in near[-20:]]
    assert last[0].score < 0
    ids = list(engine.index.documents.all_ids())
    for query in QUERIES:  # of all documents that have a word of it, and no others
        words = [ids[number] for number in BM25Index(engine.index).search([query], 200)[0][1]]
        assert [hit.id for hit in engine.search(query, 200, hybrid=True, hybrid_weight=0)] == words


def test_where_words_alone_count_no_vectors_are_searched(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors would keep returning documents without a word of the query."""
    engine, reached = SearchEngine(index), list[int]()
    best = BM25Index.best
    monkeypatch.setattr(Index, "search", lambda *_: pytest.fail("vectors were searched"))
    monkeypatch.setattr(BM25Index, "best", lambda self, *given: reached.append(given[1]) or best(self, *given))  # type: ignore[func-returns-value]
    assert engine.search("zzz", 5, hybrid=True, hybrid_weight=0) == []
    assert engine.search("bread", 5, hybrid=True, hybrid_weight=0)
    assert reached == [fusion.DEPTH] * 2


@pytest.mark.parametrize("scaling", ["minmax", "zscore"])
@pytest.mark.parametrize("copies", [1, 3, 7, 10])
def test_vectors_that_are_all_alike_say_nothing(
    tmp_path: Path, tiny_config: BuildConfig, copies: int, scaling: Any
) -> None:
    """Their scores differ only by rounding, which no scale may enlarge."""
    alike = [Document(f"{number}", "river sea mountain") for number in range(copies)]
    build_index(alike, tmp_path / "index", tiny_config.with_overrides([f"hybrid.scaling={scaling}"]))
    hits = SearchEngine(tmp_path / "index").search("sea of trouble", 20, hybrid=True)
    expected = 0.7 if scaling == "minmax" else 0.0  # the best of BM25; all of the mean
    assert [hit.score for hit in hits] == pytest.approx([expected] * copies)


def test_of_a_query_without_a_word_that_the_encoder_knows_words_alone_count(tmp_path: Path) -> None:
    """A table of token vectors, and BM25 of all words: neighbours of the zero vector are not hits."""
    table = tmp_path / "table.txt"
    table.write_text("".join(f"{word} {number} {number % 3} 1\n" for number, word in enumerate(WORDS)))
    config = BuildConfig(encoder=EncoderConfig(kind="static", model=str(table)))
    odd = Document("99", "whale sea zyzzyva", metadata={"year": 1})
    build_index([*documents(60), odd], tmp_path / "index", config)
    engine = SearchEngine(tmp_path / "index")
    hits = engine.search_many(["whale zyzzyva", "zyzzyva", "bread"], 5, hybrid=True)
    assert found(hits[1]) == [(1.0, "99")]
    for query, expected in zip(["whale zyzzyva", "bread"], hits[::2], strict=True):
        assert found(engine.search(query, 5, hybrid=True)) == found(expected)


def test_parts_are_in_json_where_there_are_some(index: Path) -> None:
    engine = SearchEngine(index)
    (hit,) = engine.search("bread", 1, hybrid=True)
    assert hit.parts is not None
    assert hit.to_dict()["parts"] == {"vector": hit.parts.vector, "bm25": hit.parts.bm25}
    assert "parts" not in engine.search("bread", 1)[0].to_dict()


def test_the_ranker_may_be_told_another_fusion(index: Path) -> None:
    """As in measurements: the recipe stays unchanged."""
    opened = SearchEngine(index).index
    for config in (HybridConfig(fusion="rrf"), HybridConfig(weight=0.9)):
        other = DocumentRanker(opened, config)
        assert other.hybrid() is other.hybrid()
    assert opened.config.hybrid == HybridConfig().resolved()
