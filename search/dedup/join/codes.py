"""Short codes of vectors, whose products bound the scores of the vectors from above.

With p and r the parts of x inside and outside the leading directions, and q and s those of y, x.y = p.q + r.s, which
is at most p.q + |r||s| (Cauchy and Schwarz). Fewer directions make cheaper products and rule out fewer pairs. Which
number is cheapest is estimated on a sample.

The code of x holds its coordinates p in this `Basis`, rounded to p' with |p - p'| <= E(x), and the length of the rest,
rounded up. So for unit vectors x.y <= p'.q' + E(x) + E(y) + E(x) E(y) + |r||s|: a product of codes below the threshold
less that margin rules a pair out, whatever the data. int8 codes multiply exactly; products of bfloat16 and float32
codes are rounded themselves, which their limit covers.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from indexer.arrays import Float32Array, Float64Array, Vectors
from indexer.encoders.device import choose_device
from indexer.system.threads import single_blas_thread
from search.dedup.settings import JoinOptions

UNIT_ROUNDOFF = 2.0**-24  # of float32
_SPECTRUM_ROWS, _PAIRED_ROWS = 16_384, 1024
_STEP = 32  # directions
_CONFIRMING = 500_000  # multiplications of codes that take as long as computing one score from the vectors
_MARGIN = 0.02  # about what rounding the codes adds to a bound
_NORM = 1e-6  # covers that norms may differ from 1 by half of `vectors.UNIT_TOLERANCE`, in every product below
_LEVELS = 127
_ENOUGH_DEVIATIONS = 5.0  # of a coordinate: rarely is one cut, and then E says so
_MULTIPLE = 16  # bytes of a code: what processors multiply at once
_RACE_ROWS, _RACE_RUNS, _RACE_SECONDS = (256, 1024), 16, 0.05


@dataclass(frozen=True)
class Basis:
    """Orthonormal leading directions as columns (d, m), and the mean share of a squared length they hold.

    The columns are the eigenvectors of the sample's second moment, turned by a fixed random rotation, so that no
    coordinate is larger than the others and one scale fits all.
    """

    directions: Vectors
    share: float

    @property
    def size(self) -> int:
        """Number of directions m."""
        return int(self.directions.shape[1])

    @property
    def whole(self) -> bool:
        """Whether nothing of a vector is left outside."""
        return bool(self.size == self.directions.shape[0])

    @property
    def error(self) -> float:
        """A bound on the length of what float32 arithmetic changes in `x @ directions`, for x of unit length.

        Each coordinate is a sum of d products of rounded entries, in any order: off by at most (d + 2) u |c|.|x|, with
        c the column, so by at most (d + 2) u; there are m of them.
        """
        return float((self.directions.shape[0] + 2) * UNIT_ROUNDOFF * self.size**0.5)

    @property
    def longest_rest(self) -> float:
        """The largest that `split` may give for the length of the rest of a vector of unit length."""
        # |x|^2 may be above 1 by `vectors.UNIT_TOLERANCE`, and the length inside off by `error` from what was computed.
        return float((1 + 1e-6 + 2 * self.error + self.error**2) ** 0.5)

    def split(self, vectors: Vectors) -> tuple[Vectors, Float64Array]:
        """Coordinates (n, m) of vectors (n, d), and an upper bound on the length of the rest of each (n,)."""
        inside = vectors @ self.directions
        if self.whole:
            return inside, np.zeros(len(vectors))
        lengths = np.einsum("nm,nm->n", inside, inside, dtype=np.float64)
        return inside, np.sqrt(np.maximum(0.0, self.longest_rest**2 - lengths))


def fit_basis(vectors: Vectors, threshold: float, compared: float = 1.0) -> Basis:
    """The basis that makes finding pairs of at least `threshold` among vectors like these (n, d) cheapest.

    `compared` is the share of all pairs whose codes are multiplied: of those that could reach the threshold, all.
    """
    count = len(vectors)
    sample = vectors[np.linspace(0, count - 1, min(count, _SPECTRUM_ROWS)).astype(np.int64)].astype(np.float64)
    with single_blas_thread():
        values, eigenvectors = np.linalg.eigh(sample.T @ sample)
    directions = eigenvectors[:, ::-1]
    rows = np.linspace(0, len(sample) - 1, min(len(sample), 2 * _PAIRED_ROWS)).astype(np.int64)
    with single_blas_thread():  # several threads take longer on small matrices, and much longer on a busy machine
        paired = sample[rows] @ directions
        size = _cheapest(paired[0::2], paired[1::2], threshold, compared)
        rotation, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((size, size)))
    share = float(values[::-1][:size].sum() / values.sum()) if count else 1.0
    return Basis((directions[:, :size] @ rotation).astype(np.float32), share)


def _cheapest(left: Float64Array, right: Float64Array, threshold: float, compared: float) -> int:
    """The number of leading coordinates with the least work: products, and scores of the pairs not ruled out."""
    dim = int(left.shape[1])
    if not len(left) or not len(right):
        return dim
    products = np.zeros((len(left), len(right)))
    costs: dict[int, float] = {}
    for size in range(_STEP, dim, _STEP):
        products += left[:, size - _STEP : size] @ right[:, size - _STEP : size].T
        rest = np.outer(np.linalg.norm(left[:, size:], axis=1), np.linalg.norm(right[:, size:], axis=1))
        passed = np.count_nonzero(products + rest >= threshold - _MARGIN) / products.size
        costs[size] = size * compared + passed * _CONFIRMING
    passed = np.count_nonzero(left @ right.T >= threshold - _MARGIN) / products.size
    costs[dim] = dim * compared + passed * _CONFIRMING
    return min(costs, key=lambda size: costs[size])


class Kernel(Protocol):
    """Codes and their products on one device."""

    @property
    def basis(self) -> Basis:
        """What the codes hold; the first `basis.size` numbers of a code are coordinates."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The type of a code's numbers."""
        ...

    @property
    def width(self) -> int:
        """Numbers a code."""
        ...

    @property
    def device(self) -> torch.device:
        """Where products are computed."""
        ...

    @property
    def tile(self) -> tuple[int, int]:
        """How many rows to multiply with how many."""
        ...

    def encode(self, vectors: Vectors) -> tuple[torch.Tensor, Float32Array]:
        """Codes (n, width) of vectors (n, d), on the CPU, and E of each row (n,)."""
        ...

    def products(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Products of codes on `device`, (n, width) and (m, width) -> (n, m)."""
        ...

    def limit(self, score: float, margin: float) -> float:
        """Codes whose product is below this belong to vectors that score below `score`; `margin` as of `margin`."""
        ...


def margin(left: Float32Array, right: Float32Array) -> float:
    """The most that rounding of codes can take from a product, for rows of E `left` against rows of E `right`."""
    one, other = float(left.max(initial=0)), float(right.max(initial=0))
    return one + other + one * other + _NORM


@dataclass(frozen=True)
class Int8Kernel:
    """Codes of one byte a number: coordinates, then the length of the rest spread over the places that are left."""

    basis: Basis
    scale: float
    dtype = torch.int8
    device = torch.device("cpu")
    tile = (512, 2048)

    @classmethod
    def of(cls, basis: Basis) -> "Int8Kernel":
        """The kernel for a basis."""
        return cls(basis, min(1.0, _ENOUGH_DEVIATIONS * (basis.share / basis.size) ** 0.5) / _LEVELS)

    @property
    def width(self) -> int:
        places = (1.001 * self.basis.longest_rest / (_LEVELS * self.scale)) ** 2
        needed = self.basis.size + (0 if self.basis.whole else int(np.ceil(places)))
        return -(-needed // _MULTIPLE) * _MULTIPLE

    def encode(self, vectors: Vectors) -> tuple[torch.Tensor, Float32Array]:
        inside, rest = self.basis.split(vectors)
        codes = np.zeros((len(vectors), self.width), np.int8)
        inside *= np.float32(1 / self.scale)
        rounded = np.rint(inside)
        np.clip(rounded, -_LEVELS, _LEVELS, out=rounded)
        codes[:, : self.basis.size] = rounded
        inside -= rounded
        errors = self.scale * np.sqrt(np.einsum("nm,nm->n", inside, inside)) * (1 + 1e-4) + self.basis.error
        if not self.basis.whole:
            places = self.width - self.basis.size
            codes[:, self.basis.size :] = np.ceil(rest / (self.scale * places**0.5))[:, None]
        return torch.from_numpy(codes), errors.astype(np.float32)

    def products(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return _int8_products(left, right)

    def limit(self, score: float, margin: float) -> float:
        return float(np.floor((score - margin) / self.scale**2))


@dataclass(frozen=True)
class FloatKernel:
    """Codes of bfloat16 or float32 numbers: coordinates, then the length of the rest."""

    basis: Basis
    dtype: torch.dtype
    device: torch.device

    @property
    def width(self) -> int:
        return self.basis.size + 1

    @property
    def tile(self) -> tuple[int, int]:
        return (4096, 8192) if self.device.type == "cuda" else (512, 2048)

    def encode(self, vectors: Vectors) -> tuple[torch.Tensor, Float32Array]:
        inside, rest = self.basis.split(vectors)
        exact = torch.from_numpy(np.concatenate([inside, rest[:, None] * (1 + 2.0**-7)], axis=1, dtype=np.float32))
        codes = exact.to(self.dtype)  # the last number was raised by more than rounding can take from it
        errors = torch.linalg.vector_norm((exact - codes.to(torch.float32))[:, :-1], dim=1).numpy()
        return codes, (errors * (1 + 1e-4) + self.basis.error).astype(np.float32)

    def products(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left @ right.T

    def limit(self, score: float, margin: float) -> float:
        # Additions in float32, each of them rounded or, on some accelerators, cut: 2 u; and for bfloat16 the result's
        # own rounding, 2**-8 of it. Such a code is shorter than 1.02: products and partial sums stay below 1.05.
        rounding = 2 * (self.width + 2) * UNIT_ROUNDOFF + (2.0**-8 if self.dtype == torch.bfloat16 else 0.0)
        return score - margin - 1.05 * rounding - 2.0**-22


def choose_kernel(basis: Basis, options: JoinOptions) -> Kernel:
    """The kernel for a device: bfloat16 on CUDA; on a CPU int8 where its products are exact and faster, else float32.

    Raises MachineError for a device that is not there. The choice changes the time, not the pairs.
    """
    device = choose_device(options.device)
    if device.type == "cuda":
        return FloatKernel(basis, torch.bfloat16, device)
    floats = FloatKernel(basis, torch.float32, torch.device("cpu"))
    if not int8_is_exact():
        return floats
    return faster(Int8Kernel.of(basis), floats)


def faster(*kernels: Kernel, clock: Callable[[], float] = time.perf_counter) -> Kernel:
    """The kernel with the quickest products on this processor, by a race of some milliseconds; the first of equals.

    Without instructions for int8 (VNNI, AMX) torch multiplies it some thirty times more slowly than float32.
    """

    def seconds(kernel: Kernel) -> float:
        left, right = (torch.ones(rows, kernel.width, dtype=kernel.dtype) for rows in _RACE_ROWS)
        kernel.products(left, right)  # which prepares; the next few are slower too, until memory is at hand
        best, began = math.inf, clock()
        for _ in range(_RACE_RUNS):
            started = clock()
            kernel.products(left, right)
            ended = clock()
            best = min(best, ended - started)
            if ended - began > _RACE_SECONDS:
                break
        return best

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the threads of a join have
    try:
        return min(kernels, key=seconds)
    finally:
        torch.set_num_threads(threads)


def int8_is_exact() -> bool:
    """Whether torch multiplies int8 matrices exactly on this processor: some have to saturate sums of two products."""
    left = torch.where(torch.arange(64 * 1024).reshape(64, 1024) % 7 < 5, _LEVELS, -_LEVELS).to(torch.int8)
    right = torch.full((48, 1024), _LEVELS, dtype=torch.int8)
    try:
        found = _int8_products(left, right)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return bool(torch.equal(found.to(torch.int64), left.to(torch.int64) @ right.to(torch.int64).T))


def _int8_products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    # The function has no public name yet; `int8_is_exact` tries it here before anything relies on it.
    found: torch.Tensor = torch._int_mm(left, right.T)
    return found


@contextmanager
def float32_accumulation() -> Iterator[None]:
    """Float products are summed in float32, whatever the process has set for speed."""
    matmul = torch.backends.cuda.matmul
    before = torch.get_float32_matmul_precision(), matmul.allow_bf16_reduced_precision_reduction
    torch.set_float32_matmul_precision("highest")
    matmul.allow_bf16_reduced_precision_reduction = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        matmul.allow_bf16_reduced_precision_reduction = before[1]
