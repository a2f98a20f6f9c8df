"""Index files that are mapped instead of read."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer import ann
from indexer.errors import CorruptIndexError
from tests.indexer.ann.test_faiss_index import Vectors, assert_answers_equal, made, saved, unit_vectors

ROWS, DIM = 1500, 32


@cache
def vectors() -> Vectors:
    return unit_vectors(ROWS, DIM)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    ann.set_threads(1)


@pytest.mark.parametrize(
    ("factory", "mapped"),
    [
        ("Flat", True),
        ("SQ8", True),
        ("HNSW16", True),
        ("HNSW16,SQ8", True),
        ("IVF16,Flat", True),
        ("IVF16,RaBitQ", True),
        ("RaBitQ4", True),
        ("PCA24,Flat", True),
        ("PQ16x4fs,RFlat", True),  # the vectors; FastScan vectors are read
        ("IVF1,PQ16x4fs,Refine(SQ8)", True),
        ("IVF16,PQ16x4fsr,Refine(SQfp16)", True),
        ("PQ16x4fs", False),
        ("IVF1,PQ16x4fs", False),
        ("RaBitQfs", False),
    ],
)
def test_a_mapped_index_answers_as_one_that_was_read(factory: str, mapped: bool, tmp_path: Path) -> None:
    path = tmp_path / "index.faiss"
    index = made(factory, vectors())
    saved(index, path)
    opened = ann.map_index(path)
    assert ann.is_mapped(opened) is mapped
    assert not ann.is_mapped(index)
    assert (opened.ntotal, opened.d) == (ROWS, DIM)
    assert ann.search_parameters(opened) == ann.search_parameters(index)
    mask = np.arange(ROWS) % 3 == 0
    queries = vectors()[:30]
    for allowed in (None, mask):
        expected = ann.search_index(index, queries, 5, allowed)
        assert_answers_equal(ann.search_index(opened, queries, 5, allowed), expected)


@pytest.mark.parametrize("name", ["nprobe", "k_factor"])
def test_parameters_of_a_mapped_index_are_set(name: str, tmp_path: Path) -> None:
    saved(made("IVF16,PQ16x4fs,RFlat", vectors()), tmp_path / "a")
    index = ann.map_index(tmp_path / "a")
    ann.set_search_parameters(index, {name: 7})
    assert ann.search_parameters(index)[name] == 7


def test_opening_reads_next_to_nothing(tmp_path: Path) -> None:
    """The file may exceed the memory: a hole of 8 GB after the header also opens."""
    path, rows = tmp_path / "a", 1 << 26
    saved(made("Flat", vectors()), path)
    data = bytearray(path.read_bytes()[: -4 * ROWS * DIM])
    data[8:16], data[-8:] = rows.to_bytes(8, "little"), (rows * DIM).to_bytes(8, "little")
    path.write_bytes(data)
    with open(path, "r+b") as file:
        file.truncate(len(data) + 4 * rows * DIM)
    index = ann.map_index(path)
    assert (index.ntotal, index.d) == (rows, DIM)
    np.testing.assert_array_equal(ann.reconstruct(index, np.array([rows - 1])), np.zeros((1, DIM)))


@pytest.mark.parametrize("factory", ["Flat", "IVF16,Flat", "HNSW16", "PQ16x4fs"])
def test_a_file_that_was_cut_is_refused_naming_it(factory: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    saved(made(factory, vectors()), path)
    whole = path.read_bytes()
    for size in (0, 3, 40, len(whole) // 2, len(whole) - 8):
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptIndexError, match="/a: FAISS cannot read it: "):
            ann.map_index(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorruptIndexError, match="/missing: FAISS cannot read it: "):
        ann.map_index(tmp_path / "missing")


def test_a_kind_that_cannot_be_mapped_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(made("Flat", vectors()), tmp_path / "a")
    faiss = ann.import_faiss()
    read = faiss.read_index

    def without_maps(path: Any, flags: int = 0) -> Any:
        if flags:
            raise RuntimeError("Error in read_index at x.cpp:1: Error: 'false' failed: not for this kind")
        return read(path, flags)

    monkeypatch.setattr(faiss, "read_index", without_maps)
    index = ann.map_index(tmp_path / "a")
    assert not ann.is_mapped(index)
    assert index.ntotal == ROWS
