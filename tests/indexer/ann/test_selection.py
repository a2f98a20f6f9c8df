"""The choice of an index: exact answers, candidates, recall curves, and the chosen kind."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer import ann
from indexer.ann.choosing import recall as truth_module
from indexer.arrays import SearchResult
from indexer.errors import ConfigError

Vectors = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]


def unit(count: int, dim: int, seed: int = 0) -> Vectors:
    """Unit vectors around some centres, with a spectrum that falls like that of embeddings."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(max(2, count // 20), dim))
    rows = (centres[random.integers(len(centres), size=count)] + random.normal(size=(count, dim))) * np.geomspace(
        1, 0.3, dim
    )
    scaled: Vectors = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return scaled


def best_by_sorting(vectors: Vectors, query: Vectors, excluded: set[int], depth: int) -> tuple[list[int], float | None]:
    """The rows that score at least as much as the `depth`-th best, and that score; scored one by one."""
    scores = {
        row: float(np.dot(vectors[row].astype(np.float64), query.astype(np.float64))) for row in range(len(vectors))
    }
    for row in excluded:
        scores.pop(row, None)
    order = sorted(scores.values(), reverse=True)
    if len(order) < depth:
        return sorted(scores), None
    return sorted(row for row, score in scores.items() if score >= order[depth - 1] - ann.SCORE_TOLERANCE), order[
        depth - 1
    ]


# --- exact answers


@settings(max_examples=40)
@given(st.data())
def test_exact_best_is_what_sorting_every_score_gives(data: st.DataObject) -> None:
    rows, dim, depth = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 8)), data.draw(st.integers(1, 12))
    vectors = unit(rows, dim, data.draw(st.integers(0, 5)))
    copies = data.draw(st.lists(st.integers(0, rows - 1), max_size=6))
    vectors = np.concatenate([vectors, vectors[copies]])  # ties
    live = np.array(data.draw(st.lists(st.booleans(), min_size=len(vectors), max_size=len(vectors))))
    queries = unit(3, dim, 99)
    numbers = st.integers(0, len(vectors) - 1)
    excluded = [np.array(sorted(data.draw(st.sets(numbers, max_size=5))), np.int64) for _ in queries]
    exact, step = ann.GroundTruthBuilder(queries, depth, excluded), data.draw(st.integers(1, len(vectors)))
    for first in range(0, len(vectors), step):
        exact.update(first, vectors[first : first + step], live[first : first + step])
    for number, (_, found) in enumerate(exact.best):
        out = {*excluded[number].tolist(), *np.flatnonzero(~live).tolist()}
        expected, last = best_by_sorting(vectors, queries[number], out, depth)
        assert sorted(found.tolist()) == expected
        assert exact.last_scores[number] == (-np.inf if last is None else pytest.approx(last, abs=1e-12))


@settings(max_examples=25)
@given(st.data())
def test_copies_of_a_query_s_origin_are_found_and_left_out(data: st.DataObject) -> None:
    rows, dim = data.draw(st.integers(2, 50)), data.draw(st.integers(2, 8))
    vectors = unit(rows, dim, data.draw(st.integers(0, 5)))
    vectors = np.concatenate([vectors, vectors[data.draw(st.lists(st.integers(0, rows - 1), max_size=9))]])
    own = np.array([0, rows - 1])
    queries = unit(2, dim, 77) * data.draw(st.sampled_from([0.0, 0.5, 1.0])) + vectors[own]
    queries = (queries / np.linalg.norm(queries, axis=1, keepdims=True)).astype(np.float32)
    exact, step = ann.GroundTruthBuilder(queries, 3, origins=vectors[own]), data.draw(st.integers(1, len(vectors)))
    for first in range(0, len(vectors), step):
        exact.update(first, vectors[first : first + step])
    for number, row in enumerate(own.tolist()):
        copies = {
            n for n, v in enumerate(vectors) if float(v.astype(np.float64) @ vectors[row]) >= 1 - ann.SCORE_TOLERANCE
        }
        assert set(exact.excluded[number].tolist()) == copies
        assert sorted(exact.best[number][1].tolist()) == best_by_sorting(vectors, queries[number], copies, 3)[0]


def found(*rows: int) -> SearchResult:
    return np.linspace(1, 0, len(rows), dtype=np.float32), np.array(rows, np.int64)


def truth(right: list[list[int]], excluded: list[list[int]], depth: int = 2) -> ann.GroundTruth:
    wanted, left_out = ([np.array(rows, np.int64) for rows in lists] for lists in (right, excluded))
    return ann.GroundTruth(np.zeros((len(right), 1), np.float32), wanted, left_out, depth)


