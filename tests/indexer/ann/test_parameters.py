"""Search parameters through the layers of an index, the settings to try, and their work."""

import io
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from indexer import ann
from indexer.ann import faiss_index
from indexer.ann.choosing import cost
from indexer.ann.choosing.cost import QueryCost
from indexer.errors import ConfigError
from tests.indexer.ann.test_faiss_index import Vectors, made, unit_vectors

ROWS, DIM, K = 3000, 32, 10
KINDS = {
    "Flat": set(),
    "SQ8": set(),
    "PQ16x4fs": set(),
    "HNSW16": {"efSearch"},
    "PCA24,HNSW16": {"efSearch"},
    "IVF16,Flat": {"nprobe"},
    "PQ16x4fs,RFlat": {"k_factor"},
    "IVF1,PQ16x4fs,Refine(SQ8)": {"nprobe", "k_factor"},
    "OPQ16_32,IVF16,PQ16x4fs,RFlat": {"nprobe", "k_factor"},
    "RaBitQ4": {"qb"},
    "IVF16,RaBitQ": {"nprobe", "qb"},
    "IVF1,RaBitQfs,RFlat": {"nprobe", "qb", "k_factor"},
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    ann.set_threads(1)


@cache
def vectors() -> Vectors:
    return unit_vectors(ROWS, DIM)


@cache
def queries() -> Vectors:
    near = vectors()[::100] + 0.5 * unit_vectors(30, DIM, seed=1)
    unit: Vectors = (near / np.linalg.norm(near, axis=1, keepdims=True)).astype(np.float32)
    return unit


@cache
def stored(factory: str) -> bytes:
    file: Any = io.BytesIO()
    ann.save_index(made(factory, vectors()), file)
    return bytes(file.getvalue())


def loaded(factory: str) -> Any:
    return ann.load_index(io.BytesIO(stored(factory)), "memory")


def recall(index: Any, mask: Any = None) -> float:
    scores = queries().astype(np.float64) @ vectors().T.astype(np.float64)
    right = [set(row.tolist()) for row in np.argsort(-scores, axis=1)[:, :K]]
    found = ann.search_index(index, queries(), K, mask)
    return float(np.mean([len(best & set(rows.tolist())) / K for best, (_, rows) in zip(right, found, strict=True)]))


# --- reading and setting


@pytest.mark.parametrize("factory", KINDS)
def test_parameters_are_read_and_set_through_wrappers_and_kept_in_the_file(factory: str) -> None:
    index = loaded(factory)
    assert set(ann.search_parameters(index)) == KINDS[factory]
    values = {"nprobe": 3, "efSearch": 77, "k_factor": 5, "qb": 6}
    asked = {name: values[name] for name in KINDS[factory]}
    ann.set_search_parameters(index, asked)
    assert ann.search_parameters(index) == asked
    file: Any = io.BytesIO()
    ann.save_index(index, file)
    again = ann.load_index(io.BytesIO(file.getvalue()), "memory")
    ann.set_search_parameters(again, asked)
    assert ann.search_parameters(again) == asked


def test_a_parameter_that_is_not_named_stays_as_it_is() -> None:
    """An index from before k_factor was stored has only nprobe."""
    index = loaded("IVF1,PQ16x4fs,Refine(SQ8)")
    ann.set_search_parameters(index, {"nprobe": 1, "k_factor": 9})
    ann.set_search_parameters(index, {"nprobe": 2})
    assert ann.search_parameters(index) == {"nprobe": 2, "k_factor": 9}


@pytest.mark.parametrize(
    ("factory", "parameters", "message"),
    [
        ("Flat", {"nprobe": 4}, 'no search parameter "nprobe"; it has none'),
        ("HNSW16", {"nprobe": 4}, 'no search parameter "nprobe"; it has efSearch'),
        ("HNSW16", {"efSearch": 0}, '"efSearch" is 0; expected a whole number 1 to'),
        ("IVF16,Flat", {"nprobe": "4"}, "\"nprobe\" is '4'; expected"),
        ("IVF16,Flat", {"nprobe": True}, '"nprobe" is True; expected'),
        ("PQ16x4fs,RFlat", {"k_factor": 0.5}, '"k_factor" is 0.5; expected'),
        ("RaBitQ4", {"qb": 9}, '"qb" is 9; expected a whole number 0 to 8'),
    ],
)
def test_what_an_index_cannot_take_is_refused_and_changes_nothing(
    factory: str, parameters: dict[str, Any], message: str
) -> None:
    index = loaded(factory)
    before = ann.search_parameters(index)
    with pytest.raises(ConfigError) as caught:
        ann.set_search_parameters(index, parameters)
    assert message in str(caught.value)
    assert ann.search_parameters(index) == before


@pytest.mark.parametrize(
    ("factory", "name"),
    [
        ("IVF16,Flat", "nprobe"),
        ("HNSW16", "efSearch"),
        ("PQ16x4fs,RFlat", "k_factor"),
        ("IVF1,PQ16x4fs,Refine(SQ8)", "k_factor"),
        ("PCA24,HNSW16", "efSearch"),
    ],
)
@pytest.mark.parametrize("filtered", [False, True])
def test_parameters_act_on_searches_with_and_without_a_filter(factory: str, name: str, filtered: bool) -> None:
    """A larger value finds more near rows."""
    index = loaded(factory)
    mask = np.ones(ROWS, bool)
    mask[0] = not filtered  # nearly all rows, but filtered
    reached = []
    for value in (1, 200):
        ann.set_search_parameters(index, {name: value})
        reached.append(recall(index, mask))
    assert reached[1] > reached[0] + 0.03


def test_as_many_candidates_are_scored_again_as_k_factor_says() -> None:
    """A few extra rows are requested for the order of ties, without extra candidates."""
    index = loaded("PQ16x4fs,RFlat")
    for factor in (3, 8, 20):
        ann.set_search_parameters(index, {"k_factor": factor})
        _, plain = index.search(queries(), K)
        found = ann.search_index(index, queries(), K)
        assert [rows[:K].tolist() for _, rows in found] == plain.tolist()


# --- settings to try


@pytest.mark.parametrize("factory", KINDS)
def test_the_grid_goes_from_least_to_most_work_in_small_steps(factory: str) -> None:
    index = loaded(factory)
    before = ann.search_parameters(index)
    grid = ann.parameter_grid(index)
    costs = [ann.query_cost(index, K, parameters=setting).cost for setting in grid]
    assert costs == sorted(costs)
    assert ann.search_parameters(index) == before
    tuned = KINDS[factory] - {"qb"}
    assert all(set(setting) == tuned for setting in grid)
    largest = {"nprobe": 1 if "IVF1," in factory else 16, "efSearch": ROWS, "k_factor": ROWS // K}
    assert grid[-1] == {name: largest[name] for name in tuned}
    if len(tuned) == 1:
        (name,) = tuned
        values = [setting[name] for setting in grid]
        assert all(low < high <= 2 * low for low, high in pairwise(values))
        assert name != "k_factor" or all(high <= 1.5 * low for low, high in pairwise(values[2:-1]))


def test_a_grid_of_two_parameters_holds_the_pairs_in_which_neither_part_is_idle() -> None:
    index = loaded("OPQ16_32,IVF16,PQ16x4fs,RFlat")
    grid = ann.parameter_grid(index)
    assert {setting["nprobe"] for setting in grid} == {1, 2, 4, 8, 16}
    idle = {"nprobe": 1, "k_factor": 300}  # few rows scanned, and nearly all of them rescored
    assert idle not in grid
    assert {"nprobe": 16, "k_factor": 300} in grid
    assert len(grid) == len({tuple(setting.items()) for setting in grid})


@pytest.mark.parametrize("factory", ["IVF16,Flat", "HNSW16", "PQ16x4fs,RFlat", "OPQ16_32,IVF16,PQ16x4fs,RFlat"])
def test_the_last_setting_of_the_grid_finds_nearly_everything(factory: str) -> None:
    index = loaded(factory)
    ann.set_search_parameters(index, ann.parameter_grid(index)[-1])
    assert recall(index) > 0.99


# --- work


def test_work_of_scans_is_what_they_hold() -> None:
    assert ann.query_cost(loaded("Flat"), K) == QueryCost(ROWS * DIM * 4, ROWS)
    assert ann.query_cost(loaded("SQ8"), K) == QueryCost(ROWS * DIM, ROWS)
    assert ann.query_cost(loaded("PQ16x4fs"), K) == QueryCost(ROWS * 8, 0)
    assert ann.query_cost(ann.make_index("Flat", DIM), K) == QueryCost(0, 0)
    assert ann.query_cost(ann.make_index("HNSW16", DIM), K) == QueryCost(0, 0)


def test_scoring_again_adds_the_candidates() -> None:
    index = loaded("PQ16x4fs,RFlat")
    ann.set_search_parameters(index, {"k_factor": 16})
    width = DIM * 4 + 2560  # to read and to select a candidate
    assert ann.query_cost(index, K) == QueryCost(ROWS * 8 + 160 * width, 160, 160)
    assert ann.query_cost(index, K, parameters={"k_factor": 10_000}) == QueryCost(ROWS * 8 + ROWS * width, ROWS, ROWS)


def test_inverted_lists_are_read_in_part() -> None:
    index = loaded("IVF16,Flat")
    coarse = QueryCost(16 * DIM * 4, 16)
    everything = ann.query_cost(index, K, parameters={"nprobe": 16})
    assert everything == coarse + QueryCost(ROWS * (DIM * 4 + 8), ROWS, 16)
    some = ann.query_cost(index, K, parameters={"nprobe": 4})
    assert ROWS / 4 <= some.products - 16 <= ROWS / 3  # full lists are hit more often
    assert ann.query_cost(index, K, rows=10 * ROWS, parameters={"nprobe": 16}) == coarse + QueryCost(
        10 * ROWS * (DIM * 4 + 8), 10 * ROWS, 16
    )


def test_the_share_of_rows_in_inverted_lists_is_that_of_a_stored_vector() -> None:
    index = loaded("IVF16,Flat")
    lists = faiss_index.innermost(index).invlists
    sizes = np.array([lists.list_size(number) for number in range(16)], float)
    expected = (sizes**2).sum() / sizes.sum()
    assert ann.query_cost(index, K, parameters={"nprobe": 1}).products - 16 == np.ceil(expected)


@pytest.mark.parametrize(("factory", "width"), [("HNSW16", 16), ("HNSW16", 64), ("HNSW16", 256), ("HNSW32", 64)])
def test_the_products_of_a_graph_are_about_those_that_faiss_counts(factory: str, width: int) -> None:
    index, faiss = loaded(factory), ann.import_faiss()
    ann.set_search_parameters(index, {"efSearch": width})
    faiss.cvar.hnsw_stats.reset()
    index.search(queries(), K)
    counted = faiss.cvar.hnsw_stats.ndis / len(queries())
    assert counted / 2 <= ann.query_cost(index, K).products <= 2 * counted


def test_the_work_of_a_walk_is_that_worked_out_by_hand() -> None:
    """visited = 10,000 (1 - exp(-64 * 1.6 * 16 / 10,000)) + 16 ln 10,001 = 1658.5, rounded up in two steps."""
    visited, hops = 1659, 64
    expected = QueryCost(visited * 100 + hops * 32 * 4 + 4 * hops * 64, visited, visited + hops)
    assert cost._graph(vector_size=100, links=32, width=64, rows=10_000) == expected
    assert expected.cost == expected.bytes + 256 * 1659 + 2048 * 1723
    # HNSW16 has 32 links on its lowest level; at least as many nodes are kept as rows are wanted
    index = loaded("HNSW16")
    for k, width in ((K, 64), (100, 100)):
        assert ann.query_cost(index, k, parameters={"efSearch": 64}) == cost._graph(DIM * 4, 32, width, ROWS)
    # all ten nodes are scored and expanded
    assert cost._graph(vector_size=100, links=32, width=64, rows=10) == QueryCost(1000 + 10 * 128 + 4 * 10 * 64, 10, 20)


def test_the_settings_of_a_scan_that_is_scored_again_never_change() -> None:
    """With one list, scanning cannot grow, and the step that rescores only the requested rows is left out."""
    index = ann.make_index("IVF1,PQ16x4fs,Refine(SQ8)", DIM)
    index.train(vectors())
    index.add(vectors())
    factors = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 300)
    assert ann.parameter_grid(index, 10) == [{"nprobe": 1, "k_factor": factor} for factor in factors]
    assert [setting["k_factor"] for setting in ann.parameter_grid(index, 1)][-2:] == [768, 1024]
    assert [setting["k_factor"] for setting in ann.parameter_grid(index, 7)][-2:] == [384, 429]  # 3000 / 7, rounded up


@pytest.mark.parametrize("factory", KINDS)
def test_work_grows_with_rows_with_k_and_with_every_parameter(factory: str) -> None:
    index = loaded(factory)
    work = ann.query_cost(index, K)
    assert ann.query_cost(index, K, rows=4 * ROWS).cost > work.cost
    assert ann.query_cost(index, 100).cost >= work.cost
    for name, value in ann.search_parameters(index).items():
        assert ann.query_cost(index, K, parameters={name: 2 * value}).cost >= work.cost


@pytest.mark.parametrize("factory", KINDS)
def test_rows_that_are_not_allowed_make_no_more_work_than_scoring_the_others(factory: str) -> None:
    """If an index stores the vectors, the computed cost of a filtered search never exceeds that of scoring the allowed
    rows."""
    index = loaded(factory)
    assert ann.query_cost(index, K, allowed=0) == QueryCost(0, 0)
    assert ann.query_cost(index, K, allowed=ROWS) == ann.query_cost(index, K)
    if faiss_index.storage_of(index) is not None and ann.supports_filter(faiss_index.storage_of(index)):
        assert ann.query_cost(index, K, allowed=10).cost <= 10 * QueryCost(DIM * 4, 1, 1).cost
    assert ann.query_cost(loaded("Flat"), K, allowed=10) == QueryCost(10 * DIM * 4, 10, 10)
    assert ann.query_cost(loaded("Flat"), K, allowed=1000) == QueryCost(1000 * DIM * 4, 1000)
