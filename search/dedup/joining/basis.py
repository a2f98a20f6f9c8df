"""How much of a vector goes into its code: the leading directions, and the length of the rest.

With p and r the parts of x inside and outside the leading directions, and q and s those of y, x.y = p.q + r.s, which
is at most p.q + |r||s| (Cauchy and Schwarz). Fewer directions make cheaper products and rule out fewer pairs. Which
number is cheapest is estimated on a sample; it changes the time and never the pairs.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from indexer.parallel import single_blas_thread
from search.dedup.pairs import Vectors

UNIT_ROUNDOFF = 2.0**-24  # of float32
_SPECTRUM_ROWS, _PAIRED_ROWS = 16_384, 1024
_STEP = 32  # directions
_CONFIRMING = 500_000  # multiplications of codes that take as long as computing one score from the vectors
_MARGIN = 0.02  # about what rounding the codes adds to a bound


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
        # |x|^2 may be above 1 by `scratch.UNIT`, and the length inside off by `error` from what was computed.
        return float((1 + 1e-6 + 2 * self.error + self.error**2) ** 0.5)

    def split(self, vectors: Vectors) -> tuple[Vectors, npt.NDArray[np.float64]]:
        """Coordinates (n, m) of vectors (n, d), and an upper bound on the length of the rest of each (n,)."""
        inside = vectors @ self.directions
        if self.whole:
            return inside, np.zeros(len(vectors))
        lengths = np.einsum("nm,nm->n", inside, inside, dtype=np.float64)
        return inside, np.sqrt(np.maximum(0.0, self.longest_rest**2 - lengths))


def fit_basis(vectors: Vectors, threshold: float) -> Basis:
    """The basis that makes finding pairs of at least `threshold` among vectors like these (n, d) cheapest."""
    count = len(vectors)
    sample = vectors[np.linspace(0, count - 1, min(count, _SPECTRUM_ROWS)).astype(np.int64)].astype(np.float64)
    with single_blas_thread():
        values, eigenvectors = np.linalg.eigh(sample.T @ sample)
    directions = eigenvectors[:, ::-1]
    rows = np.linspace(0, len(sample) - 1, min(len(sample), 2 * _PAIRED_ROWS)).astype(np.int64)
    with single_blas_thread():  # several threads take longer on small matrices, and much longer on a busy machine
        paired = sample[rows] @ directions
        size = _cheapest(paired[0::2], paired[1::2], threshold)
        rotation, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((size, size)))
    share = float(values[::-1][:size].sum() / values.sum()) if count else 1.0
    return Basis((directions[:, :size] @ rotation).astype(np.float32), share)


def _cheapest(left: npt.NDArray[np.float64], right: npt.NDArray[np.float64], threshold: float) -> int:
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
        costs[size] = size + passed * _CONFIRMING
    passed = np.count_nonzero(left @ right.T >= threshold - _MARGIN) / products.size
    costs[dim] = dim + passed * _CONFIRMING
    return min(costs, key=lambda size: costs[size])
