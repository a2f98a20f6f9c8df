"""Reranking: the first hits in the reranker's order, all else unchanged."""

import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer import BuildConfig, RunOptions, add_documents, build_index, refit_index
from indexer.corpus.document import joined_text
from indexer.errors import ConfigError, MismatchError, ModelError
from indexer.recipe.config import EncoderConfig
from indexer.recipe.corpus_config import ChunkConfig
from indexer.recipe.index_config import StoreConfig
from indexer.recipe.ranking import RerankConfig
from search import SearchEngine
from search.ranking.documents import RankedDocument
from search.ranking.reranker import in_order, open_reranker
from tests.documents import DOCUMENTS
from tests.life import NEW
from tests.rerankers import Constant, SharedWords, resorted
from tests.search.cli.test_cli import isotrope
from tests.tiny_models import make_tiny_cross_encoder

QUERIES = ["how do whales sing", "bread and dough", "what are bridges made of", "a map of the stars"]
ALL = len(DOCUMENTS)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_cross_encoder(tmp_path_factory.mktemp("models") / "cross-encoder")


@pytest.fixture(scope="module")
def config(tiny_model: Callable[[str], Path]) -> BuildConfig:
    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=32, precision="float32")
    return BuildConfig(encoder=encoder, store=StoreConfig(part_documents=4))


@pytest.fixture(scope="module")
def folder(config: BuildConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reranked") / "index"
    build_index(DOCUMENTS, folder, config)
    return folder


@pytest.fixture
def words() -> SharedWords:
    return SharedWords()


@pytest.fixture
def engine(folder: Path, words: SharedWords) -> SearchEngine:
    engine = SearchEngine(folder)
    engine.rerank_by(words)
    return engine


def ids(hits: Sequence[Any]) -> list[str]:
    return [hit.id for hit in hits]


ASKED: list[dict[str, Any]] = [
    {},
    {"exact": True},
    {"where": "year > 1992"},
    {"where": "year > 3000"},
    {"group_by": "year"},
    {"min_score": 0.0},
    {"fold": 0.9},
    {"hybrid": True},
    {"hybrid": True, "where": "year < 1996", "fold": 0.99},
]


@pytest.mark.parametrize("asked", ASKED, ids=str)
@pytest.mark.parametrize("depth", [2, 5, ALL, 100])
def test_the_first_hits_are_sorted_by_the_reranker_and_the_others_stay(
    engine: SearchEngine, words: SharedWords, asked: dict[str, Any], depth: int
) -> None:
    for query in QUERIES:
        found = engine.search(query, k=ALL, rerank_depth=0, **asked)
        hits = engine.search(query, k=ALL, rerank_depth=depth, **asked)
        assert ids(hits) == resorted(query, found, words, depth)
        first = {hit.id: hit for hit in found}
        assert [dataclasses.replace(hit, rerank_score=None) for hit in hits] == [first[hit.id] for hit in hits]
        assert [hit.rerank_score is not None for hit in hits] == [place < depth for place in range(len(hits))]
        assert [hit.rerank_score for hit in hits[:depth]] == [
            words.scores([query], [f"{hit.title} {hit.text}"])[0] for hit in hits[:depth]
        ]


@pytest.mark.parametrize("depth", [0, 1])
def test_there_is_nothing_to_sort_in_one_hit_or_none(engine: SearchEngine, words: SharedWords, depth: int) -> None:
    for query in QUERIES:
        hits = engine.search(query, k=4, rerank_depth=depth)
        assert all(hit.rerank_score is None for hit in hits)
    assert words.asked == []


def test_hits_come_from_deeper_down_than_k(engine: SearchEngine) -> None:
    for query in QUERIES:
        whole = engine.search(query, k=ALL, rerank_depth=ALL)
        assert engine.search(query, k=2, rerank_depth=ALL) == whole[:2]
        assert engine.search(query, k=ALL, rerank_depth=3)[3:] == engine.search(query, k=ALL, rerank_depth=0)[3:]


def test_a_batch_is_reranked_as_one_by_one(engine: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("search.ranking.reranker._BATCH", 3)
    alone = [ids(engine.search(query, k=3, rerank_depth=5)) for query in QUERIES]
    assert [ids(hits) for hits in engine.search_many(QUERIES, k=3, rerank_depth=5)] == alone
    raw = engine.encoder.encode(QUERIES, "query")
    assert [ids(hits) for hits in engine.search_vectors(raw, texts=QUERIES, k=3, rerank_depth=5)] == alone
    ranked = engine.rank(QUERIES, k=3, rerank_depth=5)
    assert [engine.index.documents.ids([one.document for one in answer]) for answer in ranked] == alone


def test_equal_scores_are_ordered_by_id(folder: Path) -> None:
    engine = SearchEngine(folder)
    engine.rerank_by(Constant())
    hits = engine.search("whales", k=ALL, rerank_depth=6)
    assert ids(hits[:6]) == sorted(ids(engine.search("whales", k=6, rerank_depth=0)))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10**6)), min_size=1, max_size=12, unique_by=lambda t: t[1]))
