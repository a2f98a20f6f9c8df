"""Exact search through torch and on a GPU gives the answers of the flat index on the CPU.

No GPU is needed: torch runs on the CPU, and a module with the same limits replaces FAISS's GPU functions (float32
scores with other last bits, at most 2048 rows, no selectors, only some kinds of index).
"""

import sys
from functools import cache
from threading import Thread
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer import ann
from indexer.ann import exact, faiss_index
from indexer.ann.exact import TorchFlatIndex
from indexer.ann.faiss_index import innermost, is_on_gpu
from indexer.errors import ConfigError, MachineError
from tests.indexer.ann.test_faiss_index import COMPONENTS, Vectors, assert_answers_equal, made, served, unit_vectors

torch = pytest.importorskip("torch")
DIM = 24


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Block and batch sizes so small that the tests need several."""
    ann.set_threads(1)
    monkeypatch.setattr(exact, "_QUERIES", 3)
    monkeypatch.setattr(exact, "_BLOCK_ROWS", 110)


def through_torch(vectors: Vectors) -> Any:
    """A flat index whose candidates come from torch on the CPU."""
    return exact.DeviceIndex(served(vectors), TorchFlatIndex(served(vectors), "cpu"))


# --- torch


@settings(max_examples=60)
@given(
    st.lists(st.tuples(COMPONENTS, COMPONENTS, COMPONENTS, st.booleans()), min_size=1, max_size=200),
    st.lists(st.tuples(COMPONENTS, COMPONENTS, COMPONENTS), min_size=1, max_size=7),
    st.integers(1, 210),
)
def test_torch_finds_what_a_flat_index_finds_ties_included(
    rows: list[tuple[int, int, int, bool]], queries: list[tuple[int, ...]], k: int
) -> None:
    vectors, mask = np.array([row[:3] for row in rows], np.float32), np.array([row[3] for row in rows])
    asked, flat, other = np.array(queries, np.float32), served(vectors), through_torch(vectors)
    for allowed in (None, mask):
        expected = ann.search_index(flat, asked, k, allowed)
        assert_answers_equal(ann.search_index(other, asked, k, allowed), expected)


@pytest.mark.parametrize("k", [1, 10, 500])
def test_torch_finds_what_a_flat_index_finds_on_unit_vectors(k: int) -> None:
    vectors = unit_vectors(500, 384)
    vectors[250:300] = vectors[:50]
    queries = np.concatenate([vectors[:20], unit_vectors(20, 384, seed=1)])
    flat, other = served(vectors), through_torch(vectors)
    for allowed in (None, np.arange(500) % 2 == 0, np.arange(500) % 50 == 0, np.arange(500) < 300):
        expected = ann.search_index(flat, queries, k, allowed)
        assert_answers_equal(ann.search_index(other, queries, k, allowed), expected)


def test_near_ties_within_the_rounding_of_torch_are_not_lost() -> None:
    random = np.random.default_rng(0)
    rows = random.normal(size=384) + 1e-3 * random.normal(size=(2000, 384))
    vectors = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    expected = ann.search_index(served(vectors), vectors[:5], 10)
    assert_answers_equal(ann.search_index(through_torch(vectors), vectors[:5], 10), expected)


def test_products_are_of_float32_whatever_the_process_allows() -> None:
    """With bfloat16, torch may lose a row that is best by a hundredth of a score."""
    seen = []
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with exact._float32_products(torch):
            backends = (torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None))
            seen = [getattr(backend, "fp32_precision", "ieee") for backend in backends]
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen == ["ieee", "ieee"]


def test_products_are_of_float32_with_a_torch_that_has_one_setting() -> None:
    calls = ["medium"]

    class Old:
        """Torch before 2.9."""

        class backends:  # noqa: N801
            class cuda:  # noqa: N801
                matmul = object()

            class mkldnn:  # noqa: N801
                pass

        @staticmethod
        def get_float32_matmul_precision() -> str:
            return calls[-1]

        @staticmethod
        def set_float32_matmul_precision(setting: str) -> None:
            calls.append(setting)

    with exact._float32_products(Old):
        assert calls == ["medium", "highest"]
    assert calls == ["medium", "highest", "medium"]


def test_vectors_that_do_not_fit_on_the_device_are_an_error_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_much(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

    monkeypatch.setattr(torch, "from_numpy", too_much)
    with pytest.raises(
        MachineError, match=r'do not fit on the device "cpu" \(CUDA out of memory.*RunOptions\(device="cpu"\)'
    ):
        TorchFlatIndex(served(unit_vectors(3, DIM)), "cpu")


def test_no_queries_and_no_rows_find_nothing() -> None:
    assert ann.search_index(through_torch(unit_vectors(5, DIM)), unit_vectors(0, DIM), 3) == []
    found = ann.search_index(through_torch(unit_vectors(0, DIM)), unit_vectors(2, DIM), 3)
    assert [len(rows) for _, rows in found] == [0, 0]
    with pytest.raises(ConfigError, match="k is 0"):
        ann.search_index(through_torch(unit_vectors(5, DIM)), unit_vectors(1, DIM), 0)


def test_without_faiss_for_the_gpu_vectors_go_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The torch device "meta" stores nothing, so it replaces a device that this machine lacks."""
    made_for = []

    class Recorded(TorchFlatIndex):
        def __init__(self, index: Any, device: str) -> None:
            made_for.append(device)
            super().__init__(index, "cpu")

    monkeypatch.setattr(exact, "TorchFlatIndex", Recorded)
    index = served(unit_vectors(250, DIM))
    for device in ("cuda", "cuda:1", "mps"):
        other = ann.on_device(index, device)
        assert (other.ntotal, other.d) == (250, DIM)
        queries = unit_vectors(4, DIM, seed=1)
        assert_answers_equal(ann.search_index(other, queries, 5), ann.search_index(index, queries, 5))
    assert made_for == ["cuda", "cuda:1", "mps"]