@pytest.mark.parametrize(
    ("right", "excluded", "answer", "recall"),
    [
        ([4, 5], [], (4, 5), 1.0),
        ([4, 5], [], (5, 4, 9), 1.0),
        ([4, 5], [], (4, 9, 5), 0.5),  # the first two count
        ([4, 5], [7], (7, 4, 5), 1.0),  # excluded
        ([4, 5, 6], [], (6, 5), 1.0),  # a tie with the last is right too
        ([4], [], (4, 9), 1.0),  # only one exists
        ([4, 5], [], (), 0.0),
        ([4, 5], [], (9, 8), 0.0),
    ],
)
def test_recall_counts_first_answers_among_the_right_ones(
    right: list[int], excluded: list[int], answer: tuple[int, ...], recall: float
) -> None:
    assert truth([right], [excluded]).recall([found(*answer)]) == recall


def test_recall_is_the_mean_over_queries_and_asks_for_as_many_more_as_are_left_out() -> None:
    both = truth([[1, 2], [3, 4]], [[], [7, 8, 9]])
    assert both.recall([found(1, 2), found(3, 9, 8, 7, 1)]) == 0.75
    assert both.reach == 5
    assert truth([], []).recall([]) == 1.0


def test_queries_unlike_others_do_not_count() -> None:
    vectors = unit(40, 8)
    many = np.concatenate([vectors, np.repeat(vectors[:1], 30, axis=0)])  # row 0 occurs 31 times
    exact = ann.GroundTruthBuilder(vectors[:2], 3, origins=vectors[:2])
    exact.update(0, many)
    counted = ann.GroundTruth.of(exact)
    assert len(counted) == 1
    np.testing.assert_array_equal(counted.queries[0], vectors[1])


def test_rows_are_taken_in_blocks_however_many_come_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, queries = unit(300, 8), unit(5, 8, 1)
    live = np.arange(300) % 3 > 0
    whole = ann.GroundTruthBuilder(queries, 4, origins=vectors[:5])
    whole.update(10, vectors, live)
    given = [rows[:2] for _, rows in whole.best]  # the best two of each query, left out the second time
    left = ann.GroundTruthBuilder(queries, 4, given, vectors[:5])
    left.update(10, vectors, live)
    monkeypatch.setattr(truth_module, "_VECTOR_ROWS", 7)
    monkeypatch.setattr(truth_module, "_QUERY_ROWS", 2)
    left_blocks = ann.GroundTruthBuilder(queries, 4, given, vectors[:5])
    left_blocks.update(10, vectors, live)
    for (_, some), (_, rows), out in zip(left_blocks.best, left.best, given, strict=True):
        np.testing.assert_array_equal(some, rows)
        assert len(some) == 4
        assert not np.isin(out, some).any()
    blocks = ann.GroundTruthBuilder(queries, 4, origins=vectors[:5])
    blocks.update(10, vectors, live)
    for ours, theirs in zip(blocks.best, whole.best, strict=True):
        np.testing.assert_array_equal(ours[1], theirs[1])
        np.testing.assert_array_equal(ours[0], theirs[0])


# --- curves


def filled(factory: str, vectors: Vectors) -> object:
    index = ann.make_index(factory, vectors.shape[1])
    ann.IndexTrainer(vectors).train(index)
    ann.add_vectors(index, vectors)
    return index


def truth_over(vectors: Vectors, queries: Vectors, live: npt.NDArray[np.bool_] | None = None) -> ann.GroundTruth:
    exact = ann.GroundTruthBuilder(queries)
    exact.update(0, vectors, live)
    return ann.GroundTruth.of(exact)


@pytest.mark.parametrize(
    "factory",
    ["IVF16,Flat", "HNSW8", "IVF1,PQ4x4fs,RFlat", "IVF16,PQ4x4fs,Refine(SQ8)", "IVF16,PQ8x4fsr,Refine(SQfp16)"],
)
def test_a_curve_rises_in_work_and_recall_and_leaves_the_index_as_it_was(factory: str) -> None:
    vectors = unit(1500, 16)
    index, judged = filled(factory, vectors), truth_over(vectors, unit(60, 16, 1))
    before = ann.search_parameters(index)
    curve = ann.recall_curve(index, judged)
    assert ann.search_parameters(index) == before
    assert curve[-1].recall > 0.97
    costs, recalls = [point.work.cost for point in curve], [point.recall for point in curve]
    assert costs == sorted(costs)
    assert recalls == sorted(set(recalls))
    for point in curve:  # each point equals a search with its parameters
        ann.set_search_parameters(index, point.search_parameters)
        assert judged.recall(ann.search_index(index, judged.queries, judged.reach)) == pytest.approx(point.recall)


