"""Scores of word vectors on a data set: Spearman's correlation, accuracy of analogies, purity of clusters.

An item counts if all its words have vectors. Other items are left out, and every figure comes with the number of items
that counted.
"""

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from indexer.arrays import Embeddings, Float64Array
from indexer.lazy_imports import require_extra
from indexer.system.threads import single_blas_thread
from search.evaluation.bootstrap import (
    Interval,
    draw_counts,
    interval,
    mean_of,
    resampled_mean,
    resampled_ranks,
    resampled_spearman,
)
from search.evaluation.sts.score import all_alike, cosines, spearman
from search.papers.word_sets import Analogies, Categories, Similarity, WordSet
from search.papers.word_vectors import WordVectors

Measure = Literal["spearman", "accuracy", "purity"]
Positions = npt.NDArray[np.intp]
WHOLE = "all"
RUNS = 10  # of k-means
_ITERATIONS, _ROUNDS = 10, 30  # of k-means: iterations per round, and most rounds until nothing moves
_LARGEST = 1 << 24  # numbers in a block of scores


@dataclass(frozen=True)
class Score:
    """A figure, or None with the reason `why`. `section` is "all" for a whole set."""

    measure: Measure
    section: str
    items: int
    covered: int  # items whose words all have vectors
    figure: Interval | None
    why: str = ""


def score(words: WordSet, vectors: WordVectors) -> list[Score]:
    """Return the figures of a set, first of the whole set. Raises MachineError without SciPy."""
    if isinstance(words, Similarity):
        return [score_similarity(words, vectors)]
    if isinstance(words, Analogies):
        return score_analogies(words, vectors)
    return [score_categories(words, vectors)]


def score_similarity(pairs: Similarity, vectors: WordVectors) -> Score:
    """Return Spearman's correlation of cosines and human scores of pairs, with its bootstrap interval."""
    first, second = vectors.places(pairs.first), vectors.places(pairs.second)
    covered = (first >= 0) & (second >= 0)
    human, count = pairs.scores[covered], int(covered.sum())
    if count < 2:
        return Score(
            "spearman", WHOLE, len(covered), count, None, f"a correlation needs two pairs, but there are {count}"
        )
    both = vectors.vectors[np.concatenate([first[covered], second[covered]])].astype(np.float64)
    predicted = cosines(both, np.arange(count), np.arange(count, 2 * count))
    if why := all_alike(human, "human scores") or all_alike(predicted):
        return Score("spearman", WHOLE, len(covered), count, None, why)
    value, counts = spearman(predicted, human, pairs.name), draw_counts(count, f"words {pairs.name}")
    resampled = resampled_spearman(resampled_ranks(predicted, counts), resampled_ranks(human, counts), counts)
    return Score("spearman", WHOLE, len(covered), count, interval(value, resampled))


def score_analogies(analogies: Analogies, vectors: WordVectors) -> list[Score]:
    """Return the share of right answers with bootstrap intervals: of all, resampled by section, then of each section.

    A question with a word without a vector is left out, even if that word is the answer.
    """
    places = {
        section: vectors.places(word for question in questions for word in question).reshape(-1, 4)
        for section, questions in analogies.sections.items()
    }
    known = {section: rows[(rows >= 0).all(axis=1)] for section, rows in places.items()}
    right = answered_right(vectors.vectors, np.concatenate(list(known.values()))).astype(np.float64)
    ends = np.cumsum([len(rows) for rows in known.values()])
    answers = dict(zip(known, np.split(right, ends[:-1]), strict=True))
    resampled = {
        section: resampled_mean(of_section, draw_counts(len(of_section), f"words {analogies.name} {section}"))
        for section, of_section in answers.items()
        if len(of_section)
    }
    sizes = [len(answers[section]) for section in resampled]
    total = mean_of(list(resampled.values()), sizes) if resampled else None
    scores = [_accuracy(WHOLE, sum(map(len, places.values())), right, total)]
    if len(places) > 1:
        scores += [_accuracy(name, len(places[name]), answers[name], resampled.get(name)) for name in places]
    return scores


