"""One step of ranking by divergence: scores, order, and the bound of rows that were not compared."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from indexer.arrays import Embeddings, Mask, SearchResult, Vectors
from indexer.errors import ConfigError
from indexer.papers.latte_mix.divergence import js_similarities
from indexer.papers.latte_mix.hellinger import Hellinger
from indexer.transforms import Normalisation
from search.papers.divergence import first_reach, rank, require_index, require_queries
from search.ranking.similarities import ProvedTopK

DIMS, CLASSES, ROWS = 2, 3, 40


def mixtures(count: int, seed: int = 0) -> Embeddings:
    drawn = np.random.default_rng(seed).dirichlet(np.ones(CLASSES), (count, DIMS)).astype(np.float32)
    rows: Embeddings = drawn.reshape(count, DIMS * CLASSES)
    return rows


def index_of(rows: Embeddings, transform: Any, exact: bool = True, store: str = "float32") -> Any:
    """A stand-in for an index that compares with every row; `exact` is the property of its segments."""
    vectors = transform.transform(rows, "document")

    def search(queries: Vectors, k: int, allowed: Mask | None, exact: bool, missing: None = None) -> list[SearchResult]:
        there = np.arange(len(rows)) if allowed is None else np.flatnonzero(allowed)
        found = []
        for query in queries:
            scores = vectors[there] @ query
            best = np.argsort(-scores)[:k]
            found.append((scores[best], there[best]))
        return found

    encoder, settings = SimpleNamespace(pooling="latte-mix"), SimpleNamespace(dims=DIMS, latent="categorical")
    config = SimpleNamespace(
        encoder=encoder, store=SimpleNamespace(embeddings=store), gives_probabilities=True, paper=lambda _: settings
    )
    return SimpleNamespace(
        path="the-index", config=config, transform=transform, search=search, embeddings=lambda some: rows[some],
        numbering=SimpleNamespace(rows=len(rows)), searched=[SimpleNamespace(exact=exact)],
    )  # fmt: skip


@pytest.fixture
def index() -> Any:
    return index_of(mixtures(ROWS), Hellinger(DIMS * CLASSES))


def test_candidates_come_by_divergence_and_equal_ones_by_row() -> None:
    rows = np.concatenate([mixtures(5), mixtures(5)])  # each comes twice
    queries = mixtures(4, seed=1)
    for query, found in zip(queries, rank(index_of(rows, Hellinger(6)), queries, 10), strict=True):
        scores = js_similarities(query[None], rows, DIMS)[0].astype(np.float32)
        order = sorted(range(10), key=lambda row: (-scores[row], row))
        assert found.rows.tolist() == order
        assert found.scores.tolist() == scores[order].tolist()
        assert found.scores.dtype == np.float32
        assert found.bound == -math.inf


@pytest.mark.parametrize(("store", "rounding"), [("float32", 2.5e-5), ("float16", 1e-3)])
def test_roots_bound_what_was_not_compared(store: str, rounding: float) -> None:
    rows, queries = mixtures(ROWS), mixtures(10, seed=1)
    index = index_of(rows, Hellinger(6), store=store)
    proved = 0
    for query, found in zip(queries, rank(index, queries, 5), strict=True):
        ((products, _),) = index.search(index.transform.transform(query[None], "query"), 5, None, False)
        assert found.bound == float(products[-1]) + rounding
        scores = js_similarities(query[None], rows, DIMS)[0]
        assert np.delete(scores, found.rows).max() <= found.bound
        if found.proven(3):
            proved += 1
            np.testing.assert_allclose(found.scores[:3], np.sort(scores)[::-1][:3], atol=1e-6)
    assert 0 < proved < 10


def test_nothing_is_known_where_not_every_row_was_compared_or_the_vectors_are_no_roots() -> None:
    rows, query = mixtures(ROWS), mixtures(1, seed=1)
    (searched,) = rank(index_of(rows, Hellinger(6), exact=False), query, 12)
    assert searched.bound == math.inf
    (compared,) = rank(index_of(rows, Hellinger(6), exact=False), query, 12, exact=True)
    assert compared.bound < 1.1
    (normalised,) = rank(index_of(rows, Normalisation(6)), query, 12)
    assert normalised.bound == math.inf


def test_all_that_are_allowed_is_everything(index: Any) -> None:
    allowed = np.arange(ROWS) % 4 == 0
    (found,) = rank(index, mixtures(1, seed=1), 10, allowed)
    assert sorted(found.rows.tolist()) == np.flatnonzero(allowed).tolist()
    assert found.bound == -math.inf
    (none,) = rank(index, mixtures(1, seed=1), 10, np.zeros(ROWS, bool))
    assert (len(none.rows), none.bound) == (0, -math.inf)


def test_proof_needs_k_rows_no_worse_than_the_bound() -> None:
    scores = np.array([0.9, 0.5], np.float32)
    assert ProvedTopK(scores, np.arange(2), 0.5).proven(2)
    assert not ProvedTopK(scores, np.arange(2), 0.51).proven(2)
    assert ProvedTopK(scores, np.arange(2), 0.51).proven(1)
    assert not ProvedTopK(scores, np.arange(2), 0.1).proven(3)
    assert ProvedTopK(scores, np.arange(2), -math.inf).proven(3)


def test_ten_times_as_many_are_compared_and_a_hundred_at_least() -> None:
    assert [first_reach(k) for k in (1, 10, 11, 50)] == [100, 100, 110, 500]


@pytest.mark.parametrize("change", [(0, -0.1), (1, 0.02), (4, -0.02)])
def test_rows_that_are_no_distributions_are_refused(index: Any, change: tuple[int, float]) -> None:
    rows = mixtures(3)
    require_queries(index, rows)
    require_queries(index, rows + np.float32(0.003))  # what rounding may do
    rows[1, change[0]] += change[1]
    with pytest.raises(ConfigError, match=r"query vector 2 is not made of distributions.* in each of 2 dimensions"):
        require_queries(index, rows)


def test_a_class_may_have_no_probability_but_none_below_zero(index: Any) -> None:
    require_queries(index, np.array([[1, 0, 0, 0.5, 0.5, 0]], np.float32))
    with pytest.raises(ConfigError, match="query vector 1 is not made of distributions"):
        require_queries(index, np.array([[1, 0, 0, 0.75, 0.5, -0.25]], np.float32))  # sums to 1


def test_an_index_of_something_else_is_refused(index: Any) -> None:
    require_index(index)
    index.config.gives_probabilities = False
    with pytest.raises(ConfigError, match='pooling is "latte-mix" with latent "categorical"'):
        require_index(index)
    index.config.encoder.pooling = "mean"
    with pytest.raises(ConfigError, match=r'its pooling is "mean"\.'):
        require_index(index)
