"""Quantised vectors on disk, compared tile by tile for pairs that may reach a threshold."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from indexer.arrays import Float32Array, RowIds, Vectors
from indexer.errors import MachineError
from indexer.system.threads import ordered_map, single_blas_thread, single_torch_thread
from search.dedup.join.quantised import Kernel, margin
from search.dedup.vectors import temporary_file

_BLOCK = 1024  # rows quantised together, within the processor's cache


@dataclass(frozen=True)
class Tile:
    """Pairs of rows `left` (n,) and `right` (m,) that may reach the threshold, as indices `rows` and `columns`."""

    left: RowIds
    right: RowIds
    rows: RowIds
    columns: RowIds


Task = tuple[int, Callable[[], Iterator[Tile]]]  # number of rows, and a function that yields tiles


@dataclass(frozen=True)
class QuantisedMatrix:
    """All quantised vectors `rows` (n, width), on disk or on the kernel's device, and their errors E (n,)."""

    kernel: Kernel
    rows: torch.Tensor
    errors: Float32Array
    path: Path

    @classmethod
    def of(
        cls, vectors: Vectors, kernel: Kernel, path: Path, threads: int, advance: Callable[[int], None]
    ) -> "QuantisedMatrix":
        """Quantise all vectors (n, d) into the file `path`."""
        errors = np.zeros(len(vectors), np.float32)

        def encode(start: int) -> torch.Tensor:
            with single_torch_thread():
                block, errors[start : start + _BLOCK] = kernel.encode(vectors[start : start + _BLOCK])
            return block

        def blocks() -> Iterator[torch.Tensor]:
            for block in ordered_map(encode, range(0, len(vectors), _BLOCK), threads):
                yield block
                advance(len(block))

        with single_blas_thread():
            write_quantised(blocks(), path)
        return cls(kernel, near(_open(path, len(vectors), kernel), kernel.device), errors, path)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"rows": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        with seen_by_all(state["path"]):
            vars(self).update(state, rows=_open(state["path"], len(state["errors"]), state["kernel"]))

    def compare(self, left: RowIds, right: RowIds, score: float) -> Iterator[Tile]:
        """Yield tiles of rows `left` and `right`, both ascending, with pairs that may score at least `score`."""
        height, width = self.kernel.tile
        for start in range(0, len(left), height):
            block = left[start : start + height]
            quantised = self._take(block)
            for part in range(0, len(right), width):
                tile = self._tile(block, quantised, right[part : part + width], score)
                if len(tile.rows):
                    yield tile

    def compare_within(self, rows: RowIds, first: int, last: int, score: float) -> Iterator[Tile]:
        """Yield tiles of ascending `rows`: those at [first, last) with themselves and later rows, each pair once."""
        for tile in self.compare(rows[first:last], rows[first:], score):
            later = tile.left[tile.rows] < tile.right[tile.columns]
            if later.any():
                yield Tile(tile.left, tile.right, tile.rows[later], tile.columns[later])

    def _tile(self, left: RowIds, quantised: torch.Tensor, right: RowIds, score: float) -> Tile:
        limit = self.kernel.limit(score, margin(self.errors[left], self.errors[right]))
        products = self.kernel.products(self._take(right), quantised)
        hits = (products.amax(dim=1) >= limit).nonzero()[:, 0]  # most rows have none
        pairs = (products[hits] >= limit).nonzero().cpu().numpy()
        return Tile(left, right, pairs[:, 1], hits.cpu().numpy()[pairs[:, 0]])

    def _take(self, rows: RowIds) -> torch.Tensor:
        first, last = int(rows[0]), int(rows[-1]) + 1
        if last - first == len(rows):
            return self.rows[first:last].to(self.kernel.device)
        return self.rows.index_select(0, torch.from_numpy(rows).to(self.rows.device)).to(self.kernel.device)


def near(quantised: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Move quantised vectors to the device if they fit in half of its free memory; otherwise tiles are sent singly."""
    if device.type != "cuda":
        return quantised
    free, _ = torch.cuda.mem_get_info(device)
    return quantised.to(device) if 2 * quantised.nbytes <= free else quantised


def write_quantised(blocks: Iterable[torch.Tensor], path: Path) -> None:
    """Write blocks of quantised vectors to a file. Raises StoreError for a full disk."""
    with temporary_file(path) as file:
        for block in blocks:
            file.write(block.contiguous().view(torch.uint8).numpy().data)


def _open(path: Path, rows: int, kernel: Kernel) -> torch.Tensor:
    """Return the quantised vectors of a file, (rows, width), memory-mapped."""
    if not rows:
        return torch.zeros((0, kernel.width), dtype=kernel.dtype)
    path.stat()  # torch would create a missing file
    return torch.from_file(str(path), size=rows * kernel.width, dtype=kernel.dtype).view(rows, kernel.width)


@contextmanager
def seen_by_all(path: Path) -> Iterator[None]:
    """Raise MachineError if a worker does not see a file of the process that started the join."""
    try:
        yield
    except FileNotFoundError:
        raise MachineError(
            f"{path}: a worker's machine does not see this file of the join. Fix: name a folder for temporary files "
            "that all machines share with the environment variable TMPDIR."
        ) from None
