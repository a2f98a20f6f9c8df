"""The interface to FAISS: answers equal brute force, and peculiarities of FAISS stay hidden."""

import io
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer import ann
from indexer.ann import faiss_index
from indexer.errors import ConfigError, CorruptIndexError, MachineError
from indexer.store import files, integrity
from indexer.store.files import FileDigest, atomic_write, atomic_write_bytes
from indexer.store.integrity import CheckedFile
from indexer.system.child_process import call_in_child
from tests.oracles import best_rows

Vectors = npt.NDArray[np.float32]
DIM = 16
FACTORIES = ["Flat", "IVF4,Flat", "HNSW16", "PQ4x4", "PCA4,Flat"]


def unit_vectors(count: int, dim: int = DIM, seed: int = 0) -> Vectors:
    rows = np.random.default_rng(seed).normal(size=(count, dim))
    unit: Vectors = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return unit


def made(factory: str, vectors: Vectors) -> Any:
    """A trained index that contains the vectors."""
    index = ann.make_index(factory, vectors.shape[1])
    ann.IndexTrainer(vectors).train(index)
    ann.add_vectors(index, vectors)
    return index


def served(vectors: Vectors) -> Any:
    """A flat index written and read back, as search opens it."""
    data: Any = io.BytesIO()
    ann.save_index(made("Flat", vectors), data)
    return ann.load_index(io.BytesIO(data.getvalue()), "memory")


def assert_answers_equal(found: Sequence[Any], expected: Sequence[Any]) -> None:
    assert len(found) == len(expected)
    for (scores, rows), (expected_scores, expected_rows) in zip(found, expected, strict=True):
        np.testing.assert_array_equal(rows, expected_rows)
        np.testing.assert_array_equal(scores, expected_scores)


def by_brute_force(vectors: Vectors, query: Vectors, k: int) -> list[tuple[int, float]]:
    """(row, score) of the k best and of all ties with the k-th, ties by row."""
    ids = [f"{row:06d}" for row in range(len(vectors))]
    best = best_rows(vectors, query, ids, len(ids))
    return [(int(name), score) for name, score in best if score >= best[min(k, len(best)) - 1][1]]


# --- an exact index

# Small whole numbers have exact products, so that many scores are exactly equal.
COMPONENTS = st.integers(-2, 2)


@given(
    st.lists(st.tuples(COMPONENTS, COMPONENTS, COMPONENTS), min_size=1, max_size=60),
    st.lists(st.tuples(COMPONENTS, COMPONENTS, COMPONENTS), min_size=1, max_size=4),
    st.integers(1, 70),
)
def test_a_flat_index_answers_as_brute_force_does_ties_included(
    rows: list[tuple[int, ...]], queries: list[tuple[int, ...]], k: int
) -> None:
    vectors, asked = np.array(rows, np.float32), np.array(queries, np.float32)
    for (scores, found), query in zip(ann.search_index(served(vectors), asked, k), asked, strict=True):
        assert list(zip(found.tolist(), scores.tolist(), strict=True)) == by_brute_force(vectors, query, k)


@pytest.mark.parametrize("k", [1, 10, 300])
def test_a_flat_index_answers_as_brute_force_does_on_unit_vectors(k: int) -> None:
    vectors = unit_vectors(300)
    for query in unit_vectors(5, seed=1):
        ((scores, rows),) = ann.search_index(served(vectors), query[None], k)
        expected = by_brute_force(vectors, query, k)
        assert rows.tolist() == [row for row, _ in expected]
        np.testing.assert_allclose(scores, [score for _, score in expected], rtol=0, atol=1e-7)
        assert scores.dtype == np.float32
        assert rows.dtype == np.int64


def test_all_duplicates_come_along_however_many() -> None:
    vectors = unit_vectors(400)
    vectors[100:300] = vectors[7]
    ((scores, rows),) = ann.search_index(served(vectors), vectors[7:8], 1)
    assert rows.tolist() == [7, *range(100, 300)]
    assert len(set(scores.tolist())) == 1


