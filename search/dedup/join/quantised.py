"""Quantised vectors whose products are upper bounds on the scores of the vectors.

Let p and r be the parts of x inside and outside the leading directions, and q and s those of y. Then x.y = p.q + r.s,
at most p.q + |r||s| (Cauchy and Schwarz). Fewer directions make cheaper products but rule out fewer pairs; the cheapest
number is estimated on a sample.

The quantised x has its coordinates p in this `Basis`, rounded to p' with |p - p'| <= E(x), and the length of r, rounded
up. So for unit vectors x.y <= p'.q' + E(x) + E(y) + E(x) E(y) + |r||s|: a product below the threshold less this margin
rules a pair out, for any data. int8 products are exact; products of bfloat16 and float32 are rounded, which the limit
covers.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch

from indexer.arrays import Float32Array, Float64Array, Vectors
from indexer.encoders.device import choose_device
from indexer.system.threads import single_blas_thread, single_torch_thread
from search.dedup.settings import JoinOptions

UNIT_ROUNDOFF = 2.0**-24  # of float32
_SPECTRUM_ROWS, _PAIRED_ROWS = 16_384, 1024
_STEP = 32  # directions
# Quantised multiplications in the time of one score from the vectors: of int8 with VNNI, and of float32 on a CPU.
_CONFIRMING, _CONFIRMING_FLOATS = 500_000, 150_000
_MARGIN = 0.02  # about what rounding adds to a bound
_NORM = 1e-6  # covers norms within half of `vectors.UNIT_TOLERANCE` of 1, in every product below
_LEVELS = 127
_ENOUGH_DEVIATIONS = 5.0  # of a coordinate; larger ones are clipped, which E includes
_MULTIPLE = 16  # bytes that processors multiply together
_RACE_ROWS, _RACE_RUNS, _RACE_SECONDS = (256, 1024), 16, 0.05


@dataclass(frozen=True)
class Basis:
    """Orthonormal leading directions as columns (d, m), and their mean share of a squared length.

    The columns are eigenvectors of the sample's second moment after a fixed random rotation, which gives all
    coordinates a similar scale.
    """

    directions: Vectors
    share: float

    @property
    def size(self) -> int:
        """Number of directions m."""
        return int(self.directions.shape[1])

    @property
    def whole(self) -> bool:
        """Whether the directions span the whole space."""
        return bool(self.size == self.directions.shape[0])

    @property
    def error(self) -> float:
        """A bound on the float32 error of `x @ directions`, for x of unit length.

        Each of the m coordinates is a sum of d products of rounded entries, in any order, with an error of at most
        (d + 2) u |c|.|x| = (d + 2) u for column c.
        """
        return float((self.directions.shape[0] + 2) * UNIT_ROUNDOFF * self.size**0.5)

    @property
    def longest_rest(self) -> float:
        """The largest length of the rest that `split` returns for a vector of unit length."""
        # |x|^2 may exceed 1 by `vectors.UNIT_TOLERANCE`, and the computed length inside has an error of `error`.
        return float((1 + 1e-6 + 2 * self.error + self.error**2) ** 0.5)

    def split(self, vectors: Vectors) -> tuple[Vectors, Float64Array]:
        """Return the coordinates (n, m) of vectors (n, d), and upper bounds on the lengths of their rests (n,)."""
        inside = vectors @ self.directions
        if self.whole:
            return inside, np.zeros(len(vectors))
        lengths = np.einsum("nm,nm->n", inside, inside, dtype=np.float64)
        return inside, np.sqrt(np.maximum(0.0, self.longest_rest**2 - lengths))


EXAMPLE_BASIS = Basis(np.eye(96, dtype=np.float32), 1.0)


def fit_basis(
    vectors: Vectors, threshold: float, compared: float = 1.0, confirming: float = _CONFIRMING_FLOATS
) -> Basis:
    """Return the basis with the lowest cost of finding pairs of at least `threshold` among vectors (n, d).

    `compared` is the share of all pairs that are multiplied; it includes all pairs that could reach the threshold.
    `confirming` is the cost of a score from the vectors in multiplications.
    """
    count = len(vectors)
    sample = vectors[np.linspace(0, count - 1, min(count, _SPECTRUM_ROWS)).astype(np.int64)].astype(np.float64)
    with single_blas_thread():  # more threads are slower on small matrices, and much slower on a busy machine
        values, eigenvectors = np.linalg.eigh(sample.T @ sample)
        directions = eigenvectors[:, ::-1]
        rows = np.linspace(0, len(sample) - 1, min(len(sample), 2 * _PAIRED_ROWS)).astype(np.int64)
        paired = sample[rows] @ directions
        size = _cheapest(paired[0::2], paired[1::2], threshold, compared / confirming)
        rotation, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((size, size)))
    share = float(values[::-1][:size].sum() / values.sum()) if count else 1.0
    return Basis((directions[:, :size] @ rotation).astype(np.float32), share)


def _cheapest(left: Float64Array, right: Float64Array, threshold: float, price: float) -> int:
    """Return the number of leading coordinates with the lowest cost: for each pair the `price` of a coordinate, and 1
    if its score remains to be computed."""
    dim = int(left.shape[1])
    if not len(left) or not len(right):
        return dim
    products = np.zeros((len(left), len(right)))
    costs: dict[int, float] = {}
    for done, size in pairwise([0, *range(_STEP - 1, dim, _STEP), dim]):  # with the rest: multiples of registers
        products += left[:, done:size] @ right[:, done:size].T
        rest = np.outer(np.linalg.norm(left[:, size:], axis=1), np.linalg.norm(right[:, size:], axis=1))
        passed = np.count_nonzero(products + rest >= threshold - _MARGIN) / products.size
        costs[size] = size * price + passed
    return min(costs, key=lambda size: costs[size])


def margin(left: Float32Array, right: Float32Array) -> float:
    """Return the largest loss of a product by rounding, for rows with errors E `left` and rows with errors `right`."""
    first, second = float(left.max(initial=0)), float(right.max(initial=0))
    return first + second + first * second + _NORM


@dataclass(frozen=True)
class Int8Kernel:
    """Quantises vectors to `width` bytes: coordinates, then the length of the rest, spread over the remaining places.

    `tile` has the numbers of rows to multiply together.
    """

    basis: Basis
    scale: float
    dtype = torch.int8
    device = torch.device("cpu")
    tile = (1024, 2048)

    @classmethod
    def of(cls, basis: Basis) -> "Int8Kernel":
        """Return the kernel for a basis. An index without documents may have no dimensions."""
        return cls(basis, min(1.0, _ENOUGH_DEVIATIONS * (basis.share / max(1, basis.size)) ** 0.5) / _LEVELS)

    @property
    def width(self) -> int:
        """Numbers of a quantised vector."""
        places = (1.001 * self.basis.longest_rest / (_LEVELS * self.scale)) ** 2
        needed = self.basis.size + (0 if self.basis.whole else int(np.ceil(places)))
        return -(-needed // _MULTIPLE) * _MULTIPLE

    def encode(self, vectors: Vectors) -> tuple[torch.Tensor, Float32Array]:
        """Quantise vectors (n, d) to (n, width), on the CPU; return also their errors E (n,)."""
        inside, rest = self.basis.split(vectors)
        quantised = np.zeros((len(vectors), self.width), np.int8)
        inside *= np.float32(1 / self.scale)
        rounded = np.rint(inside)
        np.clip(rounded, -_LEVELS, _LEVELS, out=rounded)
        quantised[:, : self.basis.size] = rounded
        inside -= rounded
        errors = self.scale * np.sqrt(np.einsum("nm,nm->n", inside, inside)) * (1 + 1e-4) + self.basis.error
        if not self.basis.whole:
            places = self.width - self.basis.size
            quantised[:, self.basis.size :] = np.ceil(rest / (self.scale * places**0.5))[:, None]
        return torch.from_numpy(quantised), errors.astype(np.float32)

    def products(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Return products of quantised vectors on `device`, (n, width), (m, width) -> (n, m)."""
        return _int8_products(left, right)

    def limit(self, score: float, margin: float) -> float:
        """Return a limit: pairs with a smaller product score below `score`; `margin` is that of `margin`."""
        return float(np.floor((score - margin) / self.scale**2))


