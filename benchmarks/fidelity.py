"""How far a way's vectors are from those of float32, after one transform that was fitted in float32."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.config import WhiteningConfig
from indexer.moments import Moments
from indexer.transforms import Transform, fit_whitening
from search.evaluation.sts.correlation import cosines, spearman
from search.evaluation.sts.data import Subset, Task

Rows = npt.NDArray[np.float32]
Encode = Callable[[Sequence[str]], Rows]
_STRENGTHS = {"default": WhiteningConfig(), "strength 1": WhiteningConfig(strength=1.0)}


class Fidelity:
    """Compares ways on the same texts, a mix of lengths at a time. References are asked for first."""

    def __init__(self, texts: Mapping[str, Sequence[str]], tasks: Sequence[Task] = ()) -> None:
        self.texts = texts
        self._sts_b = next((task.subsets[0] for task in tasks if task.name == "STSB"), None)
        self._references: dict[str, dict[str, Rows]] = {}

    def of(self, name: str, reference: str, encode: Encode) -> dict[str, Any]:
        """Minimum and mean cosine to the reference over all texts, for the default recipe and for strength 1; and what
        STS-B's correlation gains, in points, where there is STS-B.
        """
        rows = {mix: encode(texts) for mix, texts in self.texts.items() if texts}
        if self._sts_b is not None:
            rows["STS-B"] = encode(_sentences(self._sts_b))
        if name == reference:
            self._references[name] = rows
        exact = self._references[reference]
        found: dict[str, Any] = {}
        for setting, config in _STRENGTHS.items():
            scores = np.concatenate(
                [_cosines(_fitted(exact[mix], config), exact[mix], rows[mix]) for mix in self.texts if mix in rows]
            )
            found[setting] = {"minimum": float(scores.min()), "mean": float(scores.mean()), "texts": len(scores)}
        if self._sts_b is not None:
            transform = _fitted(exact["STS-B"], WhiteningConfig())
            found["sts_b"] = self._correlation(transform, rows["STS-B"]) - self._correlation(transform, exact["STS-B"])
        return found

    def _correlation(self, transform: Transform, rows: Rows) -> float:
        assert self._sts_b is not None
        pairs = len(self._sts_b.scores)
        first, second = np.arange(pairs), np.arange(pairs, 2 * pairs)
        return spearman(cosines(transform.project(rows, "document"), first, second), self._sts_b.scores, "STS-B")


def _sentences(pairs: Subset) -> list[str]:
    return [*pairs.first, *pairs.second]


def _fitted(rows: Rows, config: WhiteningConfig) -> Transform:
    return fit_whitening(Moments.of(rows), config)


def _cosines(transform: Transform, exact: Rows, rows: Rows) -> npt.NDArray[np.float64]:
    ours, theirs = (transform.transform(each, "document").astype(np.float64) for each in (exact, rows))
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    found: npt.NDArray[np.float64] = (ours * theirs).sum(axis=1) / norms
    return found