@pytest.mark.parametrize(
    "factory", ["HNSW8", "IVF16,PQ4x4fs,Refine(SQ8)", "IVF1,RaBitQfs,Refine(SQ8)", "IVF16,PQ8x4fsr,Refine(SQfp16)"]
)
@pytest.mark.parametrize("enough", [0.0, 0.8, 1.0])
def test_a_curve_begun_is_the_same_when_it_is_finished(factory: str, enough: float) -> None:
    vectors = unit(1500, 16)
    index, judged = filled(factory, vectors), truth_over(vectors, unit(60, 16, 1))
    begun = ann.recall_curve(index, judged, enough=enough)
    whole = ann.recall_curve(index, judged)
    assert begun == whole[: len(begun)]
    assert begun[-1].recall >= enough or begun == whole
    assert ann.recall_curve(index, judged, begun=begun) == whole


@pytest.mark.parametrize("factory", ["HNSW8", "IVF16,Flat", "IVF16,PQ8x4fsr,Refine(SQfp16)"])
def test_a_curve_is_the_same_on_any_number_of_threads(factory: str) -> None:
    vectors = unit(1500, 16)
    index, judged = filled(factory, vectors), truth_over(vectors, unit(150, 16, 1))
    curves = []
    for threads in (1, 3):
        ann.set_threads(threads)
        curves.append(ann.recall_curve(index, judged))
    ann.set_threads(1)
    assert curves[0] == curves[1]


def test_few_settings_of_two_parameters_are_tried() -> None:
    """Settings along a path, far fewer than all pairs."""
    vectors = unit(3000, 16)
    index, judged = filled("IVF64,PQ8x4fsr,Refine(SQfp16)", vectors), truth_over(vectors, unit(60, 16, 1))
    curve = ann.recall_curve(index, judged)
    lists = {point.search_parameters["nprobe"] for point in curve}
    assert curve[-1].recall > 0.99
    assert lists - {2**step for step in range(7)}  # points between two powers
    best = max(
        truth_recall(index, judged, setting)
        for setting in ann.parameter_grid(index)
        if ann.query_cost(index, 10, parameters=setting).cost <= curve[-1].work.cost
    )
    assert curve[-1].recall >= best - 0.01


def truth_recall(index: object, judged: ann.GroundTruth, setting: dict[str, int]) -> float:
    ann.set_search_parameters(index, setting)
    return judged.recall(ann.search_index(index, judged.queries, judged.reach))


def test_deleted_rows_count_for_neither_side_of_a_curve() -> None:
    vectors, live = unit(1200, 16), np.arange(1200) % 3 > 0
    judged = truth_over(vectors, unit(40, 16, 1), live)
    assert not set(np.concatenate(judged.right).tolist()) & set(np.flatnonzero(~live).tolist())
    assert ann.recall_curve(filled("IVF16,Flat", vectors), judged, live)[-1].recall == 1.0


def stored_curve() -> list[ann.OperatingPoint]:
    points = [({"nprobe": 1}, 0.5), ({"nprobe": 4}, 0.9), ({"nprobe": 8}, 0.97)]
    return [ann.OperatingPoint(parameters, recall, ann.QueryCost(1, 1)) for parameters, recall in points]


def test_a_walk_is_not_widened_without_end() -> None:
    """FAISS scans all kept nodes at every step, so a search twice as wide takes four times as long."""
    grid = ann.parameter_grid(filled("HNSW4", unit(5000, 4)))
    assert max(setting["efSearch"] for setting in grid) == 4096


@pytest.mark.parametrize(("recall", "nprobe"), [(0.1, 1), (0.5, 1), (0.51, 4), (0.95, 8), (0.97, 8)])
def test_the_least_parameters_with_a_recall_are_looked_up(recall: float, nprobe: int) -> None:
    assert ann.parameters_for(stored_curve(), recall) == {"nprobe": nprobe}


def test_a_recall_out_of_reach_names_the_highest_there_is() -> None:
    with pytest.raises(ConfigError, match=r"recall@10 of 0\.99; the highest measured is 0\.9700.*exact=True"):
        ann.parameters_for(stored_curve(), 0.99)


# --- kinds


@pytest.mark.parametrize("dim", [1, 2, 3, 7, 16, 24, 381])
@pytest.mark.parametrize("rows", [1000, 1_000_000])
def test_every_kind_considered_can_be_made(dim: int, rows: int) -> None:
    factories = ann.candidate_factories(rows, dim, limited=True)
    assert len(set(factories)) == len(factories)
    for factory in factories:
        assert ann.make_index(factory, dim).d == dim


