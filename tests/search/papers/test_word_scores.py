"""Figures of word vectors by hand, and a slow oracle for each fast path: correlation, analogies, purity."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.arrays import Float64Array as Array
from search.papers.word_scores import (
    answered_right,
    k_means,
    purity,
    score,
    score_categories,
    score_similarity,
)
from search.papers.word_sets import Analogies, Categories, Similarity
from search.papers.word_vectors import WordVectors


def vectors_of(**words: Sequence[float]) -> WordVectors:
    return WordVectors(np.array(list(words.values()), np.float32), {word: row for row, word in enumerate(words)})


def test_similarity_by_hand() -> None:
    """Cosines 1, 0, -1 and 0.6 against human scores 4, 2, 3 and 1: ranks 4 2 1 3 and 4 2 3 1; rho = 1 - 6 * 8 / 60."""
    pairs = Similarity("s", ("a", "a", "a", "a", "a"), ("b", "c", "d", "e", "lost"), np.array([4.0, 2, 3, 1, 9]))
    found = score_similarity(pairs, vectors_of(a=(1, 0), b=(2, 0), c=(0, 5), d=(-3, 0), e=(3, 4)))
    assert (found.items, found.covered) == (5, 4)
    assert found.figure is not None
    assert found.figure.value == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("known", "why"),
    [
        ({}, "a correlation needs two pairs, but there are 0"),
        ({"a": (1, 0), "b": (1, 1)}, "a correlation needs two pairs, but there are 1"),
        ({"a": (1, 0), "b": (1, 1), "c": (1, 1)}, "all 2 cosines are 0.707107"),
    ],
)
def test_a_similarity_that_is_not_defined_says_why(known: dict[str, tuple[float, float]], why: str) -> None:
    pairs = Similarity("s", ("a", "a"), ("b", "c"), np.array([1.0, 2.0]))
    found = score_similarity(pairs, vectors_of(**known))
    assert found.figure is None
    assert why in found.why


def three_cos_add(vectors: Array, question: tuple[int, int, int, int]) -> bool:
    """Answer word by word, from the definition."""

    def cosine(x: Array, y: Array) -> float:
        return float(x @ y / np.sqrt(x @ x) / np.sqrt(y @ y))

    a, b, c, d = question
    best, most = -1, -np.inf
    for row, vector in enumerate(vectors):
        if row in (a, b, c):
            continue
        found = cosine(vector, vectors[b]) - cosine(vector, vectors[a]) + cosine(vector, vectors[c])
        if found > most:
            best, most = row, found
    return best == d


@given(st.integers(4, 20), st.integers(2, 6), st.integers(0, 10**6))
def test_analogies_are_answered_by_3cosadd(count: int, dim: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(count, dim)) * random.uniform(0.1, 9, size=(count, 1))
    questions = random.integers(0, count, (30, 4))
    expected = [three_cos_add(vectors.astype(np.float32).astype(np.float64), tuple(row)) for row in questions.tolist()]
    assert answered_right(vectors.astype(np.float32), questions).tolist() == expected


def test_questions_are_answered_alike_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    vectors, questions = random.normal(size=(12, 3)), random.integers(0, 12, (50, 4))
    whole = answered_right(vectors, questions)
    monkeypatch.setattr("search.papers.word_scores._LARGEST", 36)
    assert answered_right(vectors, questions).tolist() == whole.tolist()
    assert 0 < whole.sum() < 50


PLANE = vectors_of(
    man=(1, 0, 0), woman=(1, 1, 0), king=(1, 0, 1), queen=(1, 1, 1), boy=(1, 0, -1), girl=(1, 1, -1), stone=(-1, 0, 0)
)


def test_analogies_by_hand() -> None:
    """Right: queen, girl. Wrong: stone. Left out: two questions with a word that has no vector."""
    analogies = Analogies(
        "a",
        {
            "people": (("man", "woman", "king", "queen"), ("king", "queen", "boy", "girl"), ("a", "b", "c", "man")),
            "things": (("man", "woman", "king", "stone"),),
            "lost": (("man", "woman", "king", "lost"),),
        },
    )
    found = {one.section: one for one in score(analogies, PLANE)}
    assert {name: (one.covered, one.items) for name, one in found.items()} == {
        "all": (3, 5),
        "people": (2, 3),
        "things": (1, 1),
        "lost": (0, 1),
    }
    values = {name: one.figure.value for name, one in found.items() if one.figure}
    assert values == pytest.approx({"all": 2 / 3, "people": 1, "things": 0})
    assert "no question has vectors" in found["lost"].why
    assert found["all"].figure is not None
    assert (found["all"].figure.low, found["all"].figure.high) == pytest.approx((2 / 3, 2 / 3))  # within sections


def test_one_section_is_the_whole() -> None:
    assert [one.section for one in score(Analogies("a", {"x": (("man", "woman", "king", "queen"),)}), PLANE)] == ["all"]


def slow_purity(clusters: Sequence[int], classes: Sequence[int]) -> float:
    members: dict[int, list[int]] = {}
    for cluster, kind in zip(clusters, classes, strict=True):
        members.setdefault(cluster, []).append(kind)
    return sum(Counter(kinds).most_common(1)[0][1] for kinds in members.values()) / len(classes)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=30))
def test_purity_is_the_share_of_the_commonest_classes(items: list[tuple[int, int]]) -> None:
    clusters, classes = (np.array(side, np.intp) for side in zip(*items, strict=True))
    assert purity(clusters, classes) == pytest.approx(slow_purity(clusters.tolist(), classes.tolist()))


def test_purity_by_hand() -> None:
    """Clusters of 3, 2 and 1 items, of which 2, 1 and 1 are of the most common class."""
    assert purity(np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 1, 0, 1, 1])) == pytest.approx(4 / 6)


def test_categories_that_lie_apart_are_found_whatever_the_lengths() -> None:
    directions = {"bird": (1, 0, 0), "tree": (0, 1, 0), "tool": (0, 0, 1)}
    random = np.random.default_rng(0)
    classes: dict[str, str] = {}
    vectors: dict[str, list[float]] = {}
    for kind, direction in directions.items():
        for number in range(6):
            word = f"{kind}{number}"
            classes[word] = kind
            vectors[word] = (random.uniform(0.1, 50) * (direction + random.normal(scale=0.1, size=3))).tolist()
    found = score_categories(Categories("c", classes | {"lost": "tree"}), vectors_of(**vectors))
    assert (found.covered, found.items) == (18, 19)
    assert found.figure is not None
    assert (found.figure.value, found.figure.low) == (1.0, None)


def test_categories_of_one_class_have_no_purity() -> None:
    found = score_categories(Categories("c", {"man": "x", "king": "x", "lost": "y"}), PLANE)
    assert found.figure is None
    assert "two classes, but there are 1" in found.why


@pytest.mark.check
def test_clusters_are_those_of_the_run_with_the_least_sum_of_squares() -> None:
    """Each run starts with centres drawn by k-means++, and continues until no centre moves."""
    points = np.random.default_rng(3).random((40, 2))
    runs = []
    for seed in range(10):
        random = np.random.default_rng(seed)
        centres = [points[random.integers(40)]]
        while len(centres) < 7:
            nearest = np.array([min(((point - centre) ** 2).sum() for centre in centres) for point in points])
            centres.append(points[random.choice(40, p=nearest / nearest.sum())])
        for _ in range(300):
            distances = np.array([[((point - centre) ** 2).sum() for centre in centres] for point in points])
            clusters = distances.argmin(axis=1)
            centres = [points[clusters == number].mean(axis=0) for number in range(7)]
        runs.append((distances.min(axis=1).sum(), clusters.tolist()))
    assert len({round(squares, 9) for squares, _ in runs}) > 1
    assert k_means(points, 7).tolist() == min(runs)[1]


@settings(max_examples=20)
@given(st.integers(1, 20), st.integers(1, 5), st.integers(0, 10**6))
def test_clusters_are_the_same_each_time_also_of_points_all_alike(count: int, clusters: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    points = random.integers(0, 3, (count, 2)).astype(np.float64)
    found = k_means(points, min(clusters, count))
    assert found.tolist() == k_means(points, min(clusters, count)).tolist()
    assert 0 <= found.min() <= found.max() < clusters
