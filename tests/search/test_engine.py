"""Answers of the engine equal brute force, singly and in batches; edge cases are defined."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from indexer import BuildConfig, Document, add_documents, build_index, compact_index, delete_documents
from indexer.encoders.protocol import EncodeStats
from indexer.errors import ConfigError, NotAnIndexError, StoreError
from indexer.recipe.config import EncoderConfig
from indexer.recipe.index_config import StoreConfig
from search import SearchEngine
from search.ranking.options import SearchOptions
from tests.documents import DOCUMENTS
from tests.oracles import best_rows
from tests.search.cli.test_cli import isotrope

QUERIES = ["how do whales sing", "bread", "what are bridges made of", "a map of the stars"]


@pytest.fixture(scope="module")
def folder(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index in float32, in which rounding hides no errors."""
    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=32, precision="float32")
    folder = tmp_path_factory.mktemp("engine") / "index"
    build_index(DOCUMENTS, folder, BuildConfig(encoder=encoder, store=StoreConfig(part_documents=4)))
    return folder


@pytest.fixture
def engine(folder: Path) -> SearchEngine:
    return SearchEngine(folder)


def test_answers_equal_brute_force(engine: SearchEngine) -> None:
    texts = [f"{document.title} {document.text}" for document in DOCUMENTS]
    vectors, ids = engine.embed(texts, "document"), [document.id for document in DOCUMENTS]
    for query in QUERIES:
        expected = best_rows(vectors, engine.embed([query], "query")[0], ids, k=5)
        hits = engine.search(query, k=5)
        assert [hit.id for hit in hits] == [name for name, _ in expected]
        np.testing.assert_allclose([hit.score for hit in hits], [score for _, score in expected], atol=1e-5)


def test_hits_carry_the_document_as_it_was(engine: SearchEngine) -> None:
    for hit in engine.search("whales", k=9):
        document = next(document for document in DOCUMENTS if document.id == hit.id)
        assert (hit.title, hit.text, hit.metadata) == (document.title, document.text, document.metadata)


def test_a_batch_gives_the_same_hits_as_one_by_one(engine: SearchEngine) -> None:
    """Compare scores up to the encoder's rounding, which depends on the batch."""
    for query, hits in zip(QUERIES, engine.search_many(QUERIES, k=4), strict=True):
        alone = engine.search(query, k=4)
        assert [hit.id for hit in hits] == [hit.id for hit in alone]
        np.testing.assert_allclose([hit.score for hit in hits], [hit.score for hit in alone], atol=1e-5)


def test_a_ranking_is_the_hits_before_they_are_fetched(engine: SearchEngine) -> None:
    log = EncodeStats()
    texts = engine.rank(QUERIES, 4, log)
    ids = [engine.index.documents.ids([found.document for found in answer]) for answer in texts]
    hits = engine.search_many(QUERIES, 4)
    assert ids == [[hit.id for hit in answer] for answer in hits]
    assert [[found.score for found in answer] for answer in texts] == [[hit.score for hit in each] for each in hits]
    assert len(log.lengths) == len(QUERIES)
    raw = engine.encoder.encode(QUERIES, "query")
    options = SearchOptions(3, where="year > 1992")
    assert engine.rank(raw, options) == engine.rank(QUERIES, options) == engine.rank(engine.embed(QUERIES), options)
    assert engine.rank([]) == []
    with pytest.raises(ConfigError, match="query 2 is blank"):
        engine.rank(["whales", " "])


@pytest.mark.parametrize("prompt", ["ask: ", "", "Instruct: find\nQuery: "])
def test_a_prompt_replaces_that_of_the_recipe(
    prompt: str, tiny_model: Callable[[str], Path], engine: SearchEngine, tmp_path: Path
) -> None:
    encoder = EncoderConfig(
        model=str(tiny_model("bert")), max_length=32, precision="float32", query_prompt="find whales: "
    )
    build_index(DOCUMENTS, tmp_path / "index", BuildConfig(encoder=encoder))
    prompted = SearchEngine(tmp_path / "index")
    raw = engine.encoder.encode([prompt + "bread"], "query")  # an encoder without prompts
    hits = prompted.search("bread", prompt=prompt)
    assert hits == prompted.search_vectors(raw)[0] != prompted.search("bread")
    done = isotrope("query", tmp_path / "index", "bread", "--json", "--prompt", prompt.replace("\n", r"\n"))
    assert [hit["score"] for hit in json.loads(done.stdout)["hits"]] == [hit.score for hit in hits]
    with pytest.raises(ConfigError, match=r'prompt is "ask", but the model has no prompt .*expected a text'):
        prompted.search("bread", prompt="ask")