def test_kinds_with_lists_are_for_many_rows_and_coarse_ones_for_little_memory() -> None:
    few, many = (ann.candidate_factories(rows, 384, limited=False) for rows in (50_000, 1_000_000))
    assert set(few) < set(many)
    assert {"IVF1024,Flat", "Pad384,IVF1024,PQ192x4fsr,Refine(SQfp16)"} <= set(many) - set(few)
    limited = ann.candidate_factories(50_000, 384, limited=True)
    assert set(few) < set(limited)
    assert "SQ4" in limited
    for family in ("PQ", "HNSW", "RaBitQ"):
        assert any(family in factory for factory in few)


@pytest.mark.parametrize("factory", ["HNSW8", "IVF16,Flat", "IVF1,PQ4x4fs,RFlat", "SQ8"])
def test_bytes_are_those_of_the_file_carried_over_to_all_rows(factory: str) -> None:
    vectors = unit(3000, 16)
    judged = truth_over(vectors[:1500], unit(20, 16, 1))
    wanted = ann.IndexRequirements(3000, 16, 0.5)
    expected = ann.stored_bytes(filled(factory, vectors)) / 3000
    measured = ann.measure_candidate(factory, wanted, ann.IndexTrainer(vectors), judged, 1500).bytes_per_vector
    assert measured == pytest.approx(expected, rel=0.02)


def test_a_graph_of_more_rows_is_walked_wider() -> None:
    """The cost for 16 times the rows is that of twice the width; for as many rows it does not grow."""
    vectors = unit(1500, 16)
    judged, index = truth_over(vectors, unit(20, 16, 1)), filled("HNSW8", vectors)
    for rows, wider in ((1500, 1), (24_000, 2)):
        found = ann.measure_candidate("HNSW8", ann.IndexRequirements(rows, 16, 0.9), ann.IndexTrainer(vectors), judged)
        width = found.search_parameters["efSearch"]
        assert found.cost == ann.query_cost(index, 10, rows, {"efSearch": wider * width}).cost


@pytest.mark.parametrize("factory", ["HNSW8", "IVF16,Flat", "IVF1,PQ4x4fs,Refine(SQ8)", "SQ8"])
@pytest.mark.parametrize("rows", [1500, 40_000])
def test_no_search_costs_less_than_the_least(factory: str, rows: int) -> None:
    vectors = unit(1500, 16)
    judged, wanted = truth_over(vectors, unit(20, 16, 1)), ann.IndexRequirements(rows, 16, 0.01)
    found = ann.measure_candidate(factory, wanted, ann.IndexTrainer(vectors), judged)
    assert 0 < ann.cost_lower_bound(factory, wanted) <= found.cost


def considered(factory: str, recall: float, cost: int, width: float, fits: bool = True) -> ann.Candidate:
    return ann.Candidate(factory, recall, cost, width, fits)


def test_ranking_puts_cheap_ones_first_that_fit_and_reach_the_recall() -> None:
    wanted = ann.IndexRequirements(1000, 16, 0.9)
    expected = [
        considered("cheap", 0.91, 5, 90),
        considered("as cheap but larger", 0.99, 5, 100),
        considered("dear", 1.0, 50, 64),
        considered("low", 0.8, 1, 10),
        considered("lower", 0.7, 1, 10),
        considered("too large", 1.0, 1, 999, fits=False),
    ]
    assert ann.rank_candidates(expected[::-1], wanted) == expected


def test_small_is_what_a_query_reads_in_a_moment_and_memory_holds() -> None:
    assert ann.IndexRequirements(40_000, 384, 0.95).is_small
    assert not ann.IndexRequirements(50_000, 384, 0.95).is_small
    assert not ann.IndexRequirements(1000, 384, 0.95, memory=1 << 20).is_small
    assert ann.IndexRequirements(1000, 384, 0.95, memory=2 << 20).is_small


def test_what_is_considered_does_not_depend_on_threads() -> None:
    vectors = unit(1500, 16)
    judged, wanted = truth_over(vectors[:1000], unit(30, 16, 1)), ann.IndexRequirements(200_000, 16, 0.9)

    def all_of_them() -> list[dict[str, object]]:
        kinds = ann.candidate_factories(20_000, 16, limited=True)
        trainer = ann.IndexTrainer(vectors)
        return [ann.measure_candidate(kind, wanted, trainer, judged, 1000).to_dict() for kind in kinds]

    ann.set_threads(1)
    alone = all_of_them()
    try:
        ann.set_threads(3)
        assert all_of_them() == alone
    finally:
        ann.set_threads(1)