@pytest.mark.parametrize("count", [2, 19, 20, 21, 64])
def test_one_query_and_a_batch_give_the_same_scores_and_rows(count: int) -> None:
    """From twenty queries on, FAISS uses another algorithm with other last bits."""
    vectors = unit_vectors(500, 96)
    vectors[250:] = vectors[:250]
    queries = np.concatenate([vectors[: count // 2], unit_vectors(count - count // 2, 96, seed=1)])
    index = served(vectors)
    single = [ann.search_index(index, query[None], 5)[0] for query in queries]
    assert_answers_equal(ann.search_index(index, queries, 5), single)


def test_near_ties_within_the_rounding_of_faiss_are_not_lost() -> None:
    random = np.random.default_rng(0)
    rows = random.normal(size=384) + 1e-3 * random.normal(size=(2000, 384))
    vectors = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    index = served(vectors)
    for query in vectors[:5]:
        exact = (vectors.astype(np.float64) @ query.astype(np.float64)).astype(np.float32)
        ((scores, found),) = ann.search_index(index, query[None], 10)
        expected = np.flatnonzero(exact >= np.sort(exact)[-10])
        assert sorted(found.tolist()) == expected.tolist()
        assert sorted(scores.tolist()) == sorted(exact[expected].tolist())


@pytest.mark.parametrize("factory", ["SQ8", "IVF4,Flat", "PQ8x4fs,RFlat"])
def test_all_copies_that_tie_with_the_last_hit_come_back_from_approximate_indexes(factory: str) -> None:
    """With more copies than are requested first, the search is repeated until the ties end."""
    vectors = unit_vectors(1000)
    vectors[100:400] = vectors[0]
    ((scores, rows),) = ann.search_index(made(factory, vectors), vectors[:1], 10)
    assert rows.tolist() == [0, *range(100, 400)]
    assert len(set(scores.tolist())) == 1


def test_stored_vectors_come_back_as_they_were() -> None:
    vectors = unit_vectors(50)
    rows = np.array([49, 0, 7, 7])
    np.testing.assert_array_equal(ann.reconstruct(made("Flat", vectors), rows), vectors[rows])


# --- any index


@pytest.mark.parametrize("factory", FACTORIES)
def test_every_kind_of_index_gives_rows_best_first_and_as_many_as_it_holds(factory: str) -> None:
    vectors = unit_vectors(700)
    index = made(factory, vectors)
    for scores, rows in ann.search_index(index, vectors[:30], 5):
        assert len(rows) >= 5
        assert len(set(rows.tolist())) == len(rows)
        assert ((rows >= 0) & (rows < 700)).all()
        assert (np.diff(scores) <= 0).all()
        assert (scores[5:] == scores[4]).all()


@pytest.mark.parametrize("factory", ["Flat", "HNSW16"])
def test_more_than_there_are_gives_all_there_are(factory: str) -> None:
    vectors = unit_vectors(10)
    for scores, rows in ann.search_index(made(factory, vectors), vectors, 1000):
        assert sorted(rows.tolist()) == list(range(10))
        assert len(scores) == 10


def test_the_padding_of_faiss_never_comes_out_and_no_answer_is_short() -> None:
    """An IVF index that probes one list of four finds a quarter of the rows, so the search is widened."""
    vectors = unit_vectors(700)
    index = made("IVF4,Flat", vectors)
    index.nprobe = 1
    for count in (1, 5, 690, 700, 10_000):
        for scores, rows in ann.search_index(index, vectors[:30], count):
            assert len(rows) == len(scores) >= min(count, 700)
            assert len(set(rows.tolist())) == len(rows)
            assert rows.min() >= 0
    assert index.nprobe == 1  # only while it was needed


@pytest.mark.parametrize(
    ("factory", "name"), [("IVF4,Flat", "nprobe"), ("HNSW16", "efSearch"), ("PCA4,IVF4,Flat", "nprobe"), ("Flat", None)]
)
def test_search_parameters_are_read_and_set(factory: str, name: str | None) -> None:
    index = made(factory, unit_vectors(700))
    if name is None:
        assert ann.search_parameters(index) == {}
        return
    ann.set_search_parameters(index, {name: 2})
    assert ann.search_parameters(index) == {name: 2}


@pytest.mark.parametrize("k", [0, -1])
def test_fewer_than_one_row_cannot_be_asked_for(k: int) -> None:
    with pytest.raises(ConfigError, match=f"k is {k}; expected at least 1"):
        ann.search_index(made("Flat", unit_vectors(3)), unit_vectors(1), k)


@pytest.mark.parametrize("factory", ["Flat", "HNSW16"])
def test_an_empty_index_answers_with_nothing(factory: str) -> None:
    found = ann.search_index(ann.make_index(factory, DIM), unit_vectors(3), 5)
    assert [(len(scores), len(rows)) for scores, rows in found] == [(0, 0)] * 3


def test_no_queries_have_no_answers() -> None:
    assert ann.search_index(made("Flat", unit_vectors(3)), unit_vectors(0), 5) == []


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_vectors_that_are_not_finite_are_refused(poison: float) -> None:
    vectors = unit_vectors(5)
    vectors[3, 2] = poison
    index = ann.make_index("Flat", DIM)
    with pytest.raises(ConfigError, match="not finite"):
        ann.add_vectors(index, vectors)
    assert index.ntotal == 0


# --- kinds of index


def test_auto_and_flat_are_exact_and_the_rest_are_factory_strings() -> None:
    assert [ann.factory_of(kind) for kind in ("auto", "flat", "HNSW32")] == ["Flat", "Flat", "HNSW32"]
    assert [ann.is_exact(factory) for factory in ("Flat", "HNSW32", "IVF4,Flat")] == [True, False, False]


@pytest.mark.parametrize("factory", ["nonsense", "", "IVF4", "IVFx,Flat", "IVF99999999999999999999,Flat"])
def test_a_factory_string_that_faiss_refuses_is_named(factory: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ann.make_index(factory, DIM)
    assert str(caught.value).startswith(f'index.type "{factory}" is not a FAISS factory string for 16 dimensions: ')
    assert 'Fix: use "flat", or' in str(caught.value)


def test_the_error_names_no_size_while_it_is_unknown() -> None:
    ann.check_factory("IVF4,Flat", 0)
    with pytest.raises(ConfigError, match=r"is not a FAISS factory string: .*Fix: use ") as caught:
        ann.check_factory("HNWS32", 0)
    assert "dimensions" not in str(caught.value)
    with pytest.raises(ConfigError, match='Fix: put zeros in front: "PadN,PQ7", N a multiple of 7'):
        ann.check_factory("PQ7", 0)
    with pytest.raises(ConfigError, match="for 64 dimensions: "):
        ann.check_factory("HNWS32", 64)


@pytest.mark.parametrize("factory", ["LSH", "ITQ16,LSH"])
def test_an_index_that_does_not_rank_by_inner_product_is_refused(factory: str) -> None:
    with pytest.raises(ConfigError, match=f'index.type "{factory}"'):
        ann.make_index(factory, DIM)


def test_the_reason_of_faiss_is_given_without_its_place_in_the_source() -> None:
    with pytest.raises(ConfigError) as caught:
        ann.make_index("nonsense", DIM)
    assert ".cpp" not in str(caught.value)


def test_an_index_that_needs_ids_from_outside_is_refused() -> None:
    with pytest.raises(ConfigError, match="IDMap"):
        made("IDMap,Flat", unit_vectors(3))


@pytest.mark.parametrize("factory", ["PQ4x4", "IVF4,Flat", "PCA4,Flat"])
def test_a_sample_too_small_to_train_on_is_counted(factory: str) -> None:
    index = ann.make_index(factory, DIM)
    with pytest.raises(ConfigError, match=r'cannot be trained on 0 vectors: .*choose a smaller index\.type, or "flat"'):
        ann.IndexTrainer(unit_vectors(0)).train(index)


def test_fewer_vectors_than_centroids_cannot_be_trained_on() -> None:
    with pytest.raises(ConfigError, match="cannot be trained on 3 vectors"):
        ann.IndexTrainer(unit_vectors(3)).train(ann.make_index("IVF4,Flat", DIM))


def test_an_index_that_needs_no_training_ignores_the_sample() -> None:
    ann.IndexTrainer(unit_vectors(0)).train(ann.make_index("Flat", DIM))


# --- files


def saved(index: Any, path: Path) -> FileDigest:
    with atomic_write(path) as file:
        ann.save_index(index, file)  # type: ignore[arg-type]
    return file.digest


def reopened(digest: FileDigest, path: Path) -> Any:
    with CheckedFile(path, digest) as file:
        return ann.load_index(file, str(path))


@pytest.mark.parametrize("factory", FACTORIES)
def test_equal_indexes_are_equal_bytes(factory: str, tmp_path: Path) -> None:
    ann.set_threads(1)
    vectors = unit_vectors(700)
    digest = saved(made(factory, vectors), tmp_path / "a")
    again = reopened(digest, tmp_path / "a")
    assert (again.ntotal, again.d) == (700, DIM)
    assert saved(again, tmp_path / "b") == digest
    assert saved(made(factory, vectors), tmp_path / "c") == digest


@pytest.mark.parametrize("factory", FACTORIES)
def test_an_index_answers_the_same_after_its_file_as_before(factory: str, tmp_path: Path) -> None:
    vectors = unit_vectors(700)
    index = made(factory, vectors)
    again = reopened(saved(index, tmp_path / "a"), tmp_path / "a")
    assert_answers_equal(ann.search_index(again, vectors[:40], 5), ann.search_index(index, vectors[:40], 5))


def test_a_corrupted_file_is_refused_before_faiss_sees_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (files, integrity):
        monkeypatch.setattr(module, "BLOCK", 1024)
    path = tmp_path / "a.faiss"
    digest = saved(made("Flat", unit_vectors(100)), path)
    data = path.read_bytes()
    assert len(data) > 6 * 1024
    for position in (0, 50, 1023, 1024, 5000, len(data) - 1):
        flipped = bytearray(data)
        flipped[position] ^= 4
        path.write_bytes(flipped)
        with CheckedFile(path, digest) as file, pytest.raises(CorruptIndexError, match=r"a\.faiss: its bytes differ"):
            ann.load_index(file, str(path))


def test_bytes_that_are_no_index_are_refused_naming_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    saved(made("Flat", unit_vectors(10)), path)
    whole = path.read_bytes()
    for data in [b"", b"junk", b"junk" * 100, whole[:4], whole[:30], whole[:-1]]:
        digest = atomic_write_bytes(path, data)
        with CheckedFile(path, digest) as file, pytest.raises(CorruptIndexError, match="somewhere: FAISS cannot read"):
            ann.load_index(file, "somewhere")


class Failing:
    """A file whose reads and writes fail."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def read(self, size: int) -> bytes:
        raise self._error

    def write(self, data: bytes) -> int:
        raise self._error


@pytest.mark.parametrize("error", [OSError(28, "full"), KeyboardInterrupt()])
def test_errors_of_the_file_come_through_faiss_as_they_are(error: BaseException) -> None:
    file: Any = Failing(error)
    with pytest.raises(type(error)):
        ann.load_index(file, "somewhere")
    with pytest.raises(type(error)):
        ann.save_index(made("Flat", unit_vectors(3)), file)


class Watched(io.BytesIO):
    """A file that opens another index during a read, and records FAISS's limit in the process."""

    def __init__(self, data: bytes, other: bytes = b"") -> None:
        super().__init__(data)
        self._other = other
        self.limits: set[int] = set()

    def read(self, size: int | None = -1, /) -> bytes:
        if self._other:
            ann.load_index(io.BytesIO(self._other), "other", len(self._other))
        self.limits.add(ann.import_faiss().get_deserialization_vector_byte_limit())
        return super().read(size)


def index_bytes(factory: str, vectors: Vectors) -> bytes:
    data: Any = io.BytesIO()
    ann.save_index(made(factory, vectors), data)
    return bytes(data.getvalue())


def test_indexes_opened_at_the_same_time_leave_each_other_and_the_limit_of_faiss_alone() -> None:
    before = ann.import_faiss().get_deserialization_vector_byte_limit()
    small, large = index_bytes("Flat", unit_vectors(2)), index_bytes("Flat", unit_vectors(40_000))
    file = Watched(large, small)
    assert ann.load_index(file, "large", len(large)).ntotal == 40_000
    assert file.limits == {before}


@pytest.mark.parametrize(("factory", "place"), [("Flat", 37), ("HNSW16", 777), ("PQ4x4", 61)])
def test_an_array_longer_than_its_file_is_refused_before_memory_is_asked_for(factory: str, place: int) -> None:
    """A hostile file may have the right hash."""
    data = bytearray(index_bytes(factory, unit_vectors(50)))
    data[place : place + 8] = (1 << 26).to_bytes(8, "little")  # the number of elements of an array
    with pytest.raises(CorruptIndexError, match=r"somewhere: FAISS cannot read it: .*vector_byte_limit"):
        ann.load_index(io.BytesIO(data), "somewhere", len(data))


@pytest.mark.parametrize("piece", [1 << 22, 40])
def test_an_inverted_list_longer_than_its_file_is_refused(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sizes of all lists are one array, which FAISS may read in pieces."""
    monkeypatch.setattr(faiss_index, "_PIECE", piece)
    index = made("IVF16,SQ8", unit_vectors(700))
    sizes = [index.invlists.list_size(number) for number in range(16)]
    written: Any = io.BytesIO()
    ann.save_index(index, written)
    data = bytearray(written.getvalue())
    assert ann.load_index(io.BytesIO(data), "sound", len(data)).ntotal == 700
    place = data.index(np.array(sizes, "<u8").tobytes())
    data[place + 24 : place + 32] = (1 << 22).to_bytes(8, "little")
    asked: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(faiss_index, "call_in_child", lambda *_: asked.append(1))
        with pytest.raises(CorruptIndexError, match="somewhere: FAISS cannot read it"):
            ann.load_index(io.BytesIO(data), "somewhere", len(data))
    assert asked
    with pytest.raises(CorruptIndexError, match=r"somewhere: FAISS cannot read it: .*byte.limit"):
        ann.load_index(io.BytesIO(data), "somewhere", len(data))


def test_a_copy_that_cannot_be_written_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    data = index_bytes("HNSW16", unit_vectors(2))
    with pytest.raises(MachineError, match=r"graph: cannot be copied to .*absent .*No such file.*set TMPDIR"):
        ann.load_index(io.BytesIO(data), "graph", len(data))


def test_content_that_looks_like_a_length_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The levels of a graph of two rows are 8 bytes; a child process finds that they are not a length."""
    vectors, tasks = unit_vectors(2), list[str]()

    def call(function: str, arguments: dict[str, Any], task: str) -> Any:
        tasks.append(task)
        return call_in_child(function, arguments, task)

    monkeypatch.setattr(faiss_index, "call_in_child", call)
    data = index_bytes("HNSW16", vectors)
    file = Watched(data)
    found = ann.load_index(file, "graph", len(data))
    assert tasks == ["reading graph"]
    assert len(file.limits) == 1
    assert [rows.tolist() for _, rows in ann.search_index(found, vectors, 2)] == [[0, 1], [1, 0]]


# --- the library


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend that exactly some FAISS wheels are installed."""

    def pretend(*wheels: str) -> None:
        for name in wheels:
            (tmp_path / f"{name.replace('-', '_')}-1.15.1.dist-info").mkdir()
        monkeypatch.setattr(sys, "path", [str(tmp_path)])

    return pretend


def test_without_faiss_the_way_to_install_it_is_given(
    install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    install()
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MachineError, match=r"FAISS is not installed .*pip install '.*isotrope\[cpu\]"):
        ann.import_faiss()


def test_two_wheels_of_faiss_are_refused_by_name(install: Callable[..., None]) -> None:
    install("faiss-cpu", "faiss-gpu")
    with pytest.raises(MachineError, match=r"faiss-cpu and faiss-gpu are both.*pip uninstall -y faiss-cpu faiss-gpu,"):
        ann.import_faiss()
    with pytest.raises(MachineError, match="both installed"):
        ann.make_index("Flat", DIM)


@pytest.mark.parametrize("wheels", [(), ("faiss-cpu",), ("faiss-gpu",)])
def test_one_faiss_from_anywhere_will_do(wheels: tuple[str, ...], install: Callable[..., None]) -> None:
    install(*wheels)
    assert ann.import_faiss().__name__ == "faiss"


def test_the_number_of_threads_is_set() -> None:
    ann.set_threads(1)
    assert ann.import_faiss().omp_get_max_threads() == 1


@pytest.mark.parametrize("factory", ["HNSW0", "HNSW1", "IVF0,Flat", "PCA0,Flat", "SQ0"])
def test_a_size_of_zero_is_refused_before_faiss_can_abort(factory: str) -> None:
    with pytest.raises(ConfigError, match="no size may be 0, and HNSW"):
        ann.make_index(factory, DIM)