def test_the_order_is_that_of_a_sort_by_score_and_id(given_pairs: list[tuple[int, int]]) -> None:
    found = [RankedDocument(number, 1.0, number) for _, number in given_pairs]
    scores = np.array([score for score, _ in given_pairs], np.float64)
    ordered = in_order(found, scores, lambda numbers: [f"{number:07}" for number in numbers])
    assert [one.document for one in ordered] == [n for _, n in sorted(given_pairs, key=lambda one: (-one[0], one[1]))]
    assert [one.rerank_score for one in ordered] == sorted(scores.tolist(), reverse=True)


def test_a_window_is_what_is_read_where_documents_are_chunked(config: BuildConfig, tmp_path: Path) -> None:
    texts = [" ".join(f"{document.text} {other.text}" for other in DOCUMENTS[:4]) for document in DOCUMENTS]
    long = [dataclasses.replace(one, text=text) for one, text in zip(DOCUMENTS, texts, strict=True)]
    build_index(long, tmp_path / "index", dataclasses.replace(config, chunk=ChunkConfig(tokens=24, overlap=8)))
    engine, words = SearchEngine(tmp_path / "index"), SharedWords()
    engine.rerank_by(words)
    for hybrid in (False, True):
        for query in QUERIES:
            words.asked.clear()
            hits = engine.search(query, k=5, rerank_depth=5, hybrid=hybrid)
            windows = {hit.window.text for hit in hits if hit.window}
            assert {text for _, text in words.asked} == windows
            whole = {joined_text(one, ("title", "text")) for one in long}
            assert not windows & whole
            found = engine.search(query, k=5, rerank_depth=0, hybrid=hybrid)
            assert ids(hits) == resorted(query, found, SharedWords(), 5)


def test_words_find_what_a_random_encoder_does_not(engine: SearchEngine) -> None:
    """The stand-in knows the document that a query means; a tiny random encoder does not."""
    meant = {"how do whales sing": "d0", "yeast makes dough rise": "d2", "bees dance flowers": "d6"}
    ranks = {
        depth: [ids(engine.search(query, k=ALL, rerank_depth=depth)).index(name) for query, name in meant.items()]
        for depth in (0, ALL)
    }
    assert ranks[ALL] == [0, 0, 0]
    assert sum(ranks[0]) > 0


