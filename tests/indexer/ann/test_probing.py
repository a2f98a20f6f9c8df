"""Lists that a query probes, and candidates scored again: laws, and FAISS as the oracle."""

from typing import Any

import faiss
import numpy as np
import pytest

from indexer import ann
from indexer.ann import probing
from indexer.ann.parameters import faiss_search
from indexer.ann.probing import ProbedLists, probed_lists
from indexer.ann.rescoring import best_candidates, rescored
from indexer.arrays import RowIds, Vectors

DIM, ROWS, LISTS = 16, 3000, 32
KINDS = [
    "IVF32,Flat",
    "IVF32,SQ8",
    "IVF32,PQ8x4fsr,Refine(SQfp16)",
    "Pad32,IVF32,PQ8x4fsr,Refine(SQ8)",
    "PCA12,IVF32,Flat",
]


def clustered(count: int, seed: int) -> Vectors:
    """Unit vectors around a few centres, some close to one, some between many."""
    centres = np.random.default_rng(0).standard_normal((40, DIM))
    draw = np.random.default_rng(seed)
    spread = draw.uniform(0.1, 1.5, (count, 1))
    vectors = centres[draw.integers(0, len(centres), count)] + spread * draw.standard_normal((count, DIM))
    unit: Vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return unit


def filled(factory: str) -> Any:
    vectors = clustered(ROWS, 1)
    index = ann.IndexTrainer(vectors).trained(factory)
    ann.add_vectors(index, vectors)
    return index


def lists_of(factory: str) -> ProbedLists:
    index = filled(factory)
    lists = probed_lists(index)
    assert lists is not None
    return lists


def found(index: Any, queries: Vectors, nprobe: int, reach: int = 10) -> RowIds:
    return faiss_search(index, queries, reach, {"nprobe": nprobe, "k_factor": 4}, 4 * reach)[1]


@pytest.mark.parametrize("factory", KINDS)
def test_all_lists_give_the_rows_of_faiss(factory: str) -> None:
    index, queries = filled(factory), clustered(70, 2)
    ann.set_search_parameters(index, {name: LISTS if name == "nprobe" else 4 for name in ann.search_parameters(index)})
    for ours, theirs in zip(found(index, queries, LISTS), index.search(queries, 10)[1], strict=True):
        assert len({*ours.tolist()} & {*theirs.tolist()}) >= 9  # equal scores may swap the last


