"""BM25 loaded from disk has the scores of a new BM25, and of Lucene's formula."""

import logging
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.recipe.ranking import HybridConfig
from search.ranking import terms as terms_module
from search.ranking.bm25 import BM25, bm25_parameters
from search.ranking.exact import id_order, top_k_above_zero
from search.ranking.terms import tokenize

CONFIG = HybridConfig()
PARAMETERS = bm25_parameters(CONFIG)
WORDS = ["whale", "whales", "song", "sea", "the", "of", "straße", "日本語", "naïve", "x86"]
texts = st.lists(st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join), min_size=1, max_size=12)
queries = st.lists(st.sampled_from([*WORDS, "zebra"]), max_size=5).map(" ".join)


def by_formula(terms: Sequence[str], documents: Sequence[Sequence[str]]) -> list[float]:
    """Return Lucene's BM25 (Kamphuis et al., ECIR 2020), a sum over the query's terms."""
    k1, b = PARAMETERS["k1"], PARAMETERS["b"]
    mean = sum(map(len, documents)) / len(documents)
    scores = []
    for document in documents:
        counts, score = Counter(document), 0.0
        for term in terms:
            holding = sum(term in other for other in documents)
            weight = math.log(1 + (len(documents) - holding + 0.5) / (holding + 0.5))
            often = counts[term]
            score += weight * often / (often + k1 * (1 - b + b * len(document) / (mean or 1)))
        scores.append(score)
    return scores


@settings(max_examples=40)
@given(texts, queries)
def test_scores_are_lucenes_before_and_after_the_disk(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[str], query: str
) -> None:
    folder = tmp_path_factory.mktemp("bm25")
    made = BM25.of(bodies, "hybrid", CONFIG)
    made.save(folder)
    (terms,) = tokenize([query], "hybrid", CONFIG)
    scores = made.scores(terms)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, by_formula(terms, tokenize(bodies, "hybrid", CONFIG)), rtol=1e-5)
    np.testing.assert_array_equal(BM25.load(folder, len(bodies), "hybrid").scores(terms), scores)


def test_texts_are_read_a_few_at_a_time_with_the_same_scores(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bodies, held = [" ".join(WORDS[number % 7 :]) for number in range(40)], list[int]()
    whole = BM25.of(bodies, "hybrid", CONFIG)
    tokenized = terms_module._tokenized

    def counted(texts: Sequence[str], *given: Any, **named: Any) -> Any:
        held.append(len(texts))
        return tokenized(texts, *given, **named)

    monkeypatch.setattr(terms_module, "_tokenized", counted)
    monkeypatch.setattr(terms_module, "_TOGETHER", 100)
    with caplog.at_level(logging.DEBUG):
        streamed = BM25.of(iter(bodies), "hybrid", CONFIG)
    assert sum(held) == len(bodies)
    assert max(held) <= 8
    assert caplog.records == []  # of bm25s, which asks for debug messages as it is imported
    for word in tokenize([" ".join(WORDS)], "hybrid", CONFIG)[0]:
        np.testing.assert_array_equal(streamed.scores([word]), whole.scores([word]))


@pytest.mark.parametrize("bodies", [[], [""], ["the of", "?"]])
def test_texts_without_a_term_score_nothing(tmp_path: Path, bodies: list[str]) -> None:
    made = BM25.of(bodies, "hybrid", CONFIG)
    made.save(tmp_path)
    for index in (made, BM25.load(tmp_path, len(bodies), "hybrid")):
        assert index.scores(["whale"]).tolist() == [0.0] * len(bodies)


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), max_size=20), st.integers(1, 25), st.randoms())
def test_documents_that_score_are_ranked_with_ties_by_id(values: list[float], depth: int, chance: object) -> None:
    ids = [f"d{number:02}" for number in range(len(values))]
    chance.shuffle(ids)  # type: ignore[attr-defined]
    scores, rows = top_k_above_zero(np.array(values, np.float32), id_order(ids), depth)
    expected = sorted((-value, name, row) for row, (value, name) in enumerate(zip(values, ids, strict=True)) if value)
    assert rows.tolist() == [row for _, _, row in expected[:depth]]
    assert scores.tolist() == [-value for value, _, _ in expected[:depth]]
