"""Cells that keep most pairs from being compared, with a proof that none of the others can reach the threshold.

Every row x lies in the cell of one centroid, here the one it has the largest product with; the proof takes any
centroids and any assignment. Let x lie in cell a, y in cell b, and w = c_a - c_b. Cauchy and Schwarz give

    (x.c_a - x.c_b) + (y.c_b - y.c_a) = (x - y).w <= |x - y| |w|.

Two unit vectors that score at least t have |x - y| <= r = sqrt(2 - 2 t). So one of the two brackets is at most
r |w| / 2: x visits cell b, or y visits cell a, where a row visits those cells that it may be so close to. Comparing the
rows of each cell with one another and with its visitors therefore finds every pair (`search.dedup.join.visits`).

Of a cell's rows x, a visitor y need not meet those that are much closer to the centroid c than it is: the angle between
x and c is at least that between y and c less theta, the angle of a pair that scores t (`highest_met`).

Products are computed in float32. A sum of d products in any order, each addition rounded or, on some accelerators, cut,
is off by at most 2 (d + 2) u |x| |c|, and there are two of them in a bracket: `slack` covers that and the subtraction.
How much cells save is estimated on a sample before any row is sorted; where it is little there are none.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from indexer.arrays import Float32Array, Float64Array, RowIds, Vectors
from indexer.system.threads import ordered_map, single_torch_thread
from search.dedup.join.codes import UNIT_ROUNDOFF, Kernel

MOST_CELLS = 8192  # their distances take 256 MiB
_NORM = 2e-6  # covers that squared norms may differ from 1 by `vectors.UNIT_TOLERANCE`
_SAMPLE, _ROUNDS = 64, 4  # rows a cell that centroids are fitted on, and rounds of k-means
_BLOCK = 2048  # rows
_PILOT_ROWS, _PILOTS = 6144, (64, 256)
_LEAST_WORK = 4e10  # multiplications in float32: about a second of one core with AVX2; less is not worth a pilot
_INT8_COST = 0.3  # of a multiplication in float32, where int8 won the race
_LOOKING = 100.0  # multiplications in the time that a pair takes beside them: gathering codes, finding the largest
_WORTH = 0.8  # of the time without cells
_CELL_COST = 1500.0  # multiplications in the time that a cell takes beside its products, for each row there is
_SORTING = 1.4  # what else there is to a product with a centroid: looking who visits whom


def most_cells(memory: int, most: int = MOST_CELLS) -> int:
    """How many cells, at most `most`, fit into so many bytes: their distances, and limits, take half of them."""
    return min(most, int((memory / 16) ** 0.5))


def reach(threshold: float) -> float:
    """Return the largest (x.c_a - x.c_b) / |c_a - c_b| of a row that visits cell b: r / 2 for the threshold."""
    return float(max(0.0, 2 + _NORM - 2 * threshold) ** 0.5 / 2)


def highest_met(products: Float64Array, threshold: float) -> Float64Array:
    """The most that a row's product with a unit vector c may be, to score t with rows whose products with c are these.

    That is cos(acos(s) - theta) = s cos(theta) + sqrt(1 - s^2) sin(theta), which grows with s up to cos(theta) and is
    taken for 1 from there; `products` may be above the true ones. Close to s = -1 it takes a larger s instead, lest
    rounding weigh.
    """
    chord = min(2.0, 2 * reach(threshold))
    cosine = 1 - chord**2 / 2
    sine = chord * (1 - chord**2 / 4) ** 0.5
    inside = np.clip(products, -0.9, 1)
    bound = inside * cosine + np.sqrt(1 - inside**2) * sine
    return np.where((inside >= cosine) | (cosine <= -0.9), 1.0, np.minimum(1.0, bound)) + _NORM


@dataclass(frozen=True)
class Centroids:
    """Unit vectors (count, d), on the device for products, and how far they lie apart, rounded up, (count, count)."""

    points: torch.Tensor
    apart: Float32Array

    @classmethod
    def fit(cls, vectors: Vectors, count: int, threads: int = 1, device: torch.device | None = None) -> "Centroids":
        """Spherical k-means on rows (n, d) spread evenly over all; the same however many threads."""
        taken = np.linspace(0, len(vectors) - 1, min(len(vectors), _SAMPLE * count)).astype(np.int64)
        sample = torch.from_numpy(np.array(vectors[taken]))
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
        """The most that float32 can take from x.c_a - x.c_b, for x and centroids of unit length."""
        return float(4 * (self.points.shape[1] + 2) * UNIT_ROUNDOFF * (1 + 1e-4) + 2.0**-20)

    def limits(self, reach: float) -> Float32Array:
        """How much smaller the product with another centroid may be than that with a row's own, for a visit.

        (count, count): of rows of the cell in the row, to the cell in the column.
        """
        found: Float32Array = self.apart * np.float32(reach * (1 + 2.0**-20)) + np.float32(self.slack)
        return found

    def products(self, rows: Vectors) -> Float32Array:
        """Of rows (n, d) with every centroid, (n, count)."""
        found: Float32Array = (torch.from_numpy(np.array(rows)).to(self.points.device) @ self.points.T).cpu().numpy()
        return found


@dataclass(frozen=True)
class Sorted:
    """The cell of each row and its product with it, (n,); which row visits which other cell, and theirs, (v,)."""

    own: RowIds
    best: Float32Array
    rows: RowIds
    cells: RowIds
    products: Float32Array


def visits(products: Float32Array, limits: Float32Array) -> Sorted:
    """Where rows belong, and whom they visit, ordered by row and cell.

    `products` (n, count) are a row's with the centroids, `limits` those of `Centroids.limits`.
    """
    best = products.max(axis=1)
    # First by the largest limit of all, which takes one look at the products, and then by the limits themselves.
    places = np.flatnonzero(products >= (best - limits.max())[:, None])
    rows, cells = np.divmod(places, products.shape[1])
    found = products.ravel()[places]
    largest = np.flatnonzero(found == best[rows])
    own = cells[largest[np.searchsorted(rows[largest], np.arange(len(products)))]]
    close = (found >= best[rows] - limits[own[rows], cells]) & (cells != own[rows])
    return Sorted(own, best, rows[close], cells[close], found[close])


@dataclass(frozen=True)
class Pilot:
    """The share of all pairs that a few cells leave to be compared, and how it falls with their number."""

    rows: int
    dim: int
    left: float  # with `_PILOTS[1]` cells
    slope: float  # left(count) = left * (_PILOTS[1] / count) ** slope
    most: int = MOST_CELLS

    @classmethod
    def of(cls, vectors: Vectors, threshold: float, most: int = MOST_CELLS) -> "Pilot | None":
        """None where so few vectors (n, d) are compared in less time than this takes."""
        count, dim = vectors.shape
        if count**2 / 2 * min(dim, 96) * _INT8_COST < _LEAST_WORK:
            return None
        told = vectors[np.linspace(count // 1000, count - 1 - count // 1000, min(count, _PILOT_ROWS)).astype(np.int64)]
        few, many = (share_left(told, Centroids.fit(vectors, cells), reach(threshold)) for cells in _PILOTS)
        slope = np.log(max(few / many, 1.0)) / np.log(_PILOTS[1] / _PILOTS[0])
        return cls(count, dim, min(1.0, many), float(min(1.0, slope)), most)

    def share(self, count: int) -> float:
        """Of the pairs, what `count` cells leave, about."""
        return float(min(1.0, self.left * (_PILOTS[1] / count) ** self.slope))

    def best(self, pairs: float, kernel: Kernel | None = None) -> int:
        """How many cells make comparing so many pairs of codes cheapest; 0 where none are cheaper."""
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
    """Of the pairs of a sample's rows (n, d), the share that lies in one cell or is brought together by a visit."""
    limits, count = centroids.limits(reach), len(centroids)
    own, visited = np.zeros(0, np.int64), np.zeros(count, np.int64)
    for start in range(0, len(sample), _BLOCK):
        found = visits(centroids.products(sample[start : start + _BLOCK]), limits)
        own = np.concatenate([own, found.own])
        visited += np.bincount(found.cells, minlength=count)
    sizes = np.bincount(own, minlength=count)
    return float((sizes * (visited + sizes / 2)).sum() / max(1.0, len(sample) ** 2 / 2))


def _nearest(points: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    with single_torch_thread():
        return (rows @ points.T).argmax(dim=1)


def _apart(points: torch.Tensor) -> Float32Array:
    """Distances of points of about unit length, (n, d) -> (n, n), never too small.

    |c_a - c_b|^2 in float64, of three sums of d products, is off by less than `off`, whatever cancels.
    """
    exact: Float64Array = points.double().numpy()
    norms, off = (exact**2).sum(1), 4 * (exact.shape[1] + 4) * 2.0**-52
    found = np.empty((len(points), len(points)), np.float32)
    for start in range(0, len(points), _BLOCK):
        part = slice(start, start + _BLOCK)
        squares = norms[part, None] + norms - 2 * (exact[part] @ exact.T)
        found[part] = np.sqrt(np.maximum(squares, 0) + off) * (1 + 1e-7)
    return found