@pytest.mark.filterwarnings("ignore")  # of sentence-transformers
def test_reranking_all_hits_is_a_sort_by_sentence_transformers(folder: Path, model: Path) -> None:
    transformers = pytest.importorskip("sentence_transformers")
    oracle = transformers.CrossEncoder(str(model), device="cpu", local_files_only=True)
    engine = SearchEngine(folder)
    engine.rerank_by(open_reranker(model, RerankConfig(model=str(model), precision="float32"), RunOptions()))
    for query in QUERIES:
        hits = engine.search(query, k=ALL, rerank_depth=100)
        scores = {one.id: oracle.predict([(query, joined_text(one, ("title", "text")))])[0] for one in DOCUMENTS}
        assert ids(hits) == sorted(scores, key=lambda name: -scores[name])
        found = [hit.rerank_score or 0.0 for hit in hits]
        np.testing.assert_allclose(found, [scores[hit.id] for hit in hits], atol=2e-5)
        assert ids(engine.search(query, k=ALL, rerank_depth=100)) == ids(hits)


def test_the_recipe_reranks_unless_told_not_to(folder: Path, config: BuildConfig, model: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    recipe = dataclasses.replace(config, rerank=RerankConfig(model=str(model), depth=4, precision="float32"))
    build_index(DOCUMENTS, index, recipe)
    engine, other = SearchEngine(index), SearchEngine(folder)
    other.rerank_by(open_reranker(model, recipe.rerank, RunOptions()))
    for query in QUERIES:
        assert engine.search(query, k=6) == other.search(query, k=6, rerank_depth=4)
        assert engine.search(query, k=6, rerank_depth=0) == SearchEngine(folder).search(query, k=6)
    engine.rerank_by(SharedWords())
    assert ids(engine.search(QUERIES[0], k=3)) == ids(resorted_hits(SearchEngine(folder), QUERIES[0], 4)[:3])
    add_documents(NEW, index)
    later = engine.newest()
    assert later.index.manifest.generation == engine.index.manifest.generation + 1
    assert later.search(QUERIES[0], k=1)[0].rerank_score == engine.search(QUERIES[0], k=1)[0].rerank_score
    refit_index(index, ["rerank.model="])
    assert SearchEngine(index).search("whales", k=1)[0].rerank_score is None


def resorted_hits(engine: SearchEngine, query: str, depth: int) -> list[Any]:
    engine.rerank_by(SharedWords())
    return list(engine.search(query, k=ALL, rerank_depth=depth))


def test_another_model_than_the_recorded_one_is_refused(config: BuildConfig, tmp_path: Path) -> None:
    model = make_tiny_cross_encoder(tmp_path / "model")
    recipe = dataclasses.replace(config, rerank=RerankConfig(model=str(model)))
    build_index(DOCUMENTS, tmp_path / "index", recipe)
    settings = model / "tokenizer_config.json"
    settings.write_text(settings.read_text().replace("128", "64"))
    engine = SearchEngine(tmp_path / "index")
    with pytest.raises(MismatchError, match="differs from the one in the recipe"):
        engine.search("whales")
    assert engine.search("whales", rerank_depth=0)
    engine.rerank_by(model)  # which is asked for as it is
    assert engine.search("whales")[0].rerank_score is not None


def test_a_missing_cross_encoder_is_told_with_the_options_that_name_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    said = isotrope("query", folder, "--rerank", "some/missing-model", "whales").stderr
    assert "(--rerank FOLDER, or --set rerank.model=FOLDER to record it)" in said
    assert "encoder.model" not in said
    assert "--model FOLDER" not in said


@pytest.mark.parametrize("gone", ["folder", "files"])
def test_a_recorded_cross_encoder_that_is_gone_is_told_with_the_ways_out(
    folder: Path, tmp_path: Path, gone: str
) -> None:
    model, index = make_tiny_cross_encoder(tmp_path / "model"), copied(folder, tmp_path)
    refit_index(index, [f"rerank.model={model}"])
    shutil.rmtree(model)
    if gone == "files":
        model.mkdir()
    said = isotrope("query", index, "whales").stderr
    assert f"error: {model}" in said
    for way in ("put it back", "--no-rerank", "isotrope refit INDEX --set rerank.model=MODEL"):
        assert way in said
    assert isotrope("query", index, "--no-rerank", "whales").returncode == 0
    refit_index(index, ["rerank.model="])
    assert isotrope("query", index, "whales").returncode == 0


def test_what_cannot_be_reranked_is_refused(folder: Path, engine: SearchEngine) -> None:
    for depth in (-1, 1001, True, 2.0):
        with pytest.raises(ConfigError, match=r"rerank_depth is .*; expected a whole number, 0 \(none\) to 1,000"):
            engine.search("whales", rerank_depth=depth)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="names no cross-encoder"):
        SearchEngine(folder).search("whales", rerank_depth=5)
    with pytest.raises(ConfigError, match="reranking needs the texts of queries"):
        engine.search_vectors(engine.encoder.encode(["whales"], "query"), rerank_depth=5)
    with pytest.raises(ConfigError, match="reranking needs the text of a query, not a document's id"):
        engine.neighbours("d1", rerank_depth=5)
    assert engine.neighbours("d1", rerank_depth=0)
    with pytest.raises(ConfigError, match="the name of the cross-encoder is blank"):
        engine.rerank_by(" ")
    with pytest.raises(ModelError, match="no such folder"):
        engine.rerank_by("./nowhere")


