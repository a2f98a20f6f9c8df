"""Filters, groups, neighbours, vectors and lowest scores, each compared with an oracle."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer import Document, add_documents, build_index, delete_documents
from indexer.errors import ConfigError
from indexer.recipe.config import BuildConfig, EncoderConfig
from search import SearchEngine
from search.hits import Hit
from search.index import Index
from tests.search.cli.test_cli import isotrope

COLOURS = ["red", "green", "blue"]
CORPUS = [
    Document(
        f"d{number:02}",
        f"text {number} about {['whales', 'bread', 'stars', 'maps'][number % 4]} and {number * 37 % 11}",
        metadata={"year": 1990 + number % 20} | ({"colour": COLOURS[number % 3]} if number % 5 else {}),
    )
    for number in range(60)
]
QUERY = "text about whales"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], Path]) -> Path:
    """An index with a history, so that live numbers differ from stored numbers."""
    from indexer.recipe.index_config import StoreConfig

    folder = tmp_path_factory.mktemp("finding") / "index"
    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=32, precision="float32")
    build_index(CORPUS[:50], folder, BuildConfig(encoder=encoder, store=StoreConfig(part_documents=16)))
    add_documents([*CORPUS[50:], Document("gone", "text about whales")], folder)
    delete_documents(folder, ["gone", "d04", "d20"])
    return folder


@pytest.fixture(scope="module")
def engine(index: Path) -> SearchEngine:
    return SearchEngine(index)


@pytest.fixture(scope="module")
def everything(engine: SearchEngine) -> list[Hit]:
    """Return all documents for the query, best first; every narrower answer is a part of these."""
    hits = engine.search(QUERY, 100)
    assert len(hits) == 58
    return list(hits)


def test_a_filter_gives_the_best_of_what_matches(engine: SearchEngine, everything: list[Hit]) -> None:
    matching = [hit for hit in everything if hit.metadata["year"] > 2005]
    assert engine.search(QUERY, 5, where="year > 2005") == matching[:5]
    assert engine.search(QUERY, 100, where="year > 2005") == matching


def test_few_matches_come_back_all_and_none_is_no_error(engine: SearchEngine) -> None:
    assert [hit.id for hit in engine.search(QUERY, 10, where="id = 'd07'")] == ["d07"]
    assert engine.search(QUERY, 10, where="year = 1900") == []
    with pytest.raises(ConfigError, match=r"(?i)did you mean"):
        engine.search(QUERY, 10, where="yeer = 1900")


def test_a_group_gives_one_hit_and_documents_without_a_value_are_not_grouped(
    engine: SearchEngine, everything: list[Hit]
) -> None:
    seen: set[str] = set()
    expected = []
    for hit in everything:
        colour = hit.metadata.get("colour")
        if colour is None or colour not in seen:
            expected.append(hit)
            seen |= {colour} if colour else set()
    assert engine.search(QUERY, 100, group_by="colour") == expected
    assert engine.search(QUERY, 4, group_by="colour") == expected[:4]
    with pytest.raises(ConfigError, match='did you mean "colour"'):
        engine.search(QUERY, group_by="color")


def test_filters_and_groups_go_together(engine: SearchEngine, everything: list[Hit]) -> None:
    hits = engine.search(QUERY, 10, where="colour IS NOT NULL AND year < 2000", group_by="colour")
    matching = [hit for hit in everything if hit.metadata.get("colour") and hit.metadata["year"] < 2000]
    first = {hit.metadata["colour"]: hit for hit in reversed(matching)}
    assert sorted(hits, key=lambda hit: hit.id) == sorted(first.values(), key=lambda hit: hit.id)


def test_a_lowest_score_cuts_the_answer(engine: SearchEngine, everything: list[Hit]) -> None:
    for limit in (hit.score for hit in everything):
        expected = [hit for hit in everything if hit.score >= limit]
        assert engine.search(QUERY, 100, min_score=limit) == expected
        written = float(str(np.float32(limit)))  # as a float64 it may lie above the float32 that it names
        assert engine.search(QUERY, 100, min_score=written) == expected
        assert engine.search(QUERY, 100, min_score=written, fold=1.0) == engine.search(
            QUERY, 100, min_score=limit, fold=1.0
        )
    assert engine.search(QUERY, 100, min_score=1e300) == []


def test_neighbours_are_the_closest_others_by_the_documents_own_vector(engine: SearchEngine) -> None:
    index = engine.index
    vectors = index.vectors(np.arange(index.manifest.rows))
    ids = index.documents.ids(range(index.manifest.rows))
    own = ids.index("d09")
    scores = vectors.astype(np.float64) @ vectors[own].astype(np.float64)
    order = sorted((number for number in range(len(ids)) if number != own), key=lambda number: -scores[number])
    hits = engine.neighbours("d09", 5)
    np.testing.assert_allclose([hit.score for hit in hits], scores[order[:5]], atol=1e-6)
    assert "d09" not in {hit.id for hit in engine.neighbours("d09", 100)}
    assert len(engine.neighbours("d09", 100)) == len(ids) - 1
    with pytest.raises(ConfigError, match='no document with id "d04"'):
        engine.neighbours("d04")


@pytest.fixture(scope="module")
def chunked(tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], Path]) -> SearchEngine:
    """An index of documents with one window to several, some of them deleted."""
    folder, words = tmp_path_factory.mktemp("chunked") / "index", "whale song of the deep sea library data for singing"
    documents = [Document(f"c{n:02}", " ".join((words.split() * 4)[n % 7 : 9 + n])) for n in range(28)]
    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=32, precision="float32")
    build_index(documents, folder, BuildConfig(encoder=encoder).with_overrides(["chunk.tokens=8", "chunk.overlap=2"]))
    delete_documents(folder, ["c03", "c11"])
    return SearchEngine(folder)


def test_of_windows_the_best_pair_counts_and_every_hit_names_its_own(
    chunked: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = chunked.index
    ids, count = index.documents.ids, index.manifest.documents
    rows = [index.numbering.rows_of(np.array([number])) for number in range(count)]
    vectors = [index.vectors(of_document).astype(np.float64) for of_document in rows]
    assert len({len(of_document) for of_document in rows}) > 3
    own = ids(range(count)).index("c20")
    expected = {name: (vectors[own] @ vectors[number].T).max() for number, name in enumerate(ids(range(count)))}
    del expected["c20"]
    hits = chunked.neighbours("c20", count)
    np.testing.assert_allclose([hit.score for hit in hits], [expected[hit.id] for hit in hits], atol=1e-6)
    assert sorted(hit.id for hit in hits) == sorted(expected)
    query = chunked.embed(["library data"]).astype(np.float64)
    monkeypatch.setattr("search.ranking.fusion.list_depth", lambda _: 2)  # some are found by their words only
    for hit in chunked.search("library data", 4, hybrid=True):
        number = ids(range(count)).index(hit.id)
        scores = (vectors[number] @ np.asarray(query).T)[:, 0]
        assert hit.window is not None
        (shown,) = np.flatnonzero(index.numbering.spans(rows[number])[:, 0] == hit.window.start)
        assert scores[shown] == pytest.approx(scores.max(), abs=1e-6)


def test_a_query_may_be_its_raw_embedding(engine: SearchEngine) -> None:
    embeddings = engine.encoder.encode([QUERY, "bread"], "query")
    assert engine.search_vectors(embeddings, 7) == engine.search_many([QUERY, "bread"], 7)
    with pytest.raises(ConfigError, match=r"expected \(n, 32\)"):
        engine.search_vectors(embeddings[:, :3])


def test_exact_search_answers_the_same_on_an_exact_index(engine: SearchEngine) -> None:
    assert engine.search(QUERY, 9, exact=True, where="year > 1995") == engine.search(QUERY, 9, where="year > 1995")


def test_hybrid_ranks_by_both_lists(engine: SearchEngine) -> None:
    hits = engine.search(QUERY, 10, hybrid=True, where="year > 1995")
    assert len(hits) == 10
    assert all(hit.metadata["year"] > 1995 for hit in hits)
    assert all(hit.score <= 1 and hit.parts is not None for hit in hits)
    assert hits == sorted(hits, key=lambda hit: (-hit.score, hit.id))
    with pytest.raises(ConfigError, match="min_score cannot be combined with hybrid"):
        engine.search(QUERY, hybrid=True, min_score=0.5)


def test_a_compressed_index_gives_the_same_scores(index: Path, everything: list[Hit], tmp_path: Path) -> None:
    import shutil

    from indexer import RunOptions, refit_index

    shutil.copytree(index, tmp_path / "index")
    refit_index(tmp_path / "index", ["index.type=SQ8"], RunOptions(allow_low_recall=True))
    scores = {hit.id: hit.score for hit in everything}
    for hit in SearchEngine(tmp_path / "index").search(QUERY, 12):
        assert hit.score == pytest.approx(scores[hit.id], abs=0.2)  # the whitening was fitted anew, on live documents
    exact = SearchEngine(tmp_path / "index").search(QUERY, 12, exact=True)
    known = {hit.id: hit.score for hit in exact}
    for hit in SearchEngine(tmp_path / "index").search(QUERY, 6):
        assert hit.score == known.get(hit.id, hit.score)


def answers(*arguments: str) -> list[dict[str, Any]]:
    done = isotrope("query", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_command_line_asks_the_same(index: Path, engine: SearchEngine, tmp_path: Path) -> None:
    [answer] = answers(str(index), QUERY, "-k", "3", "--where", "year > 2000", "--group-by", "colour")
    expected = engine.search(QUERY, 3, where="year > 2000", group_by="colour")
    assert [hit["id"] for hit in answer["hits"]] == [hit.id for hit in expected]
    np.save(tmp_path / "q.npy", engine.encoder.encode([QUERY], "query"))
    [answer] = answers(str(index), "--queries", str(tmp_path / "q.npy"), "-k", "2")
    assert [hit["id"] for hit in answer["hits"]] == [hit.id for hit in engine.search(QUERY, 2)]
    [answer] = answers(str(index), "--like", "d09", "-k", "2")
    assert [hit["id"] for hit in answer["hits"]] == [hit.id for hit in engine.neighbours("d09", 2)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--like", "nobody"], 'no document with id "nobody"'),
        ([QUERY, "--where", "year >"], "filter"),
        ([QUERY, "--where", "1=1) union select 1"], "filter"),
        ([QUERY, "--group-by", "nothing"], "no such column"),
        ([QUERY, "--recall", "2"], "recall"),
    ],
)
def test_questions_that_cannot_be_asked_are_one_clear_line(index: Path, arguments: list[str], message: str) -> None:
    import re

    done = isotrope("query", str(index), *arguments)
    assert done.returncode == 1
    assert re.search(message, done.stderr)
    assert "Traceback" not in done.stderr


def test_a_device_that_is_not_there_is_an_error(index: Path) -> None:
    from indexer import RunOptions
    from indexer.errors import IsotropeError

    with pytest.raises(IsotropeError, match="cuda"):
        SearchEngine(index, options=RunOptions(device="cuda:99"))


def test_exact_segments_are_searched_on_a_device_with_the_same_answers(
    index: Path, everything: list[Hit], monkeypatch: pytest.MonkeyPatch
) -> None:
    from indexer import ann

    monkeypatch.setattr("indexer.encoders.device.choose_device", lambda name: name)
    real = ann.on_device
    # torch's own product on the CPU stands in for the one on a GPU
    monkeypatch.setattr(ann, "on_device", lambda index, device: real(index, "cpu:0"))
    engine = SearchEngine(index)
    engine.index.accelerate("cuda")
    assert type(engine.index.segments[0].index).__name__ == "DeviceIndex"
    assert engine.search(QUERY, 100) == everything
    assert (
        engine.search(QUERY, 5, where="year > 2005") == [hit for hit in everything if hit.metadata["year"] > 2005][:5]
    )


def test_hybrid_groups_are_filled_beyond_the_depth_of_its_lists(
    index: Path, everything: list[Hit], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three colours and twelve documents without: fifteen hits, although the first lists have only four documents."""
    from search.ranking import fusion

    engine = SearchEngine(index)
    expected = {hit.id for hit in engine.search(QUERY, 100, hybrid=True, group_by="colour")}
    colours = [hit.metadata.get("colour") for hit in everything]
    assert len(expected) == colours.count(None) + len(COLOURS)
    monkeypatch.setattr(fusion, "DEPTH", 4)
    hits = SearchEngine(index).search(QUERY, 20, hybrid=True, group_by="colour")
    assert len(hits) == len(expected)
    grouped = [hit.metadata["colour"] for hit in hits if "colour" in hit.metadata]
    assert sorted(grouped) == sorted(COLOURS)


