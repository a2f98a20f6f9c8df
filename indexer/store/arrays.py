"""Embeddings as .npy files: opened memory-mapped, their header read without numpy's parser."""

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer.errors import CorruptIndexError
from indexer.store import layout

# The start of embeddings.npy. numpy's own reader parses it with `ast`, which in several threads at once fails now and
# then in Python before 3.11.9 and 3.12.4 ("AST constructor recursion depth mismatch").
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(?P<type><f[24])', 'fortran_order': False, "
    rb"'shape': \((?P<rows>\d+), (?P<columns>\d+)\), \} *\n",
    re.DOTALL,
)
_HEADER_BYTES = 256


def open_embeddings(folder: Path) -> npt.NDArray[np.floating]:
    """Embeddings (n, d) of a part, memory-mapped. Raises CorruptIndexError if the file is not as an index holds it."""
    path = folder / layout.EMBEDDINGS
    with open(path, "rb") as file:
        start = file.read(_HEADER_BYTES)
    header = _HEADER.match(start)
    if header is None:
        raise CorruptIndexError(f"{path}: not an array of embeddings as they are stored. Build the index again.")
    shape = int(header["rows"]), int(header["columns"])
    return np.memmap(path, header["type"].decode(), "r", offset=header.end(), shape=shape)
