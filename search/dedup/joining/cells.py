"""Cells around centroids, for joins that may miss pairs: near vectors mostly lie in the same or in neighbouring cells.

Each row belongs to its nearest cell and visits the next ones; two rows are compared when one visits the other's cell.
The centroids are fitted on codes, so a row's own code finds its cells by one product with each centroid.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from search.dedup.joining.tiles import Coded
from search.dedup.pairs import Rows

MOST_PROBES = 16
_CELLS_PER_ROOT = 2  # cells for each unit of sqrt(rows): the least work in all, centroids and members together
_FEWEST_ROWS = 4096  # below this one cell holds all
_SAMPLE, _ROUNDS = 32, 4  # rows a cell that the centroids are fitted on, and rounds of k-means
_BLOCK = 2048  # rows
Probes = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Cells:
    """The cells of all rows: `probes` (n, p), nearest first; `count` of them."""

    probes: Probes
    count: int

    @property
    def own(self) -> npt.NDArray[np.int32]:
        """The cell each row belongs to, (n,)."""
        nearest: Probes = self.probes[:, 0]
        return nearest

    def rank(self, rows: Rows, cells: npt.NDArray[np.integer]) -> Rows:
        """At which place each row visits a cell, paired one by one; `MOST_PROBES` where it does not."""
        same = self.probes[rows] == cells[:, None]
        return np.where(same.any(axis=1), same.argmax(axis=1), MOST_PROBES)


def fit_cells(coded: Coded) -> Cells:
    """Centroids by k-means on rows spread evenly over all, and the nearest cells of every row."""
    rows = len(coded.codes)
    if not rows:
        return Cells(np.zeros((0, 1), np.int32), 1)
    count = round(_CELLS_PER_ROOT * rows**0.5) if rows >= _FEWEST_ROWS else 1
    centroids = _centroids(coded, count)
    probes = np.zeros((rows, min(MOST_PROBES, count)), np.int32)
    for start in range(0, rows, _BLOCK):
        block = coded.codes[start : start + _BLOCK].to(coded.kernel.device)
        products = coded.kernel.products(block, centroids)
        probes[start : start + _BLOCK] = products.float().topk(probes.shape[1], dim=1).indices.cpu().numpy()
    return Cells(probes, count)


def _centroids(coded: Coded, count: int) -> torch.Tensor:
    """Codes (count, width) of centroids; what stands for the rest of a vector is left out of them."""
    taken = np.linspace(0, len(coded.codes) - 1, min(len(coded.codes), _SAMPLE * count)).astype(np.int64)
    sample = coded.codes.index_select(0, torch.from_numpy(taken).to(coded.codes.device)).to(coded.kernel.device)
    points = sample.float()
    points[:, coded.kernel.basis.size :] = 0
    length = points.norm(dim=1).mean()
    centroids = points[torch.linspace(0, len(points) - 1, count).long().to(points.device)]
    for _ in range(_ROUNDS):
        nearest = torch.cat(list(_nearest(coded, sample, _code(centroids, length, coded))))
        sums = torch.zeros_like(centroids).index_add_(0, nearest, points)
        lengths = sums.norm(dim=1, keepdim=True)
        centroids = torch.where(lengths > 0, sums / lengths.clamp(min=1e-30), centroids)
    return _code(centroids, length, coded)


def _nearest(coded: Coded, sample: torch.Tensor, centroids: torch.Tensor) -> Iterator[torch.Tensor]:
    for start in range(0, len(sample), _BLOCK):
        yield coded.kernel.products(sample[start : start + _BLOCK], centroids).argmax(dim=1)


def _code(centroids: torch.Tensor, length: torch.Tensor, coded: Coded) -> torch.Tensor:
    """Centroids as codes: as long as a row's code is on average."""
    codes = centroids / centroids.norm(dim=1, keepdim=True).clamp(min=1e-30) * length
    if coded.kernel.dtype == torch.int8:
        codes = codes.round().clamp(-127, 127)
    rounded: torch.Tensor = codes.to(coded.kernel.dtype)
    return rounded
