"""The file of an exact index, written and searched in blocks of rows, so an index can exceed the memory.

The format is FAISS's file of an IndexFlatIP: the header of an empty index with two numbers filled in (the rows, and the
values that follow), then the float32 vectors row by row.
"""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from indexer import ann
from indexer.arrays import RowIds, SearchResult, Vectors
from indexer.errors import CorruptIndexError

_ROWS_AT = 8  # position of the rows (int64) in the header, after four letters and the dimensions (int32)
_VALUES_AT = -8  # position of the number of values that follow (uint64)
_BLOCK_BYTES = 32 << 20  # read at a time


def header(dim: int, rows: int) -> bytes:
    """Return the bytes before the vectors."""
    file = io.BytesIO()
    ann.save_index(ann.make_index("Flat", dim), file)
    data = bytearray(file.getvalue())
    data[_ROWS_AT : _ROWS_AT + 8] = rows.to_bytes(8, "little")
    data[_VALUES_AT:] = (rows * dim).to_bytes(8, "little")
    return bytes(data)


def read_blocks(path: Path, dim: int, rows: int) -> Iterator[tuple[int, Vectors]]:
    """Yield (first row, vectors (m, dim)) block by block. Raises CorruptIndexError unless the file has `rows` rows."""
    expected, most = header(dim, rows), max(1, _BLOCK_BYTES // (4 * dim))
    with open(path, "rb") as file:
        if file.read(len(expected)) != expected:
            raise CorruptIndexError(f"{path}: not the header of an index of {rows:,} vectors of {dim} dimensions.")
        for first in range(0, rows, most):
            data = file.read(4 * dim * min(most, rows - first))
            if len(data) != 4 * dim * min(most, rows - first):
                raise CorruptIndexError(f"{path}: ends before its last vector.")
            yield first, np.frombuffer(data, np.float32).reshape(-1, dim)
        if file.read(1):
            raise CorruptIndexError(f"{path}: contains more than the {rows:,} vectors of its header.")


def read_rows(path: Path, dim: int, wanted: RowIds) -> Vectors:
    """Return the vectors (n, dim) of some rows of a file."""
    start, vectors = len(header(dim, 0)), np.empty((len(wanted), dim), np.float32)
    with open(path, "rb") as file:  # not memory-mapped: each row would load the pages around it
        for place, row in enumerate(wanted.tolist()):
            file.seek(start + 4 * dim * row)
            vectors[place] = np.frombuffer(file.read(4 * dim), np.float32)
    return vectors


def search_flat_file(path: Path, dim: int, rows: int, queries: Vectors) -> list[SearchResult]:
    """Return for each query (n, dim) the best row of a file and all ties, as `ann.search_index` does."""
    blocks = ((np.arange(first, first + len(vectors)), vectors) for first, vectors in read_blocks(path, dim, rows))
    return ann.search_blocks(queries, 1, blocks)
