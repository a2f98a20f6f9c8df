"""Build gates: what must hold before an index is published, each with its figure.

A gate that fails raises QualityError and nothing is published; the figures of a good build go in the manifest.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.ann import SCORE_TOLERANCE as SCORE_TOLERANCE
from indexer.arrays import RowIds, SearchResult, Vectors
from indexer.errors import QualityError
from indexer.moments import Moments
from indexer.recipe.config import WhiteningConfig
from indexer.transforms import Whitening

COVARIANCE_LIMIT = 1e-3


@dataclass(frozen=True)
class Gate:
    """One figure with the bound it was held to; `at_least` turns the bound round."""

    name: str
    value: float
    limit: float
    at_least: bool = False
    meaning: str = ""
    required: bool = True  # a figure that is not is noted, passed or not

    @property
    def passed(self) -> bool:
        """False also for a figure that is not a number."""
        return bool(self.value >= self.limit if self.at_least else self.value <= self.limit)

    def to_dict(self) -> dict[str, Any]:
        return {"value": self.value, "limit": self.limit, "passed": self.passed}


def require_all(gates: Sequence[Gate]) -> dict[str, Any]:
    """Figures of gates by name. Raises QualityError naming every one that is required and did not pass."""
    failed = [
        f"{gate.name} is {gate.value:g}, allowed is {'at least' if gate.at_least else 'at most'} {gate.limit:g} "
        f"({gate.meaning})"
        for gate in gates
        if gate.required and not gate.passed
    ]
    if failed:
        raise QualityError(f"the build was not published, because {'; '.join(failed)}.")
    return {gate.name: gate.to_dict() for gate in gates}


def require_nonzero_finite(not_finite: int, zero: int) -> None:
    """Raises QualityError if any embedding holds NaN or infinity, or is all zero."""
    if not_finite or zero:
        raise QualityError(
            f"the build was not published, because {not_finite:,} embeddings hold NaN or infinity and {zero:,} are "
            "all zero, of which none is allowed. The model overflows or is damaged: try "
            "--set encoder.precision=float32, or another model."
        )


def covariance_deviation(
    whitening: Whitening,
    config: WhiteningConfig,
    sample: Iterable[npt.NDArray[np.floating]],
    in_turn: Callable[..., Iterable[Moments]] = map,
) -> float:
    """How far the projected sample is from the covariance it should have, relative to it.

    At strength 1 without shrinkage that is the identity, and the figure is the largest |C - I|. In general
    direction i should have the variance E_i = spectrum_i * shrunk_i^-strength, and the figure is the largest
    |C_ij - E_ij| / sqrt(E_i E_j). The sample passes through the transform a second time and the expected values
    come from the spectrum and the settings, so this judges what was stored, not the algebra. `in_turn` is `map`, or
    one that has several threads. The strength is a number.
    """
    measured = Moments.zero(whitening.dim)
    for moments in in_turn(lambda rows: Moments.of(whitening.project(rows, "document")), sample):
        measured = measured + moments
    spectrum = whitening.spectrum
    shrunk = (1 - config.shrinkage) * spectrum + config.shrinkage * spectrum.mean()
    scale = np.sqrt(spectrum[: whitening.dim] * shrunk[: whitening.dim] ** -float(config.strength))
    relative = measured.covariance / np.outer(scale, scale)
    return float(np.abs(relative - np.eye(whitening.dim)).max())


def held_out_deviation(fitted: Moments, held_out: Moments, dim: int) -> dict[str, Any]:
    """Mean variance, in the `dim` leading directions of `fitted`, of rows the fit has not seen; 1 is perfect.

    Even ideal Gaussian data deviates: whitened by the covariance of n rows, fresh rows have the mean variance
    n / (n - dim - 1) (the mean of an inverse Wishart matrix), which is given as `expected` beside it.
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
    """Gates of an approximate index: recall@10 and the share of documents found by their own vector."""
    out = (
        "choose another index.type (auto, flat), more index.memory or a lower index.recall, or publish it as it is "
        "with --allow-low-recall"
    )
    return [
        Gate("self_hit", self_hits, target, True, f"documents found by their own vector; {out}", not allow_low),
        Gate("recall_at_10", recall, target, True, f"against exact search; {out}", not allow_low),
    ]


def self_hits(found: Sequence[SearchResult], vectors: Vectors, rows: Sequence[int] | RowIds) -> int:
    """How many vectors (n, k) found, as the best hit, their own row or one with an equal score (a duplicate).

    Two documents with the same text may differ by rounding, so scores are equal up to `SCORE_TOLERANCE`.
    """
    return sum(
        len(best) > 0 and (row in best or bool(equal_scores(scores[:1], vector[None])[0]))
        for (scores, best), row, vector in zip(found, rows, vectors, strict=True)
    )


def equal_scores(scores: npt.NDArray[np.floating], vectors: Vectors) -> npt.NDArray[np.bool_]:
    """Which scores (n,) are as high as that of each vector (n, k) with itself, up to `SCORE_TOLERANCE`."""
    own = np.einsum("nk,nk->n", vectors, vectors, dtype=np.float64)
    equal: npt.NDArray[np.bool_] = scores >= own - SCORE_TOLERANCE
    return equal
