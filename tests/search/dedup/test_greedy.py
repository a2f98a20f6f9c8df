"""The greedy rule equals the literal rule, for any cuts of the order."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.arrays import RowIds, Vectors
from search.dedup.distinct import find_distinct
from search.dedup.greedy import Decision, DedupDocuments, decide
from search.dedup.pairs import Pairs, pair_scores, tile_scores
from tests.dedup_oracles import BrutePairs, decide_slowly, document_scores

# Few directions on the unit sphere, many of their scores equal; self-scores differ in the last bits.
POOL = np.array(
    [
        *[(1, 0, 0), (0.6, 0.8, 0), (0.8, 0.6, 0), (0.8, 0, 0.6), (0, 1, 0), (-1, 0, 0), (-0.6, -0.8, 0)],
        *[(2 / 3, 2 / 3, 1 / 3), (2 / 3, 1 / 3, 2 / 3), (6 / 7, 3 / 7, 2 / 7), (3 / 7, 6 / 7, 2 / 7)],
        *[(0.6, 0.8, 1e-4), (0.6, 0.8, -1e-4), (0.60000002, 0.79999995, 0), (0.5999999, 0.80000007, 0)],
    ],
    np.float32,
)
IDENTICAL = np.float32(1 - 1e-6)
LEVELS = sorted({min(float(score), float(IDENTICAL)) for score in tile_scores(POOL, POOL).ravel() if score > -1})
Case = tuple[DedupDocuments, Vectors, np.float32]


def collection_of(windows: list[list[int]], text_of: list[int], rank: list[int], others: int = 0) -> DedupDocuments:
    """Return documents whose `windows` are numbers of vectors in POOL."""
    document_of = [document for document, held in enumerate(windows) for _ in held]
    vector_of = [vector for held in windows for vector in held]
    texts, vectors = np.array(text_of, np.int64), np.array(vector_of, np.int64)
    return DedupDocuments(
        np.array(document_of, np.int64), vectors, texts, np.array(rank), pair_scores(POOL, POOL), others
    )


@st.composite
def cases(draw: st.DrawFn, others: bool = True) -> Case:
    """Draw documents with windows, texts, a priority order, and a threshold equal to many scores."""
    pool = draw(st.integers(1, len(POOL)))
    windows = draw(st.lists(st.lists(st.integers(0, pool - 1), max_size=3), max_size=9))
    text_of = [draw(st.integers(-1, 3)) for _ in windows]
    ahead = draw(st.integers(0, len(windows))) if others else 0
    first = draw(st.permutations(range(ahead)))
    rank = [*first, *draw(st.permutations(range(ahead, len(windows))))]
    return collection_of(windows, text_of, rank, ahead), POOL, np.float32(draw(st.sampled_from(LEVELS)))


def assert_equal(found: Decision, expected: Decision) -> None:
    np.testing.assert_array_equal(found.kept_by, expected.kept_by)
    np.testing.assert_array_equal(found.scores, expected.scores)
    assert found.kept_by.dtype == np.dtype(np.int64)
    assert found.scores.dtype == np.dtype(np.float32)


def run(case: Case, drop_texts: bool = False, pair_limit: int = 1000) -> Decision:
    collection, vectors, lowest = case
    return decide(collection, BrutePairs(vectors, lowest), drop_texts, pair_limit)


@settings(max_examples=60)
@given(cases(), st.booleans(), st.booleans(), st.sampled_from([0, 1, 2, 5, 1000]), st.integers(1, 7))
def test_decisions_equal_the_statement_however_many_pairs_are_held(
    case: Case, drop_texts: bool, among: bool, pair_limit: int, batch: int
) -> None:
    collection, vectors, lowest = case
    found = decide(collection, BrutePairs(vectors, lowest, batch), drop_texts, pair_limit, among)
    assert_equal(found, decide_slowly(collection, vectors, lowest, drop_texts, among))


@given(cases(others=False), st.booleans())
def test_dropped_documents_have_a_kept_duplicate_and_no_two_kept_ones_are_duplicates(
    case: Case, drop_texts: bool
) -> None:
    collection, vectors, lowest = case
    found = run(case, drop_texts, pair_limit=2)
    duplicates = document_scores(collection, vectors) >= lowest
    if drop_texts:
        text = collection.text_of
        duplicates |= (text[:, None] == text[None]) & (text >= 0)
    kept = np.flatnonzero(found.kept_by < 0)
    dropped = np.flatnonzero(found.kept_by >= 0)
    assert not (duplicates & ~np.eye(len(duplicates), dtype=bool))[np.ix_(kept, kept)].any()
    assert (found.kept_by[found.kept_by[dropped]] == -1).all()
    assert duplicates[dropped, found.kept_by[dropped]].all()


@given(st.integers(0, 9), st.integers(2, 60), st.sampled_from([0.5, 0.8, 0.95]), st.sampled_from([1, 7, 60, 5000]))
def test_random_vectors_equal_the_statement(seed: int, count: int, lowest: float, pair_limit: int) -> None:
    random = np.random.default_rng(seed)
    vectors = random.standard_normal((count, 3))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    collection = DedupDocuments(
        np.arange(count), np.arange(count), np.full(count, -1), random.permutation(count), pair_scores(vectors, vectors)
    )
    found = decide(collection, BrutePairs(vectors, lowest, 50), drop_texts=False, pair_limit=pair_limit)
    assert_equal(found, decide_slowly(collection, vectors, lowest, drop_texts=False))


@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("drop_texts", [False, True])
def test_no_one_or_two_different_documents_are_kept(count: int, drop_texts: bool) -> None:
    case = collection_of([[0], [4]][:count], [0, 1][:count], [0, 1][:count]), POOL, np.float32(0.9)
    found = run(case, drop_texts)
    assert found.kept_by.tolist() == [-1] * count
    assert np.isnan(found.scores).all()


def test_of_a_chain_the_ends_stay() -> None:
    """0 ~ 1 ~ 2, but 0 and 2 are apart: the closer end represents 1."""
    case = collection_of([[0], [2], [1]], [-1] * 3, [0, 1, 2]), POOL, np.float32(0.7)
    found = run(case)
    assert found.kept_by.tolist() == [-1, 2, -1]
    assert found.scores[1] == tile_scores(POOL[2:3], POOL[1:2])[0, 0]


def test_the_representative_may_come_later_in_the_order_than_who_it_stands_for() -> None:
    case = collection_of([[0], [2], [1]], [-1] * 3, [0, 1, 2]), POOL, np.float32(0.7)
    for pair_limit in (0, 1, 2, 100):
        assert run(case, pair_limit=pair_limit).kept_by.tolist() == [-1, 2, -1]


def test_a_score_of_exactly_the_threshold_counts() -> None:
    exactly = tile_scores(POOL[1:2], POOL[2:3])[0, 0]
    collection = collection_of([[1], [2]], [-1, -1], [0, 1])
    assert run((collection, POOL, exactly)).kept_by.tolist() == [-1, 0]
    assert run((collection, POOL, np.nextafter(exactly, np.float32(2)))).kept_by.tolist() == [-1, -1]


def test_equal_scores_go_to_the_first_in_priority() -> None:
    """The third document scores 0 with the others."""
    for rank, representative in (([0, 1, 2], 0), ([1, 0, 2], 1), ([2, 1, 0], -1)):
        case = collection_of([[0], [5], [4]], [-1] * 3, rank), POOL, np.float32(0)
        assert run(case).kept_by.tolist()[2] == representative


def test_zero_and_minus_zero_are_one_score() -> None:
    source = BrutePairs(POOL, 0)
    source.scores[0, 4] = source.scores[4, 0] = -0.0
    found = decide(collection_of([[0], [5], [4]], [-1] * 3, [0, 1, 2]), source, drop_texts=False, pair_limit=100)
    assert found.kept_by.tolist() == [-1, -1, 0]


def test_windows_of_one_document_are_no_duplicates_of_each_other() -> None:
    case = collection_of([[0, 0, 1, 2], [4]], [-1, -1], [0, 1]), POOL, np.float32(0.9)
    assert run(case).kept_by.tolist() == [-1, -1]


@pytest.mark.parametrize("others", [0, 1])
def test_a_better_pair_than_that_of_the_same_vectors_names_the_score(others: int) -> None:
    """Two different vectors may score more than one of them with itself, by rounding."""
    scores, own = tile_scores(POOL, POOL), pair_scores(POOL, POOL)
    low, high = map(int, np.unravel_index(np.argmax(scores - own[:, None]), scores.shape))
    assert scores[low, high] > own[low]
    for pair_limit in (0, 1, 100):
        for windows in ([[low, high], [low]], [[low, high], [low], [high]], [[high], [low], [low]]):
            places = list(range(len(windows)))
            case = collection_of(windows, [-1] * len(windows), places, others), POOL, IDENTICAL
            assert run(case, pair_limit=pair_limit).scores[1] == scores[low, high]


def test_equal_texts_stay_apart_unless_asked() -> None:
    case = collection_of([[0], [4]], [7, 7], [0, 1]), POOL, np.float32(0.9)
    assert run(case).kept_by.tolist() == [-1, -1]
    dropped = run(case, drop_texts=True)
    assert dropped.kept_by.tolist() == [-1, 0]
    assert np.isnan(dropped.scores).all()


def test_a_similar_document_stands_before_one_of_equal_text() -> None:
    """The last document has the text of the first but is near the second."""
    case = collection_of([[0], [4], [3]], [7, 8, 7], [0, 1, 2]), POOL, np.float32(0.75)
    assert run(case, drop_texts=True).kept_by.tolist() == [-1, -1, 0]
    case = collection_of([[4], [0], [3]], [7, 8, 7], [0, 1, 2]), POOL, np.float32(0.75)
    assert run(case, drop_texts=True).kept_by.tolist() == [-1, -1, 1]


def test_blank_texts_are_not_equal() -> None:
    case = collection_of([[0], [4]], [-1, -1], [0, 1]), POOL, np.float32(0.9)
    assert run(case, drop_texts=True).kept_by.tolist() == [-1, -1]


def test_documents_of_the_other_index_are_kept_whatever_they_score() -> None:
    """Two documents of the other index are equal; the first represents the document of this index."""
    for ours in (1, 2):
        case = collection_of([[1], [1], [ours], [4]], [-1] * 4, [1, 0, 2, 3], others=2), POOL, np.float32(0.9)
        assert run(case).kept_by.tolist() == [-1, -1, 1, -1]


def test_of_the_others_with_one_text_the_first_stands() -> None:
    case = collection_of([[0], [1], [4]], [3, 3, 3], [1, 0, 2], others=2), POOL, np.float32(0.95)
    assert run(case, drop_texts=True).kept_by.tolist() == [-1, -1, 1]


def test_compared_with_the_others_alone_our_own_duplicates_stay() -> None:
    collection = collection_of([[0], [0], [4], [4]], [-1] * 4, [0, 1, 2, 3], others=1)
    source = BrutePairs(POOL, 0.9)
    found = decide(collection, source, drop_texts=False, pair_limit=100, among=False)
    assert found.kept_by.tolist() == [-1, 0, -1, -1]
    assert source.within_calls == []


def test_what_fits_is_asked_for_once_and_at_once() -> None:
    collection = collection_of([[n] for n in range(9)], [-1] * 9, list(range(9)))
    pairs = int(np.triu(tile_scores(POOL[:9], POOL[:9]) >= np.float32(0.5), 1).sum())
    source = BrutePairs(POOL, 0.5)
    decide(collection, source, drop_texts=False, pair_limit=pairs)
    assert (len(source.within_calls), len(source.between_calls)) == (1, 0)
    source = BrutePairs(POOL, 0.5)
    decide(collection, source, drop_texts=False, pair_limit=pairs - 1)
    assert len(source.within_calls) > 1


def test_vectors_that_no_longer_matter_are_not_asked_for() -> None:
    """After the decision, kept documents are compared with dropped documents only."""
    source = BrutePairs(POOL, 0.9)
    collection = collection_of([[0], [0], [4], [5], [5]], [-1] * 5, list(range(5)), others=1)
    decide(collection, source, drop_texts=False, pair_limit=100)
    assert [members.tolist() for members in source.within_calls] == [[4, 5]]
    assert [(left.tolist(), right.tolist()) for left, right in source.between_calls] == [([0], [4, 5]), ([4, 5], [0])]


@pytest.mark.check
def test_a_million_copies_are_one_vector_and_ask_for_no_pairs() -> None:
    count = 1_000_000
    collection = DedupDocuments(
        np.arange(count), np.zeros(count, np.int64), np.zeros(count, np.int64), np.arange(count), np.ones(1, np.float32)
    )
    for drop_texts in (False, True):
        found = decide(collection, BrutePairs(POOL[:1], 0.9), drop_texts, pair_limit=1)
        assert (found.kept_by[0], found.kept_by[1:].max(), found.kept_by[1:].min()) == (-1, 0, 0)
        assert (found.scores[1:] == 1).all()


def test_after_a_crowd_the_stretches_grow_again() -> None:
    """200 near-copies come first and then 1,000 documents without a duplicate."""
    random = np.random.default_rng(0)
    crowd = np.eye(300)[:1] + 1e-4 * random.standard_normal((200, 300))
    vectors = np.concatenate([crowd, random.standard_normal((1000, 300))])
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    numbers = np.arange(len(vectors))
    source = BrutePairs(vectors, 0.9, batch=100)
    collection = DedupDocuments(numbers, numbers, numbers, numbers, pair_scores(vectors, vectors))
    found = decide(collection, source, drop_texts=True, pair_limit=50)
    np.testing.assert_array_equal(np.flatnonzero(found.kept_by >= 0), np.arange(1, 200))
    assert len(source.within_calls) < 20


def test_near_copies_are_decided_without_holding_more_pairs_than_the_limit() -> None:
    class Counting(BrutePairs):
        most = 0

        def within(self, members: RowIds) -> Iterator[Pairs]:
            for batch in super().within(members):
                self.most = max(self.most, self.taken)
                yield batch

    random = np.random.default_rng(0)
    vectors = np.array([1, 0, 0, 0]) + 1e-3 * random.standard_normal((600, 4))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    assert len(find_distinct(vectors).first) == 600
    source = Counting(vectors, 0.99, batch=100)
    collection = DedupDocuments(
        np.arange(600), np.arange(600), np.full(600, -1), random.permutation(600), pair_scores(vectors, vectors)
    )
    found = decide(collection, source, drop_texts=False, pair_limit=1000)
    assert source.most <= 1100  # the batch that exceeded the limit was freed
    assert len(source.within_calls) < 10
    assert_equal(found, decide_slowly(collection, vectors, 0.99, drop_texts=False))
    assert (found.kept_by >= 0).sum() == 599
