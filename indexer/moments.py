"""Count, mean and scatter of embeddings, in float64, mergeable in any grouping.

The merge is Chan, Golub and LeVeque's pairwise update (Algorithms for computing the sample variance, 1983).
Everything is centred and in float64: an un-centred float32 covariance is not even positive definite once the
mean is large compared with the spread.
"""

import io
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from indexer.arrays import Embeddings, Float64Array
from indexer.system.threads import single_blas_thread

BLOCK_ROWS = 4096  # fixed, so that the order of additions is the same on every machine


@dataclass(frozen=True)
class Moments:
    """First and second moments of rows: `count`, `mean` (d,), `scatter` (d, d) = sum of (x - mean)(x - mean)^T."""

    count: int
    mean: Float64Array
    scatter: Float64Array

    @classmethod
    def zero(cls, dim: int) -> "Moments":
        """Return the moments of no rows: the neutral element of `+`."""
        return cls(0, np.zeros(dim), np.zeros((dim, dim)))

    @classmethod
    def of(cls, rows: Embeddings) -> "Moments":
        """Return the moments of rows (n, d), in blocks of `BLOCK_ROWS`; memory-mapped arrays are read in blocks."""
        if not len(rows):
            return cls.zero(rows.shape[1])
        return tree_sum(_of_block(rows[start : start + BLOCK_ROWS]) for start in range(0, len(rows), BLOCK_ROWS))

    def __add__(self, other: "Moments") -> "Moments":
        count = self.count + other.count
        if not self.count or not other.count:
            return other if other.count else self
        shift = other.mean - self.mean
        mean = self.mean + shift * (other.count / count)
        between = np.outer(shift, shift) * (self.count * other.count / count)
        return Moments(count, mean, self.scatter + other.scatter + between)

    @property
    def covariance(self) -> Float64Array:
        """Scatter / count, (d, d). The scale (1/N, 1/(N-1) or none, as in the paper's code) multiplies every
        vector by one number, which the final normalisation cancels."""
        return self.scatter / max(self.count, 1)

    def to_bytes(self) -> bytes:
        """Return an .npz file with the arrays `count`, `mean`, `scatter`."""
        file = io.BytesIO()
        np.savez(file, count=np.int64(self.count), mean=self.mean, scatter=self.scatter)
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Moments":
        """Return the moments that `to_bytes` wrote. Raises ValueError for anything else."""
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                if sum(member.file_size for member in archive.infolist()) > len(data):
                    raise ValueError("it is compressed")  # unlike `to_bytes`: a small file could expand to a huge one
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                count, mean, scatter = arrays["count"], arrays["mean"], arrays["scatter"]
        except (zipfile.BadZipFile, zlib.error, LookupError, EOFError, OSError, RuntimeError) as error:
            raise ValueError(str(error)) from error
        kinds = [np.dtype(np.int64), np.dtype(np.float64), np.dtype(np.float64)]
        shapes: list[tuple[int, ...]] = [(), mean.shape[:1], mean.shape[:1] * 2]
        for array, kind, shape in zip((count, mean, scatter), kinds, shapes, strict=True):
            if array.dtype != kind or array.shape != shape:
                raise ValueError(f"an array of {array.dtype} {array.shape}; expected {kind} {shape}")
        return cls(int(count), mean, scatter)


def tree_sum(moments: Iterable[Moments]) -> Moments:
    """Return the sum of at least one item by a fixed binary tree in order, so that timing does not affect the bits.

    Neighbours are added, then neighbours among the sums, and so on; an item without a neighbour moves up unchanged.
    Memory holds only a logarithm of their number.
    """
    open_sums: list[Moments] = []  # of ever fewer items, each a power of two
    for count, item in enumerate(moments, start=1):
        open_sums.append(item)
        while count % 2 == 0:
            last = open_sums.pop()
            open_sums[-1] = open_sums[-1] + last
            count //= 2
    while len(open_sums) > 1:
        last = open_sums.pop()
        open_sums[-1] = open_sums[-1] + last
    return open_sums[0]


def _of_block(rows: Embeddings) -> Moments:
    block = np.asarray(rows, dtype=np.float64)
    mean = block.mean(axis=0)
    with single_blas_thread(), np.errstate(invalid="ignore"):  # the build gate rejects rows that are not finite
        centred = block - mean
        scatter = centred.T @ centred
    return Moments(len(block), mean, scatter)
