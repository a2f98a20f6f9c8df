"""Spectral Tempering: a strength in closed form, from the spectrum alone (Li, Eustratiadis and Kanoulas, SIGIR 2026,
arXiv:2603.19339; here as the authors' published code has it).

Of eigenvalues l_1 >= ... >= l_d the last tenth is taken for noise, of mean v. Direction k stands above it by
snr(k) = l_k / v - 1. The signal ends at the knee of that curve (Kneedle: Satopaa et al., 2011, by the package kneed).
Vectors of k dimensions get

    strength = snr(k) / snr(knee), at most 1

so that a few dimensions, all far above the noise, are whitened fully, and all of them hardly at all.
"""

import dataclasses
from typing import Any

import numpy as np

from indexer.arrays import Float64Array
from indexer.lazy import require_extra
from indexer.moments import Moments
from indexer.transforms.whitening import EIGENVALUE_FLOOR, Whitening, fit_whitening
from search.evaluation.settings import Setting

_NOISE = 0.1  # of the eigenvalues
_SENSITIVITY = 0.5  # Kneedle's: how far the curve must fall behind a knee
_LEAST = 10  # directions, so that a tenth is one


def require_kneed() -> Any:
    """The package. Raises MachineError with the line that installs it."""
    return require_extra("kneed", "eval")


def tempered(setting: Setting, moments: Moments, dim: int = 0) -> list[Setting]:
    """The setting in `dim` dimensions (0: all) with that strength, fitted on these moments, and without shrinkage.

    Nothing where the formula gives none: of too few directions, or where no knee is found.
    """
    full = dataclasses.replace(setting.whitening, strength=0.0, dim=0, shrinkage=0.0)
    fitted = fit_whitening(moments, full, setting.removed)
    strength = tempered_strength(fitted.spectrum, dim) if isinstance(fitted, Whitening) else None
    if strength is None:
        return []
    whitening = dataclasses.replace(full, strength=round(strength, 3), dim=dim)
    return [dataclasses.replace(setting, whitening=whitening)]


def tempered_strength(spectrum: Float64Array, dim: int = 0) -> float | None:
    """The strength for the leading `dim` directions (0: all) of a spectrum (d,), descending; None if there is none.

    Directions that a whitening drops (under the eigenvalue floor) are no part of the spectrum.
    """
    kept = spectrum[spectrum > EIGENVALUE_FLOOR * spectrum[0]]
    if len(kept) < _LEAST:
        return None
    signal = int((1 - _NOISE) * len(kept))
    snr = np.maximum(kept[:signal] / kept[signal:].mean() - 1, 0.0)
    knee = _knee(snr)
    if knee is None or snr[knee] == 0:
        return None
    return float(min(1.0, snr[min(dim or signal, signal) - 1] / snr[knee]))


def _knee(curve: Float64Array) -> int | None:
    """The place of the knee of a falling curve; None if it has none."""
    if curve[0] == curve[-1]:
        return None
    places = np.arange(len(curve))
    knee: int | None = (
        require_kneed().KneeLocator(places, curve, S=_SENSITIVITY, curve="convex", direction="decreasing").knee
    )
    return None if knee is None else int(knee)
