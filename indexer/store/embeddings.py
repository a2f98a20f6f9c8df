"""Stored embeddings: the .npy file of a part memory-mapped, and those of a published index read in rows or blocks,
every byte checked before use."""

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from indexer.arrays import Embeddings, RowIds
from indexer.errors import CorruptIndexError
from indexer.store import layout
from indexer.store.integrity import CheckedFile
from indexer.store.local_store import reading
from indexer.store.manifest import Manifest
from indexer.store.open_files import map_file
from indexer.store.stores import open_stored, store_at

# The start of embeddings.npy. numpy parses it with `ast`, which sometimes fails in concurrent threads in Python before
# 3.11.9 and 3.12.4 ("AST constructor recursion depth mismatch").
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(?P<type><f[24])', 'fortran_order': False, "
    rb"'shape': \((?P<rows>\d+), (?P<columns>\d+)\), \} *\n",
    re.DOTALL,
)
_HEADER_BYTES = 256
BLOCK_ROWS = 4096
OPEN_PARTS = 8192  # that stay mapped; systems allow about 65,000 maps


def open_embeddings(folder: Path) -> Embeddings:
    """Map the embeddings (n, d) of a part. Raises CorruptIndexError for another format."""
    path = folder / layout.EMBEDDINGS
    with reading(path), open_stored(path) as file:
        return _array(map_file(file.fileno(), os.fstat(file.fileno()).st_size), path)


def _array(data: npt.NDArray[np.uint8], path: Path) -> Embeddings:
    header = _HEADER.match(data[:_HEADER_BYTES].tobytes())
    if header is not None:
        shape = int(header["rows"]), int(header["columns"])
        kind = np.dtype(header["type"].decode())
        if header.end() + shape[0] * shape[1] * kind.itemsize == len(data) and shape[0] and shape[1]:
            embeddings: Embeddings = data[header.end() :].view(kind).reshape(shape)
            return embeddings
    raise CorruptIndexError(f"{path}: not an array of embeddings in the stored format. Fix: build the index again.")


class _PartFile(NamedTuple):
    """An open part."""

    file: CheckedFile
    version: int  # of the file when it was mapped
    embeddings: Embeddings
    start: int  # of the array in the file


class EmbeddingReader:
    """Raw embeddings by stored row number. Each MiB of a file is compared with its digest at the first access. Recently
    used files stay mapped. Safe to share between threads. Raises CorruptIndexError naming the file."""

    def __init__(self, index: Path, manifest: Manifest) -> None:
        self._index, self._manifest, self._store = index, manifest, store_at(index)
        self.firsts: list[int] = np.cumsum([0, *(part.rows for part in manifest.parts)]).tolist()
        self._parts: OrderedDict[int, _PartFile] = OrderedDict()  # the most recently used last
        self._lock = threading.Lock()  # of the open files

    def __len__(self) -> int:
        return self.firsts[-1]

    @property
    def dim(self) -> int:
        """Embedding size d."""
        return int(self._manifest.encoder["dim"])

    def rows(self, rows: RowIds) -> Embeddings:
        """Return the embeddings (n, d) of some rows, in the given order."""
        part_of = np.searchsorted(self.firsts, rows, side="right") - 1
        result: Embeddings = np.zeros((len(rows), self.dim), np.float32)
        self._fetch_together(rows, part_of)
        for part in np.unique(part_of).tolist():
            places = np.flatnonzero(part_of == part)
            within = rows[places] - self.firsts[part]
            with self._lock:
                embeddings = self._checked(part, within)
            result[places] = embeddings[within]  # the map survives when another thread closes the file
        return result

    def blocks(self) -> Iterator[tuple[int, Embeddings]]:
        """Yield (first row, embeddings (m, d)) for every row, in order."""
        for part, first in enumerate(self.firsts[:-1]):
            count = self.firsts[part + 1] - first
            for start in range(0, count, BLOCK_ROWS):
                yield first + start, self.rows(np.arange(first + start, first + min(start + BLOCK_ROWS, count)))

    def close(self) -> None:
        """Close the files; they are opened again when needed."""
        with self._lock:
            for part in self._parts.values():
                part.file.close()
            self._parts.clear()

    def _fetch_together(self, rows: RowIds, part_of: RowIds) -> None:
        """Fetch the rows of several parts from object storage in parallel, instead of part by part."""

        def fetch(part: int) -> None:
            entry = self._manifest.parts[part]
            name = f"{entry.name}/{layout.EMBEDDINGS}"
            digest = self._manifest.files[name]
            width = digest.bytes // entry.rows  # a little more than a row
            within = (rows[part_of == part] - self.firsts[part]) * width
            ranges = within, np.minimum(within + 2 * width, digest.bytes)
            part_file = self._parts.get(part)
            if part_file is None or not part_file.file.is_checked(ranges):
                with CheckedFile(self._index / name, digest) as file:
                    file.check(ranges)

        self._store.ahead(fetch, np.unique(part_of).tolist())

    def _checked(self, number: int, rows: RowIds) -> Embeddings:
        """Return the array of a part after comparing some of its rows with their digests."""
        part = self._part(number)
        width = part.embeddings.strides[0]
        while True:
            part.file.check((part.start + rows * width, part.start + (rows + 1) * width))
            if part.version == part.file.versions:
                return part.embeddings
            part = self._parts[number] = self._mapped(number, part.file)  # the file was replaced

    def _part(self, number: int) -> _PartFile:
        if number not in self._parts:
            name = f"{self._manifest.parts[number].name}/{layout.EMBEDDINGS}"
            file = CheckedFile(self._index / name, self._manifest.files[name])
            file.check((np.array([0]), np.array([1])))
            self._parts[number] = self._mapped(number, file)
            if len(self._parts) > OPEN_PARTS:
                self._parts.popitem(last=False)[1].file.close()
        self._parts.move_to_end(number)
        return self._parts[number]

    def _mapped(self, number: int, file: CheckedFile) -> _PartFile:
        entry, path = self._manifest.parts[number], self._index / self._manifest.parts[number].name / layout.EMBEDDINGS
        data, version = file.map(), file.versions
        embeddings = _array(data, path)
        if embeddings.shape != (entry.rows, self.dim):
            raise CorruptIndexError(
                f"{path}: {embeddings.shape[0]:,} embeddings of {embeddings.shape[1]} dimensions, the manifest "
                f"says {entry.rows:,} of {self.dim}. Fix: build the index again."
            )
        return _PartFile(file, version, embeddings, data.nbytes - embeddings.nbytes)