def test_what_stays_on_the_cpu() -> None:
    flat, graph = served(unit_vectors(20, DIM)), made("HNSW16", unit_vectors(20, DIM))
    assert ann.on_device(flat, "cpu") is flat
    assert ann.on_device(graph, "cuda") is graph
    assert ann.to_gpu(graph, "cuda") is graph
    assert ann.to_cpu(graph) is graph


def test_torch_is_not_loaded_for_searches_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    index = ann.on_device(served(unit_vectors(20, DIM)), "cpu")
    assert len(ann.search_index(index, unit_vectors(1, DIM), 3)) == 1


# --- FAISS on a GPU


class GpuIndexFlat:
    """FAISS's GPU index: like the CPU index, except for the last bits and the limit of rows."""

    def __init__(self, index: Any) -> None:
        self.cpu, self.searches, self.concurrent = index, 0, 0

    ntotal = property(lambda self: self.cpu.ntotal)
    d = property(lambda self: self.cpu.d)
    is_trained = property(lambda self: self.cpu.is_trained)

    def search(self, queries: Any, k: int) -> Any:
        assert k <= 2048
        assert not self.concurrent, "searched by two threads at once"
        self.concurrent += 1
        self.searches += 1
        scores, rows = self.cpu.search(queries, k)
        self.concurrent -= 1
        noise = np.random.default_rng(k).uniform(-1, 1, scores.shape) * 2.0**-24
        order = np.argsort(-(scores + noise), axis=1, kind="stable")
        return np.take_along_axis((scores + noise).astype(np.float32), order, 1), np.take_along_axis(rows, order, 1)

    def add(self, vectors: Any) -> None:
        self.cpu.add(vectors)


class FaissForGpu:
    """The module `faiss` of the GPU wheel, with one GPU."""

    def __init__(self, faiss: Any) -> None:
        self._faiss, self.refusal, self.cloned_to = faiss, "", list[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._faiss, name)

    class StandardGpuResources:
        pass

    class GpuClonerOptions:
        useFloat16 = None  # noqa: N815
        useFloat16CoarseQuantizer = None  # noqa: N815

    def get_num_gpus(self) -> int:
        return 1

    def index_cpu_to_gpu(self, _: Any, device: int, index: Any, options: Any) -> Any:
        if self.refusal:
            raise RuntimeError(f"Error in x at y.cpp:1: Error: 'false' failed: {self.refusal}")
        assert options.useFloat16 is options.useFloat16CoarseQuantizer is False
        self.cloned_to.append(device)
        return GpuIndexFlat(self._faiss.clone_index(index))

    def index_gpu_to_cpu(self, moved: GpuIndexFlat) -> Any:
        return self._faiss.clone_index(moved.cpu)


@cache
def real_faiss() -> Any:
    return ann.import_faiss()


@pytest.fixture
def faiss_gpu(monkeypatch: pytest.MonkeyPatch) -> FaissForGpu:
    fake = FaissForGpu(real_faiss())
    monkeypatch.setattr(faiss_index, "faiss_module", lambda: fake)
    return fake


