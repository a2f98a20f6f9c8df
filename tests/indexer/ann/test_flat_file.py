"""The file of an exact index: FAISS's own bytes, searched without an index in memory."""

import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from indexer import ann
from indexer.ann import flat_file
from indexer.errors import CorruptIndexError

Vectors = npt.NDArray[np.float32]


def unit_vectors(count: int, dim: int, seed: int = 0) -> Vectors:
    rows = np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def saved(path: Path, vectors: Vectors) -> Path:
    path.write_bytes(flat_file.header(vectors.shape[1], len(vectors)) + vectors.tobytes())
    return path


def faiss_index(vectors: Vectors) -> object:
    index = ann.make_index("Flat", vectors.shape[1])
    ann.add_vectors(index, vectors)
    return index


@pytest.mark.parametrize(("count", "dim"), [(1, 1), (2, 3), (1000, 384), (257, 7)])
def test_the_bytes_are_those_faiss_writes(count: int, dim: int) -> None:
    vectors, file = unit_vectors(count, dim), io.BytesIO()
    ann.save_index(faiss_index(vectors), file)
    assert flat_file.header(dim, count) + vectors.tobytes() == file.getvalue()


def test_faiss_reads_the_file(tmp_path: Path) -> None:
    vectors = unit_vectors(50, 8)
    with saved(tmp_path / "file", vectors).open("rb") as file:
        index = ann.load_index(file, "file")
    assert index.ntotal == 50
    np.testing.assert_array_equal(ann.reconstruct(index, np.arange(50)), vectors)


@pytest.mark.parametrize("block", [1, 64, 32 << 20])
def test_a_search_of_the_file_finds_what_faiss_finds(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = unit_vectors(60, 8)
    vectors[[7, 30, 59]] = vectors[3]  # equal rows, far apart
    monkeypatch.setattr(flat_file, "_BLOCK_BYTES", block)
    path, queries = saved(tmp_path / "file", vectors), np.concatenate([vectors[:10], unit_vectors(20, 8, seed=1)])
    found = flat_file.search_flat_file(path, 8, 60, queries)
    expected = ann.search_index(faiss_index(vectors), queries, 1)
    for (scores, rows), (true_scores, true_rows) in zip(found, expected, strict=True):
        np.testing.assert_array_equal(rows, true_rows)
        np.testing.assert_array_equal(scores, true_scores)
    assert found[3][1].tolist() == [3, 7, 30, 59]


def test_rows_are_read_from_where_they_lie(tmp_path: Path) -> None:
    vectors = unit_vectors(60, 8)
    wanted = np.array([59, 0, 7])
    np.testing.assert_array_equal(flat_file.read_rows(saved(tmp_path / "file", vectors), 8, wanted), vectors[wanted])


@pytest.mark.parametrize("change", ["header", "short", "long"])
def test_a_file_that_is_not_what_it_says_is_refused(change: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "file", unit_vectors(5, 4))
    data = path.read_bytes()
    path.write_bytes({"header": b"x" + data[1:], "short": data[:-1], "long": data + b"x"}[change])
    with pytest.raises(CorruptIndexError, match="file"):
        list(flat_file.read_blocks(path, 4, 5))
