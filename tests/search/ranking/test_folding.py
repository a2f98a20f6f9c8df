"""Near-duplicates folded under better hits, compared with the literal rule: one document after another."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer import BuildConfig, Document, add_documents, build_index, delete_documents
from indexer.arrays import Vectors
from indexer.papers.latte_mix.settings import LatteMixConfig
from indexer.recipe.config import EncoderConfig, WhiteningConfig
from indexer.recipe.corpus_config import ChunkConfig
from indexer.recipe.index_config import IndexConfig, StoreConfig
from search import SearchEngine
from search.index import Index
from search.ranking import folding
from search.ranking.documents import Groups, RankedDocument
from search.ranking.folding import Folding
from search.ranking.options import SearchOptions
from search.ranking.ranker import Wanted, collect
from tests.fitted import fit_and_build, papers
from tests.search.cli.test_cli import isotrope
from tests.search.ranking.test_widening import prefixes

Shown = list[tuple[int, list[tuple[int, float]], int]]  # document, (folded document, similarity), how many

WORDS = [f"{kind}{number}" for kind in ("whale", "bread", "star", "map", "song") for number in range(8)]
COUNT = 240
QUERY = "whale1 star2 bread3"
FOLD = 0.8


def by_hand(ranked: Sequence[RankedDocument], vectors: Sequence[Any], k: int, fold: float) -> Shown:
    """Apply the rule literally. `vectors` are those of the ranked documents, in their order."""
    stayed: list[int] = []
    under: dict[int, list[tuple[int, float]]] = {}
    for place in range(len(ranked)):
        near = [
            (float(np.float32(np.dot(vectors[place].astype(float), vectors[one].astype(float)))), -one)
            for one in stayed
        ]  # fmt: skip
        closest, above = max(near, default=(-2.0, 0))
        if closest >= np.float32(min(fold, 1 - 1e-6)):
            under[-above].append((ranked[place].document, closest))
        elif len(stayed) == k:
            break
        else:
            stayed.append(place)
            under[place] = []
    return [(ranked[one].document, under[one][: folding.LISTED], len(under[one])) for one in stayed]


def shown(found: Sequence[RankedDocument]) -> Shown:
    folded = [[(one.document, one.similarity) for one in hit.folded] for hit in found]
    return [(hit.document, under, hit.folded_count) for hit, under in zip(found, folded, strict=True)]


# --- the rule


@given(
    angles=st.lists(st.integers(0, 40), max_size=30),
    k=st.integers(1, 12),
    fold=st.sampled_from([0.001, 0.5, 0.9, 0.95, 0.999, 1]),
    block=st.integers(1, 40),
    lowest=st.none() | st.integers(0, 30),
)
@settings(max_examples=300, deadline=None)
def test_each_document_is_folded_under_the_closest_that_stays_above_it(
    angles: list[int], k: int, fold: float, block: int, lowest: int | None
) -> None:
    """The stated length of the ranking gives the same answer as the whole ranking."""
    vectors = np.array([(np.cos(angle / 12), np.sin(angle / 12)) for angle in angles], np.float32).reshape(-1, 2)
    ranked = [RankedDocument(document, 30.0 - document, document) for document in range(len(angles))]

    def vectors_of(query: int, documents: Sequence[RankedDocument]) -> Vectors:
        assert query == 7
        return vectors[[one.row for one in documents]]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folding, "_BLOCK", block)
        rule = Folding(fold, vectors_of, lowest)
        found, enough = rule.hits(7, ranked, k)
        above = [one for one in ranked if lowest is None or one.score >= lowest]
        assert shown(found) == by_hand(above, list(vectors), k, fold)
        assert (enough == len(ranked) + 1) == (len(above) == len(ranked) and len(found) + _folded(found) == len(ranked))
        assert rule.hits(7, ranked[:enough], k) == (found, min(enough, len(ranked) + 1))
        if 1 < enough <= len(ranked):
            assert rule.hits(7, ranked[: enough - 1], k)[1] == enough  # one less does not tell


def _folded(found: Sequence[RankedDocument]) -> int:
    return sum(hit.folded_count for hit in found)


def of_places(places: Sequence[int]) -> Callable[[int, Sequence[RankedDocument]], Vectors]:
    """Documents in the same place have equal vectors, others are orthogonal."""
    unit = np.eye(max(places) + 1, dtype=np.float32)
    return lambda query, documents: unit[[places[one.document] for one in documents]]


def test_more_is_asked_for_until_one_more_than_k_would_stay() -> None:
    asked: list[tuple[list[int], int]] = []
    endless = [list(range(1000))]
    apart = Groups(None, 1000)
    places = [0] * 30 + [1] + [0] * 50 + [2] * 919
    (hits,) = collect(1, prefixes(endless, asked), 4, Wanted(2, apart, folding=Folding(0.9, of_places(places))))
    assert [reach for _, reach in asked] == [4, 16, 64, 256]
    assert [(hit.document, hit.folded_count) for hit in hits] == [(0, 79), (30, 0)]
    asked.clear()
    (hits,) = collect(1, prefixes(endless, asked), 4, Wanted(3, apart, folding=Folding(0.9, of_places(places))))
    assert asked[-1][1] >= 1000  # all is one of three
    assert [(hit.document, hit.folded_count) for hit in hits] == [(0, 79), (30, 0), (81, 918)]


def test_it_stops_at_the_lowest_score_and_when_every_group_is_there() -> None:
    asked: list[tuple[list[int], int]] = []
    endless, rule = [list(range(1000))], Folding(0.9, of_places([0] * 1000))
    lowest = dataclasses.replace(rule, min_score=0.125)  # the fourth has as much
    ((hit,),) = collect(1, prefixes(endless, asked), 4, Wanted(9, Groups(None, 1000), folding=lowest))
    assert ([reach for _, reach in asked], hit.folded_count) == ([4, 16], 3)
    asked.clear()
    three = Groups(np.arange(1000) % 3, 1000)
    ((hit,),) = collect(1, prefixes(endless, asked), 4, Wanted(9, three, folding=rule))
    assert ([reach for _, reach in asked], hit.folded_count) == ([4], 2)


def test_a_proof_is_of_what_folds_too() -> None:
    """The third document shows that two stay. The answer is proved once its score beats the bound of unseen rows."""
    asked: list[tuple[list[int], int]] = []
    places = [0, 0, 1, 2, *range(3, 20)]
    wanted = Wanted(2, Groups(None, 20), True, Folding(0.9, of_places(places)))
    for bound, reaches in ((0.125, [4]), (0.13, [4, 16, 64])):
        asked.clear()
        collect(1, prefixes([list(range(20))], asked, bound), 4, wanted)
        assert [reach for _, reach in asked] == reaches


# --- indexes


def documents() -> list[Document]:
    """Texts in families that share some words; some texts are equal."""
    draw = np.random.default_rng(3)
    found: list[Document] = []
    for number in range(COUNT):
        words = list(draw.choice(WORDS, 9)) if number % 4 == 0 else found[-1].text.split()
        if number % 4 > 1:
            words[draw.integers(len(words))] = str(draw.choice(WORDS))
        metadata = {"n": number} | ({"family": number // 4 % 9} if number % 5 else {})
        found.append(Document(f"d{number:03}", " ".join(words), metadata=metadata))
    return found


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Word vectors for all words."""
    values = np.abs(np.random.default_rng(5).normal(size=(len(WORDS), 12))).round(3)
    path = tmp_path_factory.mktemp("table") / "words.txt"
    rows = zip(WORDS, values.tolist(), strict=True)
    path.write_text("\n".join(" ".join([word, *map(str, row)]) for word, row in rows) + "\n")
    return path


