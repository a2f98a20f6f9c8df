"""Embeddings in a .npy file, perhaps with a list of their ids: X.npy and X.ids.txt, or X.ids.parquet and so on.

Row i of the array (n, d) belongs to row i of the list, without blank lines; both have the same length. The list is a
file of any corpus format: plain text with one id a line, or rows with an id and any other columns, such as text.
Without a list, ids are the numbers of the rows: "0", "1" and so on.
"""

from tokenize import TokenError
from typing import IO, Any

import numpy as np

from indexer.arrays import Embeddings
from indexer.corpus.readers.streams import open_seekable, unreadable
from indexer.corpus.row import BadRow, BrokenFile, Header, Row, RowStream, name_column
from indexer.corpus.sources import SourceFile
from indexer.errors import CorpusError

_TYPES = ("float16", "float32", "float64")
_HEADER_ERRORS = (ValueError, EOFError, OverflowError, SyntaxError, TokenError, TypeError, RecursionError, MemoryError)
_EXPECTED = f"expected an array (n, d) of {', '.join(_TYPES[:-1])} or {_TYPES[-1]}"


class NpyFormatError(Exception):  # callers add the file's name
    """A file is not an array of embeddings; `damaged` if it cannot be read completely."""

    def __init__(self, what: str, damaged: bool = False) -> None:
        super().__init__(what)
        self.damaged = damaged


def read_numbered(file: SourceFile, column: str, id_column: str, first: int) -> RowStream:
    """Yield a row for each vector (d,) of an array without a list, with ids from `first` on.

    Raises BrokenFile for a damaged file, and CorpusError for any other array.
    """
    for number, vector in enumerate(_mapped(file)):
        yield Row(number + 1, {id_column: str(first + number), column: vector})


def read_npy(file: SourceFile, column: str, ids: SourceFile, rows: RowStream) -> RowStream:
    """Yield the rows of the list `ids` with their vectors (d,) in `column`, numbered from 1 as in the array.

    Raises BrokenFile for a damaged file, and CorpusError for any other array and for different lengths.
    """
    array = _mapped(file)
    number = 0
    for item in _located(rows, ids):
        if isinstance(item, Row | BadRow):
            if number == len(array):
                raise _mismatch(file, ids, len(array), f"more than {number:,}")
            number += 1
            item.line = number
        if isinstance(item, Header | Row):
            _require_free(column, item.columns if isinstance(item, Header) else item.values, file, ids)
        if isinstance(item, Header):
            yield Header([*item.columns, column], item.raw)
        elif isinstance(item, Row):
            yield Row(number, item.values | {column: array[number - 1]}, item.raw, item.cells)
        else:
            yield item
    if number != len(array):
        raise _mismatch(file, ids, len(array), f"{number:,}")


def map_npy(raw: IO[bytes], single: bool = False) -> Embeddings:
    """Return the array (n, d) of an open file, memory-mapped; `single` also accepts one of shape (d,), as a row.

    Raises NpyFormatError.
    """
    try:
        shape, fortran, kind = _header(raw)
    except _HEADER_ERRORS as error:
        raise NpyFormatError(f"not a readable .npy file: {error}", damaged=True) from error
    shape = (1, *shape) if single and len(shape) == 1 else shape
    if kind.kind != "f" or kind.newbyteorder("=").name not in _TYPES or len(shape) != 2 or not shape[1]:
        raise NpyFormatError(f"an array of type {kind} and shape {shape}; {_EXPECTED}")
    offset, end = raw.tell(), raw.seek(0, 2)
    if end - offset < shape[0] * shape[1] * kind.itemsize:
        rows = (end - offset) // (shape[1] * kind.itemsize)
        raise NpyFormatError(f"truncated: the header states {shape[0]:,} vectors, the file has {rows:,}", damaged=True)
    if not shape[0]:
        return np.zeros(shape, kind)
    return np.asarray(np.memmap(raw, kind, "r", offset, shape, "F" if fortran else "C"))


def _header(raw: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(raw)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(raw)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(raw)
    raise ValueError(f"format version {version[0]}.{version[1]} is for arrays without numbers")


def _mapped(file: SourceFile) -> Embeddings:
    try:
        with open_seekable(file) as raw:
            return map_npy(raw)
    except OSError as error:
        raise unreadable(file, error) from error
    except NpyFormatError as error:
        if error.damaged:
            raise BrokenFile("malformed", str(error), "write the file again", line=1) from error
        raise CorpusError(f"{file.display_name}: {error}. Fix: write it with numpy.save.") from error


def _located(rows: RowStream, ids: SourceFile) -> RowStream:
    """Yield the rows of the list; its bad rows name the list."""
    try:
        for item in rows:
            yield _at(item, ids) if isinstance(item, BadRow) else item
    except BadRow as bad:
        _at(bad, ids)
        raise


def _at(bad: BadRow, ids: SourceFile) -> BadRow:
    bad.what = f"{ids.display_name}:{bad.line}: {bad.what}"
    return bad


def _require_free(column: str, columns: Any, file: SourceFile, ids: SourceFile) -> None:
    if column in columns:
        raise CorpusError(
            f'{ids.display_name}: has a column "{column}", but the vectors come from {file.display_name}. Fix: '
            f"{name_column('vector')} an unused name, or read the list itself."
        )


def _mismatch(file: SourceFile, ids: SourceFile, vectors: int, rows: str) -> CorpusError:
    return CorpusError(
        f"{file.display_name}: {vectors:,} vectors, but {ids.display_name} has {rows} rows; expected one row for each "
        "vector. Fix: write both files again."
    )
