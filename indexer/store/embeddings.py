"""Stored embeddings: a part's .npy file memory-mapped, and those of a published index read a few rows or a block at a
time, no byte before it is checked.
"""

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from indexer.arrays import Embeddings, RowIds
from indexer.errors import CorruptIndexError, StoreError
from indexer.parallel import ordered_map
from indexer.store import layout
from indexer.store.integrity import CheckedFile
from indexer.store.manifest import Manifest
from indexer.store.mirror import mirror_of, open_stored

# The start of embeddings.npy. numpy's own reader parses it with `ast`, which in several threads at once fails now and
# then in Python before 3.11.9 and 3.12.4 ("AST constructor recursion depth mismatch").
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(?P<type><f[24])', 'fortran_order': False, "
    rb"'shape': \((?P<rows>\d+), (?P<columns>\d+)\), \} *\n",
    re.DOTALL,
)
_HEADER_BYTES = 256
BLOCK_ROWS = 4096
OPEN_PARTS = 384  # files open at a time
_REQUESTS = 8  # to object storage at a time


def open_embeddings(folder: Path) -> Embeddings:
    """Embeddings (n, d) of a part, memory-mapped. Raises CorruptIndexError if the file is not as an index holds it."""
    path = folder / layout.EMBEDDINGS
    try:
        return _map(open_stored(path), path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}.") from error


def _map(opened: IO[bytes], path: Path) -> Embeddings:
    try:
        with opened as file:
            file.seek(0)  # another descriptor of the file may share its place
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


_Open = tuple[CheckedFile, Embeddings, int]  # and the byte that the array starts at


class EmbeddingReader:
    """Raw embeddings by stored row number. Each MiB of a file is compared with its digest when it is first touched.

    Files used lately stay open. Safe to share between threads. Raises CorruptIndexError naming the file.
    """

    def __init__(self, index: Path, manifest: Manifest) -> None:
        self._index, self._manifest = index, manifest
        self.firsts: list[int] = np.cumsum([0, *(part.rows for part in manifest.parts)]).tolist()
        self._parts: OrderedDict[int, _Open] = OrderedDict()  # the one used last at the end
        self._lock = threading.Lock()  # of the open files

    def __len__(self) -> int:
        return self.firsts[-1]

    @property
    def dim(self) -> int:
        """Embedding size d."""
        return int(self._manifest.encoder["dim"])

    def rows(self, rows: RowIds) -> Embeddings:
        """Embeddings (n, d) of the given rows, in the order given."""
        part_of = np.searchsorted(self.firsts, rows, side="right") - 1
        found: Embeddings = np.zeros((len(rows), self.dim), np.float32)
        self._fetch_together(rows, part_of)
        for part in np.unique(part_of).tolist():
            places = np.flatnonzero(part_of == part)
            within = rows[places] - self.firsts[part]
            with self._lock:
                file, embeddings, start = self._part(part)
                width = embeddings.strides[0]
                file.check((start + within * width, start + (within + 1) * width))
            found[places] = embeddings[within]  # the map stays when another thread closes the file
        return found

    def blocks(self) -> Iterator[tuple[int, Embeddings]]:
        """(first row, embeddings (m, d)) for every row, in order."""
        for part, first in enumerate(self.firsts[:-1]):
            count = self.firsts[part + 1] - first
            for start in range(0, count, BLOCK_ROWS):
                yield first + start, self.rows(np.arange(first + start, first + min(start + BLOCK_ROWS, count)))

    def close(self) -> None:
        """Let go of the files; they are opened again when they are needed."""
        with self._lock:
            for file, _, _ in self._parts.values():
                file.close()
            self._parts.clear()

    def _fetch_together(self, rows: RowIds, part_of: RowIds) -> None:
        """Of object storage, what several parts are read for is fetched at once and not part by part."""
        asked = np.unique(part_of).tolist()
        if len(asked) < 2 or mirror_of(self._index) is None:
            return

        def fetch(part: int) -> None:
            entry = self._manifest.parts[part]
            name = f"{entry.name}/{layout.EMBEDDINGS}"
            digest = self._manifest.files[name]
            width = digest.bytes // entry.rows  # of a row, and a little more
            within = (rows[part_of == part] - self.firsts[part]) * width
            ranges = within, np.minimum(within + 2 * width, digest.bytes)
            held = self._parts.get(part)
            if held is None or not held[0].is_checked(ranges):
                with CheckedFile(self._index / name, digest) as file:
                    file.check(ranges)

        for _ in ordered_map(fetch, asked, _REQUESTS):
            pass

    def _part(self, number: int) -> _Open:
        """The file of a part, its array, memory-mapped, and the byte the array starts at."""
        if number not in self._parts:
            entry = self._manifest.parts[number]
            name = f"{entry.name}/{layout.EMBEDDINGS}"
            path, digest = self._index / name, self._manifest.files[name]
            file = CheckedFile(path, digest)
            file.check((np.array([0]), np.array([1])))
            embeddings = _map(file.open_map(), path)
            if embeddings.shape != (entry.rows, self.dim):
                raise CorruptIndexError(
                    f"{path}: {embeddings.shape[0]:,} embeddings of {embeddings.shape[1]} dimensions, the manifest "
                    f"says {entry.rows:,} of {self.dim}. Build the index again."
                )
            self._parts[number] = file, embeddings, digest.bytes - embeddings.nbytes
            if len(self._parts) > OPEN_PARTS:
                self._parts.popitem(last=False)[1][0].close()
        self._parts.move_to_end(number)
        return self._parts[number]
