"""How evenly vectors fill their space: figures of a cloud of unit vectors, from sums over its rows.

The partition function is that of Mu and Viswanath (All-but-the-Top, ICLR 2018, section 2): Z(c) = sum of exp(c . v),
with I = min Z / max Z over unit vectors c, for which they take the eigenvectors of the vectors' second moment. An
eigenvector's sign is arbitrary and Z depends on it, so both signs are taken here.
IsoScore is that of Rudman, Gillman, Rayne and Eickhoff (IsoScore: Measuring the Uniformity of Embedding Space
Utilization, Findings of ACL 2022, algorithm 1). With the eigenvalues l of the covariance in n dimensions its steps
come to (P - 1) / (n - 1), where P = (sum l)^2 / sum l^2 is the participation ratio.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from indexer.moments import Moments, tree_sum
from indexer.parallel import single_blas_thread

Array = npt.NDArray[np.float64]
Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Cloud:
    """Some unit vectors. `spectrum` (k,) holds the share of the variance in each principal direction, descending;
    zeros when there is no variance. `cosines` (pairs,) are of random pairs. `partition` is I = min Z / max Z."""

    spectrum: Array
    cosines: Array
    partition: float

    @property
    def dim(self) -> int:
        """Vector size k."""
        return len(self.spectrum)

    @property
    def participation(self) -> float | None:
        """(sum l)^2 / sum l^2: how many equal directions would be as spread; None without variance."""
        squares = float(np.sum(self.spectrum**2))
        return 1 / squares if squares else None

    @property
    def isoscore(self) -> float | None:
        """0: all variance in one direction, 1: the same in every; None in one dimension or without variance."""
        if self.participation is None or self.dim < 2:
            return None
        return max(0.0, round((self.participation - 1) / (self.dim - 1), 12))

    def leading(self, count: int) -> float | None:
        """Share of the variance in the first `count` directions."""
        return float(self.spectrum[:count].sum()) if self.spectrum.any() else None

    @property
    def mean_cosine(self) -> float | None:
        return float(self.cosines.mean()) if len(self.cosines) else None

    @property
    def cosine_deviation(self) -> float | None:
        """Standard deviation of the cosines."""
        return float(self.cosines.std()) if len(self.cosines) else None


def measure_cloud(blocks: Callable[[], Iterable[Vectors]], cosines: Array) -> Cloud:
    """Figures of unit vectors (n, k) that come in blocks, twice."""
    moments = tree_sum([Moments.of(block) for block in blocks()])
    return Cloud(_shares(moments), cosines, _partition(blocks, moments))


def _shares(moments: Moments) -> Array:
    with single_blas_thread():
        values = np.maximum(np.linalg.eigvalsh(moments.covariance)[::-1], 0.0)
    total = float(values.sum())
    shares: Array = values / total if total > np.finfo(np.float32).eps ** 2 else np.zeros_like(values)
    return shares


def _partition(blocks: Callable[[], Iterable[Vectors]], moments: Moments) -> float:
    second = moments.covariance + np.outer(moments.mean, moments.mean)
    with single_blas_thread():
        directions = np.linalg.eigh(second)[1]
        sums = np.zeros((2, len(second)))
        for block in blocks():
            projected = block.astype(np.float64) @ directions
            sums += np.exp(projected).sum(axis=0), np.exp(-projected).sum(axis=0)
    return float(sums.min() / sums.max())