def test_the_command_line_shows_both_scores(folder: Path, model: Path, tmp_path: Path) -> None:
    asked = ("query", folder, "-k", "3", "--json", QUERIES[0])
    engine = SearchEngine(folder)
    engine.rerank_by(model)
    found = json.loads(isotrope(*asked, "--rerank", model, "--rerank-depth", "6").stdout)["hits"]
    expected = [hit.to_dict() for hit in engine.search(QUERIES[0], k=3, rerank_depth=6)]
    assert [(one["id"], one["score"]) for one in found] == [(one["id"], one["score"]) for one in expected]
    assert all(abs(one["rerank_score"] - two["rerank_score"]) < 0.1 for one, two in zip(found, expected, strict=True))
    shown = isotrope("query", folder, "-k", "3", "--rerank", model, QUERIES[0]).stdout
    assert "reranked <- score" in shown
    assert f" <- {found[0]['score']:.3f}" in shown
    refit_index(folder_copy := copied(folder, tmp_path), [f"rerank.model={model}", "rerank.depth=6"])
    inspected = isotrope("inspect", folder_copy).stdout
    assert re.search(r"reranked +the first 6 by", inspected)
    plain = json.loads(isotrope(*("query", folder_copy, "-k", "3", "--json", "--no-rerank", QUERIES[0])).stdout)["hits"]
    none = isotrope("query", folder_copy, "-k", "3", "--json", "--rerank-depth", "0", QUERIES[0]).stdout
    assert json.loads(none)["hits"] == plain
    assert all("rerank_score" not in one for one in plain)
    kept = json.loads(isotrope(*("query", folder_copy, "-k", "3", "--json", QUERIES[0])).stdout)["hits"]
    assert kept == found


def copied(folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(folder, tmp_path / "copy")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rerank", "m", "--no-rerank", "x"], "--no-rerank turns reranking off. Fix: leave out --rerank."),
        (["--rerank-depth", "1001", "x"], "1001 is not in the range 0<=x<=1000"),
        (["--rerank-depth", "5", "--like", "d1"], "--rerank needs TEXT"),
        (["--rerank", " ", "x"], "the name of the cross-encoder is blank"),
        (
            ["--rerank-depth", "5", "x"],
            "--rerank-depth is 5, but the recipe of the index names no cross-",
        ),
        (
            ["--hybrid-weight", "0.5", "x"],
            "--hybrid-weight weighs vectors against BM25; expected --hybrid as well",
        ),
        (
            ["--hybrid", "--hybrid-weight", "2", "x"],
            "--hybrid-weight is 2.0; expected a number, 0 (BM25",
        ),
    ],
)
def test_the_command_line_refuses_what_cannot_be(folder: Path, arguments: list[str], message: str) -> None:
    found = isotrope("query", folder, *arguments)
    assert found.returncode in (1, 2)
    assert message in " ".join(found.stderr.split())
