"""Embeddings as .npy files: opened memory-mapped, their header read without numpy's parser."""

import os
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer.errors import CorruptIndexError, StoreError
from indexer.regular_files import open_regular
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
    try:
        with open_regular(path, follow_links=False) as file:
            header = _HEADER.match(file.read(_HEADER_BYTES))
            size = os.fstat(file.fileno()).st_size
            if header is not None:
                shape = int(header["rows"]), int(header["columns"])
                kind = np.dtype(header["type"].decode())
                if header.end() + shape[0] * shape[1] * kind.itemsize == size and shape[0] and shape[1]:
                    return np.memmap(file, kind, "r", offset=header.end(), shape=shape)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}.") from error
    raise CorruptIndexError(f"{path}: not an array of embeddings as they are stored. Build the index again.")
