"""Voronoi cells that avoid most comparisons, with a proof that the omitted pairs cannot reach the threshold.

Every row x lies in the cell of its centroid with the largest product; the proof holds for any centroids and assignment.
Let x lie in cell a, y in cell b, and w = c_a - c_b. By Cauchy and Schwarz,

    (x.c_a - x.c_b) + (y.c_b - y.c_a) = (x - y).w <= |x - y| |w|.

Two unit vectors that score at least t have |x - y| <= r = sqrt(2 - 2 t). So one of the two brackets is at most
r |w| / 2: x probes cell b, or y probes cell a, where a row probes all cells within this bound. Comparing the rows of
each cell with each other and with the rows that probe it therefore finds every pair (`search.dedup.join.probes`).

A probing row y can skip the cell's rows x that are much closer to the centroid c: for a pair that scores t, the angle
between x and c is at least the angle between y and c less theta, the angle of such a pair (`highest_met`).

Products are computed in float32. The error of a sum of d products in any order, with additions rounded or, on some
accelerators, truncated, is at most 2 (d + 2) u |x| |c|. A bracket has two sums: `slack` covers both and the
subtraction. The savings are estimated on a sample before any row is sorted; if they are small, no cells are used.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from indexer.arrays import Float32Array, Float64Array, RowIds, Vectors
from indexer.system.threads import ordered_map, single_torch_thread
from search.dedup.join.quantised import UNIT_ROUNDOFF, Kernel

MOST_CELLS = 8192  # their distances take 256 MiB
_NORM = 2e-6  # covers squared norms within `vectors.UNIT_TOLERANCE` of 1
_SAMPLE, _ROUNDS = 64, 4  # rows a cell for fitting centroids, and rounds of k-means
_BLOCK = 2048  # rows
_PILOT_ROWS, _PILOTS = 6144, (64, 256)
_LEAST_WORK = 4e10  # float32 multiplications, about a second of one core with AVX2; less is not worth a pilot
_INT8_COST = 0.3  # of a float32 multiplication, if int8 is faster
_LOOKING = 100.0  # multiplications in the overhead of a pair: gathering quantised vectors, finding the maximum
_WORTH = 0.8  # of the time without cells
_CELL_COST = 1500.0  # multiplications in the overhead of a cell, for each row of all
_SORTING = 1.4  # cost of a product with a centroid, including the search for probes


def most_cells(memory: int, most: int = MOST_CELLS) -> int:
    """Return the number of cells, at most `most`, whose distances and limits take half of the memory."""
    return min(most, int((memory / 16) ** 0.5))


def reach(threshold: float) -> float:
    """Return the largest (x.c_a - x.c_b) / |c_a - c_b| of a row that probes cell b: r / 2 for the threshold."""
    return float(max(0.0, 2 + _NORM - 2 * threshold) ** 0.5 / 2)


def highest_met(products: Float64Array, threshold: float) -> Float64Array:
    """Return the largest product with a unit vector c of a row that scores t with a row of product s, for each s.

    It is cos(acos(s) - theta) = s cos(theta) + sqrt(1 - s^2) sin(theta), which grows with s up to cos(theta), and 1
    from there; `products` may be upper bounds. Close to s = -1 a larger s is used, to limit rounding errors.
    """
    chord = min(2.0, 2 * reach(threshold))
    cosine = 1 - chord**2 / 2
    sine = chord * (1 - chord**2 / 4) ** 0.5
    inside = np.clip(products, -0.9, 1)
    bound = inside * cosine + np.sqrt(1 - inside**2) * sine
    return np.where((inside >= cosine) | (cosine <= -0.9), 1.0, np.minimum(1.0, bound)) + _NORM


@dataclass(frozen=True)
class Centroids:
    """Unit vectors (count, d), on the device for products, and their distances, rounded up, (count, count)."""

    points: torch.Tensor
    apart: Float32Array

    @classmethod
    def fit(cls, vectors: Vectors, count: int, threads: int = 1, device: torch.device | None = None) -> "Centroids":
        """Fit spherical k-means on an evenly spaced sample of rows (n, d); threads do not change the result."""
        places = np.linspace(0, len(vectors) - 1, min(len(vectors), _SAMPLE * count)).astype(np.int64)
        sample = torch.from_numpy(np.array(vectors[places]))
        points = sample[torch.linspace(0, len(sample) - 1, count).long()]
        for _ in range(_ROUNDS):
            nearest = torch.cat(list(ordered_map(partial(_nearest, points), torch.split(sample, _BLOCK), threads)))
            sums = torch.zeros(count, sample.shape[1]).index_add_(0, nearest, sample)
            lengths = sums.norm(dim=1, keepdim=True)
            points = torch.where(lengths > 1e-3, sums / lengths.clamp(min=1e-3), points)
        points = torch.nn.functional.normalize(points.double(), dim=1).float()
        return cls(points.to(device or "cpu"), _apart(points))

    def __len__(self) -> int:
        return len(self.points)

    @property
    def slack(self) -> float:
        """A bound on the float32 error of x.c_a - x.c_b, for x and centroids of unit length."""
        return float(4 * (self.points.shape[1] + 2) * UNIT_ROUNDOFF * (1 + 1e-4) + 2.0**-20)

    def limits(self, reach: float) -> Float32Array:
        """Return the limits of probes, (count, count): a row of cell a (row) probes cell b (column) if its product
        with c_b is at most this much below its product with c_a."""
        limits: Float32Array = self.apart * np.float32(reach * (1 + 2.0**-20)) + np.float32(self.slack)
        return limits

    def products(self, rows: Vectors) -> Float32Array:
        """Return the products of rows (n, d) with every centroid, (n, count)."""
        products: Float32Array = (torch.from_numpy(np.array(rows)).to(self.points.device) @ self.points.T).cpu().numpy()
        return products


@dataclass(frozen=True)
class Probes:
    """The cell of each row and its product, (n,); row, probed cell and product of each probe, (p,)."""

    own: RowIds
    best: Float32Array
    rows: RowIds
    cells: RowIds
    products: Float32Array


def find_probes(products: Float32Array, limits: Float32Array) -> Probes:
    """Return the cells and probes of rows, ordered by row and cell.

    `products` (n, count) are those of rows and centroids, `limits` those of `Centroids.limits`.
    """
    best = products.max(axis=1)
    # The largest limit selects candidates in one pass over the products; then each limit is checked.
    places = np.flatnonzero(products >= (best - limits.max())[:, None])
    rows, cells = np.divmod(places, products.shape[1])
    candidates = products.ravel()[places]
    largest = np.flatnonzero(candidates == best[rows])
    own = cells[largest[np.searchsorted(rows[largest], np.arange(len(products)))]]
    close = (candidates >= best[rows] - limits[own[rows], cells]) & (cells != own[rows])
    return Probes(own, best, rows[close], cells[close], candidates[close])


@dataclass(frozen=True)
class Pilot:
    """The share of all pairs left to compare, as a function of the number of cells."""

    rows: int
    dim: int
    left: float  # with `_PILOTS[1]` cells
    slope: float  # left(count) = left * (_PILOTS[1] / count) ** slope
    most: int = MOST_CELLS

    @classmethod
    def of(cls, vectors: Vectors, threshold: float, most: int = MOST_CELLS) -> "Pilot | None":
        """Measure the share on a sample; None if comparing all vectors (n, d) takes less time than the pilot."""
        count, dim = vectors.shape
        if count**2 / 2 * min(dim, 96) * _INT8_COST < _LEAST_WORK:
            return None
        places = np.linspace(count // 1000, count - 1 - count // 1000, min(count, _PILOT_ROWS)).astype(np.int64)
        sample = vectors[places]
        few, many = (share_left(sample, Centroids.fit(vectors, cells), reach(threshold)) for cells in _PILOTS)
        slope = np.log(max(few / many, 1.0)) / np.log(_PILOTS[1] / _PILOTS[0])
        return cls(count, dim, min(1.0, many), float(min(1.0, slope)), most)

    def share(self, count: int) -> float:
        """Return the estimated share of pairs that `count` cells leave."""
        return float(min(1.0, self.left * (_PILOTS[1] / count) ** self.slope))

    def best(self, pairs: float, kernel: Kernel | None = None) -> int:
        """Return the number of cells with the least cost of comparing so many pairs; 0 if no cells are cheaper."""
        each = 96.0 if kernel is None else kernel.width * (_INT8_COST if kernel.dtype == torch.int8 else 1.0)
        counts = [round(64 * 2 ** (step / 2)) for step in range(15)]
        costs = {count: self._cost(count, pairs, each) for count in counts if count <= min(self.most, self.rows / 16)}
        best = min(costs, key=lambda count: costs[count], default=0)
        return best if best and costs[best] < _WORTH * pairs * (each + _LOOKING / 4) else 0

    def _cost(self, count: int, pairs: float, each: float) -> float:
        fitting = _SAMPLE * _ROUNDS * count**2 * self.dim
        sorting = _SORTING * self.rows * count * self.dim
        return fitting + sorting + self.share(count) * pairs * (each + _LOOKING) + count * self.rows * _CELL_COST


def share_left(sample: Vectors, centroids: Centroids, reach: float) -> float:
    """Return the share of the pairs of a sample (n, d) that lie in one cell or meet through a probe."""
    limits, count = centroids.limits(reach), len(centroids)
    own, probing = np.zeros(0, np.int64), np.zeros(count, np.int64)
    for start in range(0, len(sample), _BLOCK):
        block = find_probes(centroids.products(sample[start : start + _BLOCK]), limits)
        own = np.concatenate([own, block.own])
        probing += np.bincount(block.cells, minlength=count)
    sizes = np.bincount(own, minlength=count)
    return float((sizes * (probing + sizes / 2)).sum() / max(1.0, len(sample) ** 2 / 2))


def _nearest(points: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    with single_torch_thread():
        return (rows @ points.T).argmax(dim=1)


def _apart(points: torch.Tensor) -> Float32Array:
    """Return upper bounds on the distances of points of about unit length, (n, d) -> (n, n).

    |c_a - c_b|^2 in float64, from three sums of d products, has an error below `error`, also with cancellation.
    """
    exact: Float64Array = points.double().numpy()
    norms, error = (exact**2).sum(1), 4 * (exact.shape[1] + 4) * 2.0**-52
    apart = np.empty((len(points), len(points)), np.float32)
    for start in range(0, len(points), _BLOCK):
        part = slice(start, start + _BLOCK)
        squares = norms[part, None] + norms - 2 * (exact[part] @ exact.T)
        apart[part] = np.sqrt(np.maximum(squares, 0) + error) * (1 + 1e-7)
    return apart
