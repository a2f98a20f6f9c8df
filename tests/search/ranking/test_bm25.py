"""The BM25 baseline: its formula, its ties, and queries without hits."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from indexer.corpus.corpus import read_corpus
from indexer.corpus.document import joined_text
from indexer.errors import MachineError
from indexer.recipe.ranking import HybridConfig
from search.evaluation.retrieval.beir import read_judged
from search.evaluation.retrieval.metrics import measure
from search.ranking.bm25 import BM25Ranking, bm25_parameters, describe_bm25
from search.ranking.exact import id_order

PARAMETERS = bm25_parameters(HybridConfig())
TEXTS = ["whale whale song", "deep sea whale", "bridge cables of steel", "the song"]


def hits(texts: list[str], query: str, depth: int = 10, ids: list[str] | None = None) -> list[tuple[int, float]]:
    """Return (row, score) of the hits of one query."""
    places = id_order(ids or [f"d{row:03}" for row in range(len(texts))])
    scores, rows = BM25Ranking.of(texts, places, HybridConfig(), "eval").search([query], depth)[0]
    return list(zip(rows.tolist(), scores.tolist(), strict=True))


def lucene(frequency: int, length: int, mean_length: float, containing: int, documents: int) -> float:
    """Return the score of one term of a query in one document."""
    weight = math.log(1 + (documents - containing + 0.5) / (containing + 0.5))
    k1, b = PARAMETERS["k1"], PARAMETERS["b"]
    return float(weight * frequency / (frequency + k1 * (1 - b + b * length / mean_length)))


def test_scores_are_lucenes() -> None:
    """Stop words are not terms: the lengths are 3, 3, 3 and 1."""
    mean = (3 + 3 + 3 + 1) / 4
    whale = [lucene(2, 3, mean, 2, 4), lucene(1, 3, mean, 2, 4)]
    song = [lucene(1, 3, mean, 2, 4), lucene(1, 1, mean, 2, 4)]
    found = dict(hits(TEXTS, "the songs of whales"))
    assert found == pytest.approx({0: whale[0] + song[0], 1: whale[1], 3: song[1]}, rel=1e-6)


def test_documents_without_a_term_of_the_query_are_not_found() -> None:
    assert [row for row, _ in hits(TEXTS, "steel bridges")] == [2]


def test_equal_scores_stand_in_the_order_of_ids_up_to_the_cut() -> None:
    texts, ids = ["whale"] * 5 + ["bridge"], ["e", "b", "d", "a", "c", "f"]
    assert [ids[row] for row, _ in hits(texts, "whale", 3, ids)] == ["a", "b", "c"]


@pytest.mark.parametrize("query", ["of the and", "zebra", "?!"])
def test_a_query_without_a_known_term_finds_nothing(query: str) -> None:
    assert hits(TEXTS, query) == []


def test_a_corpus_without_any_term_answers_nothing() -> None:
    assert hits(["of the", "and"], "whale") == []


def test_a_corpus_smaller_than_the_depth_is_ranked_whole() -> None:
    assert len(hits(["whale"], "whale", depth=1000)) == 1


def test_the_order_of_the_corpus_changes_no_answer() -> None:
    ids, rng = [f"d{row}" for row in range(60)], np.random.default_rng(0)
    words = ["whale", "song", "deep", "sea", "steel", "bridge"]
    texts = [" ".join(rng.choice(words, 3)) for _ in ids]
    expected = [(ids[row], score) for row, score in hits(texts, "deep whale", 20, ids)]
    order = rng.permutation(60)
    shuffled = [ids[row] for row in order]
    found = hits([texts[row] for row in order], "deep whale", 20, shuffled)
    assert [(shuffled[row], score) for row, score in found] == expected


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    hits(TEXTS, "whale")
    assert capfd.readouterr() == ("", "")


def test_its_parameters_are_the_packages_defaults() -> None:
    import bm25s

    model = bm25s.BM25()
    assert (model.method, model.k1, model.b) == (PARAMETERS["method"], PARAMETERS["k1"], PARAMETERS["b"])
    assert "k1 1.5, b 0.75" in describe_bm25(PARAMETERS)


def test_of_windows_the_best_counts() -> None:
    """Three documents of two, one and two windows: the best of bm25s's five scores for each document."""
    texts, starts = ["whale song", "steel", "whale", "deep sea", "whale whale song"], np.array([0, 2, 3])
    config = HybridConfig(unit="window")
    (every,) = BM25Ranking.of(texts, np.arange(5), config, "eval").scores(["songs of whales"])
    (found,) = BM25Ranking.of(texts, np.arange(3), config, "eval", starts).scores(["songs of whales"])
    assert found.tolist() == [max(every[0], every[1]), every[2], max(every[3], every[4])]
    assert describe_bm25(bm25_parameters(config)).endswith(", unit window")


@pytest.mark.parametrize("module", ["bm25s", "Stemmer"])
def test_without_the_packages_the_line_that_installs_them_is_shown(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MachineError, match=r"pip install '.*isotrope\[eval\]"):
        hits(TEXTS, "whale")


@pytest.mark.check
def test_scifact_is_where_published_bm25_runs_are(shared: Path) -> None:
    """BEIR's own table has nDCG@10 .665 (Thakur et al., NeurIPS 2021); other engines are between .66 and .69."""
    folder = shared / "data/scifact"
    judged, documents = read_judged(folder), list(read_corpus(folder))
    ids = [document.id for document in documents]
    texts = [joined_text(document, ("title", "text")) for document in documents]
    found = BM25Ranking.of(texts, id_order(ids), HybridConfig(), "eval").search(list(judged.queries.values()), 10)
    ranked = {query: [ids[row] for row in rows] for query, (_, rows) in zip(judged.queries, found, strict=True)}
    assert 0.66 < measure(judged.judgements, ranked, [10])["nDCG@10"].mean() < 0.70
