"""One pass over the pairs: what it counts and keeps equals brute force over all rows."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from indexer.arrays import Vectors
from search.dedup.distinct import find_distinct
from search.dedup.greedy import DedupDocuments
from search.dedup.pair_counts import PairCounts, count_pairs
from search.dedup.pairs import tile_scores
from search.dedup.settings import lowest_score
from tests.dedup_oracles import BrutePairs, decide_slowly
from tests.search.dedup.test_chance import sphere

Triples = list[tuple[int, int, float]]
# Few directions, so that many rows are equal and many scores tie.
CHOSEN = st.lists(st.integers(0, 11), max_size=14)
FLOORS = st.sampled_from([0.29, 0.5, 0.57, 0.8, 0.8125])


def directions(chosen: list[int]) -> Vectors:
    return sphere(12, 3, seed=3)[chosen].reshape(-1, 3)


def surveyed(vectors: Vectors, floor: float, pairs_held: int = 1000) -> PairCounts:
    distinct = find_distinct(vectors)
    source = BrutePairs(vectors[distinct.first], lowest_score(floor))
    return count_pairs(vectors, distinct, source, floor, pairs_held)


def all_pairs(vectors: Vectors) -> Triples:
    """(row, later row, score) of all pairs of rows."""
    scores = tile_scores(vectors, vectors)
    return [(one, other, float(scores[one, other])) for one, other in itertools.combinations(range(len(vectors)), 2)]


@given(CHOSEN, FLOORS)
def test_pairs_are_counted_as_if_one_by_one(chosen: list[int], floor: float) -> None:
    vectors = directions(chosen)
    survey = surveyed(vectors, floor)
    for threshold in (floor, 0.9, 0.95, 0.999, 1.0):
        expected = sum(score >= lowest_score(threshold) for _, _, score in all_pairs(vectors))
        assert survey.pairs(threshold) == expected


@given(CHOSEN, FLOORS)
def test_examples_are_the_nearest_pairs_of_different_vectors_on_either_side(chosen: list[int], floor: float) -> None:
    vectors = directions(chosen)
    survey = surveyed(vectors, floor)
    first = survey.distinct.first.tolist()
    pairs = [pair for pair in all_pairs(vectors) if pair[0] in first and pair[1] in first]
    lowest = lowest_score(0.9)
    above = [pair for pair in survey.above(0.9) if pair[1] in first]  # those with a copy apart
    expected = sorted((score, one, other) for one, other, score in pairs if score >= lowest)
    assert [(score, one, other) for one, other, score in above][:6] == expected[: min(6, len(above))]
    below = [(-score, one, other) for one, other, score in survey.below(0.9)]
    expected = sorted((-score, one, other) for one, other, score in pairs if lowest_score(floor) <= score < lowest)
    assert below[:8] == expected[:8]


@given(CHOSEN, FLOORS)
def test_of_rows_that_are_unlike_no_two_reach_the_threshold(chosen: list[int], floor: float) -> None:
    vectors = directions(chosen)
    left = surveyed(vectors, floor).unlike(floor)
    scores = tile_scores(vectors, vectors) >= lowest_score(floor)
    assert left.tolist() == [row for row in range(len(vectors)) if not scores[row, :row].any()]


@given(CHOSEN, FLOORS)
def test_as_many_are_dropped_as_the_greedy_rule_drops(chosen: list[int], floor: float) -> None:
    vectors = directions(chosen)
    survey, rows = surveyed(vectors, floor), np.arange(len(vectors))
    distinct = survey.distinct
    collection = DedupDocuments(
        rows, distinct.number_of, np.full(len(rows), -1), rows, np.ones(len(distinct.first), np.float32)
    )
    for threshold in (floor, 0.9, 1.0):
        decision = decide_slowly(collection, vectors[distinct.first], lowest_score(threshold), False)
        dropped = int(np.count_nonzero(decision.kept_by >= 0))
        assert survey.dropped(threshold) == (dropped, True)
        bound, exactly = surveyed(vectors, floor, pairs_held=-1).dropped(threshold)
        assert bound >= dropped
        assert not exactly


def test_a_document_copied_a_million_times_is_counted_and_not_listed() -> None:
    count = 1_000_000
    vectors = np.broadcast_to(sphere(1, 8), (count, 8))
    distinct = find_distinct(vectors[:1])
    copied = type(distinct)(distinct.first, np.zeros(count, np.int64))
    survey = count_pairs(vectors, copied, BrutePairs(vectors[:1], 0.8), 0.8)
    assert survey.pairs(0.8) == survey.pairs(1.0) == count * (count - 1) // 2
    assert survey.dropped(1.0) == (count - 1, True)
    assert [pair[:2] for pair in survey.above(0.8)] == [(0, 1)]