def test_many_queries_are_answered_a_batch_at_a_time(engine: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = engine.encoder.encode(QUERIES * 3, "query")
    expected = engine.rank(raw, 4, hybrid=False)
    monkeypatch.setattr("search.ranking.ranker._BATCH", 5)
    assert engine.rank(raw, 4) == expected


def test_documents_are_found_by_id_the_first_time_and_ever_after(engine: SearchEngine) -> None:
    ids, documents = engine.index.ids, engine.index.documents
    asked = ["d3", "nobody", "d0", "\ud800", ""]
    first = ids.find(asked)
    assert first == {"d0": 0, "d3": 3}
    scan, documents.find_ids = documents.find_ids, None  # type: ignore[method-assign, assignment]
    assert ids.find(asked) == first  # by hashes, without another search of the column of ids
    assert ids.find([document.id for document in DOCUMENTS]) == {f"d{number}": number for number in range(9)}
    assert ids.find([]) == {}
    documents.find_ids = scan  # type: ignore[method-assign]


def test_two_ids_of_one_hash_are_told_apart(engine: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("indexer.store.numbering.hash_id", len)
    ids = engine.index.ids
    ids.find([])
    assert ids.find(["d7", "d2", "x9"]) == {"d2": 2, "d7": 7}


def test_scores_fall_and_lie_between_minus_one_and_one(engine: SearchEngine) -> None:
    scores = [hit.score for hit in engine.search("whales", k=9)]
    assert scores == sorted(scores, reverse=True)
    assert -1.000001 <= scores[-1] <= scores[0] <= 1.000001


def test_equal_scores_are_ordered_by_id_also_at_the_cut(tiny_config: BuildConfig, tmp_path: Path) -> None:
    twins = [Document(f"{n:02}", "Exactly the same words.") for n in (7, 3, 9, 1)]
    build_index([*twins, *DOCUMENTS], tmp_path / "index", tiny_config.with_overrides(["store.part_documents=50"]))
    engine = SearchEngine(tmp_path / "index")
    for k in (1, 2, 3, 4):
        assert [hit.id for hit in engine.search("Exactly the same words.", k=k)] == ["01", "03", "07", "09"][:k]


def test_more_hits_than_documents_gives_them_all(engine: SearchEngine) -> None:
    assert len(engine.search("whales", k=1000)) == len(DOCUMENTS) == len(engine)


@pytest.mark.parametrize("k", [0, -1])
def test_k_below_one_is_refused(k: int, engine: SearchEngine) -> None:
    with pytest.raises(ConfigError, match=f"k is {k}"):
        engine.search("whales", k=k)


@pytest.mark.parametrize("query", ["", "  ", "\n"])
def test_a_blank_query_is_refused(query: str, engine: SearchEngine) -> None:
    with pytest.raises(ConfigError, match="query 1 is blank"):
        engine.search(query)


def test_no_queries_give_no_answers(engine: SearchEngine) -> None:
    assert engine.search_many([]) == []
    assert engine.embed([]).shape == (0, engine.index.transform.dim)


def test_an_over_long_query_is_cut_as_documents_are(engine: SearchEngine) -> None:
    log = EncodeStats()
    long = engine.search_many(["whales sing " * 5000], k=3, log=log)[0]
    assert log.truncated == 1
    assert [hit.id for hit in long] == [hit.id for hit in engine.search("whales sing " * 50, k=3)]


def test_queries_and_documents_go_through_their_own_means(engine: SearchEngine) -> None:
    as_query, as_document = engine.embed(["whales"], "query"), engine.embed(["whales"], "document")
    assert np.abs(as_query - as_document).max() > 1e-3


def test_an_open_engine_keeps_answering_from_its_generation(tiny_config: BuildConfig, tmp_path: Path) -> None:
    from indexer import RunOptions

    build_index(DOCUMENTS, tmp_path / "index", tiny_config)
    before = SearchEngine(tmp_path / "index")
    build_index(DOCUMENTS[:5], tmp_path / "index", tiny_config, RunOptions(overwrite=True))
    assert len(before.search("whales", k=20)) == 9
    assert len(SearchEngine(tmp_path / "index").search("whales", k=20)) == 5


def test_opening_needs_no_recipe_and_no_encoder(engine: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    from search import open_index as module

    monkeypatch.setattr(module, "open_encoder", None)
    index = SearchEngine(engine.index.path)
    assert index.index.manifest.documents == len(DOCUMENTS)
    assert index.index.documents.fetch([3])[0].id == "d3"


def test_metadata_of_a_column_that_is_float_anywhere_is_float(tiny_config: BuildConfig, tmp_path: Path) -> None:
    documents = [Document(str(n), f"text {n}", metadata={"x": n if n < 6 else n + 0.5}) for n in range(8)]
    build_index(documents, tmp_path / "index", tiny_config)
    found = SearchEngine(tmp_path / "index").search("text", k=8)
    assert {hit.id: hit.metadata["x"] for hit in found} == {str(n): float(n if n < 6 else n + 0.5) for n in range(8)}
    assert all(type(hit.metadata["x"]) is float for hit in found)


def test_other_folders_raise_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotAnIndexError, match="no such index"):
        SearchEngine(tmp_path / "missing")
    (tmp_path / "parts").mkdir()
    with pytest.raises(NotAnIndexError, match="unfinished build"):
        SearchEngine(tmp_path)


def test_a_hit_is_json(engine: SearchEngine) -> None:
    hit = engine.search("whales", k=1)[0]
    assert json.loads(json.dumps(hit.to_dict()))["id"] == hit.id


def test_embeddings_with_their_texts_are_asked_as_the_texts_are(engine: SearchEngine) -> None:
    raw = engine.encoder.encode(QUERIES, "query")
    assert engine.search_vectors(raw, 4, QUERIES, hybrid=True) == engine.search_many(QUERIES, 4, hybrid=True)
    with pytest.raises(ConfigError, match="hybrid search needs the text"):
        engine.search_vectors(raw, hybrid=True)
    with pytest.raises(ConfigError, match="1 texts for 4 embeddings; expected one per embedding"):
        engine.search_vectors(raw, texts=QUERIES[:1])
    with pytest.raises(ConfigError, match="1 lengths for 4 embeddings; expected one per embedding"):
        engine.search_vectors(raw, texts=QUERIES, lengths=[3], hybrid=True)
    with pytest.raises(ConfigError, match="query 1 is blank"):
        engine.search_vectors(raw[:1], texts=[" "])


def test_documents_of_its_own_for_each_query_are_ranked_as_behind_a_filter(engine: SearchEngine) -> None:
    candidates = [["d1", "d4", "not here"], ["d8"], [], ["d0", "d2", "d3", "d0"]]
    for asked in (SearchOptions(2), SearchOptions(5, hybrid=True), SearchOptions(5, where="id <> 'd4'")):
        ranked = engine.rank_among(QUERIES, candidates, asked)
        for query, names, answer in zip(QUERIES, candidates, ranked, strict=True):
            where = f"id IN ('', {', '.join(repr(name) for name in names)})" if names else "id = ''"
            (expected,) = engine.rank([query], asked, where=f"{where} AND {asked.where or 'TRUE'}")
            assert [(one.document, one.row) for one in answer] == [(one.document, one.row) for one in expected]
            assert [one.score for one in answer] == pytest.approx([one.score for one in expected], abs=1e-5)
    with pytest.raises(ConfigError, match="1 candidates for 4 queries; expected one list per query"):
        engine.rank_among(QUERIES, [["d1"]])
    with pytest.raises(ConfigError, match=r"candidates: number 1 is one string; expected a list of text\."):
        engine.rank_among(QUERIES[:1], ["d1"])


def test_engines_of_two_generations_are_open_together(folder: Path, tmp_path: Path) -> None:
    index = shutil.copytree(folder, tmp_path / "index")
    old = SearchEngine(index)
    old.follows = False
    before = old.search("whales", 3)
    add_documents([Document("new", "how do whales sing")], index)
    new = old.newest()
    assert (old.index.manifest.generation, new.index.manifest.generation) == (1, 2)
    assert new.encoder is old.encoder
    assert new.search("how do whales sing", 1)[0].id == "new"
    assert old.search("whales", 3) == before
    assert old.newest().follows is new.follows is False


def test_an_engine_that_does_not_follow_says_that_its_files_are_gone(folder: Path, tmp_path: Path) -> None:
    index = shutil.copytree(folder, tmp_path / "index")
    engine, follower = SearchEngine(index), SearchEngine(index)
    engine.follows = False
    delete_documents(index, [DOCUMENTS[0].id])
    compact_index(index, keep=1, grace=0)
    with pytest.raises(StoreError):
        engine.search("whales")
    assert follower.search("whales")
    assert follower.index.manifest.generation > engine.index.manifest.generation
