"""Drift: how far documents added to an index lie from those its whitening was fitted on.

In the directions the whitening keeps, scaled so that the fitted sample has mean 0 and variance 1 in each, the added
documents have some mean m (k,) and variances v (k,). `mean_shift` is the root mean square of m, `covariance` that of
v - 1, the whitened covariance's deviation from the identity on its diagonal. n documents of the very same kind give
about sqrt(1 / n) and sqrt(2 / n) by chance alone (Gaussian data), which are given beside them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.moments import Moments
from indexer.transforms import Whitening
from indexer.transforms.whitening import EIGENVALUE_FLOOR

MEAN_LIMIT = 0.25  # standard deviations a direction, beyond chance: a refit is advised above
COVARIANCE_LIMIT = 0.5  # of the variance of a direction, beyond chance


@dataclass(frozen=True)
class Drift:
    """Figures of the documents added since the fit; the expected ones are chance's."""

    rows: int
    mean_shift: float
    expected_mean_shift: float
    covariance: float
    expected_covariance: float

    @property
    def refit_advised(self) -> bool:
        """Whether a figure is beyond its limit, chance taken out."""
        mean = _beyond(self.mean_shift, self.expected_mean_shift)
        return mean > MEAN_LIMIT or _beyond(self.covariance, self.expected_covariance) > COVARIANCE_LIMIT

    def to_dict(self) -> dict[str, Any]:
        return vars(self) | {"refit_advised": self.refit_advised}


def measure_drift(whitening: Whitening, added: Moments, mean: npt.NDArray[np.float64] | None = None) -> Drift | None:
    """Compare the moments of added embeddings with the fit; None for fewer than two rows.

    `mean` (d,) is the mean of the fitted sample where the whitening does not hold it (`centre = "none"`).
    """
    if added.count < 2:
        return None
    varying = whitening.spectrum[: whitening.dim] > EIGENVALUE_FLOOR * whitening.spectrum[0]
    directions = whitening.projection[:, varying] / np.linalg.norm(whitening.projection[:, varying], axis=0)
    deviations = np.sqrt(whitening.spectrum[: whitening.dim][varying])
    shift = (added.mean - (whitening.mean if mean is None else mean)) @ directions / deviations
    variance = np.einsum("dk,de,ek->k", directions, added.covariance, directions, optimize=True) / deviations**2
    return Drift(
        rows=added.count,
        mean_shift=float(np.sqrt(np.mean(shift**2))),
        expected_mean_shift=float(np.sqrt(1 / added.count)),
        covariance=float(np.sqrt(np.mean((variance - 1) ** 2))),
        expected_covariance=float(np.sqrt(2 / added.count)),
    )


def _beyond(figure: float, chance: float) -> float:
    return float(np.sqrt(max(0.0, figure**2 - chance**2)))
