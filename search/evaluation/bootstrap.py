"""Bootstrap confidence: percentile intervals from resamples that all settings share, so that they pair.

Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13. A resample is stored as counts of its items.
Spearman's correlation of a resample then needs no sorting: with the items sorted once by value, the mid-rank of an
item is the count of the items before its ties plus half of its ties.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from indexer.arrays import Float64Array

RESAMPLES = 1000
LEVEL = 0.95
_MOST_UNDEFINED = 0.05  # of the resamples; above it there is no interval
_BLOCK = 32  # resamples in one step, so that intermediate arrays stay in the cache


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % bootstrap interval; the ends are None if too many resamples have no value."""

    value: float
    low: float | None
    high: float | None

    def to_dict(self, name: str = "value") -> dict[str, Any]:
        """Return JSON types with the value under `name`."""
        return {name: self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Difference(Interval):
    """Second setting minus first over the same items; `better` is the share of the resamples above 0.

    `better` and the ends are None if too many resamples have no value.
    """

    better: float | None

    @property
    def decided(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    def to_dict(self, name: str = "value") -> dict[str, Any]:
        return {**super().to_dict(name), "better": self.better, "decided": self.decided}


def draw_counts(items: int, name: str, resamples: int = RESAMPLES) -> Float64Array:
    """Return the count of each of `items` in each resample, (resamples, items); equal names give equal counts."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    drawn = np.random.default_rng(seed).integers(0, items, (resamples, items))
    return np.stack([np.bincount(row, minlength=items) for row in drawn]).astype(np.float64)


def resampled_ranks(values: Float64Array, counts: Float64Array) -> Float64Array:
    """Return the mid-ranks (resamples, n) of each item in each resample, ties averaged; `values` (n,)."""
    _, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(group.max() + 1))
    ranks = np.empty(counts.shape)
    for block in _blocks(counts):
        drawn = np.add.reduceat(counts[block][:, order], starts, axis=1)  # of each distinct value
        ranks[block] = (np.cumsum(drawn, axis=1) - drawn + (drawn + 1) / 2)[:, group]
    return ranks


def resampled_spearman(first: Float64Array, second: Float64Array, counts: Float64Array) -> Float64Array:
    """Return Spearman's correlation of each resample, (resamples,); NaN if one side is constant.

    `first` and `second` are ranks (resamples, n) from `resampled_ranks` for these `counts`.
    """
    middle = (counts.sum(axis=1, keepdims=True) + 1) / 2
    result = np.empty(len(counts))
    for block in _blocks(counts):
        drawn, a, b = counts[block], first[block] - middle[block], second[block] - middle[block]
        products = np.einsum("rn,rn->r", drawn * a, b)
        squares = np.einsum("rn,rn->r", drawn * a, a) * np.einsum("rn,rn->r", drawn * b, b)
        with np.errstate(invalid="ignore"):
            result[block] = products / np.sqrt(squares)
    return result


def resampled_mean(values: Float64Array, counts: Float64Array) -> Float64Array:
    """Return the mean of each resample, (resamples,); `values` (n,)."""
    means: Float64Array = counts @ values / counts.sum(axis=1)
    return means


def interval(value: float, resampled: Float64Array) -> Interval:
    """Return the percentile interval of a value by its resampled values."""
    return Interval(value, *_ends(resampled))


def difference(
    first: float, second: float, first_resampled: Float64Array, second_resampled: Float64Array
) -> Difference:
    """Return second minus first, paired: both were resampled by the same counts."""
    differences = second_resampled - first_resampled
    low, high = _ends(differences)
    better = None if low is None else float(np.mean(differences[np.isfinite(differences)] > 0))
    return Difference(second - first, low, high, better)


def mean_interval(values: Float64Array, counts: Float64Array) -> Interval:
    """Return the mean of `values` (n,) with its interval over the resamples `counts`."""
    return interval(float(values.mean()), resampled_mean(values, counts))


def mean_difference(first: Float64Array, second: Float64Array, counts: Float64Array) -> Difference:
    """Return the mean of `second` (n,) minus that of `first`, paired over the resamples `counts`."""
    resampled = (resampled_mean(values, counts) for values in (first, second))
    return difference(float(first.mean()), float(second.mean()), *resampled)


def _blocks(counts: Float64Array) -> Iterator[slice]:
    return (slice(start, start + _BLOCK) for start in range(0, len(counts), _BLOCK))


def _ends(resampled: Float64Array) -> tuple[float | None, float | None]:
    defined = resampled[np.isfinite(resampled)]
    if len(defined) < (1 - _MOST_UNDEFINED) * len(resampled):
        return None, None
    low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def mean_of(resampled: Sequence[Float64Array], weights: Sequence[float] | None = None) -> Float64Array:
    """Return the weighted mean of independently resampled values, such as the subsets of a task."""
    mean: Float64Array = np.average(np.stack(resampled), axis=0, weights=weights)
    return mean