@dataclass(frozen=True)
class FloatKernel:
    """Quantises vectors to bfloat16 or float32: coordinates, then the length of the rest. See `Int8Kernel`."""

    basis: Basis
    dtype: torch.dtype
    device: torch.device

    @property
    def width(self) -> int:
        return self.basis.size + 1

    @property
    def tile(self) -> tuple[int, int]:
        return (8192, 8192) if self.device.type == "cuda" else (1024, 2048)

    def encode(self, vectors: Vectors) -> tuple[torch.Tensor, Float32Array]:
        inside, rest = self.basis.split(vectors)
        exact = torch.from_numpy(np.concatenate([inside, rest[:, None] * (1 + 2.0**-7)], axis=1, dtype=np.float32))
        quantised = exact.to(self.dtype)  # the factor 1 + 2**-7 exceeds the rounding of the last number
        errors = torch.linalg.vector_norm((exact - quantised.to(torch.float32))[:, :-1], dim=1).numpy()
        return quantised, (errors * (1 + 1e-4) + self.basis.error).astype(np.float32)

    def products(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left @ right.T

    def limit(self, score: float, margin: float) -> float:
        # Additions in float32, rounded or, on some accelerators, truncated: 2 u; and for bfloat16 the rounding of the
        # result, 2**-8 of it. Quantised vectors are shorter than 1.02: products and partial sums stay below 1.05.
        rounding = 2 * (self.width + 2) * UNIT_ROUNDOFF + (2.0**-8 if self.dtype == torch.bfloat16 else 0.0)
        return score - margin - 1.05 * rounding - 2.0**-22


Kernel = Int8Kernel | FloatKernel


def choose_kernel(fit: Callable[[float], Basis], options: JoinOptions) -> Kernel:
    """Return the kernel for a device: bfloat16 on CUDA; on a CPU int8 if exact and faster, else float32.

    `fit` returns the basis for a cost as in `fit_basis`. Raises MachineError for a missing device. The choice changes
    the time, not the pairs.
    """
    device = choose_device(options.device)
    if device.type == "cuda":
        return FloatKernel(fit(_CONFIRMING), torch.bfloat16, device)
    int8, floats = Int8Kernel.of(EXAMPLE_BASIS), FloatKernel(EXAMPLE_BASIS, torch.float32, torch.device("cpu"))
    if int8_is_exact() and faster(int8, floats) is int8:
        return Int8Kernel.of(fit(_CONFIRMING))
    return replace(floats, basis=fit(_CONFIRMING_FLOATS))


def faster(*kernels: Kernel, clock: Callable[[], float] = time.perf_counter) -> Kernel:
    """Return the kernel with the fastest products on this processor, measured for some milliseconds.

    Without instructions for int8 (VNNI, AMX), torch multiplies int8 about thirty times more slowly than float32.
    """

    def seconds(kernel: Kernel) -> float:
        left, right = (torch.ones(rows, kernel.width, dtype=kernel.dtype) for rows in _RACE_ROWS)
        kernel.products(left, right)  # warm-up
        best, began = math.inf, clock()
        for _ in range(_RACE_RUNS):
            started = clock()
            kernel.products(left, right)
            ended = clock()
            best = min(best, ended - started)
            if ended - began > _RACE_SECONDS:
                break
        return best

    with single_torch_thread():  # as in the threads of a join
        return min(kernels, key=seconds)


def int8_is_exact() -> bool:
    """Return whether int8 products are exact on this processor; some saturate sums of two products."""
    left = torch.where(torch.arange(64 * 1024).reshape(64, 1024) % 7 < 5, _LEVELS, -_LEVELS).to(torch.int8)
    right = torch.full((48, 1024), _LEVELS, dtype=torch.int8)
    try:
        products = _int8_products(left, right)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return bool(torch.equal(products.to(torch.int64), left.to(torch.int64) @ right.to(torch.int64).T))


def _int8_products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    # A private function of torch; `int8_is_exact` tests it first.
    products: torch.Tensor = torch._int_mm(left, right.T)
    return products


@contextmanager
def float32_accumulation() -> Iterator[None]:
    """Sum float products in float32 within the block, also if the process allows lower precision."""
    matmul = torch.backends.cuda.matmul
    before = torch.get_float32_matmul_precision(), matmul.allow_bf16_reduced_precision_reduction
    torch.set_float32_matmul_precision("highest")
    matmul.allow_bf16_reduced_precision_reduction = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        matmul.allow_bf16_reduced_precision_reduction = before[1]