def test_no_more_groups_are_looked_for_than_there_are(engine: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    search = Index.search

    def counted(self: Index, vectors: Any, k: int, *given: Any) -> Any:
        asked.append(k)
        return search(self, vectors, k, *given)

    monkeypatch.setattr(Index, "search", counted)
    hits = engine.search(QUERY, 10, where="colour IS NOT NULL", group_by="colour")
    assert len(hits) == len(COLOURS)
    assert max(asked) < 47  # documents with a colour


def test_vectors_that_are_not_finite_are_refused(engine: SearchEngine) -> None:
    asked = np.zeros((3, 32), np.float32)
    asked[1, 4] = np.nan
    with pytest.raises(ConfigError, match="query vector 2 is not finite"):
        engine.search_vectors(asked)


@pytest.mark.parametrize("wrong", [{"where": "yeer = 1"}, {"group_by": "color"}, {"min_score": 0.5}])
def test_what_cannot_be_asked_shows_before_words_are_counted(
    index: Path, wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SearchEngine, "prepare_hybrid", None)
    with pytest.raises(ConfigError):
        SearchEngine(index).check(hybrid=True, **wrong)
    SearchEngine(index).check(hybrid=True, where="year > 2000")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([QUERY, "--exact", "--recall", "0.9"], "--recall cannot be combined with --exact"),
        (["--like", "d09", "--hybrid"], "--hybrid needs TEXT"),
    ],
)
def test_options_that_do_not_go_together_are_told(index: Path, arguments: list[str], message: str) -> None:
    done = isotrope("query", str(index), *arguments)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
