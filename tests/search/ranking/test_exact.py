"""Exact rankings compared with a simple oracle, ties included, and their TREC runs."""

from collections.abc import Iterator
from pathlib import Path

import ir_measures
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from indexer.ann.score_order import from_sort_key, sort_key
from indexer.arrays import Vectors
from indexer.errors import ConfigError, EvaluationError
from search.evaluation.retrieval.metrics import measure
from search.evaluation.retrieval.runs import run_files, run_tag, write_per_query
from search.export.trec import require_plain_ids, run_lines, strictly_falling
from search.ranking.exact import exact_top_k, id_order, top_k_above_zero
from tests.oracles import best_rows

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
# Few distinct values, so that most scores tie.
SMALL = arrays(np.float32, st.tuples(st.integers(1, 20), st.just(3)), elements=st.sampled_from([-1, 0, 0.5, 1]))


def blocks_of(vectors: Vectors, size: int) -> Iterator[Vectors]:
    return (vectors[start : start + size] for start in range(0, len(vectors), size))


@given(vectors=SMALL, queries=SMALL, size=st.integers(1, 7), depth=st.integers(1, 25), seed=st.integers(0, 9))
def test_rankings_equal_the_oracle_in_any_blocks(
    vectors: Vectors, queries: Vectors, size: int, depth: int, seed: int
) -> None:
    ids = [f"d{number}" for number in np.random.default_rng(seed).permutation(len(vectors))]
    found = exact_top_k(queries, blocks_of(vectors, size), id_order(ids), depth)
    for query, (scores, rows) in zip(queries, found, strict=True):
        expected = best_rows(vectors, query, ids, depth)
        assert [(ids[row], score) for row, score in zip(rows.tolist(), scores.tolist(), strict=True)] == expected


