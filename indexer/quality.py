"""Build gates: what must hold before an index is published, each with its figure.

A gate that fails raises QualityError and nothing is published; the figures of a good build go in the manifest.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.config import WhiteningConfig
from indexer.errors import QualityError
from indexer.moments import Moments
from indexer.transforms import Whitening

COVARIANCE_LIMIT = 1e-3
ROUNDING = 1e-6  # of a score
RECALL_DEPTH = 10
Vectors = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]
Found = tuple[npt.NDArray[np.float32], Rows]


@dataclass(frozen=True)
class Gate:
    """One figure with the bound it was held to; `at_least` turns the bound round."""

    name: str
    value: float
    limit: float
    at_least: bool = False
    meaning: str = ""

    @property
    def passed(self) -> bool:
        """False also for a figure that is not a number."""
        return bool(self.value >= self.limit if self.at_least else self.value <= self.limit)

    def to_dict(self) -> dict[str, Any]:
        return {"value": self.value, "limit": self.limit, "passed": self.passed}


def require(gates: Sequence[Gate]) -> dict[str, Any]:
    """Figures of gates that all passed, by name. Raises QualityError naming every one that did not."""
    failed = [
        f"{gate.name} is {gate.value:g}, allowed is {'at least' if gate.at_least else 'at most'} {gate.limit:g} "
        f"({gate.meaning})"
        for gate in gates
        if not gate.passed
    ]
    if failed:
        raise QualityError(f"the build was not published, because {'; '.join(failed)}.")
    return {gate.name: gate.to_dict() for gate in gates}


def require_usable(not_finite: int, zero: int) -> None:
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
    one that has several threads.
    """
    measured = Moments.zero(whitening.dim)
    for moments in in_turn(lambda rows: Moments.of(whitening.project(rows, "document")), sample):
        measured = measured + moments
    spectrum = whitening.spectrum
    shrunk = (1 - config.shrinkage) * spectrum + config.shrinkage * spectrum.mean()
    strength = 0.0 if config.strength == "none" else config.strength
    scale = np.sqrt(spectrum[: whitening.dim] * shrunk[: whitening.dim] ** -strength)
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


class ExactTop:
    """The best rows of some queries over all vectors, by brute force, as the vectors stream by."""

    def __init__(self, queries: Vectors, rows: Sequence[int] | Rows) -> None:
        """`queries` (n, k) are vectors of the index itself; `rows` are their own rows, which do not count."""
        self.queries, self.own = queries, np.asarray(rows)
        self._scores = np.zeros((len(queries), 0), np.float32)
        self._rows = np.zeros((len(queries), 0), np.int64)

    def update(self, vectors: Vectors, first_row: int) -> None:
        """Take in vectors (m, k), the rows from `first_row` on."""
        numbers = np.arange(first_row, first_row + len(vectors))
        fresh = np.where(numbers == self.own[:, None], -np.inf, self.queries @ vectors.T).astype(np.float32)
        scores = np.concatenate([self._scores, fresh], axis=1)
        rows = np.concatenate([self._rows, np.broadcast_to(numbers, fresh.shape)], axis=1)
        best = np.argsort(-scores, axis=1, kind="stable")[:, : 4 * RECALL_DEPTH]
        self._scores, self._rows = np.take_along_axis(scores, best, 1), np.take_along_axis(rows, best, 1)

    def recall(self, found: Sequence[Found]) -> float:
        """Mean recall@10 of an index's answers; a row that ties with the tenth is as good as the tenth."""
        depth = min(RECALL_DEPTH, int(np.isfinite(self._scores).sum(axis=1).min(initial=RECALL_DEPTH)))
        if not depth or not len(found):
            return 1.0
        shares = []
        for scores, rows, own, (_, answer) in zip(self._scores, self._rows, self.own, found, strict=True):
            right = set(rows[scores >= scores[depth - 1] - ROUNDING].tolist())
            others = [row for row in answer.tolist() if row != own][:depth]
            shares.append(sum(row in right for row in others) / depth)
        return float(np.mean(shares))


def self_hits(found: Sequence[Found], vectors: Vectors, rows: Sequence[int] | Rows) -> int:
    """How many vectors (n, k) found, as the best hit, their own row or one with an equal score (a duplicate).

    Two documents with the same text may differ by rounding, so scores are equal up to `ROUNDING`.
    """
    return sum(
        len(best) > 0 and (row in best or bool(equal_scores(scores[:1], vector[None])[0]))
        for (scores, best), row, vector in zip(found, rows, vectors, strict=True)
    )


def equal_scores(scores: npt.NDArray[np.floating], vectors: Vectors) -> npt.NDArray[np.bool_]:
    """Which scores (n,) are as high as that of each vector (n, k) with itself, up to `ROUNDING`."""
    own = np.einsum("nk,nk->n", vectors, vectors, dtype=np.float64)
    equal: npt.NDArray[np.bool_] = scores >= own - ROUNDING
    return equal
