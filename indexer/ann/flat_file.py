"""The file of an exact index, written and searched a block of rows at a time, so that no index need fit in memory.

It is FAISS's own file of an IndexFlatIP: a header that FAISS writes for an empty one, with two numbers filled in (the
rows, and the values that follow), then the float32 vectors, row by row. `matches_faiss` compares that with what the
FAISS at hand writes.
"""

import io
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import BinaryIO

import numpy as np

from indexer import ann
from indexer.arrays import RowIds, SearchResult, Vectors
from indexer.errors import CorruptIndexError

_ROWS_AT = 8  # in the header, after four letters and the dimensions (int32): the rows (int64)
_VALUES_AT = -8  # the last eight bytes: how many values follow (uint64)
_BLOCK_BYTES = 32 << 20  # read at a time


@cache
def matches_faiss(dim: int) -> bool:
    """Whether the FAISS at hand writes exact indexes as this module does."""
    vectors = np.arange(3 * dim, dtype=np.float32).reshape(3, dim)
    return header(dim, 3) + vectors.tobytes() == _as_faiss_writes(vectors)


def header(dim: int, rows: int) -> bytes:
    """The bytes before the vectors."""
    made = bytearray(_as_faiss_writes(np.zeros((0, dim), np.float32)))
    made[_ROWS_AT : _ROWS_AT + 8] = rows.to_bytes(8, "little")
    made[_VALUES_AT:] = (rows * dim).to_bytes(8, "little")
    return bytes(made)


def read_blocks(path: Path, dim: int, rows: int) -> Iterator[tuple[int, Vectors]]:
    """(first row, vectors (m, dim)) of a file, block by block. Raises CorruptIndexError if it does not hold `rows`."""
    expected, most = header(dim, rows), max(1, _BLOCK_BYTES // (4 * dim))
    with open(path, "rb") as file:
        if file.read(len(expected)) != expected:
            raise CorruptIndexError(f"{path}: does not start as an index of {rows:,} vectors of {dim} dimensions does.")
        for first in range(0, rows, most):
            yield first, _block(file, path, min(most, rows - first), dim)
        if file.read(1):
            raise CorruptIndexError(f"{path}: holds more than the {rows:,} vectors it says.")


def read_rows(path: Path, dim: int, wanted: RowIds) -> Vectors:
    """The vectors (n, dim) of some rows of a file."""
    start, vectors = len(header(dim, 0)), np.empty((len(wanted), dim), np.float32)
    with open(path, "rb") as file:  # not memory-mapped: each row would draw in pages around it
        for place, row in enumerate(wanted.tolist()):
            file.seek(start + 4 * dim * row)
            vectors[place] = np.frombuffer(file.read(4 * dim), np.float32)
    return vectors


def search_flat_file(path: Path, dim: int, rows: int, queries: Vectors) -> list[SearchResult]:
    """For each query (n, dim) the best row of a file and all that tie with it, as `ann.search_index` gives them."""
    blocks = ((np.arange(first, first + len(vectors)), vectors) for first, vectors in read_blocks(path, dim, rows))
    return ann.search_blocks(queries, 1, blocks)


def _block(file: BinaryIO, path: Path, rows: int, dim: int) -> Vectors:
    data = file.read(4 * rows * dim)
    if len(data) != 4 * rows * dim:
        raise CorruptIndexError(f"{path}: ends before its last vector.")
    return np.frombuffer(data, np.float32).reshape(rows, dim)


def _as_faiss_writes(vectors: Vectors) -> bytes:
    index = ann.make_index("Flat", vectors.shape[1])
    if len(vectors):
        ann.add_vectors(index, vectors)
    file = io.BytesIO()
    ann.save_index(index, file)
    return file.getvalue()