@given(vectors=SMALL, queries=SMALL, size=st.integers(1, 7), depth=st.integers(1, 25), seed=st.integers(0, 9))
def test_a_document_of_several_windows_counts_by_its_best_one(
    vectors: Vectors, queries: Vectors, size: int, depth: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    document_of = np.cumsum(np.concatenate([[0], draw.integers(0, 2, len(vectors) - 1)]))
    ids = [f"d{number}" for number in draw.permutation(document_of[-1] + 1)]
    found = exact_top_k(queries, blocks_of(vectors, size), id_order(ids), depth, document_of)
    for query, (scores, documents) in zip(queries, found, strict=True):
        best: dict[str, float] = {}
        for name, score in best_rows(vectors, query, [ids[number] for number in document_of], len(vectors)):
            best.setdefault(name, score)
        expected = sorted(best.items(), key=lambda hit: (-hit[1], hit[0]))[:depth]
        assert [(ids[number], score) for number, score in zip(documents, scores.tolist(), strict=True)] == expected


def test_more_queries_than_a_block_holds_are_all_answered() -> None:
    vectors = np.random.default_rng(0).standard_normal((600, 4), dtype=np.float32)
    found = exact_top_k(vectors, blocks_of(vectors, 100), np.arange(600), 5)
    assert len(found) == 600
    np.testing.assert_array_equal(found[599][1], np.argsort(-(vectors @ vectors[599]))[:5])


def test_no_queries_have_no_answers() -> None:
    assert exact_top_k(np.zeros((0, 3), np.float32), iter([np.ones((2, 3), np.float32)]), np.arange(2), 5) == []


def test_documents_that_score_are_ranked_with_ties_by_id() -> None:
    places = id_order(["c", "a", "b", "d"])
    scores, rows = top_k_above_zero(np.array([1, 1, 0, 2], np.float32), places, 2)
    assert (scores.tolist(), rows.tolist()) == ([2, 1], [3, 1])


@given(st.lists(FLOATS, min_size=1))
def test_the_numbers_of_scores_keep_their_order_and_lead_back(values: list[float]) -> None:
    scores = np.array(values, np.float32)
    numbers = sort_key(scores)
    np.testing.assert_array_equal(from_sort_key(numbers), scores)
    larger = scores[:, None] > scores
    assert np.array_equal(np.sign(np.subtract.outer(numbers, numbers)), larger.astype(int) - larger.T)


@given(st.lists(st.floats(-8, 8, width=32), min_size=1))
def test_falling_scores_fall_by_as_little_as_they_can(values: list[float]) -> None:
    scores = np.array(sorted(values, reverse=True), np.float32)
    result = strictly_falling(scores)
    assert np.all(np.diff(result) < 0)
    assert np.all(result <= scores)
    lowest = scores[0]
    for given_score, score in zip(scores[1:], result[1:], strict=True):
        lowest = min(given_score, np.nextafter(lowest, np.float32(-np.inf)))
        assert score == lowest


@given(
    ties=st.lists(st.sampled_from([0.5, 0.25]), min_size=1, max_size=9),
    relevant=st.sets(st.integers(0, 8), min_size=1),
    seed=st.integers(0, 9),
)
def test_a_run_is_judged_by_trec_eval_as_the_ranking_itself_is(
    ties: list[float], relevant: set[int], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ids = [f"d{number}" for number in np.random.default_rng(seed).permutation(9)]
    answer = top_k_above_zero(np.array(ties, np.float32), id_order(ids)[: len(ties)], 9)
    judgements = {"q": {ids[row]: 1 for row in relevant}}
    expected = measure(judgements, {"q": [ids[row] for row in answer[1]]}, [3])
    path = tmp_path_factory.mktemp("run") / "a.run"
    path.write_bytes(run_lines("tag", ["q"], ids, [answer]))
    wanted = {ir_measures.nDCG @ 3: "nDCG@3", ir_measures.AP: "MAP", ir_measures.RR: "MRR"}
    run = list(ir_measures.read_trec_run(str(path)))  # type: ignore[no-untyped-call]
    found = ir_measures.pytrec_eval.calc_aggregate(list(wanted), judgements, run)
    assert {name: found[key] for key, name in wanted.items()} == {name: expected[name][0] for name in wanted.values()}


def test_a_run_has_trecs_six_columns() -> None:
    answers = [(np.array([0.5, 0.5], np.float32), np.array([1, 0])), (np.zeros(0, np.float32), np.zeros(0, np.int64))]
    assert run_lines("tag", ["q1", "q2"], ["a", "b"], answers) == b"q1 Q0 b 1 0.5 tag\nq1 Q0 a 2 0.49999997 tag\n"


def test_one_setting_has_a_file_and_several_a_folder(tmp_path: Path) -> None:
    assert run_files(tmp_path / "a", ["one"], ["BM25"]) == {"one": tmp_path / "a"}
    assert run_files(tmp_path, ["mean 1,-1 raw"], ["BM25"]) == {
        "mean 1,-1 raw": tmp_path / "mean_1,-1_raw.run",
        "BM25": tmp_path / "BM25.run",
    }
    assert list(run_files(tmp_path / "a", ["one", "two"], [])) == ["one", "two"]
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="expected a folder for 2 settings"):
        run_files(tmp_path / "file", ["one", "two"], [])
    assert run_tag("mean 1,-1 raw") == "mean_1,-1_raw"


@pytest.mark.parametrize("name", ["a b", "a\tb", " a", ""])
def test_ids_that_a_run_cannot_hold_are_refused(name: str) -> None:
    with pytest.raises(EvaluationError, match="white space"):
        require_plain_ids(["fine", name])


def test_the_table_of_queries_has_a_column_a_setting(tmp_path: Path) -> None:
    judgements = {"q1": {"a": 1, "b": 0}, "q2": {"a": 2, "c": 1}}
    write_per_query(
        tmp_path / "t.tsv", "nDCG@10", judgements, {"one": np.array([0.5, 1]), "BM25": np.array([0, 1 / 3])}
    )
    assert (tmp_path / "t.tsv").read_text().splitlines() == [
        "query-id\trelevant\tnDCG@10 one\tnDCG@10 BM25",
        "q1\t1\t0.500000\t0.000000",
        "q2\t2\t1.000000\t0.333333",
    ]
