"""Suggestions for a threshold: counts equal brute force, examples are next to the threshold."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer import BuildConfig, Document, build_index
from indexer.arrays import RowIds, Vectors
from indexer.errors import ConfigError
from indexer.recipe.config import EncoderConfig, WhiteningConfig
from indexer.recipe.index_config import StoreConfig
from search.dedup.deduplication import deduplicate_index
from search.dedup.distinct import Distinct, find_distinct
from search.dedup.pairs import PairSource, tile_scores
from search.dedup.settings import lowest_score
from search.dedup.suggest import (
    EXAMPLES,
    FLOOR,
    USUAL_THRESHOLDS,
    ExampleDocument,
    PairTally,
    Suggestion,
    ThresholdCandidate,
    choose_floor,
    nearest_pairs,
    suggest_thresholds,
)
from tests.dedup_oracles import BrutePairs
from tests.search.dedup.spheres import near, sphere, unit

Triples = list[tuple[int, int, float]]
Indexed = Callable[[Vectors], Path]
# Few directions, so that many rows are equal and many scores tie.
CHOSEN = st.lists(st.integers(0, 11), max_size=14)
FLOORS = st.sampled_from([0.29, 0.5, 0.57, 0.8, 0.8125])


def directions(chosen: list[int]) -> Vectors:
    return sphere(12, 3, seed=3)[chosen].reshape(-1, 3)


def corpus() -> Vectors:
    """Return 300 unrelated vectors, and vectors close to a third of them."""
    vectors = sphere(300, 24)
    return np.concatenate([vectors, near(vectors, np.arange(0, 300, 3), 0.35)])


@pytest.fixture
def indexed(tmp_path: Path) -> Indexed:
    """Build an index of documents with these vectors."""
    config = BuildConfig(
        encoder=EncoderConfig(kind="vectors"),
        whitening=WhiteningConfig(strength="none"),
        store=StoreConfig(part_documents=256),
    )

    def index(vectors: Vectors) -> Path:
        documents = [
            Document(f"d{n}", f"text\n of {n} " + 200 * "a", title=f"Title {n}", vector=row)
            for n, row in enumerate(vectors)
        ]
        build_index(documents, tmp_path / "index", config)
        return tmp_path / "index"

    return index


def all_pairs(vectors: Vectors) -> Triples:
    """Return (row, later row, score) of all pairs of rows."""
    scores = tile_scores(vectors, vectors)
    return [(one, other, float(scores[one, other])) for one, other in itertools.combinations(range(len(vectors)), 2)]


def counted(vectors: Vectors, edges: list[float], source: PairSource | None = None) -> tuple[PairTally, Distinct]:
    distinct = find_distinct(vectors)
    tally = PairTally(distinct, np.arange(len(vectors)), edges)
    tally.add_copies(vectors)
    source = source or BrutePairs(vectors[distinct.first], lowest_score(edges[0]))
    for pairs in source.within(np.arange(len(distinct.first))) if len(distinct.first) > 1 else ():
        tally.add(pairs)
    return tally, distinct


@given(CHOSEN, FLOORS)
def test_pairs_are_counted_as_if_one_by_one(chosen: list[int], floor: float) -> None:
    vectors = directions(chosen)
    edges = [floor, 0.9, 0.95, 0.999, 1.0]
    tally, _ = counted(vectors, edges)
    for edge, threshold in enumerate(edges):
        expected = sum(score >= lowest_score(threshold) for _, _, score in all_pairs(vectors))
        assert tally.pairs(edge) == expected


@given(CHOSEN, FLOORS)
def test_examples_are_the_nearest_pairs_of_different_vectors_on_either_side(chosen: list[int], floor: float) -> None:
    vectors = directions(chosen)
    tally, distinct = counted(vectors, [floor, 0.9])
    first = distinct.first.tolist()
    pairs = [pair for pair in all_pairs(vectors) if pair[0] in first and pair[1] in first]
    lowest = lowest_score(0.9)
    above = [
        (score, one, other) for one, other, score in tally.above(1) if other in first
    ]  # the others have copies in other documents
    assert above == sorted((score, one, other) for one, other, score in pairs if score >= lowest)
    below = [(-score, one, other) for one, other, score in tally.below(1)]
    assert below == sorted((-score, one, other) for one, other, score in pairs if lowest_score(floor) <= score < lowest)


@given(CHOSEN, st.integers(1, 5))
def test_the_order_of_pairs_changes_nothing(chosen: list[int], batch: int) -> None:
    vectors = directions(chosen)
    distinct = find_distinct(vectors)
    found = [
        counted(vectors, [0.29, 0.9], BrutePairs(vectors[distinct.first], lowest_score(0.29), size))[0]
        for size in (batch, 10**6)
    ]
    for edge in (0, 1):
        assert found[0].pairs(edge) == found[1].pairs(edge)
        assert [*found[0].above(edge)] == [*found[1].above(edge)]


def test_a_document_copied_a_million_times_is_counted_and_not_listed() -> None:
    count = 1_000_000
    vectors = np.broadcast_to(sphere(1, 8), (count, 8))
    copied = Distinct(np.zeros(1, np.int64), np.zeros(count, np.int64))
    tally = PairTally(copied, np.arange(count), [0.8, 1.0])
    tally.add_copies(vectors)
    assert tally.pairs(0) == tally.pairs(1) == count * (count - 1) // 2
    assert [pair[:2] for pair in tally.above(1)] == [(0, 1)]


def test_each_threshold_has_its_pairs_and_what_it_drops(indexed: Indexed) -> None:
    vectors = corpus()
    path = indexed(vectors)
    found = suggest_thresholds(path)
    assert found.documents == len(vectors)
    assert [one.threshold for one in found.candidates] == [one for one in USUAL_THRESHOLDS if one >= found.floor]
    for candidate in found.candidates:
        assert candidate.pairs == sum(score >= lowest_score(candidate.threshold) for *_, score in all_pairs(vectors))
        assert candidate.dropped == deduplicate_index(path, candidate.threshold).facts["dropped"]
    assert found.candidates[0].dropped == 100


def test_examples_can_be_read_and_lie_next_to_their_threshold(indexed: Indexed) -> None:
    found = suggest_thresholds(indexed(corpus()), floor=FLOOR)
    read = [side for candidate in found.candidates for side in sides(candidate)]
    assert len(read) >= 12
    for side in read:
        assert side.text.startswith(f"Title {side.id[1:]} text of {side.id[1:]} aaa")
        assert len(side.text) == 160
        assert side.text.endswith("…")
    edges = [-1.0, *(candidate.threshold for candidate in found.candidates), 2.0]
    for before, candidate, after in zip(edges, found.candidates, edges[2:], strict=False):
        assert len(candidate.above) <= EXAMPLES
        assert len(candidate.below) <= EXAMPLES
        scores = [example.score for example in candidate.above]
        assert scores == sorted(scores)
        assert all(candidate.threshold <= score + 1e-6 and score < after for score in scores)
        scores = [example.score for example in candidate.below]
        assert scores == sorted(scores, reverse=True)
        assert all(before <= score + 1e-6 and score < candidate.threshold for score in scores)


def sides(candidate: ThresholdCandidate) -> list[ExampleDocument]:
    return [side for example in (*candidate.above, *candidate.below) for side in (example.first, example.second)]


def test_examples_show_different_documents_if_there_are() -> None:
    hub, rows = [(0, 1, 0.90), (0, 2, 0.91), (1, 2, 0.92)], np.arange(9)
    others = [(3, 4, 0.93), (5, 6, 0.94), (7, 8, 0.95)]
    assert nearest_pairs([*hub, *others], rows) == [hub[0], (3, 4, 0.93), (5, 6, 0.94)]
    assert nearest_pairs([*hub, (3, 4, 0.93)], rows) == [hub[0], (3, 4, 0.93), hub[1]]
    assert nearest_pairs(hub[:2], rows) == hub[:2]


def test_the_result_is_strict_json(indexed: Indexed) -> None:
    stated = json.loads(json.dumps(suggest_thresholds(indexed(corpus())).to_dict(), allow_nan=False))
    assert stated.keys() == {"documents", "windows", "floor", "candidates"}
    shown = next(candidate for candidate in stated["candidates"] if candidate["above"])
    assert shown.keys() == {"threshold", "pairs", "dropped", "above", "below"}
    assert shown["above"][0].keys() == {"score", "first", "second"}
    assert shown["above"][0]["first"].keys() == {"id", "text"}


@pytest.mark.parametrize("count", [1, 2, 30])
def test_few_documents_have_counts(indexed: Indexed, count: int) -> None:
    found = suggest_thresholds(indexed(sphere(count, 24)), floor=FLOOR)
    assert [(one.pairs, one.dropped) for one in found.candidates] == [(0, 0)] * 8


def test_copies_of_one_document_have_counts(indexed: Indexed) -> None:
    count = 400
    found: Suggestion = suggest_thresholds(indexed(sphere(1, 24).repeat(count, axis=0)))
    for candidate in found.candidates:
        assert candidate.pairs == count * (count - 1) // 2
        assert candidate.dropped == count - 1
    assert [example.second.id for example in found.candidates[-1].above] == ["d1"]


def test_a_floor_is_where_pairs_begin(indexed: Indexed) -> None:
    path = indexed(corpus())
    found = suggest_thresholds(path, floor=0.9)
    assert (found.floor, found.candidates[0].threshold) == (0.9, 0.9)
    with pytest.raises(ConfigError, match=r"floor is -2"):
        suggest_thresholds(path, floor=-2)


def floor_of(vectors: Vectors) -> float:
    return choose_floor(vectors, find_distinct(vectors), np.arange(len(vectors)))


def test_the_floor_is_the_usual_one_where_some_documents_have_neighbours() -> None:
    assert floor_of(corpus()) == FLOOR


@pytest.mark.parametrize("count", [0, 1])
def test_a_single_document_has_the_usual_floor(count: int) -> None:
    assert floor_of(sphere(count, 64)) == FLOOR


def test_the_floor_is_lower_where_few_documents_have_a_neighbour() -> None:
    vectors = sphere(1000, 256)
    floor = floor_of(vectors)
    assert floor < 0.4
    assert 50 < neighboured(vectors, floor) < 250


def test_the_floor_is_higher_where_all_documents_are_alike() -> None:
    vectors = unit(sphere(1000, 64) + np.full(64, 2 / 8, np.float32))  # random pairs score about 0.8
    floor = floor_of(vectors)
    assert 0.8 < floor < 0.95
    assert neighboured(vectors, floor) < 700


def neighboured(vectors: Vectors, floor: float) -> int:
    """Return the number of rows that reach the floor with another row."""
    scores: RowIds = np.count_nonzero(vectors @ vectors.T >= floor, axis=1)
    return int(np.count_nonzero(scores > 1))


def test_a_corpus_of_copies_has_the_highest_floor_that_is_left() -> None:
    vectors = near(sphere(60, 64)[:1].repeat(60, axis=0), np.arange(60), 0.01)
    assert floor_of(vectors) == 0.98
