"""Comparing codes tile by tile: which pairs may reach the threshold."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from search.dedup.joining.codes import Floats, Kernel, margin
from search.dedup.pairs import Rows, Vectors
from search.dedup.scratch import spool

_BLOCK = 1024  # rows encoded at once: they stay in the processor's cache


@dataclass(frozen=True)
class Tile:
    """Rows (n,) and (m,), and which of their pairs may reach the threshold: indices into `left` and into `right`."""

    left: Rows
    right: Rows
    rows: Rows
    columns: Rows


@dataclass(frozen=True)
class Coded:
    """Codes of all vectors (n, width), on disk or on the kernel's device, and E of each (n,)."""

    kernel: Kernel
    codes: torch.Tensor
    errors: Floats

    @classmethod
    def of(cls, vectors: Vectors, kernel: Kernel, path: Path, advance: Callable[[int], None]) -> "Coded":
        """Encode all vectors (n, d) into the file `path`."""
        errors = np.zeros(len(vectors), np.float32)

        def blocks() -> Iterator[torch.Tensor]:
            for start in range(0, len(vectors), _BLOCK):
                codes, errors[start : start + _BLOCK] = kernel.encode(vectors[start : start + _BLOCK])
                yield codes
                advance(len(codes))

        codes = spool(blocks(), len(vectors), kernel.width, kernel.dtype, path)
        return cls(kernel, _near(codes, kernel.device), errors)

    def compare(self, left: Rows, right: Rows, score: float) -> Iterator[Tile]:
        """Tiles of rows `left` against rows `right`, both ascending, in which some pair may score at least `score`."""
        height, width = self.kernel.tile
        for start in range(0, len(left), height):
            block = left[start : start + height]
            codes = self._codes(block)
            for part in range(0, len(right), width):
                tile = self._tile(block, codes, right[part : part + width], score)
                if len(tile.rows):
                    yield tile

    def compare_within(self, rows: Rows, first: int, last: int, score: float) -> Iterator[Tile]:
        """Of ascending `rows`, those at [first, last) against themselves and all after them; each pair once."""
        for tile in self.compare(rows[first:last], rows[first:], score):
            later = tile.left[tile.rows] < tile.right[tile.columns]
            if later.any():
                yield Tile(tile.left, tile.right, tile.rows[later], tile.columns[later])

    def _tile(self, left: Rows, codes: torch.Tensor, right: Rows, score: float) -> Tile:
        limit = self.kernel.limit(score, margin(self.errors[left], self.errors[right]))
        products = self.kernel.products(self._codes(right), codes)
        hit = (products.amax(dim=1) >= limit).nonzero()[:, 0]  # most rows have none: the rest is looked at closely
        found = (products[hit] >= limit).nonzero().cpu().numpy()
        return Tile(left, right, found[:, 1], hit.cpu().numpy()[found[:, 0]])

    def _codes(self, rows: Rows) -> torch.Tensor:
        first, last = int(rows[0]), int(rows[-1]) + 1
        if last - first == len(rows):
            return self.codes[first:last].to(self.kernel.device)
        chosen = torch.from_numpy(rows).to(self.codes.device)
        return self.codes.index_select(0, chosen).to(self.kernel.device)


def _near(codes: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Codes on the device if they take at most half of its free memory; tiles are sent one by one otherwise."""
    if device.type != "cuda":
        return codes
    free, _ = torch.cuda.mem_get_info(device)
    return codes.to(device) if 2 * codes.nbytes <= free else codes