def recipe(table: Path, **sections: Any) -> BuildConfig:
    encoder = sections.pop("encoder", EncoderConfig(kind="static", model=str(table)))
    return BuildConfig(encoder=encoder, store=StoreConfig(part_documents=40), **sections)


GONE = [f"d{number:03}" for number in range(0, COUNT, 11)]


@pytest.fixture(scope="module")
def index(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with several segments and deleted documents."""
    folder = tmp_path_factory.mktemp("folding") / "index"
    build_index(documents()[:150], folder, recipe(table, index=IndexConfig(segment_rows=64)))
    add_documents(documents()[150:], folder)
    delete_documents(folder, GONE)
    return folder


@pytest.fixture(scope="module")
def engine(index: Path) -> SearchEngine:
    engine = SearchEngine(index)
    assert len(engine.index.segments) > 2
    return engine


@pytest.fixture(scope="module")
def chunked(table: Path, tmp_path_factory: pytest.TempPathFactory) -> SearchEngine:
    folder = tmp_path_factory.mktemp("chunked") / "index"
    texts = documents()
    long = [dataclasses.replace(one, text=f"{one.text} {texts[n // 3].text}") for n, one in enumerate(texts)]
    build_index(long, folder, recipe(table, chunk=ChunkConfig(tokens=8, overlap=2)))
    delete_documents(folder, GONE)
    engine = SearchEngine(folder)
    assert engine.index.manifest.rows > 2 * len(engine)
    return engine


def vectors_by_hand(engine: SearchEngine, ranked: Sequence[RankedDocument]) -> list[Any]:
    rows = [one.row if one.row >= 0 else one.document for one in ranked]  # without windows they are the same
    return list(engine.index.vectors(np.array(rows, np.int64)))


ASKED: list[dict[str, Any]] = [
    {},
    {"exact": True},
    {"where": "n % 3 <> 1"},
    {"where": "n < 0"},
    {"group_by": "family"},
    {"group_by": "family", "where": "family IS NOT NULL"},
    {"min_score": 0.4},
    {"hybrid": True},
    {"hybrid": True, "group_by": "family", "where": "n > 20"},
    {"partial": True},
]


@pytest.mark.parametrize("asked", ASKED, ids=str)
@pytest.mark.parametrize("name", ["engine", "chunked"])
def test_the_answer_is_the_rule_over_the_whole_ranking(
    name: str, asked: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    engine: SearchEngine = request.getfixturevalue(name)
    queries = [QUERY, "map5 song1 song2 star7"]
    for query, ranked in zip(queries, engine.rank(queries, COUNT, **asked), strict=True):
        vectors = vectors_by_hand(engine, ranked)
        for k in (1, 4, 30, 10**30):
            for fold in (0.05, FOLD, 0.97, 1.0):
                (found,) = engine.rank([query], k, fold=fold, **asked)
                assert shown(found) == by_hand(ranked, vectors, k, fold), (k, fold)
    assert not asked or "where" in asked or any(one.folded for one in engine.rank([QUERY], 9, fold=FOLD, **asked)[0])


def test_the_ranking_is_that_of_all_products(engine: SearchEngine) -> None:
    """The oracle uses only the engine's vectors."""
    vectors = engine.index.vectors(np.arange(len(engine)))
    ids = engine.index.documents.ids(range(len(engine)))
    query = np.asarray(engine.embed([QUERY]))[0]
    scores = (vectors.astype(np.float64) @ query.astype(np.float64)).astype(np.float32)
    order = sorted(range(len(ids)), key=lambda row: (-scores[row], ids[row]))
    ranked = [RankedDocument(row, float(scores[row]), row) for row in order]
    for fold in (0.5, FOLD, 1.0):
        expected = by_hand(ranked, [vectors[row] for row in order], 10, fold)
        assert shown(engine.rank([QUERY], 10, fold=fold)[0]) == expected
        assert any(count for _, _, count in expected)


@pytest.mark.parametrize("name", ["engine", "chunked"])
@pytest.mark.parametrize("asked", [{}, {"group_by": "family"}, {"where": "n > 50", "min_score": 0.2}], ids=str)
def test_neighbours_fold_by_the_rule_too(name: str, asked: dict[str, Any], request: pytest.FixtureRequest) -> None:
    engine: SearchEngine = request.getfixturevalue(name)
    for number in (5, 77):
        (identity,) = engine.index.documents.ids([number])
        allowed = engine._open.ranker.allowed(SearchOptions(**asked))
        ranked = engine._open.ranker.neighbours(number, SearchOptions(COUNT, **asked), allowed)
        vectors = vectors_by_hand(engine, ranked)
        for k in (1, 5, 10**30):
            found = engine._open.ranker.neighbours(number, SearchOptions(k, fold=FOLD, **asked), allowed)
            assert shown(found) == by_hand(ranked, vectors, k, FOLD)
            hits = engine.neighbours(identity, k, fold=FOLD, **asked)
            assert [hit.id for hit in hits] == engine.index.documents.ids([one.document for one in found])
            assert identity not in {one.id for hit in hits for one in hit.folded}


def test_mixtures_fold_by_their_stored_vectors(table: Path, tmp_path: Path) -> None:
    mixed = LatteMixConfig(dims=3, classes=4, batch=4)
    encoder = EncoderConfig(kind="static", model=str(table), pooling="latte-mix")
    roots = WhiteningConfig(kind="hellinger")
    config = recipe(table, encoder=encoder, whitening=roots, papers=papers(latte_mix=mixed))
    fit_and_build(documents(), tmp_path / "index", config)
    engine = SearchEngine(tmp_path / "index")
    for exact in (False, True):
        asked: dict[str, Any] = {"similarity": "js", "exact": exact}
        (ranked,) = engine.rank([QUERY], COUNT, **asked)
        vectors = vectors_by_hand(engine, ranked)
        for fold in (0.9, 0.99, 0.9999):
            (found,) = engine.rank([QUERY], 5, fold=fold, **asked)
            assert shown(found) == by_hand(ranked, vectors, 5, fold)


def test_an_approximate_index_folds_what_it_finds(table: Path, tmp_path: Path) -> None:
    build_index(documents(), tmp_path / "index", recipe(table, index=IndexConfig(type="HNSW4", recall=0.1)))
    engine = SearchEngine(tmp_path / "index")
    for ranked in engine.rank([QUERY, "song3", "map1 map2"], 6, fold=FOLD):
        assert len(ranked) == 6
        vectors = engine.index.vectors(np.array([one.row for one in ranked])).astype(np.float64)
        assert np.triu(vectors @ vectors.T, 1).max() < FOLD
        for place, hit in enumerate(ranked):
            own = engine.index.vectors(np.array([one.document for one in hit.folded], np.int64)).astype(np.float64)
            np.testing.assert_allclose([one.similarity for one in hit.folded], own @ vectors[place], atol=1e-6)
            assert all(one.similarity >= np.float32(FOLD) and one.score <= hit.score for one in hit.folded)


def test_equal_texts_fold_at_1_and_only_so_many_are_named(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["whale1 star2 bread3", "map1 map2", "song5"]
    same = [Document(f"d{n:02}", texts[0 if n < 20 else n % 3], f"title {n}") for n in range(30)]
    build_index(same, tmp_path / "index", recipe(table, whitening=WhiteningConfig(strength="none")))
    monkeypatch.setattr(folding, "LISTED", 5)
    hits = SearchEngine(tmp_path / "index").search(QUERY, 10, fold=1)
    assert sorted(hit.folded_count for hit in hits) == [2, 3, 22]
    first = hits[0]
    assert (first.id, [one.id for one in first.folded]) == ("d00", ["d01", "d02", "d03", "d04", "d05"])
    assert all(one.similarity == pytest.approx(1, abs=1e-6) and one.score == first.score for one in first.folded)
    assert [one.title for one in first.folded] == [f"title {n}" for n in range(1, 6)]
    assert json.loads(json.dumps(first.to_dict())) == first.to_dict()
    assert first.to_dict()["folded"][0] == {
        "id": "d01",
        "score": first.score,
        "similarity": first.folded[0].similarity,
        "title": "title 1",
    }
    assert first.to_dict()["folded_count"] == first.folded_count > 5


def test_without_folding_nothing_of_it_is_there(engine: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    search = Index.search

    def counted(self: Index, vectors: Any, k: int, *given: Any) -> Any:
        asked.append(k)
        return search(self, vectors, k, *given)

    monkeypatch.setattr(Index, "search", counted)
    monkeypatch.setattr("search.ranking.folding.Folding.hits", None)
    hits = engine.search(QUERY, 7)
    assert asked == [7]
    assert not {"folded", "folded_count"} & set(hits[0].to_dict())
    assert all(not hit.folded and not hit.folded_count for hit in hits)


def test_the_command_line_folds(index: Path, engine: SearchEngine) -> None:
    expected = engine.search(QUERY, 4, fold=0.6)
    done = isotrope("query", index, QUERY, "-k", "4", "--fold", "0.6", "--json")
    assert done.returncode == 0, done.stderr
    hits = json.loads(done.stdout)["hits"]
    assert [{name: value for name, value in hit.items() if name != "rank"} for hit in hits] == [
        json.loads(json.dumps(hit.to_dict())) for hit in expected
    ]
    assert any("folded" in hit for hit in hits)
    lines = isotrope("query", index, QUERY, "-k", "4", "--fold", "0.6").stdout
    for hit in expected:
        assert (f"+ {hit.folded_count} folded: {hit.folded[0].id}" in " ".join(lines.split())) if hit.folded else True
    refused = isotrope("query", index, QUERY, "--fold", "1.5")
    assert (refused.returncode, refused.stderr) == (
        1,
        "error: --fold is 1.5; expected a number, more than 0 and at most 1.\n",
    )