def _accuracy(section: str, items: int, right: Embeddings, resampled: Float64Array | None) -> Score:
    if resampled is None:
        return Score("accuracy", section, items, 0, None, "no question has vectors for all of its words")
    return Score("accuracy", section, items, len(right), interval(float(right.mean()), resampled))


def answered_right(vectors: Embeddings, questions: Positions) -> npt.NDArray[np.bool_]:
    """Return a mask (n,) of the `questions` (n, 4), rows of `vectors` (V, d), that 3CosAdd answers right.

    The answer to a, b, c is the row x other than these with the largest cos(x, b) - cos(x, a) + cos(x, c); d is right.
    Levy and Goldberg, "Linguistic Regularities in Sparse and Explicit Word Representations" (CoNLL 2014).
    """
    units = _units(vectors, np.float32)
    right = np.zeros(len(questions), np.bool_)
    step = max(1, _LARGEST // max(len(units), 1))
    for start in range(0, len(questions), step):
        a, b, c, d = questions[start : start + step].T
        with single_blas_thread():
            scores = (units[b] - units[a] + units[c]) @ units.T
        rows = np.arange(len(scores))
        for given in (a, b, c):
            scores[rows, given] = -np.inf
        right[start : start + step] = scores.argmax(axis=1) == d
    return right


def score_categories(categories: Categories, vectors: WordVectors) -> Score:
    """Return the purity of k-means over unit vectors with one cluster per class, without an interval."""
    places = vectors.places(categories.classes)
    kinds = np.array(list(categories.classes.values()))[places >= 0]
    names, labels = np.unique(kinds, return_inverse=True)
    if len(names) < 2:
        why = f"clusters need words of two classes, but there are {len(names)}"
        return Score("purity", WHOLE, len(places), len(kinds), None, why)
    clusters = k_means(_units(vectors.vectors[places[places >= 0]]), len(names))
    figure = Interval(purity(clusters, labels), None, None)
    return Score("purity", WHOLE, len(places), len(kinds), figure)


def purity(clusters: Positions, classes: Positions) -> float:
    """Return the share of items in the most common class of their cluster; both (n,), numbers from 0."""
    table = np.zeros((clusters.max() + 1, classes.max() + 1))
    np.add.at(table, (clusters, classes), 1)
    return float(table.max(axis=1).sum() / len(clusters))


def k_means(points: Embeddings, count: int) -> Positions:
    """Return the cluster of each of `points` (n, d): the best of `RUNS` deterministic runs by the sum of squares.

    Raises MachineError without SciPy.
    """
    vq: Any = require_extra("scipy.cluster.vq", "eval")
    best, least = np.zeros(len(points), np.intp), np.inf
    for seed in range(RUNS):
        # Centres are drawn here, because SciPy's draws for a seed differ between versions.
        centres = _spread_centres(points, count, np.random.default_rng(seed))
        with single_blas_thread(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about empty clusters, which keep their centre
            for _ in range(_ROUNDS):
                before, (centres, clusters) = centres, vq.kmeans2(points, centres, iter=_ITERATIONS, minit="matrix")
                if np.array_equal(before, centres):
                    break
        squares = float(((points - centres[clusters]) ** 2).sum())
        if squares < least:
            best, least = clusters.astype(np.intp), squares
    return best


def _spread_centres(points: Embeddings, count: int, random: np.random.Generator) -> Embeddings:
    """Return centres of k-means++: each is a point drawn by its squared distance from earlier centres."""
    centres = [points[random.integers(len(points))]]
    nearest = np.full(len(points), np.inf)
    while len(centres) < count:
        nearest = np.minimum(nearest, ((points - centres[-1]) ** 2).sum(axis=1))
        total = nearest.sum()
        drawn = random.choice(len(points), p=nearest / total if total > 0 else None)
        centres.append(points[drawn])
    return np.array(centres)


def _units(vectors: Embeddings, kind: type[np.floating] = np.float64) -> Embeddings:
    """Return rows of length 1 as this number type; a row of zeros stays."""
    squares = np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64)
    norms = np.sqrt(np.where(squares > 0, squares, 1.0))
    units: Embeddings = (vectors / norms[:, None].astype(kind)).astype(kind, copy=False)
    return units