@pytest.mark.parametrize("factory", KINDS)
def test_one_query_gets_the_answer_of_a_batch(factory: str) -> None:
    index, queries = filled(factory), clustered(70, 2)
    batch = found(index, queries, 6)
    alone = np.concatenate([found(index, queries[place : place + 1], 6) for place in range(len(queries))])
    assert np.mean([{*a} == {*b} for a, b in zip(batch.tolist(), alone.tolist(), strict=True)]) > 0.95


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_and_blocks_leave_the_answer_unchanged(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    index, queries = filled(KINDS[2]), clustered(150, 2)
    expected = found(index, queries, 6)
    monkeypatch.setattr(probing, "_SCORES", 7 * LISTS)
    before = faiss.omp_get_max_threads()
    ann.set_threads(threads)
    try:
        np.testing.assert_array_equal(found(index, queries, 6), expected)
    finally:
        ann.set_threads(before)


@pytest.mark.parametrize("nprobe", [1, 2, 5, 12, 31, 32, 50])
def test_nprobe_is_the_number_of_lists_on_average_and_at_least_one_is_probed(nprobe: int) -> None:
    lists = lists_of("IVF32,Flat")
    counts = [lists.count(query[None], nprobe) for query in clustered(400, 2)]
    assert min(counts) >= 1
    assert np.mean(counts) == pytest.approx(min(nprobe, LISTS), rel=0.35, abs=0.5)


def test_more_lists_are_probed_with_a_larger_nprobe() -> None:
    lists = lists_of("IVF32,Flat")
    for query in clustered(50, 2):
        counts = [lists.count(query[None], nprobe) for nprobe in range(1, LISTS + 1)]
        assert counts == sorted(counts)


def test_the_recall_is_higher_than_with_equally_many_lists_for_every_query() -> None:
    index, queries = filled("IVF32,Flat"), clustered(400, 2)
    lists = probed_lists(index)
    assert lists is not None
    vectors = clustered(ROWS, 1)
    best = np.argsort(-(queries @ vectors.T), axis=1)[:, :10]

    def recall(rows: RowIds) -> float:
        return float(np.mean([len({*a} & {*b}) / 10 for a, b in zip(rows.tolist(), best.tolist(), strict=True)]))

    probed = np.mean([lists.count(query[None], 4) for query in queries])
    ann.set_search_parameters(index, {"nprobe": int(np.ceil(probed))})
    assert recall(found(index, queries, 4)) > recall(index.search(queries, 10)[1])


def test_only_allowed_rows_are_found() -> None:
    index, queries = filled(KINDS[2]), clustered(70, 2)
    allowed = np.arange(ROWS) % 5 == 0
    for _, rows in ann.search_index(index, queries, 10, allowed):
        assert len(rows) >= 10
        assert allowed[rows].all()


@pytest.mark.parametrize("factory", ["Flat", "HNSW8", "IVF1,PQ8x4fs,RFlat", "IVF32,PQ8x4fs", "PQ8", "IVF32_HNSW8,Flat"])
def test_other_kinds_are_searched_by_faiss(factory: str) -> None:
    index, queries = filled(factory), clustered(40, 2)
    assert probed_lists(index) is None
    parameters = ann.search_parameters(index)
    _, rows = faiss_search(index, queries, 10, parameters)
    np.testing.assert_array_equal(rows, index.search(queries, 10)[1])


def test_an_empty_index_has_no_lists_until_rows_are_added() -> None:
    vectors = clustered(ROWS, 1)
    index = ann.IndexTrainer(vectors).trained("IVF32,Flat")
    assert probed_lists(index) is None
    ann.add_vectors(index, vectors)
    assert probed_lists(index) is not None


def test_for_faiss_alone_more_lists_are_set_but_not_more_than_there_are() -> None:
    for factory, before, after in (("IVF32,Flat", 4, 7), ("IVF32,Flat", 30, 32), ("IVF1,PQ8x4fs,RFlat", 1, 1)):
        index = filled(factory)
        ann.set_search_parameters(index, {"nprobe": before})
        ann.prepare_for_faiss_alone(index)
        assert ann.search_parameters(index)["nprobe"] == after


# --- candidates


@pytest.mark.parametrize("kind", ["SQfp16", "SQ8", "SQ6", "Flat", "SQbf16"])
def test_candidates_get_the_products_with_their_stored_vectors(kind: str) -> None:
    vectors, queries = clustered(ROWS, 1), clustered(9, 2)
    vectors[7, :4] = [0, -3e-6, 5e-8, -1e-9]  # float16 has 6e-8 as its least number
    store = faiss.index_factory(DIM, kind, faiss.METRIC_INNER_PRODUCT)
    store.train(vectors)
    store.add(vectors)
    rows = np.random.default_rng(3).integers(0, ROWS, (9, 700))
    rows[:, 0], rows[2, 5:9] = 7, -1
    expected = np.einsum("md,mkd->mk", queries, store.reconstruct_n(0, ROWS)[rows])
    scores = rescored(store, queries, rows)
    np.testing.assert_allclose(scores[rows >= 0], expected[rows >= 0], atol=1e-6)
    assert np.isneginf(scores[rows < 0]).all()
    best, kept = best_candidates(store, queries, rows, 12)
    np.testing.assert_array_equal(best, np.sort(scores, axis=1)[:, ::-1][:, :12])
    np.testing.assert_allclose(best, np.einsum("md,mkd->mk", queries, store.reconstruct_n(0, ROWS)[kept]), atol=1e-6)


def test_a_mapped_index_gives_the_same_answers(tmp_path: Any) -> None:
    index, queries = filled(KINDS[2]), clustered(70, 2)
    path = tmp_path / "index.faiss"
    with path.open("wb") as file:
        ann.save_index(index, file)
    mapped = ann.map_index(path)
    assert ann.is_mapped(mapped)
    np.testing.assert_array_equal(found(mapped, queries, 6), found(index, queries, 6))
