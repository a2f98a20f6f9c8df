"""The kinds of index that are filled with every row, and the choice among them."""

from collections.abc import Mapping
from typing import Any

import pytest

from indexer import ann
from indexer.pipeline.steps.auto_index import FilledIndex, Finalists

RECALL = 0.9


def predicted(factory: str, cost: int) -> ann.Candidate:
    return ann.Candidate(factory, 0.95, cost, 64.0, True, {}, ann.make_index(factory, 16))


def settled(kinds: list[ann.Candidate], measured: Mapping[str, tuple[float, int]]) -> Finalists:
    """The finalists with the recall and the cost in `measured`."""
    finalists = Finalists(kinds, RECALL)
    for one in finalists:
        recall, cost = measured[one.factory]
        point = ann.OperatingPoint({}, recall, ann.QueryCost(cost, 0))
        finalists.take(FilledIndex(one.factory, one.trained, [point], point, 64.0))
    return finalists


def filled(finalists: Finalists) -> list[str]:
    return [one["factory"] for one in finalists.figures]


LISTS, ONE_LIST, GRAPH = "IVF4,PQ4x4fs,Refine(SQ8)", "IVF1,PQ4x4fs,Refine(SQ8)", "HNSW8"
FINER = "IVF4,PQ4x4fs,Refine(SQfp16)"


def test_kinds_near_the_best_are_compared_with_every_row() -> None:
    kinds = [predicted(ONE_LIST, 100), predicted(LISTS, 300), predicted("SQ8", 500)]
    finalists = settled(kinds, {ONE_LIST: (0.95, 110), LISTS: (0.93, 40)})
    assert filled(finalists) == [ONE_LIST, LISTS]  # SQ8 was estimated to need more work
    assert (finalists.best.factory, finalists.best.cost) == (LISTS, 40)
    assert finalists.missed == ""


def test_a_graph_is_filled_only_if_it_promises_less_than_what_was_measured() -> None:
    kinds = [predicted(GRAPH, 100), predicted(LISTS, 300)]
    assert filled(settled(kinds, {LISTS: (0.95, 90)})) == [LISTS]
    both = settled(kinds, {LISTS: (0.95, 290), GRAPH: (0.95, 120)})
    assert (filled(both), both.best.factory) == ([LISTS, GRAPH], GRAPH)


def test_what_scores_the_same_candidates_again_is_filled_once_unless_it_misses() -> None:
    kinds = [predicted(LISTS, 100), predicted(FINER, 110)]
    assert filled(settled(kinds, {LISTS: (0.95, 105)})) == [LISTS]
    missed = settled(kinds, {LISTS: (0.85, 105), FINER: (0.99, 200)})
    assert (filled(missed), missed.best.factory) == ([LISTS, FINER], FINER)
    assert missed.missed == f"{LISTS} reached 0.8500 with all rows"


def test_finer_codes_that_promise_as_little_work_are_filled_too() -> None:
    kinds = [predicted(LISTS, 100), predicted(FINER, 104)]
    both = settled(kinds, {LISTS: (0.95, 95), FINER: (0.97, 90)})
    assert (filled(both), both.best.factory) == ([LISTS, FINER], FINER)


@pytest.mark.parametrize(("cost", "best"), [(200, ["SQ8", "Flat"]), (140, ["SQ8"])])
def test_an_exact_index_is_taken_where_what_was_measured_is_more_work(cost: int, best: list[str]) -> None:
    finalists, offered = Finalists([predicted("SQ8", 100), predicted("Flat", 150)], RECALL), []
    for one in finalists:
        offered.append(one.factory)
        if not ann.is_exact(one.factory):
            point = ann.OperatingPoint({}, 0.95, ann.QueryCost(cost, 0))
            finalists.take(FilledIndex(one.factory, one.trained, [point], point, 64.0))
    assert offered == best


def test_nothing_is_filled_where_an_exact_index_promises_least() -> None:
    finalists = Finalists([predicted("Flat", 100), predicted("SQ8", 150)], RECALL)
    assert next(iter(finalists)).factory == "Flat"


def test_the_highest_recall_is_best_where_none_is_enough_and_others_are_let_go() -> None:
    kinds = [predicted("SQ4", 100), predicted("SQ6", 110), predicted("SQ8", 900)]
    low: dict[str, Any] = {"SQ4": (0.5, 100), "SQ6": (0.8, 110), "SQ8": (0.7, 900)}
    finalists = settled(kinds, low)
    assert filled(finalists) == ["SQ4", "SQ6", "SQ8"]
    assert finalists.best.factory == "SQ6"
    with pytest.raises(RuntimeError, match="no index has been filled"):
        _ = Finalists(kinds, RECALL).best
