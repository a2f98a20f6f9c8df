"""Build gates: measured conditions for publishing an index.

A failed gate raises QualityError and nothing is published; otherwise the figures are written to the manifest.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.ann import SCORE_TOLERANCE as SCORE_TOLERANCE
from indexer.arrays import RowIds, SearchResult, Vectors
from indexer.errors import QualityError, as_argument, set_to
from indexer.moments import Moments
from indexer.recipe.config import WhiteningConfig
from indexer.system.threads import ordered_map
from indexer.transforms import Whitening

COVARIANCE_LIMIT = 1e-3


@dataclass(frozen=True)
class Gate:
    """A figure and its limit: an upper bound, or with `at_least` a lower bound."""

    name: str
    value: float
    limit: float
    at_least: bool = False
    meaning: str = ""
    required: bool = True  # else the figure is only recorded

    @property
    def passed(self) -> bool:
        """Whether the figure is within the limit; False for NaN."""
        return bool(self.value >= self.limit if self.at_least else self.value <= self.limit)

    def to_dict(self) -> dict[str, Any]:
        return {"value": self.value, "limit": self.limit, "passed": self.passed}


def require_all(gates: Sequence[Gate]) -> dict[str, Any]:
    """Return the figures of gates by name. Raises QualityError with every required gate that failed."""
    failed = [
        f"{gate.name} is {gate.value:g}, expected {'at least' if gate.at_least else 'at most'} {gate.limit:g} "
        f"({gate.meaning})"
        for gate in gates
        if gate.required and not gate.passed
    ]
    if failed:
        raise QualityError(f"the build was not published, because {'; '.join(failed)}.")
    return {gate.name: gate.to_dict() for gate in gates}


def require_nonzero_finite(not_finite: int, zero: int) -> None:
    """Raise QualityError if an embedding contains NaN or infinity, or is all zeros."""
    if not_finite or zero:
        raise QualityError(
            f"the build was not published, because {not_finite:,} embeddings contain NaN or infinity and {zero:,} are "
            "all zero. The model overflows or is damaged. Fix: try "
            f"{set_to('encoder.precision', 'float32')}, or another model."
        )


def covariance_deviation(
    whitening: Whitening,
    config: WhiteningConfig,
    sample: Iterable[npt.NDArray[np.floating]],
    threads: int = 1,
) -> float:
    """Return the largest relative deviation of the projected sample's covariance from its expected value.

    At strength 1 without shrinkage the expected value is the identity, and the figure is the largest |C - I|. In
    general direction i has the expected variance E_i = spectrum_i * shrunk_i^-strength, and the figure is the largest
    |C_ij - E_ij| / sqrt(E_i E_j). The sample passes through the stored transform a second time, and the expected values
    come from spectrum and settings, so this checks the stored data and not the algebra. The strength must be a number.
    """
    measured = Moments.zero(whitening.dim)
    for moments in ordered_map(lambda rows: Moments.of(whitening.project(rows, "document")), sample, threads):
        measured = measured + moments
    spectrum = whitening.spectrum
    shrunk = (1 - config.shrinkage) * spectrum + config.shrinkage * spectrum.mean()
    scale = np.sqrt(spectrum[: whitening.dim] * shrunk[: whitening.dim] ** -float(config.strength))
    relative = measured.covariance / np.outer(scale, scale)
    return float(np.abs(relative - np.eye(whitening.dim)).max())


def held_out_deviation(fitted: Moments, held_out: Moments, dim: int) -> dict[str, Any]:
    """Return the mean variance of unseen rows in the `dim` leading directions of `fitted`; 1 is perfect.

    Ideal Gaussian data deviates too: whitened by the covariance of n rows, unseen rows have the mean variance
    n / (n - dim - 1) (the mean of an inverse Wishart matrix), returned as `expected`.
    """
    values, vectors = np.linalg.eigh(fitted.covariance)
    leading, directions = values[::-1][:dim], vectors[:, ::-1][:, :dim]
    kept = leading > 1e-9 * leading[0]
    variance = np.einsum("dk,de,ek->k", directions, held_out.covariance, directions, optimize=True)
    spare = fitted.count - dim - 1
    return {
        "fitted": fitted.count,
        "held_out": held_out.count,
        "mean_variance": float(np.mean(variance[kept] / leading[kept])),
        "expected": fitted.count / spare if spare > 0 else None,
    }


def recall_gates(recall: float, self_hits: float, target: float, allow_low: bool) -> list[Gate]:
    """Return the gates of an approximate index: recall@10 and the share of documents found by their own vector."""
    fix = (
        "Fix: choose another index.type (auto, flat), more index.memory or a lower index.recall, or publish it anyway "
        f"with {as_argument('allow_low_recall', True, 'RunOptions')}"
    )
    return [
        Gate("self_hit", self_hits, target, True, f"documents found by their own vector; {fix}", not allow_low),
        Gate("recall_at_10", recall, target, True, f"against exact search; {fix}", not allow_low),
    ]


def self_hits(found: Sequence[SearchResult], vectors: Vectors, rows: Sequence[int] | RowIds) -> int:
    """Count the vectors (n, k) whose best hit is their own row or a row with an equal score (a duplicate).

    Rounding can differ between documents with the same text, so scores are equal up to `SCORE_TOLERANCE`.
    """
    return sum(
        len(best) > 0 and (row in best or bool(equal_scores(scores[:1], vector[None])[0]))
        for (scores, best), row, vector in zip(found, rows, vectors, strict=True)
    )


def equal_scores(scores: npt.NDArray[np.floating], vectors: Vectors) -> npt.NDArray[np.bool_]:
    """Return which scores (n,) reach the score of each vector (n, k) with itself, up to `SCORE_TOLERANCE`."""
    self_scores = np.einsum("nk,nk->n", vectors, vectors, dtype=np.float64)
    equal: npt.NDArray[np.bool_] = scores >= self_scores - SCORE_TOLERANCE
    return equal
