"""Training and adding: the same index for any number of threads, without output or useless work."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer import ann
from indexer.ann import faiss_index
from indexer.errors import ConfigError
from tests.indexer.ann.test_faiss_index import made, saved, unit_vectors

ROWS, DIM = 1200, 32


@pytest.fixture
def faiss() -> Any:
    module = ann.import_faiss()
    before = module.omp_get_max_threads()
    yield module
    module.omp_set_num_threads(before)


@pytest.mark.parametrize(
    "factory", ["IVF16,PQ16x4fs,RFlat", "OPQ8_32,PQ8x4fs", "HNSW16", "NSG16", "RaBitQfs", "PQ8", "SQ8"]
)
def test_threads_do_not_change_the_index(factory: str, tmp_path: Path, faiss: Any) -> None:
    vectors, digests = unit_vectors(ROWS, DIM), set()
    for count in (1, 3):
        faiss.omp_set_num_threads(count)
        digests.add(saved(made(factory, vectors), tmp_path / "a").sha256)
        assert faiss.omp_get_max_threads() == count
    assert len(digests) == 1


def test_the_number_of_threads_is_set_back_after_a_failure(faiss: Any) -> None:
    faiss.omp_set_num_threads(3)
    with pytest.raises(ConfigError):
        ann.IndexTrainer(unit_vectors(3, DIM)).train(ann.make_index("IVF16,Flat", DIM))
    assert faiss.omp_get_max_threads() == 3


@pytest.mark.parametrize(
    ("factory", "one"),
    [("PQ16x4fs", True), ("IVF16,Flat", True), ("IVF4096,Flat", False), ("PCA16,IVF4096,Flat", True)],
)
def test_only_many_centroids_are_trained_by_several_threads(factory: str, one: bool, faiss: Any) -> None:
    faiss.omp_set_num_threads(3)
    with faiss_index.training_threads(ann.make_index(factory, DIM)):
        assert faiss.omp_get_max_threads() == (1 if one else 3)


@pytest.mark.parametrize(("factory", "since_115", "before"), [("HNSW16", 3, 1), ("NSG16", 1, 1), ("IVF16,Flat", 3, 3)])
def test_graphs_whose_links_depend_on_the_order_of_threads_are_made_by_one(
    factory: str, since_115: int, before: int, faiss: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    faiss.omp_set_num_threads(3)
    index = ann.make_index(factory, DIM)
    monkeypatch.setattr(faiss.HNSW, "merge_reverse_links_deterministic", None, raising=False)
    with faiss_index.adding_threads(index):
        assert faiss.omp_get_max_threads() == since_115
    monkeypatch.delattr(faiss.HNSW, "merge_reverse_links_deterministic")
    with faiss_index.adding_threads(index):
        assert faiss.omp_get_max_threads() == before


@pytest.mark.parametrize("factory", ["IVF16,PQ8x4fs", "PQ8x4fs,Refine(PQ8x4)", "IVF16_HNSW4,SQ8"])
def test_training_on_few_vectors_writes_nothing_to_the_terminal(
    factory: str, capfd: pytest.CaptureFixture[str]
) -> None:
    ann.IndexTrainer(unit_vectors(300, DIM)).train(ann.make_index(factory, DIM))
    assert capfd.readouterr() == ("", "")


def test_centroids_are_not_put_in_an_order_for_a_search_that_is_not_used() -> None:
    index = made("PQ8x4", unit_vectors(ROWS, DIM))
    assert not index.do_polysemous_training


@pytest.mark.parametrize("queries", [1, 2, 3, 9, 40])
def test_the_way_in_which_faiss_multiplies_changes_no_answer(queries: int, faiss: Any) -> None:
    """One by one or as matrices: a flat index gives the same scores, because float64 decides."""
    vectors = unit_vectors(800, 100)
    vectors[400:] = vectors[:400]
    index, asked = made("Flat", vectors), unit_vectors(queries, 100, seed=1)
    found = ann.search_index(index, asked, 7)
    assert faiss.cvar.distance_compute_blas_threshold == 3 * 100
    for (scores, rows), query in zip(found, asked, strict=True):
        exact = (vectors.astype(np.float64) @ query.astype(np.float64)).astype(np.float32)
        best = np.lexsort((np.arange(800), -exact))[: len(rows)]
        assert rows.tolist() == best.tolist()
        np.testing.assert_array_equal(scores, exact[best])