@pytest.mark.parametrize("k", [1, 10, 2040])
def test_a_gpu_gives_the_answers_of_the_cpu(k: int, faiss_gpu: FaissForGpu) -> None:
    """Also for more rows than a GPU selects, and with a filter, which it does not support."""
    vectors = unit_vectors(2500, DIM)
    vectors[1000:2100] = vectors[3]  # more ties than a GPU returns
    index, queries = served(vectors), vectors[:6]
    moved = ann.on_device(index, "cuda")
    for allowed in (None, np.arange(2500) % 2 == 0, np.arange(2500) % 100 == 0):
        assert_answers_equal(ann.search_index(moved, queries, k, allowed), ann.search_index(index, queries, k, allowed))
    assert faiss_gpu.cloned_to == [0]
    assert (moved.on_device.searches > 0) == (k + 16 <= 2048)


def test_a_gpu_that_is_not_there_is_not_used(faiss_gpu: FaissForGpu) -> None:
    assert faiss_index.has_gpu("cuda")
    assert faiss_index.has_gpu("cuda:0")
    assert not faiss_index.has_gpu("cuda:1")
    assert not faiss_index.has_gpu("mps")
    assert not faiss_index.has_gpu("cpu")
    index = served(unit_vectors(5, DIM))
    assert ann.to_gpu(index, "cuda:1") is index


def test_one_search_at_a_time(faiss_gpu: FaissForGpu) -> None:
    vectors = unit_vectors(600, DIM)
    moved = ann.on_device(served(vectors), "cuda")
    failures = []

    def search() -> None:
        try:
            for _ in range(20):
                ann.search_index(moved, vectors[:3], 5)
        except AssertionError as error:
            failures.append(error)

    threads = [Thread(target=search) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_an_index_is_filled_on_a_gpu_and_comes_back_to_be_saved(faiss_gpu: FaissForGpu) -> None:
    vectors = unit_vectors(300, DIM)
    moved = ann.to_gpu(ann.make_index("Flat", DIM), "cuda")
    assert is_on_gpu(moved)
    ann.add_vectors(moved, vectors)
    index = ann.to_cpu(moved)
    assert not is_on_gpu(index)
    assert_answers_equal(
        ann.search_index(index, vectors[:5], 7), ann.search_index(made("Flat", vectors), vectors[:5], 7)
    )


@pytest.mark.parametrize("factory", ["HNSW16", "PQ8x4fs,RFlat", "PCA16,Flat", "SQfp16", "RaBitQ"])
def test_kinds_that_have_no_gpu_form_or_come_back_as_others_stay(factory: str, faiss_gpu: FaissForGpu) -> None:
    index = ann.make_index(factory, DIM)
    assert ann.to_gpu(index, "cuda") is index
    assert faiss_gpu.cloned_to == []


def test_a_kind_that_faiss_refuses_stays_and_one_that_does_not_fit_is_an_error(faiss_gpu: FaissForGpu) -> None:
    index = ann.make_index("IVF4,PQ8x4fs", DIM)
    faiss_gpu.refusal = "This index type is not implemented on GPU."
    assert ann.to_gpu(index, "cuda") is index
    faiss_gpu.refusal = "StandardGpuResources: alloc fail (cudaMalloc error out of memory [2])"
    with pytest.raises(
        MachineError, match=r'does not fit on cuda: .*out of memory.*Fix: search with RunOptions\(device="cpu"\)'
    ):
        ann.to_gpu(index, "cuda")


def test_centroids_are_trained_on_a_gpu_and_the_index_is_left_alone(
    faiss_gpu: FaissForGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = unit_vectors(700, DIM)
    asked = []

    def to_device(index: Any, device: str) -> Any:
        asked.append((device, index.metric_type))
        return index

    monkeypatch.setattr(faiss_index, "to_gpu", to_device)
    index = ann.make_index("IVF4,PQ8x4fs,RFlat", DIM)
    ann.IndexTrainer(vectors, "cuda").train(index)
    assert asked == [("cuda", real_faiss().METRIC_INNER_PRODUCT)]
    assert innermost(index).clustering_index is None
    ann.add_vectors(index, vectors)
    assert_answers_equal(
        ann.search_index(index, vectors[:9], 5), ann.search_index(made("IVF4,PQ8x4fs,RFlat", vectors), vectors[:9], 5)
    )
